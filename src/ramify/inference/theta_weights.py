"""Weighted points of theta: importance weights of a Student t against the marginal posterior."""

import numpy as np

from ramify.inference.marginal import Marginal
from ramify.inference.theta_search import Learned
from ramify.numerics.points import student_sample
from ramify.numerics.psis import k_hat

MOST_K_HAT = 0.7  # of theta's weights, past which they tell little (Vehtari and others)


def weigh_theta(
    F: Marginal, learned: Learned, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Points of theta [T, D] and their log weights p^(theta, y) / t(theta), up to a constant."""
    # The t first has the mean and covariance of q(theta). A quarter of the points give better ones.
    # So do all of them, at most twice, while a few in a tail have most of the weight.
    mean, covariance = learned.mean, np.linalg.inv(learned.precision)
    points, log_weight = _student_points(F, mean, covariance, count // 4, 4 * seed)
    for attempt in range(1, 4):
        better = _moments(points, log_weight)
        if better is None and attempt > 1:
            break
        mean, covariance = better or (mean, covariance)
        points, log_weight = _student_points(F, mean, covariance, count, 4 * seed + attempt)
        if k_hat(log_weight) < MOST_K_HAT:
            break
    return points, log_weight


def _moments(points: np.ndarray, log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Moments by weights cut at sqrt(T) times their mean (Ionides 2008); None if too few count."""
    if not np.isfinite(log_weight.max()):
        return None
    weight = np.exp(log_weight - log_weight.max())
    weight = np.minimum(weight, np.sqrt(len(weight)) * weight.mean())
    weight /= weight.sum()
    if np.sum(weight**2) * 10 * points.shape[1] > 1:
        return None
    mean = weight @ points
    return mean, (weight[:, None] * (points - mean)).T @ (points - mean)


def _student_points(
    F: Marginal, mean: np.ndarray, covariance: np.ndarray, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    points, log_t = student_sample(np.random.default_rng(seed), mean, covariance, count)
    value = F.values(points)
    return points, np.where(np.isfinite(value), value, -np.inf) - log_t


def value_noise(F: Marginal, learned: Learned) -> float:
    """Nats by which F's values scatter about a smooth curve within half an sd: their rounding."""
    along = np.linspace(-0.5, 0.5, 24)
    sd = np.sqrt(np.diag(np.linalg.inv(learned.precision)))
    values = F.values(learned.mean + along[:, None] * sd)
    smooth = np.polynomial.Polynomial.fit(along, values, 4)(along)
    return float(np.sqrt(np.sum((values - smooth) ** 2) / (len(along) - 5)))
