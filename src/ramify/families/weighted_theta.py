"""Weighted draws of theta, which correct a Gaussian q(theta) if groups are few.

With few groups the posterior of a scale is skewed, and no Gaussian fits it. If the data are small
enough to evaluate log p(theta) + sum_i log p^(y_i | theta) a few thousand times, draws from a
Student t around q(theta) are weighted by that density, or NUTS samples it. All results about theta
then come from these draws; the ELBO remains that of q(theta).
"""

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Float64

from ramify.numerics.arrays import floats


class WeightedTheta(eqx.Module):
    """Points of theta with log weights that sum to one.

    Example:
        >>> import jax.numpy as jnp
        >>> log_weight = jnp.log(jnp.array([0.75, 0.25]))
        >>> weighted = WeightedTheta(jnp.array([[0.0], [4.0]]), log_weight)
        >>> float(weighted.mean[0]), float(weighted.covariance[0, 0])
        (1.0, 3.0)
    """

    points: Float[Array, "T D"]
    log_weight: Float[Array, " T"]
    # Number of NUTS chains, whose points follow each other; 0 if points are independent.
    chains: int = eqx.field(static=True, default=0)

    @classmethod
    def of_chains(cls, theta: Float64[np.ndarray, "C n D"]) -> "WeightedTheta":
        """Draws of chains, of equal weight."""
        return cls.even(theta.reshape(-1, theta.shape[-1]), len(theta))

    @classmethod
    def even(cls, points: Float64[np.ndarray, "T D"], chains: int = 0) -> "WeightedTheta":
        """Draws of equal weight."""
        log_weight = np.full(len(points), -np.log(len(points)))
        return cls(floats(points), floats(log_weight), chains)

    @property
    def weight(self) -> Float64[np.ndarray, " T"]:
        """The weights, in double precision."""
        weight = np.exp(np.asarray(self.log_weight, np.float64))
        return weight / weight.sum()

    @property
    def mean(self) -> Float64[np.ndarray, " D"]:
        """The weighted mean."""
        return self.weight @ np.asarray(self.points, np.float64)

    @property
    def covariance(self) -> Float64[np.ndarray, "D D"]:
        """The weighted covariance."""
        apart = np.asarray(self.points, np.float64) - self.mean
        return (self.weight[:, None] * apart).T @ apart

    def at_levels(self, levels: Float[np.ndarray, " S"]) -> Float[np.ndarray, "S D"]:
        """The points at these levels, between 0 and 1, of the cumulative weights."""
        share = np.cumsum(self.weight).astype(levels.dtype)
        place = np.searchsorted(share, levels)
        return np.asarray(self.points)[np.minimum(place, len(share) - 1)]


def weighted_quantiles(
    values: Float64[np.ndarray, "T n"], weight: Float64[np.ndarray, " T"], levels: list[float]
) -> Float64[np.ndarray, "q n"]:
    """Quantiles of each column of weighted values, interpolated between midpoints of their shares.

    Example:
        >>> weighted_quantiles(np.array([[1.0], [3.0], [2.0]]), np.ones(3) / 3, [0.5])[0, 0]
        np.float64(2.0)
    """
    found = np.empty((len(levels), values.shape[1]))
    for column in range(values.shape[1]):
        order = np.argsort(values[:, column])
        share = np.cumsum(weight[order]) - 0.5 * weight[order]
        found[:, column] = np.interp(levels, share, values[order, column])
    return found
