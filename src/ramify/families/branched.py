"""Branched: q(theta) prod_i q(z_i | theta), the structure of the posterior itself."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.families.conditional import Conditional
from ramify.families.gaussian import Gaussian
from ramify.families.weighted_theta import WeightedTheta
from ramify.models.model import Model
from ramify.numerics.hashing import normals

Sign = float | Array  # -1 for the mirror image of a draw


class Draw(NamedTuple):
    """One draw of (theta, z) from a family, with its log density split as the ELBO needs it."""

    theta: Float[Array, " D"]
    z: Float[Array, "B M"]
    log_q_theta: Float[Array, ""]
    log_q_z: Float[Array, " B"]
    noise: tuple[Array, Array]  # of theta and of z; for a joint family all is in the first


class Branched(eqx.Module):
    """q(theta) prod_i q(z_i | theta): the structure of the posterior itself (Definition 1)."""

    theta: Gaussian
    local: Any  # a `conditional.Supplier`: Table | Amortizer | Solver
    N: int = eqx.field(static=True)
    weighted: WeightedTheta | None = None  # draws that correct q(theta), if any

    def prepare(self, model: Model, batch: Batch) -> Any:
        """What the supplier computes for a block once, for all theta."""
        return self.local.prepare(model, batch, self.theta.mean)

    def conditional(self, model: Model, batch: Batch, prepared: Any = None) -> Conditional:
        """Theta -> q(z_i | theta) of the block's groups."""
        prepared = self.prepare(model, batch) if prepared is None else prepared
        return self.local.conditional(model, batch, self.theta.mean, prepared)

    def draw(self, key: PRNGKeyArray, model: Model, batch: Batch, sign: Sign = 1.0) -> Draw:
        """Theta ~ q(theta), then z_i ~ q(z_i | theta) of the block; with sign -1 the mirror image."""
        key_theta, key_z = jax.random.split(key)
        noise = sign * jax.random.normal(key_theta, (self.theta.dim,))
        theta, log_q_theta = self.theta.draw(noise)
        local = self.conditional(model, batch)(theta)
        noise_z = sign * normals(key_z, batch.index, (local.mean.shape[-1],))
        z, log_q_z = local.draw(noise_z)
        return Draw(theta, z, log_q_theta, log_q_z, (noise, noise_z))

    def log_q(
        self, model: Model, batch: Batch, draw: Draw, *, own: bool = False
    ) -> tuple[Array, Float[Array, " B"]]:
        """Log q(theta) and log q(z_i | theta) at a draw; `own` says that this family drew it."""
        local = self.conditional(model, batch)(draw.theta)
        noise = draw.noise if own else (None, None)
        return self.theta.log_prob(draw.theta, noise[0]), local.log_prob(draw.z, noise[1])
