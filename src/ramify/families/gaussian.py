"""The Gaussian over a flat vector, learned through free numbers."""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ramify.families.conditional import Local
from ramify.numerics.arrays import floats
from ramify.numerics.triangular import ScaleMap, free_start, scale_factor


class Gaussian(eqx.Module):
    """N(mean, L L') over a flat vector, learned through free numbers."""

    mean: Float[Array, " dim"]
    free: Float[Array, " free"]
    dim: int = eqx.field(static=True)
    diagonal: bool = eqx.field(static=True)
    map: ScaleMap = eqx.field(static=True)

    @property
    def scale(self) -> Array:
        """L, a vector if diagonal."""
        return scale_factor(self.free, self.dim, self.diagonal, self.map)

    @property
    def covariance(self) -> Float[np.ndarray, "dim dim"]:
        """L L', on the host: a GPU takes seconds to compile a product."""
        L = np.asarray(self.scale)
        return np.diag(L**2) if self.diagonal else L @ L.T

    def draw(self, noise: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """The point mean + L noise and its log density."""
        return Local(self.mean, self.scale).draw(noise)

    def log_prob(
        self, x: Float[Array, " dim"], noise: Float[Array, " dim"] | None = None
    ) -> Float[Array, ""]:
        """Log density at any point, by a triangular solve; `noise` is what the point was drawn with."""
        return Local(self.mean, self.scale).log_prob(x, noise)


def gaussian(
    dim: int,
    *,
    diagonal: bool,
    scale: float = 1.0,
    map: ScaleMap = "log",
    mean: Array | None = None,
) -> Gaussian:
    """A Gaussian at `mean` (default zero) with covariance scale^2 I, ready to be learned."""
    mean = floats(np.zeros(dim)) if mean is None else mean
    return Gaussian(mean, free_start(dim, diagonal, scale, map), dim, diagonal, map)
