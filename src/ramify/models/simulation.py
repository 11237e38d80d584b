"""Draws from the prior of a model: theta, z given theta, and outcomes given both.

Formulas and NumPyro models are sampled as they are written. For a model of log densities, theta is
drawn by NUTS from `log_prior`, z from its normal prior given theta, and outcomes by `simulate`.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch, Theta, example
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.models.degree import degree
from ramify.numerics.programs import program

CHAINS, WARMUP, KEPT, THIN = 4, 400, 500, 4  # of NUTS on a prior
MOST_RHAT = 1.05  # above it the chains do not agree


class Simulated(NamedTuple):
    """A theta, a z of each group and outcomes of the rows, drawn from a model."""

    theta: Theta
    z: Float[Array, "N M"]
    rows: dict[str, np.ndarray]  # the new row columns: outcomes, in the form of the data


ThetaSampler = Callable[[np.random.Generator], Theta]  # a draw from the prior
Simulator = Callable[[np.random.Generator], Simulated]


def theta_by_nuts(model: Any) -> ThetaSampler:
    """A sampler of `log_prior`: NUTS makes many draws at the first call; each call picks one."""
    draws = cache(lambda seed: _nuts(model, jax.random.key(seed)))
    return lambda rng: (lambda found: found[rng.integers(len(found))])(draws(0))


def _nuts(model: Any, key: PRNGKeyArray) -> Float[Array, "S D"]:
    """Draws of theta from its prior; raises if chains do not agree, as for an improper prior."""
    from numpyro.diagnostics import split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    first, start = jax.random.split(key)
    kernel = NUTS(potential_fn=lambda theta: -model.log_prior(theta))
    more = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=KEPT * THIN, thinning=THIN, **more)
    mcmc.run(first, init_params=jax.random.normal(start, (CHAINS, model.theta.size)))
    found = np.asarray(mcmc.get_samples(group_by_chain=True))
    with np.errstate(over="ignore", invalid="ignore"):  # chains that went to infinity
        rhat = np.max(split_gelman_rubin(found))
    if not rhat < MOST_RHAT:
        raise ArithmeticError(
            f"theta can't be drawn from log_prior: chains of NUTS disagree (r-hat {rhat:.2f}). Is it "
            "the log of a density with a finite total, of every parameter? A formula or a NumPyro model "
            "is drawn from directly."
        )
    return jnp.asarray(found.reshape(-1, model.theta.size))


def by_densities(model: Any, groups: Groups, sampler: ThetaSampler) -> Simulator:
    """A simulator for a model of log densities with `simulate`; raises if it can't be simulated."""
    column, batch = outcome_column(model, groups), whole(groups)
    theta = jax.ShapeDtypeStruct((model.theta.size,), jnp.result_type(float))
    z = jax.ShapeDtypeStruct((len(groups), model.z.size), theta.dtype)
    known = model.structure.prior is not None
    if column is None:
        raise ValueError(
            "outcomes are drawn from the prior by simulate=lambda key, theta, z, row: ..., and this model"
            " has none, or it is not clear which one column it makes: that which log_lik reads and "
            "simulate does not. Write it in rf.Model, or write the model as a formula or in NumPyro."
        )
    if not known and degree(model.log_local, (theta, z, batch), 1) > 2:
        raise ValueError(
            "z is drawn from its prior where log_local is that of a normal distribution, and this one is "
            "not, or it can't be seen that it is: declare it, structure=rf.Structure(prior="
            "rf.NormalPrior(mean, scale)), or write the model in NumPyro."
        )
    return partial(_by_densities, model, sampler, column, batch)


def _by_densities(
    model: Any, sampler: ThetaSampler, column: str, batch: Batch, rng: np.random.Generator
) -> Simulated:
    theta, key = sampler(rng), jax.random.key(int(rng.integers(2**32)))
    noise = rng.normal(size=(len(batch.index), model.z.size)).astype(theta.dtype)
    z, y = _forward(model, theta, noise, key, batch)
    return Simulated(theta, z, {column: np.asarray(y)})


@program
def _forward(
    model: Any, theta: Theta, noise: Float[Array, "N M"], key: PRNGKeyArray, batch: Batch
) -> tuple[Float[Array, "N M"], Array]:
    """Z of each group from noise, and new outcomes of the rows."""
    if model.structure.prior is not None:
        z = model.structure.prior(theta, batch).draw(noise)
    else:
        z = _from_quadratic(lambda z: model.log_local(theta, z, batch), noise)
    return z, model.simulate(key, theta, batch.at_rows(z), batch)


def _from_quadratic(
    log_density: Callable[[Array], Array], noise: Float[Array, "N M"]
) -> Float[Array, "N M"]:
    """Normal draws from log densities [N] that are quadratic, each in a z of its own.

    With gradient g and precision P at zero, the mean is P^-1 g and a draw is mean + C^-T noise, P = C C'.
    """
    slope = jax.grad(lambda z: jnp.sum(log_density(z)))
    zero = jnp.zeros_like(noise)
    along = lambda e: -jax.jvp(slope, (zero,), (jnp.broadcast_to(e, zero.shape),))[1]
    precision = jnp.moveaxis(jax.vmap(along)(jnp.eye(noise.shape[1], dtype=noise.dtype)), 0, 1)

    def one(g: Float[Array, " M"], P: Float[Array, "M M"], noise: Float[Array, " M"]) -> Array:
        factor = jnp.linalg.cholesky(P)
        own = jax.scipy.linalg.solve_triangular(factor, noise, lower=True, trans=1)
        return jax.scipy.linalg.cho_solve((factor, True), g) + own

    return jax.vmap(one)(slope(zero), precision, noise)


def outcome_column(model: Any, groups: Groups) -> str | None:
    """The one column that the likelihood reads and `simulate` does not, found by tracing both."""
    if not model.can_simulate:
        return None
    batch, key = example(groups), jax.random.key(0)
    theta = jax.ShapeDtypeStruct((model.theta.size,), jnp.result_type(float))
    z = jax.ShapeDtypeStruct((2, model.z.size), theta.dtype)

    def needs(function: Any, name: str) -> bool:
        rows = {n: c for n, c in batch.rows.items() if n != name}
        try:
            jax.eval_shape(function, batch._replace(rows=rows))
        except KeyError:
            return True
        return False

    # `theta` and `z` are shapes, so they must be arguments of the trace, not constants in it.
    likelihood = lambda b: jax.eval_shape(lambda t, z: model.log_lik(t, z, b), theta, z)
    simulate = lambda b: jax.eval_shape(lambda t, z: model.simulate(key, t, z, b), theta, z)
    found = [n for n in batch.rows if needs(likelihood, n) and not needs(simulate, n)]
    return found[0] if len(found) == 1 else None
