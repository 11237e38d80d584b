"""Table: separate parameters for every group (the paper's branch)."""

import equinox as eqx
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.families.conditional import Form, LearnedSupplier


class Table(LearnedSupplier, eqx.Module):
    """Each group has its own parameters (the paper's branch, Definition 1)."""

    # M + M D + M (M+1)/2 numbers a group when dense, M + M (M+1)/2 when block, 2 M when diagonal;
    # three times over with Adam's moments.
    w: Float[Array, "N P"]
    form: Form = eqx.field(static=True)

    def parameters(self, batch: Batch) -> Float[Array, "B P"]:
        """w_i of the block's groups, looked up by number."""
        return self.w[batch.index]
