"""F(theta), the log of the marginal posterior with every group's z integrated out, by sweeps.

With z integrated by K importance draws a group from its solved conditional, what is left is

    F(theta) = log p(theta) + sum_i log p^(y_i | theta),

a smooth function of D numbers. One sweep over the data returns it with its gradient; curvature comes
from gradients at several points. The same noise belongs to a group in every sweep, so that F is one
deterministic function. A sweep is a sum over blocks: `sweep_block` says what is added, an engine adds.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.sources import BlockSource
from ramify.engine.local import Engine
from ramify.families.conditional import Local
from ramify.families.solver import Site, Solver, recombine
from ramify.inference.local_integral import Weigh, weigh_block
from ramify.inference.progress import Budget
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.points import group_points

# Posterior sds: a step short beside theta's skewness, and long beside the rounding of F's slope.
ONE_SIDED = 0.3
# Of such a step in any coordinate, where the posterior is wider: scales are logarithms.
FARTHEST = 1.0


class Problem(NamedTuple):
    """What is integrated, and how.

    `one_proposal`: all points of theta share the draws made at the centre, and a likelihood without
    theta is then evaluated once for all of them. For points that are close beside the spread of
    z_i, as they are with thousands of groups. Hundreds are too few if each says little: the sds of
    theta's scales came out 20% too small with the draws of one theta.
    """

    model: Model
    solver: Solver
    local_draws: int
    one_proposal: bool


class At(NamedTuple):
    """Where a sweep evaluates F; the same for all blocks.

    How many of the points count is an array, not a shape, so that one compilation serves every
    stage of a fit. So is what slopes are `of`: [1, 0] for those of F, [0, 1] for those of its bias.
    """

    key: PRNGKeyArray
    centre: Float[Array, " D"]
    thetas: Float[Array, "S D"]
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    of: Float[Array, "2"]


class Sums(NamedTuple):
    """What a sweep adds up: values [S] and slopes [S, D] of the points, and Newton's steps."""

    values: Any
    slopes: Any
    steps: Any


class Modes(NamedTuple):
    """What a sweep keeps of a block: where Newton begins next time, and which groups converged."""

    begin: Float[Array, "B M"]
    converged: Bool[Array, " B"]


@eqx.filter_jit
def sweep_block(problem: Problem, batch: Batch, at: At, modes: Modes) -> tuple[Sums, Modes]:
    """F of a block's groups at the first `at.count` points, and the modes found at the centre."""
    model, solver, K, _ = problem
    warm = jnp.where(jnp.isnan(modes.begin), solver.begin(model, batch, at.centre), modes.begin)
    site = jax.lax.stop_gradient(solver.solve(model, batch, at.centre, warm))
    points = group_points(at.key, batch.index, K, model.z.size)
    shared = _weigh_site(model, solver, batch, site, points) if problem.one_proposal else None

    def at_point(s: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        weigh = shared or _weigh_at(at.thetas[s], model, solver, batch, site, points)
        value, slope = _expand_theta(weigh, at.thetas[s], batch, at.of)
        return sums[0].at[s].set(value), sums[1].at[s].set(slope)

    zeros = jnp.zeros(len(at.thetas)), jnp.zeros_like(at.thetas)
    values, slopes = jax.lax.fori_loop(0, at.count, at_point, zeros)
    # A group that found no mode begins anew, so that F does not depend on what came before.
    found = jnp.where(site.converged[:, None], site.anchor, jnp.nan)
    return Sums(values, slopes, site.steps), Modes(found, site.converged | ~batch.group_mask)


def _weigh_site(
    model: Model, solver: Solver, batch: Batch, site: Site, points: Float[Array, "K B M"]
) -> Weigh:
    """Draws from the conditional where the site was solved."""
    return weigh_block(model, solver, batch, site, Local(site.anchor, site.scale), points)


def _weigh_at(
    theta: Float[Array, " D"],
    model: Model,
    solver: Solver,
    batch: Batch,
    site: Site,
    points: Float[Array, "K B M"],
) -> Weigh:
    """Draws from the conditional at another theta than the site was solved at.

    Where the likelihood involves theta, z may be many of its sds away there: one step of Newton from
    the site is not enough.
    """
    if solver.uses_theta:
        there = jax.lax.stop_gradient(solver.solve(model, batch, theta, site.anchor))
        return _weigh_site(model, solver, batch, there, points)
    local = recombine(model, batch, site, theta, False)
    return weigh_block(model, solver, batch, site, local, points)


def _expand_theta(
    weigh: Weigh, theta: Float[Array, " D"], batch: Batch, of: Float[Array, "2"]
) -> tuple[Array, Array]:
    """The value, and the slope of what it is asked `of`, summed over the block's groups."""

    def sums(theta: Array) -> tuple[Array, Array]:
        both = jnp.stack(weigh.bound(theta))
        value, bias = jnp.sum(jnp.where(batch.group_mask, both, 0), 1)
        return of[0] * value + of[1] * bias, value

    slope, value = jax.grad(sums, has_aux=True)(theta)
    return value, slope


class Expansion(NamedTuple):
    """F at a few points of theta: mean value and gradient over them, in float64."""

    value: float
    slope: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether it is of use."""
        return bool(np.isfinite(self.value) and np.isfinite(self.slope).all())


class OutOfBudget(Exception):
    """There is no budget left for values that are worth nothing unless all of them are known."""


class Marginal:
    """F(theta) as the host sees it: each call is one sweep over some of the blocks."""

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
        """Nothing is computed before the first call; `budget` counts the sweeps.

        `points` is how many points of theta one sweep takes.
        """
        self.problem, self.source, self.engine, self.key = problem, source, engine, key
        self.points, self.report, self.budget = points, report, budget
        self.model, self.members = problem.model, source.members
        self.groups_upto = np.cumsum((self.members >= 0).sum(1))
        self.memory = None
        work = float(source.sizes.sum()) * problem.local_draws * self.model.theta.size
        # A likelihood with theta may move z by many of its sds, and is evaluated at each point anyway.
        enough = budgets.on_this_device(budgets.SHARING_PAYS)
        pays = work > enough and not problem.solver.uses_theta
        self.rough = problem._replace(one_proposal=problem.one_proposal or pays)

    @property
    def memory(self) -> Any:
        """What the next sweep takes from those before: the modes of all blocks, and Newton's steps."""
        return tuple(self._modes), self.newton_steps

    @memory.setter
    def memory(self, memory: Any) -> None:
        """Continues from the memory of an equal F; None is that before the first sweep.

        Newton then begins at the prior's mode.
        """
        if memory is None:
            B, M = self.members.shape[1], self.model.z.size
            # Not weakly typed, or the second sweep would be compiled anew.
            unknown = Modes(jnp.full((B, M), jnp.nan, jnp.result_type(float)), jnp.ones(B, bool))
            memory = [unknown] * len(self.source), 0.0
        modes, self.newton_steps = memory
        self._modes = [Modes(*map(jnp.asarray, block)) for block in modes]

    @property
    def modes(self) -> Float[np.ndarray, "N M"]:
        """The mode of each group that the last sweep found, NaN where it found none."""
        return self._of_groups([modes.begin for modes in self._modes], np.nan)

    @property
    def converged(self) -> Bool[np.ndarray, " N"]:
        """Which groups' modes the last sweep found."""
        return self._of_groups([modes.converged for modes in self._modes], True)

    def _of_groups(self, blocks: list[Array], unknown: Any) -> np.ndarray:
        """What blocks hold for their places, in the order of the groups."""
        parts = jax.device_get(blocks)
        found = np.full((len(self.source.sizes), *parts[0].shape[1:]), unknown, parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            found[members[members >= 0]] = part[members >= 0]
        return found

    def __call__(self, centre: np.ndarray, thetas: np.ndarray, blocks: int) -> Expansion:
        """Expands F at `thetas` [S, D], with locals solved at `centre`, over the first blocks.

        Not finite after a step too far, or where the model is at fault: the caller knows which.
        """
        found = self._expand(centre, thetas, blocks)
        self.newton_steps = float(found.steps) / blocks
        return Expansion(float(found.values.mean()), np.asarray(found.slopes).mean(0))

    def first_bad_block(self, theta: np.ndarray) -> int:
        """The first block where F is not finite at theta; 0 where it is finite everywhere."""
        for number in range(len(self.source)):
            if not np.isfinite(self._sweep(theta, theta[None], [number])[1].values[0]):
                return number
        return 0

    def curvature(
        self,
        mean: np.ndarray,
        precision: np.ndarray,
        blocks: int,
        one_sided: bool = False,
        rough: bool = False,
    ) -> np.ndarray:
        """The Hessian of F as gradients differ between points one sd to either side of the mean.

        Along the axes of N(mean, precision^-1). Gradients have less noise than the Hessian that
        their derivative is, and a secant over theta's own spread is what a skewed F needs. Where
        groups are many F is hardly skewed, and a short step to `one_sided` costs half as much. `rough`
        is for a search that only needs to know where to go: there points may share their draws.
        """
        back = np.linalg.cholesky(precision)
        axes = np.linalg.inv(back)  # rows of unit length in q
        if one_sided:
            far = np.minimum(ONE_SIDED, FARTHEST / np.abs(axes).max(1))[:, None]
            ahead, behind, apart = mean + far * axes, mean[None], far
        else:
            ahead, behind, apart = mean + axes, mean - axes, 2.0
        slopes = self._slopes(mean, np.concatenate([ahead, behind]), blocks, rough)
        change = (slopes[: len(ahead)] - slopes[len(ahead) :]) / apart
        white = change @ axes.T  # about -1, [axis, axis]
        return _symmetric(back @ _symmetric(white) @ back.T)

    def _slopes(
        self, centre: np.ndarray, thetas: np.ndarray, blocks: int, rough: bool = False
    ) -> np.ndarray:
        """The gradient of F at each of any number of thetas, [n, D]."""
        problem = self.rough if rough else self.problem
        chunks = self._chunks(thetas)
        return np.concatenate([self._expand(centre, c, blocks, problem).slopes for c in chunks])

    def values(self, centre: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """F at each of any number of thetas [n, D], all groups included, [n]."""
        chunks, every = self._chunks(thetas), len(self.source)
        return np.concatenate([self._expand(centre, c, every).values for c in chunks])

    def _chunks(self, thetas: np.ndarray) -> Iterator[np.ndarray]:
        """As many points as a sweep takes, again and again; raises where the budget ends between."""
        for start in range(0, len(thetas), self.points):
            if self.budget is not None and self.budget.spent():
                raise OutOfBudget
            yield thetas[start : start + self.points]

    def bias(self, mean: np.ndarray) -> np.ndarray:
        """The slope, at the mean, of the bias that K draws leave in F, all groups included."""
        out = self._sweep(mean, mean[None], len(self.source), of=(0.0, 1.0))[1]
        return np.asarray(out.slopes[0])

    def _expand(
        self, centre: np.ndarray, thetas: np.ndarray, blocks: int, problem: Problem | None = None
    ) -> Sums:
        """F and its gradient at each theta, in float64; the groups' sum is scaled to all groups."""
        padded, out = self._sweep(centre, thetas, blocks, problem=problem)
        prior = jax.device_get(_expand_prior(self.model, padded))
        scale = self.groups_upto[-1] / self.groups_upto[blocks - 1]
        total = lambda prior, groups: (prior.astype(np.float64) + scale * groups)[: len(thetas)]
        return Sums(total(prior[0], out.values), total(prior[1], out.slopes), out.steps)

    def _sweep(
        self,
        centre: np.ndarray,
        thetas: np.ndarray,
        blocks: int | list[int],
        of: tuple[float, float] = (1.0, 0.0),
        problem: Problem | None = None,
    ) -> tuple[Array, Sums]:
        """A sweep at these points, repeated to fill the compiled shape; the next begins from here.

        `blocks` says how many of the first blocks are swept, or which.
        """
        numbers = list(range(blocks)) if isinstance(blocks, int) else blocks
        if self.budget is not None and isinstance(blocks, int):
            self.budget.steps += 1
        numbers_of = lambda x: jnp.asarray(x, jnp.result_type(float))
        padded = numbers_of(np.resize(thetas, (self.points, len(centre))))
        at = At(self.key, numbers_of(centre), padded, jnp.asarray(len(thetas)), numbers_of(of))
        function = partial(sweep_block, problem or self.problem)
        return padded, self.engine.sum(function, self.source, at, self._modes, numbers)

    def tell(self, value: float, precision: np.ndarray, blocks: int, points: int = 1) -> None:
        """Reports the ELBO that follows from E_q[F] and the precision of q(theta).

        At one point, the centre, E_q[F] is lower than F by D/2, Laplace's.
        """
        nats = 0.5 * len(precision) * (np.log(2 * np.pi) + (points > 1))
        elbo = value + nats - 0.5 * np.linalg.slogdet(precision)[1]
        row = {"elbo": float(elbo), "groups": int(self.groups_upto[blocks - 1])}
        self.report(row | {"newton_steps": self.newton_steps})


@eqx.filter_jit
def _expand_prior(
    model: Model, thetas: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, "S D"]]:
    return jax.vmap(jax.value_and_grad(model.log_prior))(thetas)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def definite(matrix: np.ndarray) -> np.ndarray:
    """A positive definite matrix near this symmetric one: eigenvalues made positive.

    Those of the matrix with a unit diagonal: parameters may differ in scale by any factor.

    Example:
        >>> definite(np.array([[1e8, 0.0], [0.0, -1.0]])).round(6).tolist()
        [[100000000.0, 0.0], [0.0, 1.0]]
    """
    unit = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-12 * np.abs(matrix).max() + 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    size = np.abs(values)
    return np.outer(unit, unit) * ((vectors * np.maximum(size, 1e-6 * size.mean())) @ vectors.T)
