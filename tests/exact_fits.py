"""Fits without fitting: families at their known optimum on the conjugate regression of `oracle`."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import oracle
from ramify.data.groups import Groups
from ramify.families.build import Family, branch, joint, solved
from ramify.families.gaussian import Gaussian
from ramify.models.model import Model
from ramify.models.parameters import real
from ramify.numerics.triangular import free_numbers
from ramify.posterior.posterior import Posterior


@cache
def regression(dim: int) -> Model:
    """The conjugate regression; `simulate` does not read y. One object, so one compilation."""
    return Model(
        theta={"mu": real(dim)},
        z={"beta": real(dim)},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]).sum(),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=lambda t, z, row: dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"]),
        simulate=lambda key, t, z, row: row["x"] @ z["beta"] + jax.random.normal(key),
    )


def read(table: oracle.Table, N: int) -> Groups:
    """The table as groups 0..N-1, those without rows included."""
    every = {"group": np.arange(N)}
    return Groups.from_table(table, by="group", rows=["x", "y"], group_table=every)


def gaussian(mean: np.ndarray, cov: np.ndarray) -> Gaussian:
    """N(mean, cov) as the library holds it, in JAX's precision."""
    free = free_numbers(jnp.asarray(np.linalg.cholesky(cov)), False, "log")
    return Gaussian(jnp.asarray(mean), free, len(mean), False, "log")


def exact_family(method: str, model: Model, table: oracle.Table, N: int) -> Family:
    """The dense family of this method that equals the posterior."""
    groups, post = read(table, N), oracle.exact(table, N)
    if method == "joint":
        brute = oracle.brute_force(table, N)
        part = gaussian(brute.mean, brute.cov)
        return eqx.tree_at(lambda f: f.parts, joint(model, groups), (part,))
    # Newton alone is exact here, and quicker to compile than with rounds of variational Newton.
    family = solved(model, groups, rounds=0) if method == "solved" else branch(model, groups)
    family = eqx.tree_at(lambda f: f.theta, family, gaussian(post.theta_mean, post.theta_cov))
    if method == "solved":
        return family
    mean = post.z_offset + post.z_slope @ post.theta_mean
    scale = free_numbers(jnp.asarray(np.linalg.cholesky(post.z_given_cov)), False, "log")
    w = jnp.concatenate([mean, post.z_slope.reshape(N, -1), scale], -1)
    return eqx.tree_at(lambda f: f.local.w, family, w)


def exact_fit(method: str, table: oracle.Table, N: int) -> Posterior:
    """A posterior that is exact."""
    model = regression(table["x"].shape[1])
    return Posterior(model, exact_family(method, model, table, N), read(table, N))
