"""From the mode of F to the mean of q(theta), where many groups still say little of a coordinate.

With many groups the search ends at Laplace's approximation. It is wrong by terms in 1/N, which count
where few of the groups inform a coordinate: the mode of the log of an sd near zero is a third of an sd
from its mean with thousands of groups. The best Gaussian has E_q[grad F] = 0 and P = -E_q[hess F]: from
slopes one sd to both sides along the axes of q(theta),

    E_q[grad F] = grad F + 1/2 sum_k (grad F(m + a_k) + grad F(m - a_k) - 2 grad F(m)).
"""

from typing import NamedTuple

import numpy as np

from ramify.inference import newton_updates as updates
from ramify.inference.marginal import Marginal, OutOfBudget, definite
from ramify.inference.theta_search import Learned
from ramify.numerics import budgets

WIDE = 0.05  # sd of a coordinate, where unconstrained, below which its mode is its mean
MOVED = 0.05  # shift of a mean, in sds, below which the mode is good enough


class Around(NamedTuple):
    """F around a point, by slopes one sd to both sides along the axes of q(theta)."""

    slope: np.ndarray  # at the point
    bend: np.ndarray  # what its average over q(theta) adds
    precision: np.ndarray


def centred(F: Marginal, learned: Learned) -> Learned:
    """Mean and precision by averages over q(theta), where these differ from those at the mode."""
    sd = np.sqrt(np.diag(np.linalg.inv(learned.precision)))
    if sd.max() < WIDE:
        return learned
    # The points of a turned rule change with theta, which differences of slopes would not survive.
    fixed = F.with_draws(learned.local_draws)
    try:
        return _centred(fixed, learned, sd)
    except OutOfBudget:
        return learned


def _centred(fixed: Marginal, learned: Learned, sd: np.ndarray) -> Learned:
    here = around(fixed, learned.mean, learned.precision, fixed.blocks_with(budgets.BENT_GROUPS))
    move = np.linalg.solve(learned.precision, here.bend)
    if np.abs(move / sd).max() < MOVED:
        return learned
    mean = learned.mean + updates.at_most(sd, move)
    every = fixed.blocks_with(budgets.CURVATURE_GROUPS)
    before = fixed.expand(learned.mean[None], every)[1][0]
    there = around(fixed, mean, learned.precision, every)
    move = np.linalg.solve(there.precision, there.slope - before + there.bend)
    mean, mode = mean + updates.at_most(sd, move), (learned.mean, learned.precision)
    return learned._replace(mean=mean, precision=there.precision, mode=mode)


def around(F: Marginal, mean: np.ndarray, precision: np.ndarray, blocks: int) -> Around:
    """F around `mean`, from its first blocks."""
    back = np.linalg.cholesky(precision)
    axes, D = np.linalg.inv(back), len(mean)
    thetas = np.concatenate([mean[None], mean + axes, mean - axes])
    slopes = []
    for start in range(0, len(thetas), F.points):
        F.check_budget()
        slopes.append(F.expand(thetas[start : start + F.points], blocks)[1])
    slopes = np.concatenate(slopes)
    ahead, behind = slopes[1 : D + 1], slopes[D + 1 :]
    bend = 0.5 * (ahead + behind - 2 * slopes[0]).sum(0)
    white = 0.5 * (ahead - behind) @ axes.T  # about -1, [axis, axis]
    white = 0.5 * (white + white.T)
    return Around(slopes[0], bend, definite(-back @ white @ back.T))
