"""The search for q(theta) of the solved family: a state, `init`, `step` and `done`.

The best Gaussian N(m, P^-1) for exp F satisfies E_q[grad F] = 0, P = -E_q[hess F] (Bonnet, Price).
A step computes one expansion of F, or its curvature around a point, and returns the next state.
The phase of a state says what its next step does:

    open, climb            Newton to the mode of F on a part of the groups, then on four times as many
    laplace, newton        with many groups: the mode of F over all groups, and its curvature there
    spread, look, average  with few: variational Newton on fixed points of q(theta)
    bias                   the bias of K local draws; with many groups a turned rule replaces them
    noise                  removes the noise of draws by an average over other draws
    double                 if the bias is too large: again with twice as many draws
    more, again            if the noise is: to the mode of F with as many draws as it takes

A search may stop after any step and go on with another `Marginal` of the same data: the same bits.
"""

from typing import NamedTuple

import numpy as np

from ramify.inference import newton_updates as updates
from ramify.inference.marginal import (
    ONE_SIDED,
    Expansion,
    Marginal,
    Tilt,
    definite,
)
from ramify.inference.search_state import (
    LONGEST,
    Search,
    blocks_of,
    curvature_blocks,
    moved,
    reach_of,
)
from ramify.inference.theta_remainder import again, bias, double, more, noise
from ramify.numerics import budgets
from ramify.numerics.points import normal_points

FIRST_LOOK = 0.05  # distance of the first gradients, in every coordinate
FAR_AWAY = 10.0  # length of a Newton step above which theta may have coordinates of larger scale
MANY = 12  # coordinates of theta from which one without curvature must not shorten all steps
WORTHWHILE = 0.1  # nats: a step that gains less ends a search
ROUNDING = 3e-6  # relative rounding of F, by float32 sums over the rows of large groups


class Learned(NamedTuple):
    """q(theta) = N(mean, precision^-1), and estimates of its errors."""

    mean: np.ndarray
    precision: np.ndarray
    left: float  # rms of the Newton step by the last slope, in sds: near 0 unless stalled
    bias: np.ndarray  # how far finite K moves each mean, in sds; NaN if the budget ended before
    noise: np.ndarray | None  # sd of each mean over seeds, in sds; None if the budget ended before
    tilt: Tilt | None  # what the average over more draws adds to F
    unconverged: np.ndarray  # the groups whose mode was not found
    local_draws: int = 1  # K of the search, before K was raised against noise
    mode: tuple[np.ndarray, np.ndarray] | None = None  # and the precision there, if not the mean

    def at_mode(self) -> "Learned":
        """The same with the mode in place of the mean."""
        if self.mode is None:
            return self
        return self._replace(mean=self.mode[0], precision=self.mode[1])


class NotFinite(Exception):
    """F is not finite at the starting point; the argument is the first block where it is not."""


def init(
    mean: np.ndarray, precision: np.ndarray, local_draws: int, most_draws: int, points: int
) -> Search:
    """The state before the first sweep; the precision is a guess."""
    unknown = np.full_like(mean, np.nan)
    draws = local_draws, most_draws, points
    return Search("open", *draws, mean, precision, np.nan, unknown, unknown)


def done(state: Search) -> bool:
    """Whether q(theta) has been found."""
    return state.phase == "done"


def step(state: Search, F: Marginal) -> Search:
    """The next state. F has `state.local_draws` draws; it may be another object in every step."""
    F.memory = state.memory
    new = PHASES[state.phase](state, F)
    return new._replace(memory=F.memory if new.local_draws == state.local_draws else None)


def finish(state: Search, F: Marginal) -> Learned:
    """What the search found, also if the budget ended before it was done."""
    state = _settle(state, F) if state.rounds else state
    left = updates.rms_sds(np.linalg.solve(state.precision, state.slope), state.precision)
    noise = state.noise
    if noise is not None and state.sd_noise is not None:
        noise = np.hypot(noise, state.sd_noise)  # an interval's end moves with the sd
    found = state.mean, state.precision, left, state.bias, noise
    return Learned(*found, state.tilt, ~F.converged, state.settled or state.local_draws)


def _expand(s: Search, F: Marginal, mean: np.ndarray) -> Expansion:
    """F at one point, with its Hessian if that costs little."""
    few = blocks_of(s, F) == curvature_blocks(s, F)
    return F(mean[None], blocks_of(s, F), few and s.tries % s.hessian_every == 0)


# Newton on growing parts of the data.


def _open(s: Search, F: Marginal) -> Search:
    """The first sweep of a stage. Only the very first stage starts from a guessed precision."""
    here, guessed = _expand(s, F, s.mean), s.stage == 0
    if not here.finite:
        raise NotFinite(F.first_bad_block(s.mean))
    precision = _first_precision(s, F) if guessed and here.hessian is None else s.precision
    s = moved(s, s.mean, _known_precision(here, precision), here)
    F.tell(s.value, s.precision, blocks_of(s, F))
    known = guessed or here.hessian is not None
    s = s._replace(phase="climb", tries=0, calm=0, length=LONGEST, measured=known)
    return _next_climb(s, F)


def _first_precision(s: Search, F: Marginal) -> np.ndarray:
    """The curvature if its scale is unknown: over a short distance, then over posterior sds."""
    short = np.eye(len(s.mean)) * (ONE_SIDED / FIRST_LOOK) ** 2
    first = _rough_precision(s, F, short, blocks_of(s, F))
    if first is short:  # the budget has ended, or F is not finite there
        return s.precision
    return _rough_precision(s, F, first, blocks_of(s, F))


def _rough_precision(s: Search, F: Marginal, precision: np.ndarray, blocks: int) -> np.ndarray:
    """A precision for the search; that of the answer is measured at the end, more exactly."""
    return updates.measured_precision(F, s.mean, precision, blocks, one_sided=True)


def _known_precision(there: Expansion, otherwise: np.ndarray) -> np.ndarray:
    """The precision by an expansion's Hessian if it has one, else `otherwise`."""
    if there.hessian is None or not np.isfinite(there.hessian).all():
        return otherwise
    return definite(-there.hessian)


def _climb(s: Search, F: Marginal) -> Search:
    """One Newton step to the mode of F over the first blocks; it must not lower F."""
    move, gain = updates.newton_move(s.precision, s.slope)
    close = gain < 0.5 * len(s.mean)
    if s.reach is None and np.abs(move).max() > FAR_AWAY:
        s = s._replace(reach=F.reach(s.mean))
    reach = reach_of(s)
    if len(s.mean) >= MANY or reach.max() > LONGEST:
        scaled = s.precision * np.outer(reach, reach), s.slope * reach
        move = reach * updates.damped(LONGEST, *scaled)
    move = updates.at_most(s.length * reach, move)
    there = _expand(s, F, s.mean + move)
    slack = 0.1 + 1e-7 * abs(s.value) + (len(s.mean) if close else 0)
    longest = float(np.abs(move / reach).max())
    s = s._replace(tries=s.tries + 1)
    # After a failed step the curvature is measured; after another one the step is shortened.
    if there.finite and (there.value >= s.value - slack or _calmer(s, there)):
        learned = updates.bfgs(s.precision, move, s.slope - there.slope)
        s = moved(s, s.mean + move, _known_precision(there, learned), there)
        known = there.hessian is not None
        s = s._replace(length=min(LONGEST, max(s.length, 2 * longest)), measured=known)
        F.tell(s.value, s.precision, blocks_of(s, F))
    elif not s.measured:
        precision = _rough_precision(s, F, s.precision, curvature_blocks(s, F))
        s = s._replace(precision=precision, measured=True)
    else:
        s = s._replace(length=updates.shorter(Expansion(s.value, s.slope), there, move) * longest)
    return _next_climb(s, F)


def _next_climb(s: Search, F: Marginal) -> Search:
    """Goes on climbing, or to the next stage, or to the search for the answer."""
    gain = updates.newton_move(s.precision, s.slope)[1]
    # Stop after three steps with a predicted gain below D/2: noise of the K draws dominates.
    s = s._replace(calm=s.calm + int(gain < 0.5 * len(s.mean)))
    if gain >= WORTHWHILE and s.calm <= 3 and s.length >= 1e-6 and s.tries < budgets.MOST_CLIMBS:
        return s
    if blocks_of(s, F) < len(F.groups_upto):
        return s._replace(phase="open", stage=s.stage + 1)
    return s._replace(phase="laplace" if s.points == 1 else "spread")


# Laplace's approximation: `_average` for large N, where averages over q(theta) differ from values
# at its centre by terms in 1/N. The mode needs every group; its curvature is known from a random
# sample of some thousands.


def _laplace(s: Search, F: Marginal) -> Search:
    """Measures the curvature at the mode, unless the last step of the climb did."""
    known = F.exact and s.measured and s.rounds == 0
    target = s.precision if known else _rough_precision(s, F, s.precision, curvature_blocks(s, F))
    steady = updates.largest_change(s.precision, target) < 0.3
    s = s._replace(precision=target, steady=steady, rounds=s.rounds + 1, tries=0, length=1.0)
    if updates.newton_move(s.precision, s.slope)[1] < WORTHWHILE:
        return _next_round(s, F)
    return s._replace(phase="newton")


def _newton(s: Search, F: Marginal) -> Search:
    """One Newton step that raises F. A failed step is tried once more, shorter."""
    move = updates.at_most(reach_of(s), updates.newton_move(s.precision, s.slope)[0]) * s.length
    there = _expand(s, F, s.mean + move)
    slack = 0.1 + 1e-7 * abs(s.value)
    calmer = _calmer(s, there)
    if s.length == 1.0 and not (there.finite and there.value >= s.value - slack or calmer):
        return s._replace(length=updates.shorter(Expansion(s.value, s.slope), there, move))
    gained = there.value - s.value if there.finite else 0.0
    if gained > 0 or calmer:
        s = moved(s, s.mean + move, s.precision, there)
        F.tell(s.value, s.precision, blocks_of(s, F))
    s = s._replace(tries=s.tries + 1, length=1.0)
    # After a step that gained nothing, the gain that the slope predicts is noise.
    over = (gained < WORTHWHILE and not calmer) or s.tries == budgets.MOST_NEWTON
    over = over or updates.newton_move(s.precision, s.slope)[1] < WORTHWHILE
    return _next_round(s, F) if over else s


def _calmer(s: Search, there: Expansion) -> bool:
    """Whether F changed by no more than its rounding, and its slope fell."""
    # Sums over the rows of large groups are rounded by more than a step near the mode gains. The
    # slope does not have these errors, and tells whether the step was one towards the mode.
    if not there.finite or abs(there.value - s.value) > ROUNDING * abs(s.value):
        return False
    left = lambda slope: updates.newton_move(s.precision, slope)[1]
    return left(there.slope) < left(s.slope)


def _next_round(s: Search, F: Marginal) -> Search:
    """Measures the curvature again if it changed much, and the mode may have moved."""
    over = s.steady or s.rounds == budgets.MOST_ROUNDS
    return _settle(s, F) if over else s._replace(phase="laplace")


def _settle(s: Search, F: Marginal) -> Search:
    """Ends Laplace's search. A short last step is taken without a sweep."""
    F.tell(s.value, s.precision, blocks_of(s, F))
    move = np.linalg.solve(s.precision, s.slope)
    last = move if s.slope @ move < 0.2 else 0.0
    return s._replace(mean=s.mean + last, phase="bias", rounds=0)


# Variational Newton: P = -E_q[hess F] and E_q[grad F] = 0, on fixed antithetic points.


def _spread(s: Search, F: Marginal) -> Search:
    """Measures the curvature, by which the points of q(theta) are spread: BFGS is too rough."""
    return s._replace(precision=_rough_precision(s, F, s.precision, blocks_of(s, F)), phase="look")


def _look(s: Search, F: Marginal) -> Search:
    """The first average of F over q(theta). If it is not finite, the mode is the answer."""
    first = _average_over(s, F, s.mean, s.precision)
    if not first.finite:
        return s._replace(phase="bias")
    F.tell(first.value, s.precision, blocks_of(s, F), s.points)
    s = moved(s, s.mean, s.precision, first)
    return s._replace(phase="average", tries=0, calm=0, length=1.0, target=None, cut=False)


def _average(s: Search, F: Marginal) -> Search:
    """Measures the target precision; then moves towards it, or ends if it is close already."""
    if s.target is None:
        target = updates.measured_precision(F, s.mean, s.precision, blocks_of(s, F))
        return s._replace(target=target)
    move = np.linalg.solve(s.target, s.slope)
    near = updates.rms_sds(move, s.target) < 0.1
    steady = near and updates.largest_change(s.precision, s.target) < 0.3
    if steady and not s.cut:  # without another sweep: Newton squares an error that is small
        return s._replace(mean=s.mean + move, precision=s.target, phase="bias")
    s = _tried(s, F, updates.at_most(reach_of(s), move), s.target)
    over = s.length < 0.01 or s.calm > 1 or s.tries == budgets.MOST_AVERAGES
    return s._replace(phase="bias" if over else "average")


def _tried(s: Search, F: Marginal, move: np.ndarray, target: np.ndarray) -> Search:
    """Takes a step unless it lowers E_q[F] + entropy; after that the next two are half as long."""
    mean = s.mean + s.length * move
    precision = (1 - s.length) * s.precision + s.length * target
    there = _average_over(s, F, mean, precision)
    gained = _bound(there, precision) - _bound(Expansion(s.value, s.slope), s.precision)
    s = s._replace(tries=s.tries + 1)
    if not gained >= -0.1:
        return s._replace(length=s.length / 2, cut=True)
    F.tell(there.value, precision, blocks_of(s, F), s.points)
    length = s.length if s.cut else min(1.0, 2 * s.length)
    calm = s.calm + 1 if gained < WORTHWHILE else 0
    s = moved(s, mean, precision, there)
    return s._replace(calm=calm, length=length, target=None, cut=False)


def _average_over(s: Search, F: Marginal, mean: np.ndarray, precision: np.ndarray) -> Expansion:
    """F averaged over the points of N(mean, precision^-1)."""
    noise = normal_points(s.points, len(mean))
    thetas = mean + np.linalg.solve(np.linalg.cholesky(precision).T, noise.T).T
    return F(thetas, blocks_of(s, F))


def _bound(e: Expansion, precision: np.ndarray) -> float:
    """E_q[F] + entropy, up to a constant."""
    return e.value - 0.5 * np.linalg.slogdet(precision)[1] if e.finite else -np.inf


_ALL = _open, _climb, _laplace, _newton, _spread, _look, _average, bias, noise, double
_ALL += more, again
PHASES = {phase.__name__.removeprefix("_"): phase for phase in _ALL}
