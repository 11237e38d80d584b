"""Damped Newton on every group of a block at once, and the expansion of its likelihood."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ramify.data.batch import Batch, Z
from ramify.models.densities import sum_rows
from ramify.models.expansion import Expander, Quadratic, expand, expand_local
from ramify.models.model import Model
from ramify.models.structure import linear
from ramify.numerics.small_linalg import inverse_factor, times_covariance

SHORT = 0.1  # squared Newton decrement below which slopes, not values, tell whether a step gains
TOLERANCE = 1e-4  # squared Newton decrement at the mode: it is exact to a hundredth of an sd


def expand_likelihood(model: Model, batch: Batch, theta: Array) -> Expander:
    """Z -> expansion of l_i: the rows' expansions, summed over each group in one scatter."""
    declared = model.structure.likelihood
    if declared is None:
        rows = lambda z: model.log_lik(theta, z, batch)
        return lambda z: _sum_rows(expand(rows, batch.at_rows(z)), batch)
    weights, offsets = declared.weights(batch), declared.offsets(theta, batch)

    def by_predictors(z: Z) -> Quadratic:
        eta = linear(weights, batch.at_rows(z)[..., None])[..., 0] + offsets
        rows = expand(lambda eta: declared.density(theta, eta[..., None], batch)[:, 0], eta)
        return _sum_rows(_chain(rows, weights), batch)

    return by_predictors


def _chain(rows: Quadratic, weights: Float[Array, "R P M"]) -> Quadratic:
    """An expansion in linear predictors as one in z: slopes W' g, curvatures W' H W."""
    if weights.shape[1] == 1:
        w = weights[:, 0]
        curvature = (rows.curvature[:, 0] * w)[:, :, None] * w[:, None]
        return Quadratic(rows.value, rows.slope * w, curvature)
    slope = jnp.einsum("rpm,rp->rm", weights, rows.slope)
    curvature = jnp.einsum("rpm,rpq,rqn->rmn", weights, rows.curvature, weights)
    return Quadratic(rows.value, slope, curvature)


def _sum_rows(rows: Quadratic, batch: Batch) -> Quadratic:
    """Sums the expansions of each group's rows."""
    return Quadratic.unpacked(sum_rows(rows.packed(), batch), rows.slope.shape[-1])


class Climb(NamedTuple):
    """Where Newton ended: each group's best point, the expansions there, and how it went."""

    z: Z
    prior: Quadratic
    likelihood: Quadratic
    converged: Bool[Array, " B"]
    steps: Int[Array, ""]


class _Walk(NamedTuple):
    """Where Newton stands: each group's best point, what is known there, and the next step."""

    z: Z
    both: Float[Array, "B 2 numbers"]
    move: Z
    damping: Float[Array, " B"]
    done: Bool[Array, " B"]
    converged: Bool[Array, " B"]
    steps: Int[Array, ""]


def newton(model: Model, batch: Batch, theta: Array, begin: Z, max_steps: int) -> Climb:
    """Climbs f_i of every group at once; a step that would lower a group's f_i is not taken."""
    # Levenberg-Marquardt: a group's damping grows where the curvature is not positive definite or a
    # step fails, and shrinks to zero where steps succeed, so that most groups take plain Newton
    # steps. Stops when every group has converged.
    places, M = begin.shape
    expand_prior = expand_local(model, batch, theta)
    expand_rows = expand_likelihood(model, batch, theta)

    def body(c: _Walk) -> _Walk:
        there = c.z + c.move
        # Prior and likelihood in one array: choosing between two points is then one operation.
        both = jnp.stack([expand_prior(there).packed(), expand_rows(there).packed()], 1)
        total = lambda both: Quadratic.unpacked(both[:, 0] + both[:, 1], M)
        up = _rises(total(c.both), total(both), c.move)
        take = up & ~c.done
        z, both = _where(take, there, c.z), _where(take, both, c.both)
        less = jnp.where(c.damping < 1e-3, 0.0, c.damping / 10)
        damping = jnp.where(up, less, jnp.maximum(4 * c.damping, 1e-2))
        here = total(both)
        move, decrement = _damped_step(here, damping)
        # Near the mode a gain is below the rounding of f: it can't be seen, and is not needed.
        rounding = 4 * jnp.finfo(z.dtype).eps * (1 + jnp.abs(here.value))
        top = (decrement < jnp.maximum(TOLERANCE, rounding)) & (damping < 1e-2)
        done = c.done | top | (damping > 1e8)
        return _Walk(z, both, move, damping, done, c.converged | top, c.steps + 1)

    # Filler places have a constant function, and are done.
    start = jnp.where(batch.group_mask, -jnp.inf, 0.0)[:, None]
    low = jnp.zeros((places, 2, 1 + M + M * M)).at[:, :, 0].set(start)
    no, still = ~batch.group_mask, jnp.zeros_like(begin)
    first = _Walk(begin, low, still, jnp.zeros(places), no, no, jnp.zeros((), jnp.int32))
    more = lambda c: (c.steps < max_steps) & ~jnp.all(c.done)
    end = jax.lax.while_loop(more, body, first)
    prior, likelihood = (Quadratic.unpacked(end.both[:, i], M) for i in (0, 1))
    return Climb(end.z, prior, likelihood, end.converged, end.steps)


def _rises(here: Quadratic, there: Quadratic, move: Z) -> Bool[Array, " B"]:
    """Whether each group's f is no lower after its step."""
    # A short step may gain less than the rounding of f: the slopes at both ends tell.
    ahead = jnp.sum(here.slope * move, -1)
    by_slopes = ahead + jnp.sum(there.slope * move, -1)
    up = jnp.where(ahead < SHORT, by_slopes >= 0, there.value >= here.value)
    return up & jnp.isfinite(there.packed()).all(-1)


def _damped_step(here: Quadratic, damping: Float[Array, " B"]) -> tuple[Z, Float[Array, " B"]]:
    """(P + damping size I)^-1 g and the squared Newton decrement; NaN if that is not definite."""
    size = jnp.mean(jnp.abs(jnp.diagonal(here.curvature, axis1=-2, axis2=-1)), -1) + 1e-6
    eye = jnp.eye(here.slope.shape[-1], dtype=here.slope.dtype)
    damped = here.curvature + (damping * size)[:, None, None] * eye[None]
    move = times_covariance(inverse_factor(damped), here.slope)
    decrement = jnp.sum(here.slope * move, -1)
    definite = jnp.all(jnp.isfinite(move), -1)
    # An indefinite step becomes NaN: it fails, so the next step is damped more.
    return jnp.where(definite[:, None], move, jnp.nan), jnp.where(definite, decrement, jnp.inf)


def safe_scale(precision: Float[Array, "B M M"]) -> tuple[Float[Array, "B M M"], Bool[Array, " B"]]:
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
    return _where(good.any(0), chosen, jnp.broadcast_to(eye, chosen.shape)), good[0]


def _where(which: Bool[Array, " B"], new: Array, old: Array) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
