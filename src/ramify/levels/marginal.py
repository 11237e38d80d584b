"""G(theta): the log of theta's marginal posterior, z integrated out and b by Laplace's method."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64

from ramify.levels.blocks import FEW, blocks_of, integrated, left_out
from ramify.levels.density import DensityLevels
from ramify.levels.design import Design
from ramify.levels.integral import rule_for
from ramify.levels.iterated import Iterated
from ramify.levels.kept import Algebra, Kept, assemble, choose, factorize
from ramify.levels.laplace import Held, correction
from ramify.levels.marginal_state import Effects, State
from ramify.levels.model import Given, LevelsModel
from ramify.numerics.points import gauss_hermite

CLOSE, ROUGHLY = 1e-7, 1e-3  # nats that the last step in b may gain; the same if G is coarse
MOST_STEPS = 60
NEAR, APART = 0.01, 0.2  # gain near the maximum, where the slope may be off by 0.2 (sds of b)
SLOW = 0.2  # an old factor is replaced if a step gains more than this share of the step before
AWAY = 0.1  # sd of the unconstrained effects from zero, where the first search for them begins
SEEN = 4  # times theta's entries: how many of the last maxima predict the next


class Optimum(NamedTuple):
    """The maximum over b of F at one theta."""

    theta: Float64[np.ndarray, " D"]
    given: Given
    state: State
    kept: Kept | Iterated
    value: float  # of G
    correction: float  # the part of G that `laplace` adds

    @property
    def effects(self) -> Effects:
        """Where the maximum is."""
        return self.state.effects


class NotSolved(Exception):
    """The kept effects could not be found at a theta."""


class Marginal:
    """G as a function of theta; remembers where the last maximum over b was.

    The Gaussian of b has mean `b^`; `factors` counts the factors of S that were made, `stalled` the
    optima at which conjugate gradients did not converge. A coarse G has three points along each
    dimension of z and keeps Laplace's error: it costs less, and its error is a smooth function.
    """

    def __init__(
        self,
        model: LevelsModel,
        design: Design,
        algebra: Algebra | None = None,
        *,
        coarse: bool = False,
    ):
        self.model, self.design, self.coarse = model, design, coarse
        rule = rule_for(model, len(design.offset), design.N)
        self.rule = gauss_hermite(FEW, model.M) if coarse and rule is not None else rule
        self.blocks = blocks_of(model, design, self.rule)
        forced = algebra if design.kept else None  # without kept effects there is no choice
        self.algebra: Algebra = forced or choose(design)
        self.evaluations, self.factors, self.stalled = 0, 0, 0
        self._last: Optimum | None = None
        self._seen: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=SEEN * model.theta.size)

    @property
    def size(self) -> int:
        """The number of kept effects, q."""
        return self.design.X.shape[1] + self.design.K.shape[1]

    @property
    def points(self) -> float:
        """Points of the rule for z, averaged over rows."""
        rows = [len(block.design.offset) * block.points for block in self.blocks]
        return sum(rows) / max(len(self.design.offset), 1)

    def left_out(self, at: Optimum) -> float:
        """Nats that the coarser rules of groups with many rows leave out of G."""
        state = at.state
        own = self.blocks, state.base, state.integral
        return left_out(self.model, at.given, *own, self.rule)

    def start(self) -> Effects:
        """All effects zero."""
        design = self.design
        M = self.model.M
        return Effects(
            np.zeros(design.X.shape[1]), np.zeros(design.K.shape[1]), np.zeros((design.N, M))
        )

    def _first(self) -> Effects:
        """Where the first search for b begins: not at zero, which may be a saddle (of a product, say)."""
        at, rng = self.start(), np.random.default_rng(0)
        if self.model.linear or not isinstance(self.model, DensityLevels):
            return at
        u, z = (AWAY * rng.normal(size=own.shape) for own in (at.u, at.z))
        return Effects(at.beta, u, z)

    def precision(self, given: Given) -> Any:
        """The prior precision of u; sparse, or an array if K is used as an array."""
        if self.design.dense is not None:
            whole = np.zeros((self.design.K.shape[1],) * 2)
            for term, own in zip(self.design.kept, given.kept, strict=True):
                place = slice(term.start, term.stop)
                whole[place, place] = np.kron(np.eye(term.levels), own)
            return whole
        blocks = [
            sp.kron(sp.eye_array(term.levels), own)
            for term, own in zip(self.design.kept, given.kept, strict=True)
        ]
        q = self.design.K.shape[1]
        return sp.csr_array(sp.block_diag(blocks)) if blocks else sp.csr_array((q, q))

    def state(self, given: Given, precision: Any, at: Effects, *, solved: bool = False) -> State:
        """F and its slope in b."""
        model, design = self.model, self.design
        base = design.without_z(at.beta, at.u)
        integral = integrated(model, given, self.blocks, base, at.z)
        found = integral.solved
        prior, slope, common = model.common_prior(at.beta)
        pulled = precision @ at.u
        value = integral.value + design.loose(found.rows.value) + prior
        value -= 0.5 * float(at.u @ pulled)
        value += 0.5 * sum(
            term.levels * (log_det - term.effects * np.log(2 * np.pi))
            for term, log_det in zip(design.kept, given.kept_log_det, strict=True)
        )
        slope_beta = design.common_sum(integral.slope) + slope
        slope_u = design.kept_sum(integral.slope) - pulled
        return State(value, slope_beta, slope_u, common, integral, at._replace(z=found.z), base)

    def factor(self, state: State, precision: Any) -> Kept | Iterated:
        """The factor of S at a state; that of Laplace's method where S is not positive definite."""
        self.factors += 1
        found = state.integral
        try:
            return self._factor(state, precision, found.curvature, found.shared)
        except np.linalg.LinAlgError:
            own = self.model.cautious(self.design, found.solved)
            return self._factor(state, precision, *own)

    def _factor(
        self, state: State, precision: Any, curvature: np.ndarray, shared: np.ndarray
    ) -> Kept | Iterated:
        own = precision, state.common, self.algebra
        return factorize(assemble(self.design, curvature, shared, *own), self.algebra, self.design)

    def moved(self, state: State, beta: np.ndarray, u: np.ndarray) -> Effects:
        """The effects after a step in b, with z moved to its expected mode."""
        design, solved = self.design, state.integral.solved
        change = design.changed(solved.rows.curvature, beta, u)
        back = np.einsum("nij,nkj,nk->ni", solved.root, solved.root, design.weighted(change))
        at = state.effects
        return Effects(at.beta + beta, at.u + u, at.z - back)

    def optimum(
        self,
        theta: Float64[np.ndarray, " D"],
        begin: Optimum | None = None,
        given: Given | None = None,
    ) -> Optimum:
        """The maximum of F over b at theta, by Newton from the last one; raises NotSolved."""
        begin = begin or self._last
        given = given or self.model.at(theta)
        effects = self._first() if begin is None else self._predicted(theta, begin)
        # The last factor serves for steps near its theta; only log |S| needs one at this theta.
        old = None if begin is None or self.model.linear else begin.kept
        found = self.maximum(theta, given, effects, old)
        held = Held(self.model, given, self.design, self.blocks, found.state)
        more = 0.0 if self.coarse else correction(held)
        found = found._replace(value=found.value + more, correction=more)
        self.stalled += isinstance(found.kept, Iterated) and found.kept.stalled
        self._last = found
        self._seen.append((theta, np.concatenate([found.effects.beta, found.effects.u])))
        return found

    def maximum(
        self,
        theta: Float64[np.ndarray, " D"],
        given: Given,
        effects: Effects,
        kept: Kept | Iterated | None = None,
        most: int = MOST_STEPS,
    ) -> Optimum:
        """The maximum of F over b, by Newton from these effects, without a correction; not remembered."""
        self.evaluations += 1
        precision = self.precision(given)
        state = self.state(given, precision, effects)
        state, kept = self._maximised(given, precision, state, kept, most)
        return Optimum(theta, given, state, kept, self._marginal(given, state.value, kept), 0.0)

    def _predicted(self, theta: Float64[np.ndarray, " D"], begin: Optimum) -> Effects:
        """The expected maximum at theta: b^ as a linear function of theta, fitted to the last maxima."""
        at = begin.effects
        if self.model.linear or len(self._seen) <= len(theta):
            return at
        thetas, maxima = map(np.stack, zip(*self._seen, strict=True))
        apart, change = thetas - begin.theta, maxima - np.concatenate([at.beta, at.u])
        share = np.linalg.lstsq(apart.T, theta - begin.theta, rcond=1e-6)[0]  # of least norm
        moved = share @ change
        return self.moved(begin.state, *np.split(moved, [len(at.beta)]))

    def _maximised(
        self, given: Given, precision: Any, state: State, kept: Kept | Iterated | None, most: int
    ) -> tuple[State, Kept | Iterated]:
        """The maximum over b and the factor there, by Newton; `kept` is the factor of the first steps."""
        fresh, last, close = False, np.inf, ROUGHLY if self.coarse else CLOSE
        for _ in range(most):
            if kept is None:
                kept, fresh = self.factor(state, precision), True
            beta, u = kept.solve(state.slope_beta, state.slope_u)
            gain = 0.5 * float(state.slope_beta @ beta + state.slope_u @ u)
            if not np.isfinite(gain):
                raise NotSolved
            if gain < close:
                break
            moved = fresh or gain <= SLOW * last
            tried = self._stepped(given, precision, state, beta, u) if moved else None
            if tried is None:
                if fresh:
                    raise NotSolved
                kept = None
                continue
            (state, full), last, fresh = tried, gain, False
            if not full:
                kept = None
            elif self.model.linear and isinstance(kept, Kept):
                return state, kept  # exact
        else:
            raise NotSolved
        return state, kept if fresh or self.model.linear else self.factor(state, precision)

    def _stepped(
        self, given: Given, precision: Any, state: State, beta: np.ndarray, u: np.ndarray
    ) -> tuple[State, bool] | None:
        """The state after a step, shortened until F does not fall, and whether it is the full step."""
        length, gain = 1.0, 0.5 * float(state.slope_beta @ beta + state.slope_u @ u)
        # The slope by quadrature is not exactly that of the value: near the maximum it decides.
        slack = 1e-9 * (1 + abs(state.value)) + (APART * np.sqrt(gain) if gain < NEAR else 0.0)
        for _ in range(12):
            tried = self.state(given, precision, self.moved(state, length * beta, length * u))
            if tried.value >= state.value - slack:
                return tried, length == 1.0
            length *= 0.4
        return None

    def values(
        self, thetas: Float64[np.ndarray, "n D"], begin: Optimum | None = None
    ) -> Float64[np.ndarray, " n"]:
        """G at many thetas, from a maximum nearby; minus infinity where b could not be found."""
        each = zip(thetas, self.model.at_each(thetas), strict=True)
        return np.array([self._value(theta, begin, given) for theta, given in each])

    def _value(
        self, theta: Float64[np.ndarray, " D"], begin: Optimum | None, given: Given
    ) -> float:
        begin = begin or self._last
        try:
            if begin is None or not (self.model.linear and isinstance(begin.kept, Kept)):
                return self.optimum(theta, begin, given).value
            return self._exact(begin, given)
        except (NotSolved, np.linalg.LinAlgError, FloatingPointError):
            return -np.inf

    def _exact(self, begin: Optimum, given: Given) -> float:
        """G of a linear model: F is quadratic in b, so one Newton step tells its maximum."""
        self.evaluations += 1
        precision = self.precision(given)
        state = self.state(given, precision, begin.effects)
        kept = self.factor(state, precision)
        beta, u = kept.solve(state.slope_beta, state.slope_u)
        gain = 0.5 * float(state.slope_beta @ beta + state.slope_u @ u)
        return self._marginal(given, state.value + gain, kept)

    def _marginal(self, given: Given, maximum: float, kept: Kept | Iterated) -> float:
        """G without the correction of Laplace's method, from the maximum of F over b."""
        constant = 0.5 * self.size * np.log(2 * np.pi)
        return given.log_prior + maximum - 0.5 * kept.log_det + constant
