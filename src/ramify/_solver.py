"""The local conditional solved for, not learned: Newton on each group's own rows.

For group i write l_i for its log likelihood, a_i = log p(z | theta, u_i) and f_i = a_i + l_i, so that
p(z_i | theta, y_i) is proportional to exp f_i. `Solver` finds the best Gaussian for it:

1. damped Newton up f_i at the centre of q(theta), all groups of a block at once;
2. variational Newton: gradient and curvature of l_i averaged over the current Gaussian;
3. what is kept is a *site*: a quadratic that stands for the group's likelihood;
4. for every draw of theta the site is recombined with p(z | theta, u_i):
   P = H_i - hess a_i(theta), m = anchor + P^-1 (g_i + grad a_i(theta)), q = N(m, P^-1).

Exact when a_i is Gaussian in z and l_i quadratic. All derivatives come from the model's own
functions; nothing differentiates through steps 1 to 3.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ramify._degree import uses_theta
from ramify._local import Local
from ramify._model import Model, sum_rows
from ramify._small import inverse_factor
from ramify._types import Batch

MAX_DIM = 48  # M x M curvature of every row of a block: past this a network is the better answer
SHORT = 0.1  # squared Newton decrement of a step whose gain is known better from slopes
TOLERANCE = 1e-4  # squared Newton decrement: the mode is known to a hundredth of a posterior sd


class Quadratic(NamedTuple):
    """Value, gradient and negative Hessian in z, for each group of a block."""

    value: Float[Array, " B"]
    slope: Float[Array, "B M"]
    curvature: Float[Array, "B M M"]

    def __add__(self, other: "Quadratic") -> "Quadratic":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sum of two functions' expansions."""
        return Quadratic(*(a + b for a, b in zip(self, other, strict=True)))

    def moved(self, step: Float[Array, "B M"]) -> "Quadratic":
        """The same parabola, written around a point that is a step away."""
        pull = jnp.einsum("bij,bj->bi", self.curvature, step)
        value = self.value + jnp.sum((self.slope - 0.5 * pull) * step, -1)
        return Quadratic(value, self.slope - pull, self.curvature)


class Site(NamedTuple):
    """What stands for a group's likelihood: its averaged expansion around an anchor.

    `offsets` are the points, relative to the anchor, over which the expansion is averaged;
    `scale` is the solved conditional's at the centre, the fallback where a recombined precision
    is not positive definite. `converged` is False for groups whose mode was not found.
    """

    anchor: Float[Array, "B M"]
    offsets: Float[Array, "Q B M"]
    likelihood: Quadratic
    scale: Float[Array, "B M M"]
    converged: Bool[Array, " B"]
    steps: Int[Array, ""]


class Solver(eqx.Module):
    """Supplies q(z_i | theta) by solving for it.

    Attributes:
        points: standard normal points of the variational Newton rounds; the same for every group
            and call, and never those that evaluate the bound, else q is not one distribution.
        start: a supplier to begin from (an amortized network), or None.
        rounds: rounds of variational Newton; 0 gives Laplace's approximation.
        max_steps: Newton's budget.
        uses_theta: whether the likelihood of the fit involves theta, so that sites depend on it.
    """

    points: Float[Array, "Q M"]
    start: Any
    rounds: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    uses_theta: bool = eqx.field(static=True)

    def conditional(
        self, model: Model, batch: Batch, centre: Float[Array, " D"]
    ) -> Callable[[Float[Array, " D"]], Local]:
        """Solves the block at the centre; the result recombines for any theta."""
        site = jax.lax.stop_gradient(self.solve(model, batch, centre))
        again = self.follows_theta(model, batch)
        return lambda theta: recombine(model, batch, site, theta, again)

    def follows_theta(self, model: Model, batch: Batch) -> bool:
        """Whether these sites depend on theta: rows may bring it in that the fit did not have."""
        return self.uses_theta or uses_theta(model, batch)

    def solve(
        self,
        model: Model,
        batch: Batch,
        centre: Float[Array, " D"],
        begin: Float[Array, "B M"] | None = None,
    ) -> Site:
        """The site of every group at theta = centre, from `begin` or the prior's own mode."""
        if begin is None:
            begin = self.begin(model, batch, centre)
        climb = newton(model, batch, centre, begin, self.max_steps)
        scale, definite = safe_scale(climb.prior.curvature + climb.likelihood.curvature)
        none = jnp.zeros((len(self.points), *climb.z.shape))
        converged = climb.converged & definite
        site = Site(climb.z, none, climb.likelihood, scale, converged, climb.steps)
        for _ in range(self.rounds):
            site = polish(model, batch, centre, site, self.points)
        return site

    def begin(self, model: Model, batch: Batch, centre: Array) -> Float[Array, "B M"]:
        """Where Newton starts: the prior's mode, or the network's guess where that is better."""
        zero = jnp.zeros((batch.index.shape[0], model.z.size))
        prior = expand_local(model, batch, centre, zero)
        scale, definite = safe_scale(prior.curvature)
        mode = zero + times_covariance(scale, prior.slope)
        better = model.log_local(centre, mode, batch) >= prior.value
        begin = jnp.where((better & definite)[:, None], mode, zero) + scale @ _aside(model.z.size)
        if self.start is None:
            return begin
        guess = self.start.conditional(model, batch, centre)(centre).mean
        better = _objective(model, batch, centre, guess) > _objective(model, batch, centre, begin)
        return jnp.where(better[:, None], guess, begin)


def _aside(M: int) -> np.ndarray:
    """A thousandth of an sd in every direction, in no simple ratio to each other.

    At round numbers a density may have no derivative: the logit zero of NumPyro's Bernoulli has one of
    its two sides, and Newton would take it for a maximum.
    """
    return 1e-3 * np.sqrt(np.arange(2.0, M + 2)).astype(np.float32)


def solver(
    model: Model, batch: Batch, *, rounds: int = 1, points: int = 8, start: Any = None
) -> Solver:
    """A solver for this model and data of this batch's columns; refuses a z too large for it."""
    M = model.z.size
    if M > MAX_DIM:
        raise ValueError(
            f"solved() works with up to {MAX_DIM} local dimensions, since it needs an M x M curvature "
            f"of every row; this model has M = {M}. Use amortized() instead."
        )
    return Solver(
        jnp.asarray(spread_points(points, M)), start, rounds, 40, uses_theta(model, batch)
    )


def spread_points(count: int, dim: int) -> np.ndarray:
    """Antithetic standard normal points with exact first and second moments where count allows.

    Random directions, paired with their opposites and rescaled so that each coordinate has unit
    second moment.
    """
    half = np.random.default_rng(0).normal(size=(count // 2, dim))
    if count // 2 >= dim:
        half = np.linalg.qr(half)[0] * np.sqrt(count // 2)
    else:
        half /= np.sqrt(np.mean(half**2, 0, keepdims=True))
    return np.concatenate([half, -half])


def expand(function: Callable[[Array], Array], z: Float[Array, "n M"]) -> Quadratic:
    """Expansion of n independent functions, function(z)[i] depending on z[i] alone.

    One Hessian-vector product along each coordinate, the same for every i, gives every Hessian.
    """

    def gradient(z: Array) -> tuple[Array, Array]:
        def total(z: Array) -> tuple[Array, Array]:
            value = function(z)
            return jnp.sum(value), value

        return jax.grad(total, has_aux=True)(z)

    slope, along, value = jax.linearize(gradient, z, has_aux=True)
    directions = jnp.eye(z.shape[-1], dtype=z.dtype)
    hessian = jax.vmap(lambda e: along(jnp.broadcast_to(e, z.shape)), out_axes=1)(directions)
    return Quadratic(value, slope, -hessian)


def expand_local(model: Model, batch: Batch, theta: Array, z: Float[Array, "B M"]) -> Quadratic:
    """Expansion of a_i = log p(z_i | theta, u_i)."""
    return expand(lambda z: model.log_local(theta, z, batch), z)


def expand_likelihood(
    model: Model, batch: Batch, theta: Array, z: Float[Array, "B M"]
) -> Quadratic:
    """Expansion of l_i: that of every row, summed over the group's rows in one scatter."""
    rows = expand(lambda z: model.log_lik(theta, z, batch), batch.at_rows(z))
    R, M = rows.slope.shape
    packed = [rows.value[:, None], rows.slope, rows.curvature.reshape(R, M * M)]
    sums = sum_rows(jnp.concatenate(packed, -1), batch)
    return Quadratic(sums[:, 0], sums[:, 1 : M + 1], sums[:, M + 1 :].reshape(-1, M, M))


class Climb(NamedTuple):
    """Where Newton stands: the best point of each group, its expansions, and the next to try."""

    z: Float[Array, "B M"]
    prior: Quadratic
    likelihood: Quadratic
    move: Float[Array, "B M"]
    damping: Float[Array, " B"]
    done: Bool[Array, " B"]
    converged: Bool[Array, " B"]
    steps: Int[Array, ""]


def newton(
    model: Model, batch: Batch, theta: Array, begin: Float[Array, "B M"], max_steps: int
) -> Climb:
    """Climbs f_i of every group at once; a step that would lower a group's f_i is not taken.

    Levenberg-Marquardt: where the curvature is not positive definite or a step fails, that
    group's damping grows; where it succeeds, it shrinks to nothing, so that good groups take plain
    Newton steps. Stops when every group has converged.
    """
    places, M = begin.shape

    def body(c: Climb) -> Climb:
        there = c.z + c.move
        prior = expand_local(model, batch, theta, there)
        likelihood = expand_likelihood(model, batch, theta, there)
        up = _rises(c.prior + c.likelihood, prior + likelihood, c.move)
        take = up & ~c.done
        z = _where(take, there, c.z)
        keep = lambda n, o: _where(take, n, o)
        prior = jax.tree.map(keep, prior, c.prior)
        likelihood = jax.tree.map(keep, likelihood, c.likelihood)
        less = jnp.where(c.damping < 1e-3, 0.0, c.damping / 10)
        damping = jnp.where(up, less, jnp.maximum(4 * c.damping, 1e-2))
        here = prior + likelihood
        move, decrement = _damped_step(here, damping)
        # Near the top a gain is smaller than the rounding of f: no step shows, and none is needed.
        rounding = 4 * jnp.finfo(z.dtype).eps * (1 + jnp.abs(here.value))
        top = (decrement < jnp.maximum(TOLERANCE, rounding)) & (damping < 1e-2)
        done = c.done | top | (damping > 1e8)
        return Climb(z, prior, likelihood, move, damping, done, c.converged | top, c.steps + 1)

    low = Quadratic(jnp.full(places, -jnp.inf), jnp.zeros_like(begin), jnp.zeros((places, M, M)))
    no, still = ~batch.group_mask, jnp.zeros_like(begin)
    first = Climb(begin, low, low, still, jnp.zeros(places), no, no, jnp.zeros((), jnp.int32))
    more = lambda c: (c.steps < max_steps) & ~jnp.all(c.done)
    return jax.lax.while_loop(more, body, first)


def _rises(here: Quadratic, there: Quadratic, move: Float[Array, "B M"]) -> Bool[Array, " B"]:
    """Whether each group's f is no lower after its step.

    A short step is judged by the slopes at both ends: what it gains may be less than the rounding of f,
    which is large inside a density of large counts, however small its value.
    """
    ahead = jnp.sum(here.slope * move, -1)
    by_slopes = ahead + jnp.sum(there.slope * move, -1)
    up = jnp.where(ahead < SHORT, by_slopes >= 0, there.value >= here.value)
    return up & _finite(there)


def _damped_step(
    here: Quadratic, damping: Float[Array, " B"]
) -> tuple[Float[Array, "B M"], Float[Array, " B"]]:
    """(P + damping) ^-1 g and the squared Newton decrement; no step where P is not definite."""
    size = jnp.mean(jnp.abs(jnp.diagonal(here.curvature, axis1=-2, axis2=-1)), -1) + 1e-6
    eye = jnp.eye(here.slope.shape[-1], dtype=here.slope.dtype)
    move = times_covariance(
        inverse_factor(here.curvature + (damping * size)[:, None, None] * eye[None]), here.slope
    )
    decrement = jnp.sum(here.slope * move, -1)
    definite = jnp.all(jnp.isfinite(move), -1)
    # An indefinite step is recorded as one that fails, so that the next is damped more.
    return jnp.where(definite[:, None], move, jnp.nan), jnp.where(definite, decrement, jnp.inf)


def polish(model: Model, batch: Batch, theta: Array, site: Site, points: Array) -> Site:
    """One round of variational Newton: C^-1 = -E[hess f], m moved to where E[grad f] = 0.

    Kept only for groups whose local bound, on the same fixed points, it does not lower.
    """
    mean, scale = _combine(model, batch, theta, site, site.likelihood)
    offsets = jnp.einsum("bij,qj->qbi", scale, points)
    averaged = average_likelihood(model, batch, theta, mean, offsets)
    new = site._replace(anchor=mean, offsets=offsets, likelihood=averaged)
    new_mean, new_scale = _combine(model, batch, theta, new, averaged)
    before, after = jax.lax.map(
        lambda q: _bound(model, batch, theta, q[0], q[1], points),
        (jnp.stack([mean, new_mean]), jnp.stack([scale, new_scale])),
    )
    better = after >= before
    choose = lambda n, o: _where(better, n, o)
    return Site(
        anchor=choose(new.anchor, site.anchor),
        offsets=jnp.where(better[None, :, None], new.offsets, site.offsets),
        likelihood=jax.tree.map(choose, averaged, site.likelihood),
        scale=choose(new_scale, site.scale),
        converged=site.converged,
        steps=site.steps,
    )


def average_likelihood(
    model: Model, batch: Batch, theta: Array, anchor: Array, offsets: Float[Array, "Q B M"]
) -> Quadratic:
    """The likelihood's expansion averaged over points around the anchor."""
    each = jax.lax.map(
        lambda offset: expand_likelihood(model, batch, theta, anchor + offset), offsets
    )
    return jax.tree.map(lambda leaf: jnp.mean(leaf, 0), each)


def recombine(
    model: Model, batch: Batch, site: Site, theta: Float[Array, " D"], uses_theta: bool
) -> Local:
    """q(z_i | theta) of a site: one M x M factorisation per group and draw of theta."""
    likelihood = site.likelihood
    if uses_theta:
        likelihood = average_likelihood(model, batch, theta, site.anchor, site.offsets)
    return Local(*_combine(model, batch, theta, site, likelihood))


def _combine(
    model: Model, batch: Batch, theta: Array, site: Site, likelihood: Quadratic
) -> tuple[Float[Array, "B M"], Float[Array, "B M M"]]:
    """Mean and scale of the site times p(z | theta), where that is a Gaussian."""
    prior = expand_local(model, batch, theta, site.anchor)
    precision = likelihood.curvature + prior.curvature
    definite = jnp.all(jnp.isfinite(inverse_factor(jax.lax.stop_gradient(precision))), (-2, -1))
    fixed = jnp.eye(precision.shape[-1], dtype=precision.dtype)
    scale = inverse_factor(jnp.where(definite[:, None, None], precision, fixed[None]))
    scale = jnp.where(definite[:, None, None], scale, site.scale)
    return site.anchor + times_covariance(scale, likelihood.slope + prior.slope), scale


def safe_scale(
    precision: Float[Array, "B M M"],
) -> tuple[Float[Array, "B M M"], Bool[Array, " B"]]:
    """A scale for every group, damped where its precision is not positive definite."""
    B, M, _ = precision.shape
    size = jnp.mean(jnp.abs(jnp.diagonal(precision, axis1=-2, axis2=-1)), -1) + 1e-6
    eye = jnp.eye(M, dtype=precision.dtype)
    dampings = jnp.array([0.0, 1e-3, 0.1, 2.0, 2.0 * M])
    damped = precision[None] + (dampings[:, None] * size[None])[..., None, None] * eye[None, None]
    scales = inverse_factor(damped)
    good = jnp.all(jnp.isfinite(scales), (-2, -1))
    first = jnp.argmax(good, 0)
    chosen = jnp.take_along_axis(scales, first[None, :, None, None], 0)[0]
    usable = jnp.any(good, 0)
    return _where(usable, chosen, jnp.broadcast_to(eye, chosen.shape)), good[0]


def _objective(model: Model, batch: Batch, theta: Array, z: Array) -> Float[Array, " B"]:
    rows = model.log_lik(theta, batch.at_rows(z), batch)
    return model.log_local(theta, z, batch) + sum_rows(rows, batch)


def _bound(
    model: Model, batch: Batch, theta: Array, mean: Array, scale: Array, points: Array
) -> Float[Array, " B"]:
    """The local bound E_q[f - log q] on the fixed points, up to a constant."""
    at = lambda p: _objective(model, batch, theta, mean + scale @ p)
    entropy = jnp.sum(jnp.log(jnp.diagonal(scale, axis1=-2, axis2=-1)), -1)
    return jnp.mean(jax.lax.map(at, points), 0) + entropy


def times_covariance(scale: Float[Array, "B M M"], x: Float[Array, "B M"]) -> Float[Array, "B M"]:
    """P^-1 x for P^-1 = L L'."""
    return jnp.einsum("bij,bkj,bk->bi", scale, scale, x)


def _finite(q: Quadratic) -> Bool[Array, " B"]:
    slope = jnp.all(jnp.isfinite(q.slope), -1)
    return jnp.isfinite(q.value) & slope & jnp.all(jnp.isfinite(q.curvature), (-2, -1))


def _where(which: Bool[Array, " B"], new: Array, old: Array) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
