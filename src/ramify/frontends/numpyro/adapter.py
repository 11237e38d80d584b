"""The adapter of NumPyro models: results have the names of the function's sites."""

from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.models.adapter import Adapter
from ramify.models.parameters import Named


@final
class NumpyroAdapter(Adapter):
    """Names the results of a `NumpyroModel`: latent sites, deterministic sites, observed sites."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.outcome = model.outcome
        self._evaluate = model.evaluator.evaluate

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """Named constrained values of theta, and the deterministic sites that follow from them."""
        return self.model.theta.values(theta) | self._evaluate("value", "theta", theta)

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Named constrained z of each place, [B, ...], and its deterministic sites."""
        deterministic = self._evaluate("value", "z", theta, z, group=batch.group)
        return jax.vmap(self.model.z.values)(z) | deterministic

    def observed(self, batch: Batch) -> Named:
        """The values of the sites observed in the rows, [R, ...]."""
        theta, z = (jnp.zeros(s.size) for s in (self.model.theta, self.model.z))
        z_rows = jnp.broadcast_to(z, (batch.segment.shape[0], len(z)))
        return self._evaluate("observed", "row", theta, z_rows, batch.rows, batch.group_at_rows())

    def log_lik_by_outcome(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """The log likelihood of each row, [R], for each site observed in the rows."""
        return self._evaluate("term", "row", theta, z_rows, batch.rows, batch.group_at_rows())
