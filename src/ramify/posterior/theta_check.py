"""Importance weights of theta, with every group's z integrated out: how good q(theta) is."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.conditional import Conditional, Local
from ramify.inference import local_integral as integral
from ramify.inference.local_integral import Parts
from ramify.models.densities import log_joints
from ramify.models.expansion import expand_local
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.points import group_points, quarter_sizes
from ramify.numerics.programs import program
from ramify.numerics.sums import log_mean_exp, precise_sum
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Chunk, Draws, at_once, of_chunks
from ramify.posterior.marginal_values import has_rule, marginal_log_liks
from ramify.posterior.metrics import double, joint_sums, theta_terms


def affordable(model: Model, groups: Groups, draws: int | None) -> tuple[int, int]:
    """Draws of theta, and local draws for each, within the work allowed; more of both for few rows."""
    rows = groups.n_rows + len(groups)
    S = draws or int(np.clip(budgets.THETA_CHECK_WORK // (rows * 64), 50, 1000))
    if S < 25:
        raise ValueError(f"expected at least 25 draws, to see the weights' tail; got {S}.")
    return S, int(np.clip(budgets.THETA_CHECK_WORK // (rows * S), max(16, 8 * model.z.size), 256))


def theta_log_weights(
    family: Family, model: Model, groups: Groups, theta: Draws, K: int, points: int = 0
) -> tuple[Float64[np.ndarray, " S"], Float64[np.ndarray, " S"]]:
    """Log p^(theta, y) / q(theta) of each draw, and a sample of its noise.

    A joint family has weights of (theta, z) together. The quadrature rule has at least `points` points.
    """
    total = theta_terms(model, theta)
    noise = np.zeros_like(total)
    if not isinstance(family, Branched):
        return total + joint_sums(family, model, groups, theta), noise
    if has_rule(family, model):
        total += marginal_log_liks(family, model, groups, theta.theta, points)
        return np.where(np.isfinite(total), total, -np.inf), noise
    lean = len(groups) >= budgets.WELL_KNOWN_GROUPS
    for block in ranges(groups):
        known = condition(family, model, block.batches[0], K)
        # All draws of theta share the groups' points, so the noise is a smooth function of theta.
        points = _points(known.batch, theta.key, K, model.z.size)
        one = lambda chunk: _marginal_block(known, model, chunk, points, lean)  # noqa: B023
        *parts, apart = of_chunks(one, theta, at_once(known, model, len(total), K))
        total += double(parts)
        noise += np.asarray(apart, np.float64)
    # A density may overflow at a draw far out: this draw gets weight zero instead of all the weight.
    fine = np.isfinite(total)
    return np.where(fine, total, -np.inf), np.where(fine & np.isfinite(noise), noise, 0.0)


@program
def _points(batch: Batch, key: PRNGKeyArray, K: int, M: int) -> Float[Array, "K B M"]:
    return group_points(key, batch.index, K, M)


@program
def _marginal_block(
    known: Conditioned, model: Model, chunk: Chunk, points: Float[Array, "K B M"], lean: bool
) -> tuple[Float[Array, " S"], Float[Array, " S"], Float[Array, " S"]]:
    """Sum over groups of log p^(y_i | theta), freed of its 1/K bias, in two parts, and its noise."""
    # The sample of the noise is half the difference between two independent halves of the points.
    conditional, batch = again_at_theta(known, model, lean), known.batch
    again = known.site is not None and not lean and known.local.follows_theta(model, batch)

    def one(theta: Float[Array, " D"]) -> tuple[Array, Array, Array]:
        parts, definite = _with_control(known, model, theta, conditional(theta), points, again)
        real = lambda x: jnp.where(batch.group_mask, x, 0)
        total, apart = integral.controlled(parts, definite)[0], _apart(parts, definite)
        return *precise_sum(real(total)), 0.5 * jnp.sum(real(apart))

    thetas = jnp.asarray(chunk.theta)
    # One draw fills an accelerator, whose sums over groups take ten times as long for several at once.
    return jax.vmap(one)(thetas) if jax.default_backend() == "cpu" else jax.lax.map(one, thetas)


def _apart(parts: Parts, definite: Bool[Array, " B"]) -> Float[Array, " B"]:
    """The difference between the estimates from two independent halves of the draws."""
    half = sum(quarter_sizes(len(parts.log_weight))[:2])  # of four independent quarters
    apart = lambda w: log_mean_exp(w[:half]) - log_mean_exp(w[half:])
    return apart(parts.log_weight) - jnp.where(definite, apart(parts.log_weight_gaussian), 0)


def _with_control(
    known: Conditioned, model: Model, theta: Array, local: Local, points: Array, again: bool
) -> tuple[Parts, Bool[Array, " B"]]:
    """Draws from `local`; the control is the Gaussian of the site, if any, expanded `again` at theta."""
    site, batch, mean = known.site, known.batch, local.mean
    z, log_q = jax.vmap(local.propose)(points)
    log_weight = log_joints(model, batch, theta, z) - log_q
    if site is None:
        none = jnp.zeros(log_weight.shape[1])
        return Parts(log_weight, jnp.zeros_like(log_weight), none), none > 0
    prior = expand_local(model, batch, theta)(mean)
    gaussian = prior + integral.site_likelihood(model, batch, site, mean, again)(theta)
    definite = site.converged & batch.group_mask
    volume = integral.log_integral(gaussian, definite)
    expanded = integral.parabola(gaussian, jnp.moveaxis(z - mean, 0, -1))
    return Parts(log_weight, expanded - log_q, volume), definite & jnp.isfinite(volume)


def again_at_theta(known: Conditioned, model: Model, lean: bool) -> Conditional:
    """Theta -> the block's conditional, solved again at each theta if its likelihood involves theta."""
    # The fit does the same. With `lean`, for a theta that is known well, nothing is solved again.
    site, batch = known.site, known.batch
    if site is None:
        return known.conditional(model)
    again = not lean and known.local.follows_theta(model, batch)
    return lambda theta: known.local.follow(model, batch, site, theta, again)[1]
