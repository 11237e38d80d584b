"""Draws of theta with skewed marginals of some coordinates, and the others Gaussian given these.

Let f_j be how far the others move along the curve of theta_j. The others are linear in f, and so is
the effect of one skewed coordinate on another. An sd near zero acts by its square: f has a minimum.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr

from ramify.inference.marginal import Marginal
from ramify.inference.theta_curves import Curve
from ramify.numerics.points import normal_points

GRID, BEYOND = 2000, 12.0  # points of a marginal's table; nats below its top where the table ends
LEAST = 0.05  # smallest fall of a log density beyond its curve, in nats for each unit of theta_j
DRAWS, MANY = 4000, 8  # draws of theta, and how many candidates there are for each
AVERAGED = 32  # draws that the slopes of F are averaged over


class Drawn(NamedTuple):
    """Draws of theta, the log of their density, and the largest move of the others' means."""

    theta: Float64[np.ndarray, "T D"]
    log_density: Float64[np.ndarray, " T"]  # up to a constant
    shift: float  # in sds


class Margin(NamedTuple):
    """A curve's marginal as a table, and how far the others move at each of its values."""

    at: Float64[np.ndarray, " n"]
    share: Float64[np.ndarray, " n"]  # the distribution function
    density: Float64[np.ndarray, " n"]  # up to a constant
    moved: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, curve: Curve) -> "Margin":
        """Interpolates the curve by a spline; beyond its ends the log density is a straight line.

        Example:
            >>> at = np.linspace(-4, 4, 9)[:, None]
            >>> margin = Margin.of(Curve(0, at[:, 0], -0.5 * at[:, 0] ** 2, at, at[:, 0]))
            >>> float(margin.draws(np.array([1.0]))[0][0].round(3))
            1.0
        """
        from scipy.interpolate import CubicSpline  # which is slow to import

        spline = CubicSpline(curve.at, curve.log_density, bc_type="natural")
        ends, slopes = curve.at[[0, -1]], spline(curve.at[[0, -1]], 1)
        slopes = np.array([max(slopes[0], LEAST), min(slopes[1], -LEAST)])
        left = BEYOND + curve.log_density[[0, -1]] - curve.log_density.max()
        low, high = ends - np.maximum(left, 0.0) / slopes
        at = np.linspace(low, high, GRID)
        near = np.clip(at, *ends)
        log_density = spline(near) + (at - near) * np.where(at < near, *slopes)
        density = np.exp(log_density - log_density.max())
        share = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1])))
        moved = CubicSpline(curve.at, curve.moved, bc_type="natural")(near)
        return cls(at, share / share[-1], density, moved)

    def draws(self, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Quantiles at the levels of normal numbers; the others' moves and the log density there."""
        at = np.interp(ndtr(normal), self.share, self.at)
        density = np.interp(at, self.at, self.density)
        return at, np.interp(at, self.at, self.moved), np.log(density)


def draw_theta(
    F: Marginal, centre: np.ndarray, precision: np.ndarray, curves: list[Curve], seed: int
) -> Drawn:
    """Draws of theta with these curves' marginals; the others' means are moved by F's slopes."""
    own = np.array([curve.place for curve in curves])
    rest = np.setdiff1d(np.arange(len(centre)), own)
    at, moved, log_density = _skewed(precision, curves, np.random.default_rng(seed))
    given = precision[np.ix_(rest, rest)]
    slopes = -np.linalg.solve(given, precision[np.ix_(rest, own)])
    white = normal_points(DRAWS, len(rest))
    noise = white @ np.linalg.inv(np.linalg.cholesky(given))
    theta = np.empty((DRAWS, len(centre)))
    theta[:, own], theta[:, rest] = at, centre[rest] + moved @ slopes.T + noise
    # Newton for E_q[grad F] = 0, with grad log q as control. The points' halves are antithetic.
    half = AVERAGED // 2
    some = np.r_[:half, DRAWS // 2 : DRAWS // 2 + half]
    pull = F.expand(theta[some])[1][:, rest] + noise[some] @ given
    shift = np.linalg.solve(given, pull.mean(0))
    theta[:, rest] += shift
    farthest = float(np.max(np.abs(shift) / theta[:, rest].std(0)))
    return Drawn(theta, log_density - 0.5 * np.sum(white**2, 1), farthest)


def _skewed(
    precision: np.ndarray, curves: list[Curve], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of the coordinates of the curves, [DRAWS, k], their moves of the others, and log density."""
    own = np.array([curve.place for curve in curves])
    normal = normal_points(MANY * DRAWS, len(own))
    pairs = [Margin.of(curve).draws(y) for curve, y in zip(curves, normal.T, strict=True)]
    at, moved, density = (np.stack(x, 1) for x in zip(*pairs, strict=True))
    covariance = np.linalg.inv(precision)[np.ix_(own, own)]
    cross = np.linalg.inv(covariance) - np.diag(1 / np.diag(covariance))
    apart = moved - moved.mean(0)  # centred, so that the weights keep the marginals
    log_weight = -0.5 * np.sum((apart @ cross) * apart, 1)
    weight = np.exp(log_weight)
    levels = (np.arange(DRAWS) + rng.random()) / DRAWS
    place = np.searchsorted(np.cumsum(weight) / weight.sum(), levels)
    chosen = rng.permutation(np.minimum(place, len(weight) - 1))
    return at[chosen], moved[chosen], (density.sum(1) + log_weight)[chosen]
