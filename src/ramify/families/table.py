"""Table: parameters of its own for every group (the paper's branch)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.families.conditional import Form, Local


class Table(eqx.Module):
    """Each group has parameters of its own (the paper's branch, Definition 1).

    Memory grows with N: M + M D + M (M+1)/2 numbers a group when dense, M + M (M+1)/2 when block,
    2 M when diagonal, three times over with Adam's moments.
    """

    w: Float[Array, "N P"]
    form: Form = eqx.field(static=True)

    def prepare(self, model: Any, batch: Batch, centre: Array) -> Float[Array, "B P"]:
        """Looks the block's groups up by number."""
        del model, centre
        return self.parameters(batch)

    def conditional(
        self, model: Any, batch: Batch, centre: Array, prepared: Float[Array, "B P"]
    ) -> Callable[[Float[Array, " D"]], Local]:
        """Theta -> q(z_i | theta)."""
        del model, batch
        return self.form.conditional(prepared, centre)

    def parameters(self, batch: Batch) -> Float[Array, "B P"]:
        """w_i = (b_i, W_i, scale_i) of the block's groups."""
        return self.w[batch.index]
