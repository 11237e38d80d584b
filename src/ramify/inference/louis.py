"""The Hessian of a block's share of F by Louis's identity, if only p(z | theta) involves theta.

If p(z | theta) is normal, its log at a draw is linear in the numbers of its expansion around the
group's mode, which depend on theta. The Hessian is then the weighted mean over a group's draws of
second derivatives, plus the weighted covariance of scores. The same for the control's Gaussian is
subtracted. The Hessian of the Gaussian's integral (`inference.local_integral`) has the same form with
its exact moments, so no factor of a matrix is differentiated twice.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Theta
from ramify.inference.local_integral import Weigh
from ramify.models.expansion import Quadratic
from ramify.numerics.small_linalg import inverse_factor, times_covariance


def louis_hessian(weigh: Weigh, theta: Theta, real: Float[Array, " B"]) -> Float[Array, "D D"]:
    """The Hessian of the sum of log p^(y_i | theta) over real groups; only the prior has theta."""
    numbers = lambda theta: weigh.prior(theta).packed()  # of each group, [B, n]
    parts, held = weigh.parts(theta), weigh.definite[:, None]
    share = lambda log_weight: jax.nn.softmax(log_weight.T, -1) * real[:, None]
    own, control = share(parts.log_weight), jnp.where(held, share(parts.log_weight_gaussian), 0.0)
    features, slopes = _features(weigh.step), jax.jacfwd(numbers)(theta)
    scores = jnp.einsum("bkn,bnd->bkd", features, slopes)
    gaussian = weigh.prior(theta) + weigh.likelihood(theta).expansion
    counted = held[:, 0] * real
    mean, products = _under(gaussian, weigh.definite, counted, slopes)
    mean += jnp.einsum("bk,bkn->bn", own - control, features)
    bent = jax.hessian(lambda theta: jnp.sum(numbers(theta) * mean))(theta)
    return bent + products + _covariance(scores, own, control)


def _under(
    q: Quadratic, definite: Array, counted: Float[Array, " B"], slopes: Float[Array, "B n D"]
) -> tuple[Float[Array, "B n"], Float[Array, "D D"]]:
    """Mean features under the normal density exp(q), and the covariance of scores, of counted groups."""
    # The score b'x - x'Ax / 2 at x = m + L e is u'e - e'Ve / 2 up to a constant, with u = L'(b - Am)
    # and V = L'AL. The covariance of two of them is u'u + tr(VV) / 2.
    M, D = q.slope.shape[1], slopes.shape[-1]
    factor = inverse_factor(jnp.where(definite[:, None, None], q.curvature, jnp.eye(M)))
    centre = times_covariance(factor, jnp.where(definite[:, None], q.slope, 0.0))
    second = factor @ factor.swapaxes(1, 2) + centre[:, :, None] * centre[:, None]
    flat = jnp.concatenate(
        [jnp.ones_like(centre[:, :1]), centre, -0.5 * second.reshape(-1, M * M)], 1
    )
    bent = slopes[:, M + 1 :].reshape(-1, M, M, D)
    tilt = slopes[:, 1 : M + 1] - jnp.einsum("bijd,bj->bid", bent, centre)
    u = jnp.einsum("bji,bjd->bid", factor, tilt)
    V = jnp.einsum("bji,bjkd,bkl->bild", factor, bent, factor).reshape(-1, M * M, D)
    both = jnp.concatenate([u, V * 0.5**0.5], 1) * jnp.sqrt(counted)[:, None, None]
    return flat * counted[:, None], _summed(both, both)


def _features(step: Float[Array, "B M K"]) -> Float[Array, "B K n"]:
    """The coefficients of an expansion's numbers in its value at each draw."""
    x = jnp.swapaxes(step, 1, 2)
    square = -0.5 * (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:2], -1)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, square], -1)


def _covariance(
    scores: Float[Array, "B K D"], own: Float[Array, "B K"], control: Float[Array, "B K"]
) -> Float[Array, "D D"]:
    """The covariance of scores by the model's weights less that by the control's, summed."""
    total = _summed(scores * (own - control)[..., None], scores)
    for share, sign in ((own, -1.0), (control, 1.0)):
        mean = jnp.einsum("bk,bkd->bd", share, scores)
        total += sign * jnp.einsum("bd,be->de", mean, mean)
    return total


def _summed(left: Float[Array, "B n D"], right: Float[Array, "B n D"]) -> Float[Array, "D D"]:
    """The sum of outer products over groups and n."""
    # One product with D x D entries would leave most of a GPU idle: there it is n products.
    each = "bnd,bne->de" if jax.default_backend() == "cpu" else "bnd,bne->nde"
    return jnp.sum(jnp.einsum(each, left, right).reshape(-1, *[left.shape[-1]] * 2), 0)
