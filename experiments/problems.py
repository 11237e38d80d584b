"""The paper's two models, as a user writes them, and what one experiment is run on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular

import ramify as rf


class Problem(NamedTuple):
    """A model with its data.

    `best` has, where algebra knows it, the highest ELBO of each covariance; that of "dense" is the
    exact log evidence.
    """

    experiment: str
    data: str
    scale: str
    model: rf.Model
    train: rf.Groups
    test: rf.Groups | None = None
    best: dict[str, float] | None = None


def regression(dim: int) -> rf.Model:
    """Equation 16: theta ~ N(0, I), z_i ~ N(theta, I), y_ij ~ N(x_ij' z_i, 1)."""
    return rf.Model(
        theta={"mu": rf.real(dim)},
        z={"beta": rf.real(dim)},
        log_prior=lambda theta: dist.Normal(0, 1).log_prob(theta["mu"]).sum(),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=lambda theta, z, row: dist.Normal(jnp.dot(row["x"], z["beta"]), 1).log_prob(
            row["y"]
        ),
    )


def preferences(dim: int = 10) -> rf.Model:
    """Equation 17: N(0, I) over theta = [mu, free], z_i ~ N(mu, tril(free)' tril(free)).

    Ratings are Bernoulli(sigmoid(x_ij' z_i)). The product is the one that the paper prints, the
    transposed factor first; with `tril tril'` the same covariances would have another prior.
    """
    return rf.Model(
        theta={"mu": rf.real(dim), "free": rf.real(dim * (dim + 1) // 2)},
        z={"taste": rf.real(dim)},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.Normal(0, 1).log_prob(theta["free"]).sum()
        ),
        log_local=log_taste,
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=jnp.dot(row["x"], z["taste"])).log_prob(
            row["y"]
        ),
    )


def log_taste(theta: dict, z: dict, group: dict) -> jax.Array:
    """Log N(z | mu, tril' tril)."""
    # z - mu = tril' e with e ~ N(0, I): an upper triangular system, |tril'| from its diagonal.
    factor = tril(theta["free"], theta["mu"].shape[0])
    noise = solve_triangular(factor.T, z["taste"] - theta["mu"], lower=False)
    log_det = jnp.log(jnp.diagonal(factor)).sum()
    return dist.Normal(0, 1).log_prob(noise).sum() - log_det


def tril(free: jax.Array, dim: int) -> jax.Array:
    """The paper's map from a vector [dim (dim + 1) / 2] to a Cholesky factor [dim, dim].

    Entries are put in place, the diagonal's through x -> (x + sqrt(x^2 + 4)) / 2 (appendix A). The
    paper does not say in which order; here the diagonal's come first.
    """
    first = free[:dim]
    root = jnp.sqrt(first**2 + 4)
    # For x far below zero the plain form would subtract two large numbers.
    size = jnp.where(first >= 0, (first + root) / 2, 2 / (root + jnp.abs(first)))
    return jnp.diag(size).at[np.tril_indices(dim, -1)].set(free[dim:])
