"""A cheap approximation of G where hundreds of evaluations of G cost too much: a corrected coarse G.

A coarse G has fewer points for each z, stops Newton's method early and keeps Laplace's error. It has the
shape of G, with all its skewness. Its difference from G is nearly a quadratic polynomial of theta, which
two evaluations of G along each axis of G's Gaussian determine.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.marginal import Marginal, NotSolved, Optimum
from ramify.levels.search import Found, whitening

ENDS = 1.8  # sds along an axis


class Coarse(NamedTuple):
    """A coarse G and, along each axis, the coefficients of t and t^2 of its difference from G."""

    G: Marginal
    at: Optimum  # of the coarse G at the mode of G
    axes: Float64[np.ndarray, "D D"]
    coefficients: Float64[np.ndarray, "2 D"]

    @classmethod
    def near(cls, G: Marginal, coarse: Marginal, found: Found) -> "Coarse | None":
        """The coarse G corrected to equal G at both ends of each axis; None if b can't be found."""
        axes, D = whitening(found.precision), len(found.mean)
        try:
            at = coarse.optimum(found.mean, found.optimum)
        except (NotSolved, np.linalg.LinAlgError):
            return None
        alone = cls(coarse, at, axes, np.zeros((2, D)))
        ends = np.concatenate([found.mean + sign * ENDS * axes.T for sign in (1, -1)])
        height = G.values(ends, found.optimum) - found.optimum.value
        ahead, behind = np.split(height - alone.values(ends), 2)
        odd, even = 0.5 * (ahead - behind) / ENDS, 0.5 * (ahead + behind) / ENDS**2
        if not np.isfinite(odd + even).all():
            return None
        return alone._replace(coefficients=np.stack([odd, even]))

    def values(self, thetas: Float64[np.ndarray, "n D"]) -> Float64[np.ndarray, " n"]:
        """G less its value at the mode, by the corrected coarse G."""
        t = np.linalg.solve(self.axes, (thetas - self.at.theta).T).T  # [n, D]
        odd, even = self.coefficients
        return self.G.values(thetas, self.at) - self.at.value + t @ odd + t**2 @ even
