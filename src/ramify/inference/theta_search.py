"""Learning q(theta) where the locals are solved for: variational Newton on the marginal posterior.

The best Gaussian N(m, P^-1) for exp F satisfies E_q[grad F] = 0, P = -E_q[hess F] (Bonnet, Price). Each
call of a `Marginal` is one sweep over the data at a few fixed points of q(theta); the D x D algebra
is done here, on the host, in float64. A subset of the groups finds the neighbourhood, all of them
the answer.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ramify.inference.marginal import ONE_SIDED, Expansion, Marginal, OutOfBudget, definite
from ramify.numerics.points import normal_points

CURVATURE_GROUPS = 20_000  # groups whose curvature stands for all: sds are then good to a percent
MOST_K_HAT = 0.7  # of theta's weights, past which they tell little (Vehtari and others)
LONGEST = 1.0  # of a Newton step in any coordinate: theta's scales are logarithms
FIRST_LOOK = 0.05  # how far apart the first gradients are, in every coordinate


class Learned(NamedTuple):
    """q(theta) = N(mean, precision^-1), and what is left to worry about.

    `left` is the step that the last gradient still asks for, rms in posterior sds: near zero unless
    the search stalled. `bias` estimates, in posterior sds, how far finite K still moves each mean
    (nan where the budget ended before); `unconverged` marks the groups whose mode was not found.
    """

    mean: np.ndarray
    precision: np.ndarray
    left: float
    bias: np.ndarray
    unconverged: np.ndarray


class Start(NamedTuple):
    """Where a search begins: a mean, and a precision that is only a guess unless it was `found`."""

    mean: np.ndarray
    precision: np.ndarray
    found: bool


class NotFinite(Exception):
    """F is not finite at the starting point; `block` is the first block where."""

    def __init__(self, block: int):
        """Keeps the block for whoever can name the group."""
        super().__init__(block)
        self.block = block


def learn(
    marginal: Marginal,
    start: Start,
    stages: list[int],
    points: int,
    enough: Callable[[], bool],
) -> Learned:
    """The best Gaussian q(theta): Newton on growing parts of the data, then variational Newton.

    The latter averages over so many points of q(theta); with one, its centre, it is Laplace's.
    `enough` says that the budget is spent: what has been reached is then returned.
    """
    mean, precision, here = climb(marginal, start, stages[0], enough)
    for blocks in stages[1:]:
        if not enough():
            mean, precision, here = climb(marginal, Start(mean, precision, True), blocks, enough)
    if not enough():
        if points == 1:
            mean, precision, here = laplace(marginal, mean, precision, here, stages[-1], enough)
        else:
            noise = normal_points(points, len(mean))
            mean, precision, here = average(
                marginal, mean, precision, here, noise, stages[-1], enough
            )
    left = _sds(np.linalg.solve(precision, here.slope), precision)
    slope = np.full_like(mean, np.nan) if enough() else marginal.bias(mean)
    shift = np.linalg.solve(precision, slope)  # how far it moves the mean of q(theta)
    bias = shift / np.sqrt(np.diag(np.linalg.inv(precision)))
    return Learned(mean, precision, left, bias, ~marginal.converged)


def climb(
    F: Marginal, start: Start, blocks: int, enough: Callable[[], bool], most: int = 60
) -> tuple[np.ndarray, np.ndarray, Expansion]:
    """Newton to the mode of F over the first blocks; steps from afar do not lower F.

    The curvature is that of gradients around the start (or of a smaller part of the data, where
    there is one), taught by every step what the gradient did; it is looked for again where a
    step fails. Ends when a step would gain less than a tenth of a nat, or a few steps after it
    gains less than the spread of theta itself: there the noise of K draws moves F by more than a
    step does, and what is left is for `average`.
    """
    mean, near, longest, fresh = start.mean, 0, LONGEST, not start.found
    here = F(mean, mean[None], blocks)
    if not here.finite:
        raise NotFinite(F.first_bad_block(mean))
    P = start.precision if start.found else _first_precision(F, start, blocks)
    F.tell(here.value, P, blocks)
    for _ in range(most):
        move = np.linalg.solve(P, here.slope)
        gain = 0.5 * here.slope @ move
        close = gain < 0.5 * len(mean)
        near += close
        if gain < 0.1 or near > 3 or longest < 1e-6 or enough():
            break
        move *= min(1.0, longest / np.abs(move).max())
        there = F(mean + move, (mean + move)[None], blocks)
        slack = 0.1 + 1e-7 * abs(here.value) + (len(mean) if close else 0)
        if there.finite and there.value >= here.value - slack:
            longest = min(LONGEST, max(longest, 2 * np.abs(move).max()))
            P, fresh = _taught(P, move, here.slope - there.slope), False
            mean, here = mean + move, there
            F.tell(here.value, P, blocks)
        elif not fresh:
            P, fresh = _rough(F, mean, P, _curvature_blocks(F, blocks)), True
        else:
            longest = _shorter(here, there, move) * np.abs(move).max()
    return mean, P, here


def _first_precision(F: Marginal, start: Start, blocks: int) -> np.ndarray:
    """Curvature where nothing is known of its scale: over a short way, and then over its own."""
    short = np.eye(len(start.mean)) * (ONE_SIDED / FIRST_LOOK) ** 2
    first = _rough(F, start.mean, short, blocks)
    if first is short:  # the budget has ended, or F is not finite there
        return start.precision
    return _rough(F, start.mean, first, blocks)


def _rough(F: Marginal, mean: np.ndarray, precision: np.ndarray, blocks: int) -> np.ndarray:
    """A precision to search with: that of the answer is looked for where the search has ended."""
    return _secant(F, mean, precision, blocks, one_sided=True, rough=True)


def _taught(P: np.ndarray, move: np.ndarray, fall: np.ndarray) -> np.ndarray:
    """The precision after a step along which the slope fell by so much (BFGS, damped by Powell)."""
    expected = P @ move
    bent = move @ expected
    share = 1.0 if move @ fall >= 0.2 * bent else 0.8 * bent / (bent - move @ fall)
    seen = share * fall + (1 - share) * expected
    taught = P - np.outer(expected, expected) / bent + np.outer(seen, seen) / (move @ seen)
    return definite(0.5 * (taught + taught.T))


def _shorter(here: Expansion, there: Expansion, move: np.ndarray) -> float:
    """The part of a step that failed to take next: to the top of the parabola through both ends."""
    rise = here.slope @ move
    top = rise / (2 * (rise - (there.value - here.value))) if there.finite else 0.1
    return float(np.clip(top, 0.1, 0.5))


def laplace(
    F: Marginal,
    mean: np.ndarray,
    precision: np.ndarray,
    here: Expansion,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 4,
) -> tuple[np.ndarray, np.ndarray, Expansion]:
    """The mode of F and its curvature there: all that is left of `average` when N is large.

    Averages over q(theta) differ from values at its centre by terms in 1/N. The mode needs every
    group (`here` is F with all of them); its curvature is known from some thousands, at random.
    """
    for _ in range(most):
        if enough():
            break
        target = _secant(F, mean, precision, _curvature_blocks(F, blocks), one_sided=True)
        change = _largest_change(precision, target)
        precision = target
        mean, here = _newton(F, mean, here, precision, blocks, enough)
        if change < 0.3:
            break
    F.tell(here.value, precision, blocks)
    move = np.linalg.solve(precision, here.slope)
    # Too short a step to be worth another look is taken without one.
    return mean + (move if here.slope @ move < 0.2 else 0.0), precision, here


def _newton(
    F: Marginal,
    mean: np.ndarray,
    here: Expansion,
    precision: np.ndarray,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 8,
) -> tuple[np.ndarray, Expansion]:
    """Steps that raise F, until the next would gain, or the last one has gained, a tenth of a nat.

    A step that fails is tried once more, shorter: what its slope still promises then is noise.
    """
    for _ in range(most):
        move = np.linalg.solve(precision, here.slope)
        gain = 0.5 * here.slope @ move
        move *= min(1.0, LONGEST / np.abs(move).max())
        if gain < 0.1 or enough():
            break
        there = F(mean + move, (mean + move)[None], blocks)
        if not (there.finite and there.value >= here.value - 0.1 - 1e-7 * abs(here.value)):
            if enough():
                break
            move *= _shorter(here, there, move)
            there = F(mean + move, (mean + move)[None], blocks)
        gained = there.value - here.value if there.finite else 0.0
        if gained > 0:
            mean, here = mean + move, there
            F.tell(here.value, precision, blocks)
        if gained < 0.1:
            break
    return mean, here


def _secant(
    F: Marginal,
    mean: np.ndarray,
    precision: np.ndarray,
    blocks: int,
    one_sided: bool = False,
    rough: bool = False,
) -> np.ndarray:
    """The precision that gradients around the mean tell; as it was, where one is not finite.

    Nor does it change where the budget ends before all the gradients are known.
    """
    try:
        hessian = F.curvature(mean, precision, blocks, one_sided, rough)
    except OutOfBudget:
        return precision
    return definite(-hessian) if np.isfinite(hessian).all() else precision


def _sds(move: np.ndarray, precision: np.ndarray) -> float:
    """The length of a step: rms, in posterior sds."""
    return float(np.sqrt(move @ precision @ move / len(move)))


def _largest_change(old: np.ndarray, new: np.ndarray) -> float:
    """Of a precision, as a factor less one, over all directions."""
    return float(np.abs(np.linalg.eigvals(np.linalg.solve(old, new)) - 1).max())


def _curvature_blocks(F: Marginal, blocks: int) -> int:
    return min(blocks, int(np.searchsorted(F.groups_upto, CURVATURE_GROUPS)) + 1)


def average(
    F: Marginal,
    mean: np.ndarray,
    precision: np.ndarray,
    here: Expansion,
    noise: np.ndarray,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 32,
) -> tuple[np.ndarray, np.ndarray, Expansion]:
    """Variational Newton: P = -E_q[hess F] and E_q[grad F] = 0, on fixed antithetic points.

    A step that would lower the bound E_q[F] + entropy on those points is halved until it does not, and
    the next is no longer; those after it may be. Ends where two in a row gain nothing. The last step is
    taken without another look: Newton squares an error that is small already. `here` is F at the mean,
    which is the answer where F is not finite at all the points.
    """

    def look(m: np.ndarray, P: np.ndarray) -> Expansion:
        thetas = m + np.linalg.solve(np.linalg.cholesky(P).T, noise.T).T
        return F(m, thetas, blocks)

    objective = lambda e, P: e.value - 0.5 * np.linalg.slogdet(P)[1] if e.finite else -np.inf
    length, target, cut, flat = 1.0, None, False, 0
    # The points of q(theta) spread as it says, so what steps have taught is not enough.
    precision = _secant(F, mean, precision, blocks, one_sided=True)
    if enough() or not (first := look(mean, precision)).finite:
        return mean, precision, here
    here = first
    F.tell(here.value, precision, blocks, len(noise))
    for _ in range(most):
        if length < 0.01 or flat > 1 or enough():
            break
        if target is None:
            target = _secant(F, mean, precision, blocks)
        if enough():
            break
        move = np.linalg.solve(target, here.slope)
        if not cut and _sds(move, target) < 0.1 and _largest_change(precision, target) < 0.3:
            return mean + move, target, here
        move *= min(1.0, LONGEST / np.abs(move).max())
        trial = mean + length * move, (1 - length) * precision + length * target
        there = look(*trial)
        gained = objective(there, trial[1]) - objective(here, precision)
        if gained >= -0.1:
            (mean, precision), here, target = trial, there, None
            flat = flat + 1 if gained < 0.1 else 0
            length, cut = length if cut else min(1.0, 2 * length), False
            F.tell(here.value, precision, blocks, len(noise))
        else:
            length, cut = length / 2, True
    return mean, precision, here
