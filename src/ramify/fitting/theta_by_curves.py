"""Draws of theta whose skewed marginals are those of F along curves, weighed by F if they can be."""

from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.families.weighted_theta import WeightedTheta
from ramify.fitting.theta_cloud import Cloud, judged
from ramify.inference.marginal import Marginal
from ramify.inference.shared_draws import by_shared_draws, can_share, with_slope
from ramify.inference.theta_copula import AVERAGED, Drawn, draw_theta
from ramify.inference.theta_curves import RINGS, follow
from ramify.inference.theta_search import Learned
from ramify.numerics import budgets
from ramify.numerics.psis import k_hat
from ramify.numerics.thresholds import MOST_K_HAT

WIDEST = 8  # most coordinates of theta that are followed
NOISE = 0.03  # of weighted means, in posterior sds, at which no more draws are weighed


def curves_fit_in(F: Marginal, learned: Learned, groups: Groups) -> bool:
    """Whether the row likelihoods of all curves, and of the draws that follow, are few enough."""
    evaluations = 4 * len(RINGS) * WIDEST + AVERAGED
    work = evaluations * learned.local_draws * (groups.n_rows + len(groups))
    return work < budgets.on_this_device(budgets.CURVES_WORK)


def by_curves(
    F: Marginal, learned: Learned, bent: list[int], groups: Groups, seed: int
) -> tuple[WeightedTheta, dict[str, Any]]:
    """Draws of theta by curves along the coordinates `bent`, weighted if that helps; and notes."""
    # A curve starts at the mode, and needs no more draws of z than the search did.
    learned, rough = learned.at_mode(), F.with_draws(learned.local_draws)
    centre, curves = follow(rough, learned.mean, learned.precision, bent)
    drawn = draw_theta(rough, centre, learned.precision, curves, seed)
    if _can_weigh(F, groups):
        cloud = _weighed(F, learned, drawn, seed)
        if cloud.enough:
            return cloud.weighted, cloud.notes | {"warnings": []}
    names = [F.model.adapter.coordinates()[place] for place in bent]
    notes = {"theta_curves": names, "theta_shift_sds": drawn.shift, "warnings": []}
    return WeightedTheta.even(drawn.theta), notes


def _can_weigh(F: Marginal, groups: Groups) -> bool:
    """Whether the draws share points of z, and to weigh some of them takes little enough time."""
    each = budgets.SHARED_DRAWS * len(groups) * F.model.z.size**2
    work = (budgets.WEIGHED_CURVE_DRAWS[0] + 2 * F.model.theta.size) * each
    return can_share(F.problem) and work < budgets.on_this_device(budgets.WEIGHED_CURVE_WORK)


def _weighed(F: Marginal, learned: Learned, drawn: Drawn, seed: int) -> Cloud:
    """Some of the draws, weighted by F; all of them if their means are noisy for too few."""
    values = with_slope(by_shared_draws(F, learned.mean), F, learned)
    some, most = budgets.WEIGHED_CURVE_DRAWS
    order = np.random.default_rng(seed).permutation(len(drawn.theta))[:most]
    theta, log_density = drawn.theta[order], drawn.log_density[order]
    log_weight = _finite(values(theta[:some]) - log_density[:some])
    if _noise(theta[:some], log_weight).max() > NOISE and k_hat(log_weight) < MOST_K_HAT:
        more = _finite(values(theta[some:]) - log_density[some:])
        log_weight = np.append(log_weight, more)
    count = len(log_weight)
    weighed = theta[:count], log_weight, log_density[:count]
    return judged(F, values, weighed, theta[:count], _noise(theta[:count], log_weight))


def _finite(log_weight: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(log_weight), log_weight, -np.inf)


def _noise(theta: np.ndarray, log_weight: np.ndarray) -> Float64[np.ndarray, " D"]:
    """The noise of weighted means, in posterior sds."""
    weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    apart = theta - weight @ theta
    return np.sqrt((weight**2) @ apart**2 / (weight @ apart**2))
