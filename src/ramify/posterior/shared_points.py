"""Log p(y_i | theta) at many thetas by shared points of z, and a check of where this is accurate.

If the likelihood does not involve theta, the likelihood of a group's rows is evaluated once, at K points
x_k around its conditional at one theta, the anchor. There it is a Gaussian (its site) times a ratio r_k
near one. At any theta the site times p(z | theta) is a Gaussian too. Its integral C(theta) is known, and
its weights w_k(theta) at the points take a few operations, for any number of rows:

    log p(y_i | theta) = log C(theta) + log sum_k w_k r_k / sum_k w_k.

The points suit a theta if its Gaussian is near the anchor's. Each theta has two checks: sum_k w_k is one
if the points cover the Gaussian, and the Hermite coefficients of w r of the highest degrees that the
points resolve are small if the sum has converged. A rule of order n has its first error in degree 2 n: if
coefficients fall geometrically, the error is about the square of those of degree n.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ramify.families.solver import solve_block
from ramify.inference.local_integral import parabola
from ramify.models.densities import log_liks_at
from ramify.models.expansion import expand_local
from ramify.models.model import Model
from ramify.models.traced import normal_prior
from ramify.numerics import budgets
from ramify.numerics.points import Rule
from ramify.numerics.programs import program
from ramify.numerics.small_linalg import inverse_factor
from ramify.posterior.conditioned import Conditioned

# Largest error of sum_k w_k, and largest sum of squared coefficients of the highest degrees. With these
# limits the sum over all groups was off by at most 0.02 nats, 0.003 rms, on ten problems of 12 to 300
# groups with few rows each; points around the conditional at each theta were off by up to 0.08 there.
SEEN, CONVERGED = 1e-4, 0.1
MOST_POINTS = 512  # the checks of a finer rule would need too much memory
_EXACT = jax.lax.Precision.HIGHEST


def can_share(known: Conditioned, model: Model, rule: Rule) -> bool:
    """Whether the likelihood of a block's rows is free of theta, p(z | theta) normal, the rule small."""
    # If groups may have two modes, a likelihood is not a Gaussian times a ratio near one.
    local, batch = known.local, known.batch
    if local.widened > 1 or len(rule.log_weight) > MOST_POINTS:
        return False
    fixed = not local.follows_theta(model, batch)
    return fixed and normal_prior(model, batch)


def anchored_at(known: Conditioned, model: Model, theta: Float[np.ndarray, " D"]) -> Conditioned:
    """The block solved again with theta as its anchor."""
    assert known.site is not None
    centre = jax.device_put(theta.astype(known.family.theta.mean.dtype))
    begin = np.asarray(known.site.anchor)
    return replace(known, prepared=solve_block(known.local, model, known.batch, centre, begin))


@program
def by_shared_points(
    known: Conditioned,
    model: Model,
    thetas: Float[Array, "C D"],
    wanted: Int[Array, ""],
    rule: Rule,
    highest: Array,
) -> tuple[Float[Array, "C B"], Bool[Array, " C"]]:
    """Log p(y_i | theta) of a block's groups, and whether the points suit all of them at a theta.

    Only the first `wanted` thetas are evaluated, or a few more.
    """
    site, batch = known.site, known.batch
    assert site is not None
    step = jnp.einsum("bij,kj->bik", site.scale, rule.points)
    value = log_liks_at(model, jnp.zeros(model.theta.size), site.anchor[..., None] + step, batch)
    ratio = jnp.exp(value - parabola(site.likelihood, step).T)[..., None]
    averaged = jnp.concatenate([jnp.ones_like(ratio), ratio, ratio * highest], -1)
    log_volume = jnp.sum(jnp.log(jnp.diagonal(site.scale, axis1=-2, axis2=-1)), -1)

    def some(thetas: Float[Array, "c D"]) -> tuple[Float[Array, "c B"], Bool[Array, " c"]]:
        terms, log_integral = jax.vmap(lambda theta: _gaussian(known, model, theta))(thetas)
        weight = jnp.exp(jnp.einsum("kf,cbf->bkc", _powers(rule), terms, precision=_EXACT))
        sums = jnp.einsum("bkc,bkt->cbt", weight, averaged, precision=_EXACT)
        seen, mass, top = sums[..., 0], sums[..., 1], sums[..., 2:]
        suited = jnp.sum(top**2, -1) <= CONVERGED * mass**2  # not where anything is not finite
        suited &= (jnp.abs(seen - 1) <= SEEN) & site.converged & (mass < jnp.inf)
        log_mass = log_integral + log_volume + jnp.log(mass / seen)
        return log_mass, jnp.all(suited | ~batch.group_mask, -1)

    # As many thetas at a time as have weights that fit into the cache of a CPU.
    each, room = (
        len(rule.log_weight) * len(batch.index),
        budgets.on_this_device(budgets.SHARED_WEIGHTS),
    )
    count = min(len(thetas), 2 ** (max(room // each, 1).bit_length() - 1))
    own = thetas.reshape(-1, count, thetas.shape[1])

    def put(part: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        log_mass, suited = some(own[part])
        return found[0].at[part].set(log_mass), found[1].at[part].set(suited)

    empty = jnp.zeros((*own.shape[:2], len(batch.index)), own.dtype), jnp.zeros(own.shape[:2], bool)
    log_mass, suited = jax.lax.fori_loop(0, (wanted + count - 1) // count, put, empty)
    return log_mass.reshape(len(thetas), -1), suited.reshape(-1)


def _gaussian(
    known: Conditioned, model: Model, theta: Float[Array, " D"]
) -> tuple[Float[Array, "B F"], Float[Array, " B"]]:
    """Site times p(z | theta) in units of the points: its terms in `_powers`, and its log integral."""
    site, M = known.site, model.z.size
    assert site is not None
    both = expand_local(model, known.batch, theta)(site.anchor) + site.likelihood
    slope = jnp.einsum("bij,bi->bj", site.scale, both.slope)
    curvature = jnp.einsum("bij,bik,bkl->bjl", site.scale, both.curvature, site.scale)
    factor = inverse_factor(curvature)
    white = jnp.einsum("bij,bi->bj", factor, slope)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
    log_integral = 0.5 * jnp.sum(white**2, -1) + log_det + 0.5 * M * math.log(2 * math.pi)
    i, j = np.tril_indices(M)
    apart = jnp.stack([jnp.ones_like(log_integral), -log_integral], -1)
    return jnp.concatenate([apart, slope, curvature[:, i, j]], -1), both.value + log_integral


def _powers(rule: Rule) -> Float[Array, "K F"]:
    """Features of each point in which all Gaussians' exponents are linear; first the log weight."""
    x, (i, j) = jnp.asarray(rule.points), np.tril_indices(rule.points.shape[1])
    squares = np.where(i == j, -0.5, -1.0).astype(x.dtype) * x[:, i] * x[:, j]
    apart = jnp.stack([jnp.asarray(rule.log_weight), jnp.ones(len(x), x.dtype)], -1)
    return jnp.concatenate([apart, x, squares], -1)


def highest_degrees(rule: Rule) -> Float[np.ndarray, "K T"]:
    """Orthonormal Hermite polynomials of the highest degrees that a product rule resolves, at its points.

    Those of degree n - 2 along each coordinate, and all of degree n - 1.

    Example:
        >>> from ramify.numerics.points import gauss_hermite
        >>> rule = gauss_hermite(5, 2)
        >>> top = highest_degrees(rule)
        >>> density = np.exp(-0.5 * np.sum(rule.points**2, 1)) / (2 * np.pi)
        >>> np.round(top.T @ (np.exp(rule.log_weight) * density * top[:, 0]), 6).tolist()
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    x = np.asarray(rule.points, np.float64)
    K, M = x.shape
    n = round(K ** (1 / M))
    along = [np.ones_like(x), x]
    for k in range(1, n - 1):
        along.append((x * along[k] - k**0.5 * along[k - 1]) / (k + 1) ** 0.5)
    degrees = [(n - 2) * np.eye(M, dtype=int)]
    degrees.append(np.array([d for d in np.ndindex(*[n] * M) if sum(d) == n - 1]))
    product = lambda d: np.prod([along[k][:, m] for m, k in enumerate(d)], axis=0)
    return np.stack([product(d) for d in np.concatenate(degrees)], -1).astype(rule.points.dtype)
