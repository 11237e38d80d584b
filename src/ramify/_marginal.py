"""F(theta), the log of the marginal posterior with every group's z integrated out, by sweeps.

With z integrated by K importance draws a group from its solved conditional, what is left is

    F(theta) = log p(theta) + sum_i log p^(y_i | theta),

a smooth function of D numbers. One sweep over the data returns it with its gradient and Hessian. The
same noise belongs to a group in every sweep, so that F is one deterministic function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ramify._data import Resident, cut
from ramify._family import group_points
from ramify._local import Local
from ramify._model import Model, group_log_lik
from ramify._solver import Site, Solver, recombine
from ramify._types import Batch


class Sweep(NamedTuple):
    """Sums over groups of one pass: values of each block and point, the rest averaged over points."""

    values: Float[Array, "J S"]
    slope: Float[Array, " D"]
    hessian: Float[Array, "D D"]
    bias: Float[Array, " D"]
    begin: Float[Array, "N M"]
    converged: Array
    steps: Int[Array, ""]


class Plan(NamedTuple):
    """What a sweep does; hashable, compiled once.

    With fewer `curvature_draws` T than `local_draws` K, Hessians come from T draws a group: eight are
    as good as forty where there are thousands of groups, and cost a fifth.
    """

    rows: int
    local_draws: int
    curvature_draws: int


def bound(log_weight: Float[Array, "K B"]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Log p^(y_i | theta) from log weights, and an estimate of the bias that is left in it.

    log-mean-exp of K weights is low by a term in 1/K. Halves are low by twice that, so
    2 LME(all) - mean LME(halves) is free of it: the jackknife, an estimate and no longer a bound.
    What is left goes as 1/K^2; the same estimate from half as many weights is off by four times as
    much, so a third of the difference tells its size.
    """
    K = log_weight.shape[0]
    lme = lambda w: jax.nn.logsumexp(w, 0) - jnp.log(w.shape[0])
    whole = lme(log_weight)
    if K < 8:
        return whole, jnp.zeros_like(whole)
    q = -(-K // 4)
    quarters = [log_weight[i * q : (i + 1) * q] for i in range(4)]
    quarter = sum(lme(w) for w in quarters) / 4
    half = 0.5 * (lme(log_weight[: 2 * q]) + lme(log_weight[2 * q :]))
    corrected, coarser = 2 * whole - half, 2 * half - quarter
    return corrected, (coarser - corrected) / 3


class Weigh(NamedTuple):
    """A block's importance draws with the proposal held fixed, and their weights at any theta.

    `log_joint(theta, z)` is what of log p(y_i, z | theta) involves theta, [n, B] for z [n, B, M];
    the rest, and the proposal's density, are in `fixed`.
    """

    log_joint: Callable[[Array, Array], Float[Array, "n B"]]
    z: Float[Array, "K B M"]
    fixed: Float[Array, "K B"]


def weigh_block(
    model: Model, solver: Solver, batch: Batch, local: Local, points: Float[Array, "K B M"]
) -> Weigh:
    """Draws of every group's z from its solved conditional."""
    z, log_q = jax.vmap(local.propose)(points)
    own = lambda theta, z: model.log_local(theta, z, batch)
    rows = lambda theta, z: group_log_lik(model, theta, z, batch)
    if solver.uses_theta:
        return Weigh(jax.vmap(lambda t, z: own(t, z) + rows(t, z), (None, 0)), z, -log_q)
    likelihood = jax.vmap(rows, (None, 0))(jnp.zeros(model.theta.size), z)
    return Weigh(jax.vmap(own, (None, 0)), z, likelihood - log_q)


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
    second: Bool[Array, ""],
    begin: Float[Array, "N M"],
) -> Sweep:
    """One pass over the first `blocks` blocks at the first `count` points of theta.

    Both counts and whether to compute the Hessian (`second`) are arguments, not shapes, so one
    compilation serves every stage of a fit.
    """
    D, J, S = centre.shape[0], members.shape[0], thetas.shape[0]

    def at_point(s: Array, carry: Any, site: Site, batch: Batch, noise: Any, j: Array) -> Any:
        values, slope, hessian, bias = carry
        local = recombine(model, batch, site, thetas[s], solver.uses_theta)
        points, levels = noise
        weigh = weigh_block(model, solver, batch, local, points)
        value, g, h, c = _expand_theta(weigh, thetas[s], batch, second, levels)
        sums = slope + g / count, hessian + h / count, bias + c / count
        return values.at[j, s].set(value), *sums

    def block(j: Array, carry: tuple[Any, Array, Array, Array]) -> Any:
        sums, begin, converged, steps = carry
        batch = cut(data, members[j], jnp.ones(()), plan.rows)
        place = jnp.where(members[j] < 0, begin.shape[0], members[j])
        warm = begin.at[place].get(mode="fill", fill_value=jnp.nan)
        warm = jnp.where(jnp.isnan(warm), solver.begin(model, batch, centre), warm)
        site = jax.lax.stop_gradient(solver.solve(model, batch, centre, warm))
        noise = _noise(key, batch, plan, model.z.size)
        body = lambda s, c: at_point(s, c, site, batch, noise, j)
        sums = jax.lax.fori_loop(0, count, body, sums)
        begin = begin.at[place].set(site.anchor, mode="drop")
        converged = converged.at[place].set(site.converged, mode="drop")
        return sums, begin, converged, steps + site.steps

    zeros = jnp.zeros((J, S)), jnp.zeros(D), jnp.zeros((D, D)), jnp.zeros(D)
    carry = zeros, begin, jnp.ones(begin.shape[0], bool), jnp.zeros((), jnp.int32)
    sums, begin, converged, steps = jax.lax.fori_loop(0, blocks, block, carry)
    values, slope, hessian, bias = sums
    return Sweep(values, slope, hessian, bias, begin, converged, steps)


def _noise(key: PRNGKeyArray, batch: Batch, plan: Plan, M: int) -> tuple[Array, Array | None]:
    """The groups' own points [K, B, M], and levels [T, B] to resample them at."""
    key_points, key_levels = jax.random.split(key)
    points = group_points(key_points, batch.index, plan.local_draws, M)
    if plan.curvature_draws >= plan.local_draws:
        return points, None
    one = lambda i: jax.random.uniform(jax.random.fold_in(key_levels, i), (plan.curvature_draws,))
    return points, jax.vmap(one)(batch.index).T


def _expand_theta(
    weigh: Weigh,
    theta: Float[Array, " D"],
    batch: Batch,
    second: Bool[Array, ""],
    levels: Float[Array, "T B"] | None,
) -> tuple[Array, Array, Array, Array]:
    """Value, gradient, Hessian (zero unless `second`) and the gradient of the bias.

    With `levels` the Hessian is estimated from a few draws a group, resampled by weight.
    """
    real = lambda x: jnp.sum(jnp.where(batch.group_mask, x, 0))
    sums = lambda w: jax.tree.map(real, bound(w))
    log_weight, pull = jax.vjp(lambda t: weigh.log_joint(t, weigh.z) + weigh.fixed, theta)
    (value, _), on_weights = jax.vjp(sums, log_weight)
    one, zero = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    slope, bias = jax.vmap(lambda c: pull(on_weights(c)[0])[0])((one, zero))
    if levels is None:
        curved = lambda t: sums(weigh.log_joint(t, weigh.z) + weigh.fixed)[0]
    else:
        z = jnp.take_along_axis(weigh.z, resample(levels, log_weight)[..., None], 0)
        curved = lambda t: real(spread(weigh.log_joint(t, z)))
    return value, slope, _hessian(curved, theta, second), bias


def _hessian(
    function: Callable[[Array], Array], theta: Float[Array, " D"], wanted: Bool[Array, ""]
) -> Float[Array, "D D"]:
    """By Hessian-vector products, eight directions at a time; zero where it is not wanted."""
    _, along = jax.linearize(jax.grad(function), theta)
    D = theta.shape[0]
    width = min(D, 8)  # memory is bounded, and there is no odd remainder to compile
    directions = jnp.eye(-(-D // width) * width, D).reshape(-1, width, D)
    product = lambda e: jax.lax.cond(wanted, jax.vmap(along), jnp.zeros_like, e)
    return jax.lax.map(product, directions).reshape(-1, D)[:D]


def resample(level: Float[Array, "T B"], log_weight: Float[Array, "K B"]) -> Int[Array, "T B"]:
    """Draws chosen independently by weight: each level picks where the running share passes it."""
    share = jnp.cumsum(jax.nn.softmax(log_weight, 0), 0)
    return jnp.minimum(jnp.sum(share[None] < level[:, None], 1), log_weight.shape[0] - 1)


def spread(log_joint: Float[Array, "T B"]) -> Float[Array, " B"]:
    """A function with the gradient and Hessian of log p(y_i | theta), from T posterior draws of z.

    Louis' identity: the Hessian of the marginal is E[hess log p(y, z | theta)] plus the covariance
    of its gradient, over p(z | theta, y). Both are estimated without bias: the mean's Hessian is the
    first, and half the sample variance of the changes has the second as its own.
    """
    change = log_joint - jax.lax.stop_gradient(log_joint)
    return jnp.mean(log_joint, 0) + 0.5 * jnp.var(change, 0, ddof=1)


class Expansion(NamedTuple):
    """F at a few points of theta: mean value, gradient and Hessian over them, in float64."""

    value: float
    slope: np.ndarray
    hessian: np.ndarray
    bias: np.ndarray


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
    ):
        """Nothing is computed before the first call."""
        self.model, self.solver, self.data, self.plan, self.key = model, solver, data, plan, key
        self.members, self.points, self.report = jnp.asarray(members), points, report
        self.groups_upto = np.cumsum((members >= 0).sum(1))
        self.begin = jnp.full((data.count.shape[0], model.z.size), jnp.nan)
        self.converged = np.ones(data.count.shape[0], bool)
        self.first_bad_block, self.newton_steps = 0, 0.0
        self._precision = np.eye(model.theta.size)

    def __call__(
        self,
        centre: np.ndarray,
        thetas: np.ndarray,
        blocks: int,
        second: bool = True,
        precision: np.ndarray | None = None,
    ) -> Expansion:
        """Expands F at `thetas` [S, D], with locals solved at `centre`, over the first blocks.

        `precision` is that of q(theta), where known, for the ELBO that is reported.
        """
        count = len(thetas)
        padded, out = self._sweep(centre, thetas, blocks, second)
        self.converged = np.asarray(out.converged)
        self.first_bad_block = int(np.argmax(~np.isfinite(np.asarray(out.values)).all(1)))
        scale = self.groups_upto[-1] / self.groups_upto[blocks - 1]
        expansion = self._with_prior(padded[:count], out, scale)
        if not np.isfinite(expansion.value):
            return expansion  # a step too far, or a model at fault: the caller knows which
        if second or precision is not None:
            self._precision = definite(-expansion.hessian) if precision is None else precision
        self.newton_steps = int(out.steps) / blocks
        self.tell(expansion.value, blocks, points=count)
        return expansion

    def values(self, centre: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """F at each of any number of thetas [n, D], all groups included, [n]."""
        found = []
        for start in range(0, len(thetas), self.points):
            some = thetas[start : start + self.points]
            padded, out = self._sweep(centre, some, len(self.members), False)
            prior = np.asarray(_log_prior(self.model, padded), np.float64)
            found.append((np.asarray(out.values, np.float64).sum(0) + prior)[: len(some)])
        return np.concatenate(found)

    def _sweep(
        self, centre: np.ndarray, thetas: np.ndarray, blocks: int, second: bool
    ) -> tuple[Array, Sweep]:
        """A sweep at these points, repeated to fill the compiled shape; the next begins from here."""
        padded = jnp.asarray(np.resize(thetas, (self.points, len(centre))), self._dtype)
        out = sweep(
            self.model,
            self.solver,
            self.data,
            self.plan,
            self.key,
            jnp.asarray(centre, self._dtype),
            padded,
            jnp.asarray(len(thetas)),
            self.members,
            jnp.asarray(blocks),
            jnp.asarray(second),
            self.begin,
        )
        self.begin = out.begin
        return padded, out

    def tell(
        self, value: float, blocks: int, precision: np.ndarray | None = None, points: int = 1
    ) -> None:
        """Reports the ELBO that follows from E_q[F] and the precision of q(theta)."""
        self._precision = self._precision if precision is None else precision
        row = {"elbo": value + self._entropy(points), "groups": int(self.groups_upto[blocks - 1])}
        self.report(row | {"newton_steps": self.newton_steps})

    def _entropy(self, points: int) -> float:
        """Of q(theta); at one point, the centre, E_q[F] is lower than F by D/2, Laplace's."""
        D = len(self._precision)
        nats = 0.5 * D * (np.log(2 * np.pi) + (points > 1))
        return float(nats - 0.5 * np.linalg.slogdet(self._precision)[1])

    @property
    def _dtype(self) -> Any:
        return jnp.zeros(()).dtype

    def _with_prior(self, thetas: Array, out: Sweep, scale: float) -> Expansion:
        value, slope, hessian = _expand_prior(self.model, thetas)
        groups = np.asarray(out.values, np.float64)[:, : len(thetas)].sum() / len(thetas)
        double = lambda x: np.asarray(x, np.float64)
        return Expansion(
            float(value) + scale * groups,
            double(slope) + scale * double(out.slope),
            _symmetric(double(hessian) + scale * double(out.hessian)),
            scale * double(out.bias),
        )


@eqx.filter_jit
def _log_prior(model: Model, thetas: Float[Array, "S D"]) -> Float[Array, " S"]:
    return jax.vmap(model.log_prior)(thetas)


@eqx.filter_jit
def _expand_prior(model: Model, thetas: Float[Array, "S D"]) -> tuple[Array, Array, Array]:
    one = lambda t: (
        model.log_prior(t),
        jax.grad(model.log_prior)(t),
        jax.hessian(model.log_prior)(t),
    )
    return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(one)(thetas))


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def definite(matrix: np.ndarray, damping: float = 0.0) -> np.ndarray:
    """A positive definite matrix near this symmetric one: eigenvalues made positive, then damped."""
    values, vectors = np.linalg.eigh(matrix)
    size = np.abs(values).mean()
    values = np.maximum(np.abs(values), 1e-6 * size) + damping * size
    return (vectors * values) @ vectors.T
