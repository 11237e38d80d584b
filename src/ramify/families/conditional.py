"""The Gaussian conditional q(z_i | theta) of a block, and the shape of a learned one."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ramify.data.batch import Batch, Theta, Z
from ramify.numerics import triangular as tri


class Local(NamedTuple):
    """Gaussians N(mean, L L'): q(z_i | theta) of every group of a block, for one theta."""

    mean: Float[Array, "*B M"]  # a single Gaussian has no axis B
    scale: Float[Array, "..."]  # L: [*B, M] if diagonal, else [*B, M, M]

    def draw(self, noise: Float[Array, "*B M"]) -> tuple[Float[Array, "*B M"], Float[Array, "*B"]]:
        """Mean + L noise, and its log density computed from the noise."""
        return self.mean + tri.times(self.scale, noise), tri.log_density(noise, self._log_det())

    def log_prob(
        self, z: Float[Array, "*B M"], noise: Float[Array, "*B M"] | None = None
    ) -> Float[Array, "*B"]:
        """Log density at any z, by a triangular solve; `noise` is what z was drawn with."""
        return tri.log_density(tri.whiten(self.scale, z - self.mean, noise), self._log_det())

    def propose(self, points: Z) -> tuple[Z, Float[Array, " B"]]:
        """Mean + L points, and its log density as a Student t proposal."""
        return self.mean + tri.times(self.scale, points), tri.log_density_t(points, self._log_det())

    def log_proposal(self, z: Z, points: Z | None = None) -> Float[Array, " B"]:
        """Log density of the Student t proposal at any z; `points` are what z was proposed with."""
        return tri.log_density_t(tri.whiten(self.scale, z - self.mean, points), self._log_det())

    def _log_det(self) -> Float[Array, "*B"]:
        return tri.log_det(self.scale, diagonal=self.scale.ndim == self.mean.ndim)


Conditional = Callable[[Theta], Local]  # theta -> q(z_i | theta) of a block's groups


@runtime_checkable
class Supplier(Protocol):
    """Supplies q(z_i | theta), as a table, a network and a solver do; `centre` is q(theta)'s mean."""

    def prepare(self, model: Any, batch: Batch, centre: Theta) -> Any:
        """What is computed for a block once, for all theta: a tree of arrays."""
        ...

    def conditional(self, model: Any, batch: Batch, centre: Array, prepared: Any) -> Conditional:
        """Theta -> q(z_i | theta) of the block's groups."""
        ...


class Form(NamedTuple):
    """The shape of a learned conditional, N(b_i + W_i (theta - centre), L_i L_i')."""

    D: int
    M: int
    covariance: tri.Covariance  # dense has W and a full L, block no W, diagonal neither
    map: tri.ScaleMap
    centred: bool  # False for the paper's mu_i + A_i theta, mu_i = b_i - W_i centre

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many numbers b, W and the scale of a group have."""
        slopes = self.M * self.D if self.covariance == "dense" else 0
        return self.M, slopes, tri.free_size(self.M, self.covariance == "diagonal")

    def conditional(self, w: Float[Array, "B P"], centre: Theta) -> Conditional:
        """q(z_i | theta) of parameters w_i = (b_i, W_i, scale_i), as a function of theta."""
        mean, slopes, free = jnp.split(w, np.cumsum(self.sizes[:2]), axis=-1)
        scale = tri.scale_factor(free, self.M, self.covariance == "diagonal", self.map)
        if self.covariance != "dense":
            return lambda theta: Local(mean, scale)
        slopes = slopes.reshape(-1, self.M, self.D)
        # Around the centre b and W are nearly uncorrelated, so a step in one does not undo the other.
        origin = jax.lax.stop_gradient(centre) if self.centred else jnp.zeros_like(centre)
        return lambda theta: Local(mean + slopes @ (theta - origin), scale)

    def start(self, scale: float = 1.0) -> Float[Array, " P"]:
        """Parameters of N(0, scale^2 I)."""
        free = tri.free_start(self.M, self.covariance == "diagonal", scale, self.map)
        return jnp.concatenate([jnp.zeros(sum(self.sizes[:2])), free])


class LearnedSupplier:
    """A supplier with learned parameters w_i = (b_i, W_i, scale_i): a table or a network."""

    form: Form

    def parameters(self, batch: Batch) -> Float[Array, "B P"]:
        """w_i of the block's groups."""
        raise NotImplementedError

    def prepare(self, model: Any, batch: Batch, centre: Array) -> Float[Array, "B P"]:
        """The parameters of the block's groups."""
        del model, centre
        return self.parameters(batch)

    def conditional(self, model: Any, batch: Batch, centre: Array, prepared: Array) -> Conditional:
        """Theta -> q(z_i | theta) of the block's groups."""
        del model, batch
        return self.form.conditional(prepared, centre)
