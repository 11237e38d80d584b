"""Phases of the search for q(theta) after theta is found: bias and noise of the draws of z."""

import numpy as np

from ramify.inference import newton_updates as updates
from ramify.inference.marginal import Marginal, OutOfBudget, Tilt, definite
from ramify.inference.search_state import Search, blocks_of, curvature_blocks, moved, reach_of
from ramify.numerics import budgets

MOST_BIAS = 0.05  # of theta's means, in posterior sds; above it K is doubled
# The same for a rule with few groups: theta's posterior is wide, and the rule worse at its ends.
MOST_RULE_BIAS = 0.01
LITTLE_BIAS = 0.01  # of a rule by a sample of the groups: above it all groups are used
HOPELESS = 10 * MOST_BIAS  # of a turned rule: two more radii divide its bias by about fifty
MOST_NOISE = 0.02  # of theta's means, in posterior sds; above it more draws are averaged
LOUD = 0.2  # noise of one sweep, with many groups, above which K is raised before averaging
OTHER_CURVATURES = 3  # most further sets of draws that the precision is averaged over
FAR = 0.5  # noise of one sweep, with few groups, above which K is raised; longest move by a rule


def bias(s: Search, F: Marginal) -> Search:
    """Estimates the bias of K draws in the mean of q(theta), if no turned rule can replace them."""
    try:
        if _may_turn(s, F):
            if (found := _turned(s, F)) is not None:
                return found
            s = s._replace(by_draws=True)
        bias = _bias_sds(s, F)
    except OutOfBudget:
        return s
    most = MOST_RULE_BIAS if F.problem.rule is not None and s.points > 1 else MOST_BIAS
    enough = np.abs(bias).max() < most or s.local_draws >= s.most_draws
    if F.problem.rule is not None:
        s = s._replace(noise=np.zeros_like(bias))
        return s._replace(bias=bias, phase="done" if enough else "double")
    return s._replace(bias=bias, phase="noise" if enough else "double")


def _bias_sds(s: Search, F: Marginal) -> np.ndarray:
    """The bias in posterior sds. A rule's is alike in all groups, so a sample of them tells it."""
    sds = _sds(s)
    some = len(F.source) if F.problem.rule is None else F.blocks_with(budgets.JUDGING_GROUPS)
    bias = np.linalg.solve(s.precision, F.bias(s.mean, some)) / sds
    if some == len(F.source) or np.abs(bias).max() < LITTLE_BIAS:
        return bias
    return np.linalg.solve(s.precision, F.bias(s.mean)) / sds


def _may_turn(s: Search, F: Marginal) -> bool:
    """Whether to try a turned rule: with many groups, and unless K is at its limit."""
    tried = s.by_draws or s.local_draws == s.most_draws
    return s.points == 1 and F.problem.rule is None and not tried and F.problem.can_turn


def _turned(s: Search, F: Marginal) -> Search | None:
    """Moves the mean to the mode of F by a turned rule; None if that is not good enough."""
    found = _judged(s, F)
    if found is None:
        return None
    order, bias, alone = found
    turns = int(np.clip(np.ceil((alone.max() / MOST_NOISE) ** 2), 1, F.points))
    slope = F.by_turned_rule(order).turned_slope(s.mean, turns)
    move = np.linalg.solve(s.precision, slope)
    if not (np.abs(move) / _sds(s)).max() < FAR:  # then the draws' precision is useless too
        return None
    tilt = Tilt(s.mean, slope - F(s.mean[None], blocks_of(s, F)).slope, 0 * s.precision)
    s = _averaged_precision(s, F) if F.exact else s
    s = s._replace(mean=s.mean + np.linalg.solve(s.precision, slope), tilt=tilt, phase="done")
    return s._replace(bias=bias, noise=alone / np.sqrt(turns))


def _judged(s: Search, F: Marginal) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The order of a turned rule, its bias, and the noise of one turn; None if the bias is too large."""
    blocks = F.blocks_with(budgets.TURNED_GROUPS)
    turns = min(1 + -(-budgets.TURNED_DIFFERENCES // blocks), F.points)
    covariance, sds = np.linalg.inv(s.precision), _sds(s)
    for order in budgets.TURNED_ORDERS:
        slope, variance = F.by_turned_rule(order).judged(s.mean, blocks, turns)
        bias = covariance @ slope / sds
        if np.abs(bias).max() < MOST_BIAS:
            return order, bias, np.sqrt(np.diag(covariance @ variance @ covariance)) / sds
        if not np.abs(bias).max() < HOPELESS:
            return None
    return None


def _sds(s: Search) -> np.ndarray:
    """The sds of q(theta)."""
    return np.sqrt(np.diag(np.linalg.inv(s.precision)))


def noise(s: Search, F: Marginal) -> Search:
    """Computes slopes around the mean with new draws of z, until their average has little noise."""
    # The draws' key is an argument of a sweep, so nothing is compiled.
    if s.points == 1 and F.exact and not len(s.slopes):
        s = _averaged_precision(s, F)
    fewest, most = budgets.NOISE_SWEEPS["many" if s.points == 1 else "few"]
    try:
        more = F.slopes_by_other_draws(_noise_points(s, F), _next_sets(s, fewest, most))
    except OutOfBudget:
        return s
    s = s._replace(slopes=np.concatenate([s.slopes.reshape(-1, *more.shape[1:]), more]))
    alone = updates.slope_noise(s.slopes.mean(1), s.precision)
    if s.local_draws < s.most_draws and alone.max() > (FAR if s.points > 1 else LOUD):
        return s._replace(phase="double" if s.points > 1 else "more", length=float(alone.max()))
    noise = alone / np.sqrt(len(s.slopes))
    if noise.max() > MOST_NOISE and len(s.slopes) < most:
        return s
    tilt = _tilt(s)
    precision = definite(s.precision - tilt.hessian)
    # With many groups F's own slope is not quite zero at the end of its search.
    own = F(s.mean[None], blocks_of(s, F)).slope if s.points == 1 else 0.0
    move = updates.at_most(reach_of(s), np.linalg.solve(precision, tilt.slope + own))
    s = s._replace(mean=s.mean + move, precision=precision, noise=noise, tilt=tilt)
    return s._replace(phase="done", slopes=s.slopes[:0])


def _next_sets(s: Search, fewest: int, most: int) -> range:
    """The numbers of the next sets of draws: as many as should make the noise small, if known."""
    have, wanted = len(s.slopes), fewest
    if have:
        alone = updates.slope_noise(s.slopes.mean(1), s.precision).max()
        wanted = int(np.clip(np.ceil((alone / MOST_NOISE) ** 2), have + 1, have + fewest))
    return range(have, min(wanted, most))


def _averaged_precision(s: Search, F: Marginal) -> Search:
    """Averages the precision over sets of draws until the sds have little noise, which is noted."""
    # The Hessian of K draws has a variance of scores by those draws. It is too small if rows are
    # few and effects many, and so are sds, by a tenth: there, slopes are differenced instead.
    by_slopes = s.by_draws or not F.problem.can_turn
    each, noise, blocks = [] if by_slopes else [s.precision], None, curvature_blocks(s, F)
    for number in range(1, 1 + OTHER_CURVATURES):
        try:
            other = (
                F.secants(s.mean, s.precision, blocks, True, number)
                if by_slopes
                else F.curvature_by_other_draws(s.mean, blocks, number)
            )
        except OutOfBudget:
            break
        if not np.isfinite(other).all():
            continue
        each.append(definite(-other))
        sds = np.sqrt([np.diag(np.linalg.inv(precision)) for precision in each])
        noise = sds.std(0, ddof=1) / sds.mean(0) / np.sqrt(len(each)) if len(each) > 1 else None
        if noise is not None and noise.max() < MOST_NOISE / 2:
            break
    if noise is None:
        return s
    return s._replace(precision=np.mean(each, 0), sd_noise=noise)


def more(s: Search, F: Marginal) -> Search:
    """Raises K until averages are precise enough; one sweep's noise is in `length`."""
    _, most = budgets.NOISE_SWEEPS["many"]
    times = 2 ** int(np.ceil(2 * np.log2(s.length / (MOST_NOISE * np.sqrt(most)))))
    more = min(times * s.local_draws, s.most_draws)
    s = s._replace(local_draws=more, slopes=s.slopes[:0], bias=np.full_like(s.mean, np.nan))
    return s._replace(phase="again", settled=F.problem.local_draws, tries=0, stage=-1)


def again(s: Search, F: Marginal) -> Search:
    """A Newton step to the nearby mode of F with more draws, by the known precision."""
    there = moved(s, s.mean, s.precision, F(s.mean[None], blocks_of(s, F)))
    if not np.isfinite(there.slope).all():
        return s._replace(phase="bias")
    move = updates.at_most(reach_of(s), np.linalg.solve(s.precision, there.slope))
    near = updates.rms_sds(move, s.precision) < 0.1 or s.tries == budgets.MOST_NEWTON
    F.tell(there.value, s.precision, blocks_of(s, F))
    return there._replace(mean=s.mean + move, tries=s.tries + 1, phase="bias" if near else "again")


def _noise_points(s: Search, F: Marginal) -> np.ndarray:
    """The mean; with few groups points one sd to both sides of the mean along q(theta)'s axes."""
    if s.points == 1 or 2 * len(s.mean) > F.points:
        return s.mean[None]
    axes = np.linalg.inv(np.linalg.cholesky(s.precision))
    return s.mean + np.concatenate([axes, -axes])


def _tilt(s: Search) -> Tilt:
    """The difference between F's average over all sets of draws and F with its own set."""
    lacking, D = s.slopes.mean(0) - s.slopes[0], len(s.mean)
    if len(lacking) == 1:
        return Tilt(s.mean, lacking[0], np.zeros((D, D)))
    back = np.linalg.cholesky(s.precision)
    white = 0.5 * (lacking[:D] - lacking[D:]) @ np.linalg.inv(back).T
    return Tilt(s.mean, lacking.mean(0), back @ (0.5 * (white + white.T)) @ back.T)


def double(s: Search, F: Marginal) -> Search:
    """Restarts the search from its result, over all blocks, with more points a group."""
    unknown = np.full_like(s.mean, np.nan)
    more = F.problem.more_draws()
    return s._replace(local_draws=more, bias=unknown, slopes=s.slopes[:0], phase="open", stage=-1)
