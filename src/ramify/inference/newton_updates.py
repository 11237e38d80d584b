"""The algebra of a Newton search for theta: precisions, step lengths, changes by a step.

All in float64 on the host; D x D matrices are small beside a sweep over the data.
"""

import numpy as np

from ramify.inference.marginal import Expansion, Marginal, OutOfBudget, definite


def measured_precision(
    F: Marginal, mean: np.ndarray, precision: np.ndarray, blocks: int, one_sided: bool = False
) -> np.ndarray:
    """The precision of F at or around the mean; unchanged if not finite or the budget ends."""
    try:
        hessian = F.curvature(mean, precision, blocks, one_sided)
    except OutOfBudget:
        return precision
    return definite(-hessian) if np.isfinite(hessian).all() else precision


def newton_move(precision: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float]:
    """The Newton step, and the nats that a quadratic F would gain by it."""
    move = np.linalg.solve(precision, slope)
    return move, float(0.5 * slope @ move)


def at_most(longest: np.ndarray, move: np.ndarray) -> np.ndarray:
    """The step, shortened so that no coordinate moves by more than its `longest`."""
    return move * min(1.0, 1 / np.abs(move / longest).max())


def damped(longest: float, precision: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The Newton step with (P + d I)^-1; d is the least that moves no coordinate over `longest`.

    So a direction without curvature is shortened alone, and the others are not.

    Example:
        >>> damped(1.0, np.diag([1e-9, 1.0]), np.array([1.0, 0.5])).round(2).tolist()
        [1.0, 0.25]
    """
    values, vectors = np.linalg.eigh(precision)
    along = vectors.T @ slope
    step = lambda damping: vectors @ (along / (values + damping))
    low, high = 0.0, float(np.linalg.norm(slope)) / longest  # damping by `high` is enough
    if np.abs(step(low)).max() <= longest:
        return step(low)
    for _ in range(60):
        middle = np.sqrt(max(low, 1e-12 * high) * high)
        low, high = (middle, high) if np.abs(step(middle)).max() > longest else (low, middle)
    return step(high)


def shorter(here: Expansion, there: Expansion, move: np.ndarray) -> float:
    """The fraction of a failed step to try next: the top of the parabola through both ends."""
    rise = here.slope @ move
    top = rise / (2 * (rise - (there.value - here.value))) if there.finite else 0.1
    return float(np.clip(top, 0.1, 0.5))


def bfgs(P: np.ndarray, move: np.ndarray, fall: np.ndarray) -> np.ndarray:
    """The precision after a step along which the slope fell by `fall` (BFGS, damped by Powell)."""
    expected = P @ move
    bent = move @ expected
    share = 1.0 if move @ fall >= 0.2 * bent else 0.8 * bent / (bent - move @ fall)
    seen = share * fall + (1 - share) * expected
    updated = P - np.outer(expected, expected) / bent + np.outer(seen, seen) / (move @ seen)
    return definite(0.5 * (updated + updated.T))


def rms_sds(move: np.ndarray, precision: np.ndarray) -> float:
    """The length of a step: root mean square over coordinates, in posterior sds."""
    return float(np.sqrt(move @ precision @ move / len(move)))


def largest_change(old: np.ndarray, new: np.ndarray) -> float:
    """The largest relative change of a precision, over all directions."""
    return float(np.abs(np.linalg.eigvals(np.linalg.solve(old, new)) - 1).max())


def slope_noise(slopes: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The sd over independent slopes [n, D] of the shift of each mean, in posterior sds."""
    covariance = np.linalg.inv(precision)
    moves = (slopes - slopes.mean(0)) @ covariance / np.sqrt(np.diag(covariance))
    return np.sqrt(np.sum(moves**2, 0) / (len(slopes) - 1))
