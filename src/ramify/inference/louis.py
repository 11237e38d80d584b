"""The Hessian of a block's share of F by Louis's identity, if only p(z | theta) involves theta.

If p(z | theta) is normal, its log at a draw is linear in the numbers of its expansion around the
group's mode, which depend on theta. The Hessian is then the weighted mean over a group's draws of
second derivatives, plus the weighted covariance of scores. The same for the control's Gaussian is
subtracted, and the Hessian of its integral added (`inference.local_integral`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Theta
from ramify.inference.local_integral import Weigh, log_integral


def louis_hessian(weigh: Weigh, theta: Theta, real: Float[Array, " B"]) -> Float[Array, "D D"]:
    """The Hessian of the sum of log p^(y_i | theta) over real groups; only the prior has theta."""
    numbers = lambda theta: weigh.prior(theta).packed()  # of each group, [B, n]
    features = _features(weigh.step)
    parts = weigh.parts(theta)
    held = weigh.definite[:, None]
    share = lambda log_weight: jax.nn.softmax(log_weight.T, -1) * real[:, None]
    own, control = share(parts.log_weight), jnp.where(held, share(parts.log_weight_gaussian), 0.0)
    scores = jnp.einsum("bkn,bnd->bkd", features, jax.jacfwd(numbers)(theta))
    mean = jnp.einsum("bk,bkn->bn", own - control, features)
    integral = weigh.likelihood(theta).expansion

    def cheap(theta: Theta) -> Float[Array, ""]:
        volume = log_integral(weigh.prior(theta) + integral, weigh.definite)
        return jnp.sum(numbers(theta) * mean) + jnp.sum(jnp.where(held[:, 0], volume * real, 0.0))

    return jax.hessian(cheap)(theta) + _covariance(scores, own, control)


def _features(step: Float[Array, "B M K"]) -> Float[Array, "B K n"]:
    """The coefficients of an expansion's numbers in its value at each draw."""
    x = jnp.swapaxes(step, 1, 2)
    square = -0.5 * (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:2], -1)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, square], -1)


def _covariance(
    scores: Float[Array, "B K D"], own: Float[Array, "B K"], control: Float[Array, "B K"]
) -> Float[Array, "D D"]:
    """The covariance of scores by the model's weights less that by the control's, summed."""
    weighted = scores * (own - control)[..., None]
    # One product with D x D entries would leave most of a GPU idle: there it is K products.
    each = "bkd,bke->de" if jax.default_backend() == "cpu" else "bkd,bke->kde"
    total = jnp.sum(jnp.einsum(each, weighted, scores).reshape(-1, *[scores.shape[-1]] * 2), 0)
    for share, sign in ((own, -1.0), (control, 1.0)):
        mean = jnp.einsum("bk,bkd->bd", share, scores)
        total += sign * jnp.einsum("bd,be->de", mean, mean)
    return total
