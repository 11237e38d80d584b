"""Draws of theta whose skewed marginals are those of F along curves, weighed by F if they can be."""

from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.families.weighted_theta import WeightedTheta
from ramify.fitting.theta_cloud import Cloud, judged
from ramify.inference.marginal import Marginal
from ramify.inference.shared_draws import by_shared_draws, can_share, with_slope
from ramify.inference.theta_copula import AVERAGED, Drawn, draw_theta
from ramify.inference.theta_curves import RINGS, follow
from ramify.inference.theta_search import Learned
from ramify.numerics import budgets

WIDEST = 8  # most coordinates of theta that are followed


def curves_fit_in(F: Marginal, learned: Learned, groups: Groups) -> bool:
    """Whether the row likelihoods of all curves, and of the draws that follow, are few enough."""
    evaluations = 4 * len(RINGS) * WIDEST + AVERAGED
    work = evaluations * learned.local_draws * (groups.n_rows + len(groups))
    return work < budgets.on_this_device(budgets.CURVES_WORK)


def by_curves(
    F: Marginal, learned: Learned, bent: list[int], groups: Groups, seed: int
) -> tuple[WeightedTheta, dict[str, Any]]:
    """Draws of theta by curves along the coordinates `bent`, weighted if that helps; and notes."""
    # A curve needs no more draws of z than the search did.
    rough = F.with_draws(learned.local_draws)
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
    """Whether the draws share points of z, and to weigh them takes little enough time."""
    each = budgets.SHARED_DRAWS * len(groups) * F.model.z.size**2
    work = (budgets.WEIGHED_CURVE_DRAWS + 2 * F.model.theta.size) * each
    return can_share(F.problem) and work < budgets.on_this_device(budgets.WEIGHED_CURVE_WORK)


def _weighed(F: Marginal, learned: Learned, drawn: Drawn, seed: int) -> Cloud:
    """Some of the draws, weighted by F."""
    rng, count = np.random.default_rng(seed), budgets.WEIGHED_CURVE_DRAWS
    some = rng.permutation(len(drawn.theta))[:count]
    theta, log_density = drawn.theta[some], drawn.log_density[some]
    values = with_slope(by_shared_draws(F, learned.mean), F, learned)
    log_weight = values(theta) - log_density
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    apart = theta - weight @ theta
    noise = np.sqrt((weight**2) @ apart**2 / (weight @ apart**2))
    return judged(F, values, (theta, log_weight, log_density), theta, noise)
