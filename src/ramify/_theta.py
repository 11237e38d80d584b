"""Learning q(theta) where the locals are solved for: variational Newton on the marginal posterior.

With z integrated out by K importance draws a group, what is left is a smooth D-dimensional function

    F(theta) = log p(theta) + sum_i log p^(y_i | theta),

and the best Gaussian N(m, P^-1) for it satisfies E_q[grad F] = 0, P = -E_q[hess F] (Bonnet, Price).
Each sweep over the data returns F with its gradient and Hessian at a few fixed points of q(theta);
the D x D algebra is done on the host in float64. A subset of the groups finds the neighbourhood,
all of them the answer. The same noise belongs to a group in every sweep, so that F is one
deterministic function and Newton converges on it to rounding.
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
from ramify._solver import Solver, recombine
from ramify._types import Batch

CURVATURE_GROUPS = 5000  # groups whose curvature stands for all: sds are then good to a percent
LONGEST = 1.0  # of a Newton step in any coordinate: theta's scales are logarithms


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
    """What a sweep does; hashable, compiled once."""

    rows: int
    local_draws: int


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


def block_bound(
    model: Model, solver: Solver, batch: Batch, local: Local, points: Float[Array, "K B M"]
) -> Callable[[Float[Array, " D"]], tuple[Array, Array]]:
    """Theta -> (sum of bounds, sum of biases left) of the block, for a proposal held fixed."""
    z, log_q = jax.vmap(local.propose)(points)
    likelihood = lambda theta: jax.vmap(lambda z: group_log_lik(model, theta, z, batch))(z)
    known = None if solver.uses_theta else likelihood(jnp.zeros(model.theta.size))

    def at(theta: Float[Array, " D"]) -> tuple[Array, Array]:
        log_lik = likelihood(theta) if known is None else known
        log_local = jax.vmap(lambda z: model.log_local(theta, z, batch))(z)
        value, bias = bound(log_lik + log_local - log_q)
        real = lambda x: jnp.sum(jnp.where(batch.group_mask, x, 0))
        return real(value), real(bias)

    return at


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

    def at_point(s: Array, carry: Any, site: Any, batch: Batch, points: Array, j: Array) -> Any:
        values, slope, hessian, bias = carry
        local = recombine(model, batch, site, thetas[s], solver.uses_theta)
        function = block_bound(model, solver, batch, local, points)
        value, g, h, c = _expand_theta(function, thetas[s], second)
        sums = slope + g / count, hessian + h / count, bias + c / count
        return values.at[j, s].set(value), *sums

    def block(j: Array, carry: tuple[Any, Array, Array, Array]) -> Any:
        sums, begin, converged, steps = carry
        batch = cut(data, members[j], jnp.ones(()), plan.rows)
        place = jnp.where(members[j] < 0, begin.shape[0], members[j])
        warm = begin.at[place].get(mode="fill", fill_value=jnp.nan)
        warm = jnp.where(jnp.isnan(warm), solver.begin(model, batch, centre), warm)
        site = jax.lax.stop_gradient(solver.solve(model, batch, centre, warm))
        points = group_points(key, batch.index, plan.local_draws, model.z.size)
        body = lambda s, c: at_point(s, c, site, batch, points, j)
        sums = jax.lax.fori_loop(0, count, body, sums)
        begin = begin.at[place].set(site.anchor, mode="drop")
        converged = converged.at[place].set(site.converged, mode="drop")
        return sums, begin, converged, steps + site.steps

    zeros = jnp.zeros((J, S)), jnp.zeros(D), jnp.zeros((D, D)), jnp.zeros(D)
    carry = zeros, begin, jnp.ones(begin.shape[0], bool), jnp.zeros((), jnp.int32)
    sums, begin, converged, steps = jax.lax.fori_loop(0, blocks, block, carry)
    values, slope, hessian, bias = sums
    return Sweep(values, slope, hessian, bias, begin, converged, steps)


def _expand_theta(
    function: Callable[[Array], tuple[Array, Array]],
    theta: Float[Array, " D"],
    second: Bool[Array, ""],
) -> tuple[Array, Array, Array, Array]:
    """Value, gradient, Hessian (zero unless `second`) and the gradient of the bias."""

    def gradient(theta: Array) -> tuple[Array, tuple[Array, Array]]:
        value, pull = jax.vjp(function, theta)
        one, zero = jnp.ones(()), jnp.zeros(())
        return pull((one, zero))[0], (value[0], pull((zero, one))[0])

    slope, along, (value, bias) = jax.linearize(gradient, theta, has_aux=True)
    D = theta.shape[0]
    width = min(D, 8)  # directions at a time: memory is bounded, and no odd remainder to compile
    directions = jnp.eye(-(-D // width) * width, D).reshape(-1, width, D)
    product = lambda e: jax.lax.cond(second, jax.vmap(along), jnp.zeros_like, e)
    hessian = jax.lax.map(product, directions).reshape(-1, D)[:D]
    return value, slope, hessian, bias


class Fitted(NamedTuple):
    """q(theta) = N(mean, precision^-1), and what is left to worry about.

    `bias` estimates, in posterior sds, how far finite K still moves each mean; `unconverged` marks
    the groups whose mode was not found.
    """

    mean: np.ndarray
    precision: np.ndarray
    bias: np.ndarray
    unconverged: np.ndarray


class NotFinite(Exception):
    """F is not finite at the starting point; `block` is the first block where."""

    def __init__(self, block: int):
        """Keeps the block for whoever can name the group."""
        super().__init__(block)
        self.block = block


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
        self.first_bad_block = 0
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
        padded = jnp.asarray(np.resize(thetas, (self.points, len(centre))), self._dtype)
        out = sweep(
            self.model,
            self.solver,
            self.data,
            self.plan,
            self.key,
            jnp.asarray(centre, self._dtype),
            padded,
            jnp.asarray(count),
            self.members,
            jnp.asarray(blocks),
            jnp.asarray(second),
            self.begin,
        )
        self.begin = out.begin
        self.converged = np.asarray(out.converged)
        self.first_bad_block = int(np.argmax(~np.isfinite(np.asarray(out.values)).all(1)))
        scale = self.groups_upto[-1] / self.groups_upto[blocks - 1]
        expansion = self._with_prior(padded[:count], out, scale)
        if not np.isfinite(expansion.value):
            return expansion  # a step too far, or a model at fault: the caller knows which
        if second or precision is not None:
            self._precision = definite(-expansion.hessian, 0.0) if precision is None else precision
        elbo = expansion.value + self._entropy(len(thetas))
        row = {"elbo": elbo, "groups": int(self.groups_upto[blocks - 1])}
        self.report(row | {"newton_steps": int(out.steps) / blocks})
        return expansion

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
def _expand_prior(model: Model, thetas: Float[Array, "S D"]) -> tuple[Array, Array, Array]:
    one = lambda t: (
        model.log_prior(t),
        jax.grad(model.log_prior)(t),
        jax.hessian(model.log_prior)(t),
    )
    return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(one)(thetas))


def learn(
    marginal: Marginal, start: np.ndarray, stages: list[int], enough: Callable[[], bool]
) -> Fitted:
    """The best Gaussian q(theta): Newton on growing parts of the data, then variational Newton.

    `enough` says that the budget is spent: what has been reached is then returned.
    """
    mean, hessian = climb(marginal, np.asarray(start, np.float64), None, stages[0], enough)
    for blocks in stages[1:]:
        mean, hessian = climb(marginal, mean, hessian, blocks, enough)
    finish = laplace if marginal.points == 1 else average
    mean, precision, here = finish(marginal, mean, hessian, stages[-1], enough)
    shift = np.linalg.solve(precision, here.bias)  # how far it moves the mean of q(theta)
    bias = shift / np.sqrt(np.diag(np.linalg.inv(precision)))
    return Fitted(mean, precision, bias, ~marginal.converged)


def climb(
    F: Marginal,
    mean: np.ndarray,
    hessian: np.ndarray | None,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 60,
) -> tuple[np.ndarray, np.ndarray]:
    """Damped Newton to the mode of F over the first blocks; steps from afar do not lower F.

    A Hessian from a smaller part of the data, where there is one, serves while steps succeed: its
    error slows the last digits only, and a sweep without a Hessian is several times cheaper. Ends
    when a step would gain less than a tenth of a nat, or a few steps after it gains less than the
    spread of theta itself: there the noise of K draws moves F by more than a step does, and what is
    left is for `average`.
    """
    second, near, damping = hessian is None, 0, 0.0
    here = F(mean, mean[None], blocks, second)
    hessian = here.hessian if hessian is None else hessian
    if not np.isfinite(here.value):
        raise NotFinite(F.first_bad_block)
    for _ in range(most):
        hessian = here.hessian if second else hessian
        gain = 0.5 * here.slope @ np.linalg.solve(definite(-hessian, 0.0), here.slope)
        close = gain < 0.5 * len(mean)
        near += close
        if gain < 0.1 or near > 3 or damping > 1e8 or enough():
            break
        move = np.linalg.solve(definite(-hessian, damping), here.slope)
        move *= min(1.0, LONGEST / np.abs(move).max())
        there = F(mean + move, (mean + move)[None], blocks, second)
        slack = 0.1 + 1e-7 * abs(here.value) + (len(mean) if close else 0)
        if there.value >= here.value - slack:
            mean, here, damping = mean + move, there, 0.0 if damping < 1e-2 else damping / 10
        elif not second:
            second, here = True, F(mean, mean[None], blocks, True)
        else:
            damping = max(4 * damping, 1e-2)
    return mean, hessian


def laplace(
    F: Marginal,
    mean: np.ndarray,
    hessian: np.ndarray,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 5,
) -> tuple[np.ndarray, np.ndarray, Expansion]:
    """The mode of F and its curvature there: all that is left of `average` when N is large.

    Averages over q(theta) differ from values at its centre by terms in 1/N. The mode needs every
    group; its curvature is known to a percent from some thousands of them, at random.
    """
    some = min(blocks, int(np.searchsorted(F.groups_upto, CURVATURE_GROUPS)) + 1)
    if not enough():
        hessian = F(mean, mean[None], some).hessian
    precision = definite(-hessian, 0.0)
    here = F(mean, mean[None], blocks, second=False, precision=precision)
    for _ in range(most):
        move = np.linalg.solve(precision, here.slope)
        mean = mean + move
        if np.sqrt(move @ precision @ move / len(mean)) < 0.1 or enough():
            break
        here = F(mean, mean[None], blocks, second=False, precision=precision)
    return mean, precision, here


def average(
    F: Marginal,
    mean: np.ndarray,
    hessian: np.ndarray,
    blocks: int,
    enough: Callable[[], bool],
    most: int = 12,
) -> tuple[np.ndarray, np.ndarray, Expansion]:
    """Variational Newton: P = -E_q[hess F] and E_q[grad F] = 0, on fixed antithetic points.

    A step longer than theta's own spread is shortened until it does not lower the bound
    E_q[F] + entropy on those points. The last step is taken without another look: Newton squares
    an error that is small already.
    """
    noise = normal_points(F.points, len(mean))

    def look(m: np.ndarray, P: np.ndarray) -> Expansion:
        thetas = m + np.linalg.solve(np.linalg.cholesky(P).T, noise.T).T
        return F(m, thetas, blocks, precision=P)

    objective = lambda e, P: e.value - 0.5 * np.linalg.slogdet(P)[1]
    precision, length = definite(-hessian, 0.0), 1.0
    here = look(mean, precision)
    for _ in range(most):
        target = definite(-here.hessian, 0.0)
        move = np.linalg.solve(target, here.slope)
        far = np.sqrt(move @ target @ move / len(mean))  # rms, in posterior sds
        change = np.abs(np.linalg.eigvals(np.linalg.solve(precision, target)) - 1).max()
        if (length == 1.0 and far < 0.1 and change < 0.3) or enough():
            return mean + move, target, here
        trial = mean + length * move, (1 - length) * precision + length * target
        there = look(*trial)
        lower = objective(there, trial[1]) < objective(here, precision) - 0.1
        if lower and max(far, change) > 1:
            length /= 2
            continue
        (mean, precision), here, length = trial, there, min(1.0, 2 * length)
    return mean, precision, here


def normal_points(count: int, dim: int) -> np.ndarray:
    """`count` standard normal points in antithetic pairs, the pairs orthogonal where they can be.

    One point is the centre itself: Laplace's approximation, enough when N is large.
    """
    if count == 1:
        return np.zeros((1, dim))
    rng = np.random.default_rng(1)
    pairs = []
    while len(pairs) < count // 2:
        directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        lengths = np.sqrt(rng.chisquare(dim, size=dim))
        pairs += list(directions * lengths[:, None])
    half = np.asarray(pairs[: count // 2])
    half *= np.sqrt(half.size / np.sum(half**2))  # unit second moment on average
    return np.concatenate([half, -half])


def definite(matrix: np.ndarray, damping: float) -> np.ndarray:
    """A positive definite matrix near this symmetric one: eigenvalues made positive, then damped."""
    values, vectors = np.linalg.eigh(matrix)
    size = np.abs(values).mean()
    values = np.maximum(np.abs(values), 1e-6 * size) + damping * size
    return (vectors * values) @ vectors.T


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)
