"""F(theta), the log of the marginal posterior with every group's z integrated out, by sweeps.

With z integrated by K points a group around its mode,

    F(theta) = log p(theta) + sum_i log p^(y_i | theta)

is a smooth, deterministic function of D numbers: a group has the same noise in every sweep. One
sweep over the data returns F with its gradient; an engine adds up what `inference.sweep` computes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.sources import BlockSource
from ramify.engine.local import Engine
from ramify.families.solver import solve_block
from ramify.inference.prior_check import prior_reach
from ramify.inference.progress import Budget
from ramify.inference.sweep import Around, At, Modes, Problem, Sums, sweep_block
from ramify.models.model import expand_priors
from ramify.numerics.arrays import floats

# Step of a difference, in posterior sds: short beside F's skewness, long beside its rounding.
ONE_SIDED = 0.3
MODE_WORK = 8  # row likelihoods that take as long as a row's part of solving for a mode, about
# Longest such step in any coordinate, for a wide posterior: scales are logarithms.
FARTHEST = 1.0


class Expansion(NamedTuple):
    """F at a few points of theta: mean value, gradient and Hessian over them, in float64."""

    value: float
    slope: np.ndarray
    hessian: np.ndarray | None = None  # if it was asked for

    @property
    def finite(self) -> bool:
        """Whether value and gradient are finite."""
        return bool(np.isfinite(self.value) and np.isfinite(self.slope).all())


class Tilt(NamedTuple):
    """The difference between F with many more draws of z and F: a parabola, zero at the centre."""

    centre: Any  # [D]
    slope: Any  # [D]
    hessian: Any  # [D, D]

    def at(self, thetas: Any) -> tuple[Any, Any]:
        """The parabola's values and slopes at thetas, [..., D]."""
        apart = thetas - self.centre
        bent = apart @ self.hessian
        return apart @ self.slope + 0.5 * (bent * apart).sum(-1), self.slope + bent


class OutOfBudget(Exception):
    """The budget ended before all of some values were computed; a part of them is useless."""


class Marginal:
    """F(theta) for the host: each call is one sweep over some of the blocks."""

    def __init__(
        self,
        problem: Problem,
        source: BlockSource,
        engine: Engine,
        key: PRNGKeyArray,
        points: int,
        report: Callable[[dict[str, float]], None],
        budget: Budget | None = None,
    ):
        """`points` is how many points of theta one sweep takes; `budget` counts the sweeps."""
        self.problem, self.source, self.engine, self.key = problem, source, engine, key
        self.points, self.report, self.budget = points, report, budget
        # One function for all sweeps, so that a remote worker compiles it once.
        self._sums = partial(_sums_of_block, eqx.filter(problem, eqx.is_array, inverse=True))
        self.model, self.members, self.exact = problem.model, source.members, problem.hessian
        self._curved_priors = self.exact  # which of two programs expands the prior
        self.groups_upto = np.cumsum((self.members >= 0).sum(1))
        D = self.model.theta.size
        self.tilt = Tilt(np.zeros(D), np.zeros(D), np.zeros((D, D)))  # added to F once it is known
        self.memory = None

    @property
    def memory(self) -> Any:
        """What the next sweep takes over from the last: modes of all blocks, and Newton's steps."""
        return tuple(self._modes), self.newton_steps

    @memory.setter
    def memory(self, memory: Any) -> None:
        """Continues from the memory of an equal F; None: before the first sweep."""
        if memory is None:
            B, M = self.members.shape[1], self.model.z.size
            # Not weakly typed, or the second sweep would be compiled anew.
            unknown = Modes(floats(np.full((B, M), np.nan)), jax.device_put(np.ones(B, bool)))
            memory = [unknown] * len(self.source), 0.0
        modes, self.newton_steps = memory
        on_device = lambda own: Modes(*map(jax.device_put, own)) if isinstance(own, Modes) else own
        self._modes = [on_device(block) for block in modes]  # others belong to the engine

    @property
    def known_modes(self) -> list[Modes]:
        """What the sweeps found of each block, as NumPy arrays."""
        return self.engine.fetch(self._modes)

    @property
    def modes(self) -> Float[np.ndarray, "N M"]:
        """The mode of each group that the last sweep found, NaN where it found none."""
        return self._of_groups([modes.begin for modes in self.known_modes], np.nan)

    @property
    def converged(self) -> Bool[np.ndarray, " N"]:
        """Which groups' modes the last sweep found."""
        return self._of_groups([modes.converged for modes in self.known_modes], True)

    def _of_groups(self, parts: list[Any], unknown: Any) -> np.ndarray:
        """Values that blocks hold by place, in the order of the groups."""
        found = np.full((len(self.source.sizes), *parts[0].shape[1:]), unknown, parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            found[members[members >= 0]] = part[members >= 0]
        return found

    def __call__(
        self, thetas: np.ndarray, blocks: int, curved: bool = False, draws: int = 0
    ) -> Expansion:
        """Expands F at `thetas` [S, D] over the first blocks; with the Hessian if it can be had."""
        curved = curved and self.exact
        found = self._expand(thetas, blocks, curved, draws)
        self.newton_steps = float(found.steps) / blocks
        hessian = found.hessian / len(thetas) if curved else None
        return Expansion(float(found.values.mean()), found.slopes.mean(0), hessian)

    def share(self, theta: np.ndarray) -> Expansion:
        """The groups' sum in F at theta, without the prior, with its gradient and Hessian."""
        found = self._sweep(theta[None], len(self.source), curved=True)[1]
        return Expansion(float(found.values[0]), found.slopes[0], found.hessian)

    def shares(self, thetas: np.ndarray) -> np.ndarray:
        """The groups' sum in F, without the prior, at any number of thetas [n, D]: [n]."""
        sweep = lambda chunk: self._sweep(chunk, len(self.source))[1].values[: len(chunk)]
        return np.concatenate([sweep(chunk) for chunk in self._chunks(thetas)])

    def first_bad_block(self, theta: np.ndarray) -> int:
        """The first block where F is not finite at theta; 0 if it is finite in all of them."""
        for number in range(len(self.source)):
            if not np.isfinite(self._sweep(theta[None], [number])[1].values[0]):
                return number
        return 0

    def curvature(
        self, mean: np.ndarray, precision: np.ndarray, blocks: int, one_sided: bool = False
    ) -> np.ndarray:
        """The Hessian of F: exact at the mean, or by differences of gradients around it."""
        # A skewed F needs secants over theta's own spread, along the axes of N(mean, precision^-1);
        # gradients have little noise. `one_sided` costs half as much. With many groups F is hardly
        # skewed, and the Hessian at the mean costs least.
        if self.exact:
            found = self(mean[None], blocks, curved=True).hessian
            assert found is not None
            return _symmetric(found)
        return self.secants(mean, precision, blocks, one_sided)

    def secants(
        self,
        mean: np.ndarray,
        precision: np.ndarray,
        blocks: int,
        one_sided: bool = False,
        draws: int = 0,
    ) -> np.ndarray:
        """The Hessian by differences of gradients along the axes of N(mean, precision^-1)."""
        back = np.linalg.cholesky(precision)
        axes = np.linalg.inv(back)  # rows of unit length in q
        if one_sided:
            far = np.minimum(ONE_SIDED, FARTHEST / np.abs(axes).max(1))[:, None]
            ahead, behind, apart = mean + far * axes, mean[None], far
        else:
            ahead, behind, apart = mean + axes, mean - axes, 2.0
        slopes = self._slopes(np.concatenate([ahead, behind]), blocks, draws)
        change = (slopes[: len(ahead)] - slopes[len(ahead) :]) / apart
        white = change @ axes.T  # about -1, [axis, axis]
        return _symmetric(back @ _symmetric(white) @ back.T)

    def reach(self, mean: np.ndarray) -> np.ndarray:
        """How far a step may go in each coordinate, [D]."""
        return prior_reach(self.model, mean)

    def curvature_by_other_draws(self, mean: np.ndarray, blocks: int, number: int) -> np.ndarray:
        """The Hessian of F at the mean, with set `number` of draws."""
        self.check_budget()
        found = self(mean[None], blocks, True, number).hessian
        assert found is not None
        return found

    def _slopes(self, thetas: np.ndarray, blocks: int, draws: int = 0) -> np.ndarray:
        """The gradient of F at each of any number of thetas, [n, D]."""
        chunks = self._chunks(thetas)
        return np.concatenate([self._expand(c, blocks, False, draws).slopes for c in chunks])

    def values(self, thetas: np.ndarray) -> np.ndarray:
        """F, with all groups, at any number of thetas [n, D]: [n]."""
        chunks, every = self._chunks(thetas), len(self.source)
        return np.concatenate([self._expand(c, every).values for c in chunks])

    def expand(
        self, thetas: np.ndarray, blocks: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """F [n] and its gradient [n, D] at a few thetas, from the first blocks or all groups."""
        found = self._expand(thetas, blocks or len(self.source))
        return found.values, found.slopes

    def _chunks(self, thetas: np.ndarray) -> Iterator[np.ndarray]:
        """Yields as many points as a sweep takes; raises if the budget ends in between."""
        for start in range(0, len(thetas), self.points):
            self.check_budget()
            yield thetas[start : start + self.points]

    def check_budget(self) -> None:
        """Raises `OutOfBudget` if the budget has ended."""
        if self.budget is not None and self.budget.spent():
            raise OutOfBudget

    def bias(self, mean: np.ndarray, blocks: int | None = None) -> np.ndarray:
        """The slope at the mean of F's bias with K points, from the first blocks or all groups."""
        # A quadrature rule's bias is estimated by the change from a coarser rule.
        problem, blocks = self.problem, blocks or len(self.source)
        if problem.rule is None:
            return self._scaled(self._sweep(mean[None], blocks, of=(0.0, 1.0))[1].slopes[0], blocks)
        if problem.normal:
            return np.zeros_like(mean)
        coarser = problem.with_rule(problem.order - max(2, problem.order // 4))
        slopes = []
        for rule in (problem, coarser):
            self.check_budget()
            slopes.append(self._sweep(mean[None], blocks, problem=rule)[1].slopes[0])
        return self._scaled(slopes[1] - slopes[0], blocks)

    def slopes_by_other_draws(self, thetas: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
        """Slopes of the groups' sum [sets, n, D] with these sets of draws; 0 is F's own set."""
        self.check_budget()
        sets = [self._at(thetas, draws=number) for number in numbers]
        found = self._sums_at(sets, len(sets) * len(thetas), len(self.source))
        return np.stack([sums.slopes[: len(thetas)] for sums in found])

    def by_turned_rule(self, order: int) -> "Marginal":
        """F by a turned rule with `order` radii, on the same blocks and from the same modes."""
        return self._with_problem(self.problem.by_turned_rule(order))

    def with_draws(self, local_draws: int) -> "Marginal":
        """F with as many draws as earlier in its search, on the same blocks and from the same modes."""
        if local_draws == self.problem.local_draws and not self.problem.turned:
            return self
        own = self.problem._replace(rule=None, turned=False, local_draws=local_draws)
        return self._with_problem(own._replace(hessian=True))

    def _with_problem(self, problem: Problem) -> "Marginal":
        told = self.points, self.report, self.budget
        other = Marginal(problem, self.source, self.engine, self.key, *told)
        other.memory, other._curved_priors = self.memory, self._curved_priors
        return other

    def judged(self, mean: np.ndarray, blocks: int, turns: int) -> tuple[np.ndarray, np.ndarray]:
        """The slope of a turned rule's bias, and the variance of a slope, from the first blocks."""
        # The bias is at most the change from a rule with one radius less. Both are turned alike, so
        # the effect of the turns on their slopes cancels.
        rules, slopes = (self.problem, self.problem.with_rule(self.problem.order - 1)), []
        for rule in rules:
            self.check_budget()
            slopes.append(self._sweep(mean[None], blocks, problem=rule, alike=True)[1].slopes[0])
        scatter = self._sweep(np.tile(mean, (turns, 1)), blocks)[1].scatter
        variance = scatter / (turns - 1)
        return self._scaled(slopes[1] - slopes[0], blocks), self._scaled(variance, blocks)

    def turned_slope(self, mean: np.ndarray, turns: int) -> np.ndarray:
        """The slope at the mean from all groups, averaged over `turns` random turns of the rule."""
        self.check_budget()
        return self._expand(np.tile(mean, (turns, 1)), len(self.source)).slopes.mean(0)

    def solve(
        self, number: int, theta: np.ndarray, begin: Float[np.ndarray, "B M"] | None
    ) -> Around:
        """The modes of a block's groups at theta, by Newton from `begin` or the known modes."""
        known = self.engine.fetch([self._modes[number]])[0].begin if begin is None else begin
        block, solver = self.source.block(number), self.problem.solver
        return Around.of(solve_block(solver, self.model, block, floats(theta), floats(known)))

    def _expand(
        self, thetas: np.ndarray, blocks: int, curved: bool = False, draws: int = 0
    ) -> Sums:
        """F and its gradient at each theta, in float64; the groups' sum is scaled to all groups."""
        padded, out = self._sweep(thetas, blocks, curved=curved, draws=draws)
        value, slope, hessian = jax.device_get(
            expand_priors(self.model, padded, self._curved_priors)
        )
        n = len(thetas)  # further points only fill the compiled shape
        total = lambda prior, groups: (
            prior[:n].astype(np.float64) + self._scaled(groups[:n], blocks)
        )
        hessian = hessian[:n].astype(np.float64).sum(0) + self._scaled(out.hessian, blocks)
        values, slopes = total(value, out.values), total(slope, out.slopes)
        more, steeper = self.tilt.at(thetas)
        hessian += n * self.tilt.hessian
        return Sums(values + more, slopes + steeper, hessian, out.steps, out.scatter)

    def _scaled(self, total: np.ndarray, blocks: int) -> np.ndarray:
        """A sum over the first blocks, a random sample, scaled to all groups."""
        return self.groups_upto[-1] / self.groups_upto[blocks - 1] * total

    def blocks_with(self, groups: int) -> int:
        """How many of the first blocks have this many groups; all blocks if there are fewer."""
        return min(len(self.groups_upto), int(np.searchsorted(self.groups_upto, groups)) + 1)

    def _sweep(
        self,
        thetas: np.ndarray,
        blocks: int | list[int],
        of: tuple[float, float] = (1.0, 0.0),
        problem: Problem | None = None,
        curved: bool = False,
        draws: int = 0,
        alike: bool = False,
    ) -> tuple[Array, Sums]:
        """A sweep over the first or the listed blocks; points are repeated to fill the shape."""
        at = self._at(thetas, of, curved, draws, alike)
        return at.thetas, self._sums_at([at], len(thetas), blocks, problem)[0]

    def _sums_at(
        self,
        sets: Sequence[At],
        count: int,
        blocks: int | list[int],
        problem: Problem | None = None,
    ) -> list[Sums]:
        """Sums over blocks for each set of points, `count` in all, from sites at one centre."""
        numbers = list(range(blocks)) if isinstance(blocks, int) else blocks
        if self.budget is not None and isinstance(blocks, int):
            self.budget.steps += len(sets)
        told = sets, eqx.filter(problem or self.problem, eqx.is_array)
        work = float(count * (self.problem.local_draws + MODE_WORK) * self.source.rows)
        return self.engine.sum(self._sums, self.source, told, self._modes, numbers, work)

    def _at(
        self,
        thetas: np.ndarray,
        of: tuple[float, float] = (1.0, 0.0),
        curved: bool = False,
        draws: int = 0,
        alike: bool = False,
    ) -> At:
        """The arguments of a sweep."""
        D = self.model.theta.size
        padded = floats(np.resize(thetas, (self.points, D)))
        count, columns = (jax.device_put(np.int32(n)) for n in (len(thetas), D if curved else 0))
        centre = floats(thetas.mean(0))
        key = jax.random.fold_in(self.key, draws) if draws else self.key
        return At(key, centre, padded, count, floats(of), columns, jax.device_put(np.bool_(alike)))

    def tell(self, value: float, precision: np.ndarray, blocks: int, points: int = 1) -> None:
        """Reports the ELBO that follows from E_q[F] and the precision of q(theta)."""
        # With one point `value` is F at the centre, and E_q[F] is lower by Laplace's D/2.
        nats = 0.5 * len(precision) * (np.log(2 * np.pi) + (points > 1))
        elbo = value + nats - 0.5 * np.linalg.slogdet(precision)[1]
        row = {"elbo": float(elbo), "groups": int(self.groups_upto[blocks - 1])}
        self.report(row | {"newton_steps": self.newton_steps})


def _sums_of_block(
    problem: Problem, batch: Batch, told: tuple[Sequence[At], Problem], modes: Modes
) -> tuple[list[Sums], Modes]:
    """What a sweep adds up and keeps; `problem` lacks its arrays, which are in `told`."""
    sets, arrays = told
    return sweep_block(eqx.combine(arrays, problem), batch, sets, modes)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def definite(matrix: np.ndarray) -> np.ndarray:
    """A positive definite matrix near this symmetric one, with eigenvalues made positive.

    The matrix is first scaled to a unit diagonal: parameters may differ in scale by any factor.

    Example:
        >>> definite(np.array([[1e8, 0.0], [0.0, -1.0]])).round(6).tolist()
        [[100000000.0, 0.0], [0.0, 1.0]]
    """
    unit = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-12 * np.abs(matrix).max() + 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    size = np.abs(values)
    return np.outer(unit, unit) * ((vectors * np.maximum(size, 1e-6 * size.mean())) @ vectors.T)
