"""Skewed marginals of theta by F along curves, if F is too expensive for weighted draws.

Along the curve of theta_j the other coordinates psi are at their conditional mode, and are
integrated out by Laplace's method (Tierney and Kadane 1986; Rue, Martino and Chopin 2009):

    log p(theta_j | y) = F(theta_j, psi^) - 1/2 log |-hess_psi F| + constant.

`inference.theta_copula` draws theta from a distribution with these marginals.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.inference.marginal import Marginal

# Distances from the centre at which a curve is evaluated on either side, in sds.
RINGS = 0.5, 1.0, 1.75, 2.75, 4.5, 7.0
FALLEN = 6.0  # nats below the highest point at which a side of a curve ends
PROBE = 0.5  # length of the step that measures the others' curvature, in their sds
FLAT = 0.01  # lower limit of a curvature, as a share of the known one


class Curve(NamedTuple):
    """The marginal of a coordinate at some values, and theta's conditional mode at each."""

    place: int
    at: Float64[np.ndarray, " n"]  # increasing
    log_density: Float64[np.ndarray, " n"]  # zero at the centre
    modes: Float64[np.ndarray, "n D"]
    moved: Float64[np.ndarray, " n"]  # move of the others, over its slope in theta_j at the centre


class Side(NamedTuple):
    """One side of a curve as far as it is known, from the centre outwards."""

    steps: Float64[np.ndarray, " r"]  # values of theta_j at its rings
    modes: list[np.ndarray]
    log_density: list[float]

    @property
    def ended(self) -> bool:
        """Whether its density is negligible, or there are no more rings."""
        done = len(self.modes) > len(self.steps)
        return done or not self.log_density[-1] > max(self.log_density) - FALLEN

    def ahead(self, place: int, along: np.ndarray) -> np.ndarray:
        """Theta one ring farther: extrapolated from the last two modes, at first along `along`."""
        number, here = len(self.modes) - 1, self.modes[-1]
        if number:
            before = self.modes[-2]
            along = (here - before) / (here[place] - before[place])
        return here + (self.steps[number] - here[place]) * along


class Others:
    """The other coordinates, given one: their conditional mean, precision, and a probe of it."""

    def __init__(self, precision: np.ndarray, covariance: np.ndarray, place: int):
        """For a Gaussian with this precision."""
        self.place, self.keep = place, np.arange(len(precision)) != place
        self.precision = precision[np.ix_(self.keep, self.keep)]
        self.along = covariance[:, place] / covariance[place, place]
        self.sd = float(np.sqrt(covariance[place, place]))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=len(precision))
        spread = np.linalg.cholesky(covariance) @ signs
        self.probe = PROBE * (spread - self.along * spread[place])

    def newton(self, slope: np.ndarray) -> tuple[np.ndarray, float]:
        """The step to the conditional mode, and what F gains by it."""
        move = np.zeros(len(slope))
        move[self.keep] = np.linalg.solve(self.precision, slope[self.keep])
        return move, float(0.5 * slope @ move)

    def bent(self, slope: np.ndarray, beside: np.ndarray) -> float:
        """About log |-hess_psi F|, less a constant, by its trace along the probe (Hutchinson 1990)."""
        # Uses the logarithm of the mean eigenvalue, in units of the known precision.
        mean = float((slope - beside) @ self.probe) / PROBE**2 / len(self.precision)
        return len(self.precision) * float(np.log(max(mean, FLAT)))

    def moved(self, apart: np.ndarray) -> np.ndarray:
        """How far the others moved, in units of theta_j: theta_j's own distance if it is linear."""
        weight = self.precision @ self.along[self.keep]
        return apart[:, self.keep] @ weight / max(self.along[self.keep] @ weight, 1e-300)


def follow(
    F: Marginal, mean: np.ndarray, precision: np.ndarray, places: list[int]
) -> tuple[Float64[np.ndarray, " D"], list[Curve]]:
    """The mode of F, one Newton step from the mean, and these coordinates' curves through it."""
    covariance = np.linalg.inv(precision)
    others = [Others(precision, covariance, place) for place in places]
    centre = mean + covariance @ F.expand(mean[None])[1][0]
    begun = lambda o, sign: Side(centre[o.place] + sign * o.sd * np.array(RINGS), [centre], [0.0])
    sides = [(o, begun(o, sign)) for o in others for sign in (-1, 1)]
    top, level = _values(F, [(o, centre) for o in others])
    first = {o.place: bent for o, bent in zip(others, level, strict=True)}
    while going := [(o, side) for o, side in sides if not side.ended]:
        thetas = [side.ahead(o.place, o.along) for o, side in going]
        values, bent = _values(F, [(o, theta) for (o, _), theta in zip(going, thetas, strict=True)])
        for (o, side), (theta, value), own in zip(going, values, bent, strict=True):
            side.modes.append(theta)
            side.log_density.append(float(value - top[0][1] - 0.5 * (own - first[o.place])))
    pairs = zip(sides[::2], sides[1::2], strict=True)
    return centre, [_joined(F, centre, left, *right) for (_, left), right in pairs]


def _values(
    F: Marginal, at: list[tuple[Others, np.ndarray]]
) -> tuple[list[tuple[np.ndarray, float]], list[float]]:
    """For each theta: the conditional mode near it with F there, and the others' curvature."""
    F.check_budget()
    thetas = np.stack([theta for _, theta in at])
    values, slopes = F.expand(np.concatenate([thetas, thetas + [o.probe for o, _ in at]]))
    steps = [o.newton(slope) for (o, _), slope in zip(at, slopes, strict=False)]
    modes = [
        (theta + move, value + gain)
        for theta, value, (move, gain) in zip(thetas, values, steps, strict=False)
    ]
    beside = zip(at, slopes, slopes[len(at) :], strict=False)
    return modes, [o.bent(slope, there) for (o, _), slope, there in beside]


def _joined(F: Marginal, centre: np.ndarray, left: Side, others: Others, right: Side) -> Curve:
    """The curve of both sides."""
    modes = np.stack([*left.modes[:0:-1], *right.modes])
    log_density = np.array([*left.log_density[:0:-1], *right.log_density])
    known = np.isfinite(log_density)
    modes, log_density, place = modes[known], log_density[known], others.place
    moved = others.moved(modes - centre)
    # F's tilt stands for noise of the draws, which changes as the others move: evaluate it there.
    bounded = modes.copy()
    bounded[:, place] = centre[place] + moved
    log_density = log_density + F.tilt.at(bounded)[0] - F.tilt.at(modes)[0]
    return Curve(place, modes[:, place], log_density, modes, moved)
