"""The estimator of the evidence lower bound, in nats, larger is better.

    L = E_q [ log p(theta) - log q(theta)
              + sum_i ( log p(z_i | theta) + log p(y_i | theta, z_i) - log q(z_i | theta) ) ]

(equations of the joint and branch ELBOs and their subsampled estimates). One function implements
the paper's four pseudo-codes: the family decides how z is drawn, the batch how the sum is scaled.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch, Theta
from ramify.families.branched import Branched, Sign
from ramify.families.build import Family
from ramify.families.conditional import Local
from ramify.models.densities import group_log_lik, log_joint, log_joints
from ramify.models.model import Model
from ramify.numerics.points import group_points
from ramify.numerics.sums import log_mean_exp

Estimator = Literal["total", "stl"]


class Terms(NamedTuple):
    """The parts of one draw's estimate; those of groups are zero at filler places."""

    log_prior: Float[Array, ""]
    log_q_theta: Float[Array, ""]
    log_local: Float[Array, " B"]
    log_lik: Float[Array, " B"]
    log_q_z: Float[Array, " B"]

    def total(self, scale: Float[Array, ""]) -> Float[Array, ""]:
        """The estimate of the ELBO: theta's part, and the groups' scaled to all of them."""
        groups = self.log_local + self.log_lik - self.log_q_z
        return self.log_prior - self.log_q_theta + scale * jnp.sum(groups)


def seeds(key: PRNGKeyArray, draws: int, estimator: Estimator) -> tuple[Array, Array]:
    """Keys and signs of S draws: independent for `total`, as in the paper; antithetic for `stl`."""
    # All S draws share the noise in the slope of log p that comes from the choice of groups. In the
    # gradient of a scale this noise is multiplied by the mean of the draws' noise, which is zero
    # for antithetic draws; with others a full q(theta) drifts without end if there are many groups.
    if estimator == "total":
        return jax.random.split(key, draws), jnp.ones(draws)
    place = jnp.arange(draws)
    pairs = jax.random.split(key, (draws + 1) // 2)
    return pairs[place // 2], jnp.where(place % 2, -1.0, 1.0)


def terms(
    key: PRNGKeyArray,
    family: Family,
    model: Model,
    batch: Batch,
    estimator: Estimator = "total",
    sign: Sign = 1.0,
) -> Terms:
    """The ELBO's terms for one draw of (theta, z), or with sign -1 for its mirror image."""
    # `stl` (sticking the landing) keeps the path through the draw and drops the score: log q is
    # evaluated at the draw with its parameters held fixed.
    draw = family.draw(key, model, batch, sign)
    log_q = draw.log_q_theta, draw.log_q_z
    if estimator == "stl":
        log_q = jax.lax.stop_gradient(family).log_q(model, batch, draw, own=True)
    real = lambda x: jnp.where(batch.group_mask, x, 0)
    return Terms(
        log_prior=model.log_prior(draw.theta),
        log_q_theta=log_q[0],
        log_local=real(model.log_local(draw.theta, draw.z, batch)),
        log_lik=real(group_log_lik(model, draw.theta, draw.z, batch)),
        log_q_z=real(log_q[1]),
    )


def elbo(
    key: PRNGKeyArray,
    family: Family,
    model: Model,
    batch: Batch,
    draws: int = 1,
    local_draws: int = 1,
    estimator: Estimator = "total",
) -> Float[Array, ""]:
    """Mean over S draws of the block's estimate; with K > 1 local draws, of the tight bound."""
    if local_draws == 1:
        one = lambda k, sign: terms(k, family, model, batch, estimator, sign).total(batch.scale)
    else:
        one = lambda k, sign: tight(k, family, model, batch, local_draws, estimator, sign)
    return jnp.mean(jax.vmap(one)(*seeds(key, draws, estimator)))


class Weighted(NamedTuple):
    """K draws of z for each group, with log weights log p(z, y_i | theta) - log q(z | theta)."""

    z: Float[Array, "K B M"]
    log_weight: Float[Array, "K B"]

    @property
    def bound(self) -> Float[Array, " B"]:
        """Log (1/K) sum_k w_k: the importance-weighted bound on log p(y_i | theta)."""
        return log_mean_exp(self.log_weight)


def weigh(
    key: PRNGKeyArray, local: Local, model: Model, batch: Batch, theta: Theta, local_draws: int
) -> Weighted:
    """K weighted draws of every group's z given theta, from its conditional `local`."""
    points = group_points(key, batch.index, local_draws, local.mean.shape[-1])
    return weigh_points(points, local, model, batch, theta)


def weigh_points(
    points: Float[Array, "K B M"], local: Local, model: Model, batch: Batch, theta: Theta
) -> Weighted:
    """K weighted draws of every group's z, made from these points."""
    z, log_q = jax.vmap(local.propose)(points)
    return Weighted(z, log_joints(model, batch, theta, z) - log_q)


def tight(
    key: PRNGKeyArray,
    family: Family,
    model: Model,
    batch: Batch,
    local_draws: int,
    estimator: Estimator = "total",
    sign: Sign = 1.0,
) -> Float[Array, ""]:
    """One draw of theta; each group's term is the importance-weighted bound on log p(y_i | theta)."""
    # For theta's gradient the proposal is held fixed: it is then Fisher's identity, estimated by
    # self-normalised importance sampling. Parameters of a table or network get the doubly
    # reparameterised gradient: weights squared, along the path of z only. That is the gradient of the
    # bound with K *independent* draws, which a good proposal maximises; evenly spread draws have a
    # tighter bound, and less noise in this gradient.
    if not isinstance(family, Branched):
        raise ValueError(
            "local_draws > 1 needs q(z_i | theta) of each group; joint() has none. "
            "Use branch(), amortized() or solved()."
        )
    key_theta, key_z = jax.random.split(key)
    # Only theta's noise is mirrored; the noise of z is independent.
    key_z = jax.random.fold_in(key_z, jnp.sign(sign) < 0)
    noise_theta = sign * jax.random.normal(key_theta, (family.theta.dim,))
    theta, log_q_theta = family.theta.draw(noise_theta)
    if estimator == "stl":
        log_q_theta = jax.lax.stop_gradient(family.theta).log_prob(theta, noise_theta)
    fixed = jax.lax.stop_gradient
    moving = family.conditional(model, batch)(fixed(theta))
    still = fixed(moving)
    weighted = fixed(weigh(key_z, still, model, batch, theta, local_draws))
    share = jax.nn.softmax(weighted.log_weight, 0)

    def surrogate(k: tuple[Array, Array, Array]) -> Float[Array, " B"]:
        noise, share, z_fixed = k
        path, _ = moving.propose(noise)
        z = z_fixed + share[:, None] * (path - fixed(path))  # its gradient carries weight twice
        joint = log_joint(model, batch, theta, z)
        return share * (joint - still.log_proposal(z, noise))

    noise = group_points(key_z, batch.index, local_draws, still.mean.shape[-1])
    pulls = jnp.sum(jax.lax.map(surrogate, (noise, share, weighted.z), batch_size=8), 0)
    bound = weighted.bound + pulls - fixed(pulls)
    groups = jnp.sum(jnp.where(batch.group_mask, bound, 0))
    return model.log_prior(theta) - log_q_theta + batch.scale * groups
