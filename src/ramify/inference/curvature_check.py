"""Compares a likelihood's Hessian with its curvature by Stein's identity, to find kinks and steps.

For z = m + L e with e standard normal, E[L' hess l L] = E[e (L' grad l)'] and E[L' grad l] = E[e
l]: the expected curvature follows from slopes, and the expected slope from values. Differentiation
misses kinks (absolute values) and steps of a likelihood, which these averages see; Newton would
return wrong results without a warning.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.families.conditional import Local
from ramify.families.newton import expand_likelihood, safe_scale
from ramify.models.expansion import expand_local
from ramify.models.model import Model
from ramify.numerics.programs import EXACT, filter_jit
from ramify.numerics.small_linalg import times_covariance

POINTS = 64
UNLIKE = 0.3  # relative disagreement that noise must not explain


# It runs once, on little data: most of its cost is compiling.
@partial(filter_jit, compiler_options=EXACT | {"xla_backend_optimization_level": 0})
def opinions(model: Model, batch: Batch, theta: Float[Array, " D"]) -> tuple[Array, ...]:
    """Expected slopes and curvatures of groups under p(z | theta) as a Gaussian, whitened."""
    # Returns the trace of the curvature by autodiff and by Stein [B]; the slope by Stein and its
    # gap to autodiff's [2, B, M], by two independent sets of points: products are unbiased.
    zero = jnp.zeros((batch.index.shape[0], model.z.size))
    prior = expand_local(model, batch, theta)(zero)
    scale = safe_scale(prior.curvature)[0]
    local = Local(zero + times_covariance(scale, prior.slope), scale)
    half = jax.random.normal(jax.random.key(0), (2, POINTS // 4, *local.mean.shape))
    noise = jnp.concatenate([half, -half], 1)
    expand = expand_likelihood(model, batch, theta)
    at = jax.lax.map(lambda es: jax.lax.map(lambda e: expand(local.draw(e)[0]), es), noise)
    slope = jnp.einsum("bij,sqbi->sqbj", local.scale, at.slope)
    hessian = jnp.einsum("bij,sqbik,bkj->sqb", local.scale, at.curvature, local.scale)
    value = at.value - jnp.mean(at.value, (0, 1))
    stein = jnp.mean(noise * value[..., None], 1)
    curvature_stein = -jnp.mean(jnp.sum(noise * slope, -1), (0, 1))
    return jnp.mean(hessian, (0, 1)), curvature_stein, stein, stein - jnp.mean(slope, 1)


def missing_curvature(model: Model, batch: Batch, theta: Float[Array, " D"]) -> str | None:
    """Why the derivatives can't be trusted, in words; None if they can, or are declared to be."""
    declared = model.structure.likelihood
    if declared is not None and declared.smooth:
        return None
    real = np.asarray(batch.group_mask)
    said = (np.asarray(x, np.float64) for x in opinions(model, batch, theta))
    own, stein, steps, gaps = (x[..., real, :] if x.ndim == 3 else x[real] for x in said)
    if not all(np.isfinite(x).all() for x in (own, stein, steps, gaps)):
        return None  # far-away points may overflow; the fit itself reports what is not finite
    if abs(stein.mean() - own.mean()) > 5 * _error(stein - own) + UNLIKE * abs(stein.mean()):
        return (
            f"the likelihood's second derivatives give an average curvature of {own.mean():.3g} a "
            f"group (in units of its prior) where its first derivatives give {stein.mean():.3g}: "
            "it has kinks in z that Newton can't see"
        )
    gap, size = np.sum(gaps[0] * gaps[1], -1), np.sum(steps[0] * steps[1], -1)
    if gap.mean() > 5 * _error(gap) + UNLIKE**2 * abs(size.mean()):
        return "the likelihood changes with z where its derivatives are zero: it has steps in z"
    return None


def _error(x: np.ndarray) -> float:
    """Standard error of the mean, and a little for rounding."""
    return float(np.std(x) / np.sqrt(len(x)) + 1e-4)
