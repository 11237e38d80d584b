"""Weighted draws of theta, and whether their weights are even enough."""

from typing import Any, NamedTuple

import numpy as np

from ramify.families.weighted_theta import WeightedTheta
from ramify.inference.marginal import Marginal
from ramify.inference.shared_draws import Values, by_shared_draws, can_share
from ramify.inference.theta_search import Learned
from ramify.inference.theta_weights import (
    Proposal,
    Weighed,
    effective_at_best,
    fitted_proposal,
    weigh_theta,
    with_control,
)
from ramify.numerics.arrays import floats
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.thresholds import MOST_K_HAT
from ramify.posterior.summary import reliability, shown_values

EVEN = 0.5  # k-hat of theta's weights above which NUTS is better
ENOUGH = 0.9  # share of the effective points at best above which a k-hat up to 0.7 is good
MOST_NOISE = 0.04  # noise of weighted means, in posterior sds, above which NUTS is better
# Points where F is computed in two ways, and the accepted gap in nats for each sd of distance: a
# gap that grows by so many nats an sd moves a mean by so many sds.
FAR_POINTS, FOLLOWED = 4, 0.05
DRAWN = 1.0  # nats added to the accepted gap, if both ways have the noise of draws


class Cloud(NamedTuple):
    """Weighted points of theta, and how even their weights are."""

    weighted: WeightedTheta
    k_hat: float
    effective: float
    noise: float  # largest noise of a mean, in sds
    even: bool  # whether the weights are even enough to need no NUTS
    enough: bool  # whether the means of all coordinates are reliable
    proposal: Proposal | None  # fitted to the weighted points, unless too few are effective

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of a fit on its weighted draws."""
        how = {"theta_k_hat": self.k_hat, "theta_effective_draws": self.effective}
        return how | {"theta_noise_sds": self.noise}


def weighed_cloud(
    F: Marginal, learned: Learned, count: int, seed: int, first: Weighed | None = None
) -> Cloud:
    """Weighted draws of theta from a Student t."""
    values = by_shared_draws(F, learned.mean) if can_share(F.problem) else F.values
    weighed = weigh_theta(values, learned, count, seed, first)
    return judged(F, values, weighed, *with_control(*weighed, learned))


def judged(
    F: Marginal, values: Values, weighed: Weighed, moved: np.ndarray, noise: np.ndarray
) -> Cloud:
    """Weighted points of theta, `moved` for less noise of their means, and how good they are."""
    points, log_weight, _ = weighed
    normal = log_weight - np.logaddexp.reduce(log_weight)
    each = reliability(shown_values(F.model.adapter, points), np.exp(normal))
    own = k_hat(log_weight), effective_draws(log_weight), float(noise.max())
    same, worst = _same_alone(F, values, points, normal), np.max(each["k_hat"])
    # The k-hat of a long but thin tail says little if most of the points are effective.
    thin = own[0] < MOST_K_HAT and own[1] > ENOUGH * effective_at_best(*points.shape)
    even = same and bool((worst < EVEN or thin) and own[2] < MOST_NOISE)
    enough = same and bool((worst < MOST_K_HAT or thin) and own[2] < 2 * MOST_NOISE)
    weighted = WeightedTheta(floats(moved), floats(normal))
    return Cloud(weighted, *own, even, enough, fitted_proposal(points, log_weight))


def _same_alone(F: Marginal, values: Values, points: np.ndarray, log_weight: np.ndarray) -> bool:
    """Whether F far from the centre stays the same if the groups' modes are solved for there."""
    # Without theta in the likelihood, all points use the sites at the centre.
    likely = points[np.argsort(-log_weight)[: int(0.9 * len(points))]]
    apart = np.sum(((likely - likely.mean(0)) / likely.std(0)) ** 2, 1)
    order = np.argsort(apart)
    some = likely[np.append(order[:1], order[-FAR_POINTS:])]
    if can_share(F.problem):
        together, again = values(some), lambda theta: by_shared_draws(F, theta)
    else:  # sites are those at the mean of the points that are computed together
        together = values(np.concatenate([points[: F.points - len(some)], some]))[-len(some) :]
        again = lambda _: F.values
    alone = np.concatenate([again(theta)(theta[None]) for theta in some])
    noise = 0.0 if F.problem.rule is not None else DRAWN
    gap, away = together - alone, np.sqrt(apart[order[-FAR_POINTS:]])
    # An error that is the same everywhere moves no mean.
    return bool(np.all(np.abs(gap[1:] - gap[0]) < FOLLOWED * away + noise))
