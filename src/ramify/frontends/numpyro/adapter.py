"""The adapter of NumPyro models: results have the names of the function's sites."""

from typing import Any, final

import jax
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.models.adapter import Adapter
from ramify.models.parameters import Named


@final
class NumpyroAdapter(Adapter):
    """Names the results of a `NumpyroModel`: latent sites, deterministic sites, observed sites."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.outcome = model.outcome
        self._evaluator: Evaluator = model.evaluator

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """Named constrained values of theta, and the deterministic sites that follow from them."""
        return self.model.theta.values(theta) | self._evaluator.theta_deterministics(theta)

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Named constrained z of each place, [B, ...], and its deterministic sites."""
        deterministic = self._evaluator.z_deterministics(theta, z, batch.group)
        return jax.vmap(self.model.z.values)(z) | deterministic

    def observed(self, batch: Batch) -> Named:
        """The values of the sites observed in the rows, [R, ...]."""
        return self._evaluator.observed(batch)

    def log_lik_by_outcome(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """The log likelihood of each row, [R], for each site observed in the rows."""
        return self._evaluator.row_terms(theta, z_rows, batch.rows, batch.group_at_rows())
