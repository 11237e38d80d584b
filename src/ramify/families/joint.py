"""Joint: one Gaussian, or independent ones, over theta and every group's z."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.families.branched import Draw, Sign
from ramify.families.gaussian import Gaussian
from ramify.models.model import Model
from ramify.numerics.precision import computing


class Joint(eqx.Module):
    """q(theta, z_1..z_N) as one Gaussian or independent ones; needs every group in every step."""

    # Side by side over (theta, z_1, ..., z_N): dense is one full Gaussian, block is one for theta
    # and one over *all* of z, diagonal is one with independent entries.
    parts: tuple[Gaussian, ...]
    D: int = eqx.field(static=True)
    M: int = eqx.field(static=True)
    N: int = eqx.field(static=True)

    @property
    def theta(self) -> Gaussian:
        """The marginal q(theta)."""
        first = self.parts[0]
        D = self.D
        if first.diagonal:
            return Gaussian(first.mean[:D], first.free[:D], D, True, first.map)
        # The leading block of a lower triangular factor is the factor of the leading block.
        below = D * (D - 1) // 2
        free = jnp.concatenate([first.free[:D], first.free[first.dim : first.dim + below]])
        return Gaussian(first.mean[:D], free, D, False, first.map)

    def draw(self, key: PRNGKeyArray, model: Model, batch: Batch, sign: Sign = 1.0) -> Draw:
        """Draws everything; z is then looked up by group number, never by place."""
        if batch.index.shape[0] < self.N:
            raise ValueError(
                f"joint() draws all {self.N} groups at once; got a block of at most "
                f"{batch.index.shape[0]}. Use branch(), amortized() or solved() to subsample."
            )
        keys = jax.random.split(key, len(self.parts))
        pairs = list(zip(self.parts, keys, strict=True))
        noise = [sign * jax.random.normal(k, (q.dim,)) for q, k in pairs]
        draws = [q.draw(e) for q, e in zip(self.parts, noise, strict=True)]
        whole = jnp.concatenate([x for x, _ in draws])
        z = whole[self.D :].reshape(self.N, self.M)[batch.index]
        log_q = jnp.sum(jnp.stack([q for _, q in draws]))
        every = jnp.concatenate(noise), jnp.zeros((len(z), 0))
        return Draw(whole[: self.D], z, log_q, jnp.zeros(len(z)), every)

    def log_q(
        self, model: Model, batch: Batch, draw: Draw, *, own: bool = False
    ) -> tuple[Array, Float[Array, " B"]]:
        """Log q of the whole draw as theta's part, and zeros as the groups' parts."""
        z = jnp.zeros((self.N, self.M)).at[batch.index].set(draw.z)
        whole = jnp.concatenate([draw.theta, z.ravel()])
        split = lambda x: jnp.split(x, np.cumsum([q.dim for q in self.parts])[:-1])
        noise = split(draw.noise[0]) if own else [None] * len(self.parts)
        parts = zip(self.parts, split(whole), noise, strict=True)
        log_q = jnp.stack([q.log_prob(x, e) for q, x, e in parts])
        return jnp.sum(log_q), jnp.zeros(len(draw.z))


@computing
def joint_to_branch(
    mean: Float[Array, " total"], covariance: Float[Array, "total total"], D: int, M: int
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """The branch Gaussian that corresponds to a joint one (Corollary 3, appendix E).

    q(z_i | theta) of N(mean, covariance) is N(mu_i + A_i theta, Sigma_i) with
    A_i = S_zi,theta S_theta^-1, mu_i = m_zi - A_i m_theta, Sigma_i = S_zi - A_i S_theta,zi.

    Returns:
        (mu_0 [D], Sigma_0 [D, D]) and (mu_i [N, M], A_i [N, M, D], Sigma_i [N, M, M]).
    """
    S_theta, cross = covariance[:D, :D], covariance[D:, :D].reshape(-1, M, D)
    A = jnp.linalg.solve(S_theta, cross.swapaxes(-1, -2)).swapaxes(-1, -2)
    mu = mean[D:].reshape(-1, M) - A @ mean[:D]
    N = mu.shape[0]
    own = covariance[D:, D:].reshape(N, M, N, M)[jnp.arange(N), :, jnp.arange(N), :]
    return (mean[:D], S_theta), (mu, A, own - A @ cross.swapaxes(-1, -2))
