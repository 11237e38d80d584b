"""F(theta), the log of the marginal posterior with every group's z integrated out, by sweeps.

With z integrated by K importance draws a group from its solved conditional, what is left is

    F(theta) = log p(theta) + sum_i log p^(y_i | theta),

a smooth function of D numbers. One sweep over the data returns it with its gradient; curvature comes
from gradients at several points. The same noise belongs to a group in every sweep, so that F is one
deterministic function.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.resident import Resident, cut
from ramify.families.conditional import Local
from ramify.families.solver import Site, Solver, recombine
from ramify.inference.local_integral import Weigh, weigh_block
from ramify.inference.progress import Budget
from ramify.models.model import Model, log_priors
from ramify.numerics.points import group_points

# Posterior sds: a step short beside theta's skewness, and long beside the rounding of F's slope.
ONE_SIDED = 0.3
# Of such a step in any coordinate, where the posterior is wider: scales are logarithms.
FARTHEST = 1.0

# Likelihoods of rows that take longer than to compile another sweep, one that shares draws.
SHARING_PAYS = {"cpu": 2**28, "accelerator": 2**35}


class Sweep(NamedTuple):
    """Sums over groups of one pass: values of each block and point, slopes of each point."""

    values: Float[Array, "J S"]
    slopes: Float[Array, "S D"]
    begin: Float[Array, "N M"]
    converged: Array
    steps: Int[Array, ""]


class Plan(NamedTuple):
    """What a sweep does; hashable, compiled once.

    `one_proposal`: all points of theta share the draws made at the centre, and a likelihood without
    theta is then evaluated once for all of them. For points that are near beside the spread of
    z_i, as they are where thousands of groups tell theta. Hundreds are too few where each says
    little: the sds of theta's scales were 20% too small with the draws of one theta.
    """

    rows: int
    local_draws: int
    one_proposal: bool


@eqx.filter_jit
def sweep(
    model: Model,
    solver: Solver,
    data: Resident,
    plan: Plan,
    key: PRNGKeyArray,
    centre: Float[Array, " D"],
    thetas: Float[Array, "S D"],
    count: Int[Array, ""],
    members: Int[Array, "J B"],
    blocks: Int[Array, ""],
    of: Float[Array, "2"],
    begin: Float[Array, "N M"],
) -> Sweep:
    """One pass over the first `blocks` blocks at the first `count` points of theta.

    Both counts are arguments, not shapes, so one compilation serves every stage of a fit. So is
    what slopes are `of`: [1, 0] for those of F, [0, 1] for those of the bias left in it.
    """
    D, J, S = centre.shape[0], members.shape[0], thetas.shape[0]

    def block(j: Array, carry: tuple[Any, Array, Array, Array]) -> Any:
        sums, begin, converged, steps = carry
        batch = cut(data, members[j], jnp.ones(()), plan.rows)
        place = jnp.where(members[j] < 0, begin.shape[0], members[j])
        warm = begin.at[place].get(mode="fill", fill_value=jnp.nan)
        warm = jnp.where(jnp.isnan(warm), solver.begin(model, batch, centre), warm)
        site = jax.lax.stop_gradient(solver.solve(model, batch, centre, warm))
        points = group_points(key, batch.index, plan.local_draws, model.z.size)
        shared = _weigh_site(model, solver, batch, site, points) if plan.one_proposal else None

        def at_point(s: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            weigh = shared or _weigh_at(thetas[s], model, solver, batch, site, points)
            value, slope = _expand_theta(weigh, thetas[s], batch, of)
            return sums[0].at[j, s].set(value), sums[1].at[s].add(slope)

        sums = jax.lax.fori_loop(0, count, at_point, sums)
        # A group that found no mode begins anew, so that F does not depend on what came before.
        found = jnp.where(site.converged[:, None], site.anchor, jnp.nan)
        begin = begin.at[place].set(found, mode="drop")
        converged = converged.at[place].set(site.converged, mode="drop")
        return sums, begin, converged, steps + site.steps

    zeros = jnp.zeros((J, S)), jnp.zeros((S, D))
    carry = zeros, begin, jnp.ones(begin.shape[0], bool), jnp.zeros((), jnp.int32)
    sums, begin, converged, steps = jax.lax.fori_loop(0, blocks, block, carry)
    return Sweep(sums[0], sums[1], begin, converged, steps)


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
        model: Model,
        solver: Solver,
        data: Resident,
        members: np.ndarray,
        plan: Plan,
        key: PRNGKeyArray,
        points: int,
        report: Callable[[dict[str, float]], None],
        budget: Budget | None = None,
    ):
        """Nothing is computed before the first call; `budget` counts the sweeps."""
        self.budget = budget
        self.model, self.solver, self.data, self.plan, self.key = model, solver, data, plan, key
        self.members, self.points, self.report = jnp.asarray(members), points, report
        self.groups_upto = np.cumsum((members >= 0).sum(1))
        self.begin = jnp.full((data.count.shape[0], model.z.size), jnp.nan)
        self.converged = np.ones(data.count.shape[0], bool)
        self.first_bad_block, self.newton_steps = 0, 0.0
        work = float(np.asarray(data.count).sum()) * plan.local_draws * model.theta.size
        # A likelihood with theta may move z by many of its sds, and is evaluated at each point anyway.
        where = "cpu" if jax.default_backend() == "cpu" else "accelerator"
        pays = work > SHARING_PAYS[where] and not solver.uses_theta
        self.rough = plan._replace(one_proposal=plan.one_proposal or pays)

    def __call__(self, centre: np.ndarray, thetas: np.ndarray, blocks: int) -> Expansion:
        """Expands F at `thetas` [S, D], with locals solved at `centre`, over the first blocks.

        Not finite after a step too far, or where the model is at fault: the caller knows which.
        """
        padded, out = self._sweep(centre, thetas, blocks)
        self.converged = np.asarray(out.converged)
        self.first_bad_block = int(np.argmax(~np.isfinite(np.asarray(out.values)).all(1)))
        self.newton_steps = int(out.steps) / blocks
        scale = self.groups_upto[-1] / self.groups_upto[blocks - 1]
        return self._with_prior(padded[: len(thetas)], out, scale)

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
        scale, found = self.groups_upto[-1] / self.groups_upto[blocks - 1], []
        for some in self._chunks(thetas):
            plan = self.rough if rough else self.plan
            padded, out = self._sweep(centre, some, blocks, plan=plan)
            prior = np.asarray(_prior_slopes(self.model, padded), np.float64)
            found.append((prior + scale * np.asarray(out.slopes, np.float64))[: len(some)])
        return np.concatenate(found)

    def values(self, centre: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """F at each of any number of thetas [n, D], all groups included, [n]."""
        found = []
        for some in self._chunks(thetas):
            padded, out = self._sweep(centre, some, len(self.members))
            prior = np.asarray(log_priors(self.model, padded), np.float64)
            found.append((np.asarray(out.values, np.float64).sum(0) + prior)[: len(some)])
        return np.concatenate(found)

    def _chunks(self, thetas: np.ndarray) -> Iterator[np.ndarray]:
        """As many points as a sweep takes, again and again; raises where the budget ends between."""
        for start in range(0, len(thetas), self.points):
            if self.budget is not None and self.budget.spent():
                raise OutOfBudget
            yield thetas[start : start + self.points]

    def bias(self, mean: np.ndarray) -> np.ndarray:
        """The slope, at the mean, of the bias that K draws leave in F, all groups included."""
        out = self._sweep(mean, mean[None], len(self.members), of=(0.0, 1.0))[1]
        return np.asarray(out.slopes[0], np.float64)

    def _sweep(
        self,
        centre: np.ndarray,
        thetas: np.ndarray,
        blocks: int,
        of: tuple[float, float] = (1.0, 0.0),
        plan: Plan | None = None,
    ) -> tuple[Array, Sweep]:
        """A sweep at these points, repeated to fill the compiled shape; the next begins from here."""
        if self.budget is not None:
            self.budget.steps += 1
        padded = jnp.asarray(np.resize(thetas, (self.points, len(centre))), self._dtype)
        out = sweep(
            self.model,
            self.solver,
            self.data,
            plan or self.plan,
            self.key,
            jnp.asarray(centre, self._dtype),
            padded,
            jnp.asarray(len(thetas)),
            self.members,
            jnp.asarray(blocks),
            jnp.asarray(of, self._dtype),
            self.begin,
        )
        self.begin = out.begin
        return padded, out

    def tell(self, value: float, precision: np.ndarray, blocks: int, points: int = 1) -> None:
        """Reports the ELBO that follows from E_q[F] and the precision of q(theta).

        At one point, the centre, E_q[F] is lower than F by D/2, Laplace's.
        """
        nats = 0.5 * len(precision) * (np.log(2 * np.pi) + (points > 1))
        elbo = value + nats - 0.5 * np.linalg.slogdet(precision)[1]
        row = {"elbo": float(elbo), "groups": int(self.groups_upto[blocks - 1])}
        self.report(row | {"newton_steps": self.newton_steps})

    @property
    def _dtype(self) -> Any:
        return jnp.zeros(()).dtype

    def _with_prior(self, thetas: Array, out: Sweep, scale: float) -> Expansion:
        value, slope = log_priors(self.model, thetas), _prior_slopes(self.model, thetas)
        groups = np.asarray(out.values, np.float64)[:, : len(thetas)].sum() / len(thetas)
        double = lambda x: np.asarray(x, np.float64)
        return Expansion(
            float(double(value).mean() + scale * groups),
            double(slope).mean(0) + scale * double(out.slopes)[: len(thetas)].mean(0),
        )


@eqx.filter_jit
def _prior_slopes(model: Model, thetas: Float[Array, "S D"]) -> Float[Array, "S D"]:
    return jax.vmap(jax.grad(model.log_prior))(thetas)


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
