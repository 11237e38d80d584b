"""The degree of a model's functions, read from their programs: never too low."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify import from_formula
from ramify.data.batch import example
from ramify.models.degree import degree
from ramify.models.traced import normal_prior

X = jnp.ones((3, 2))


@jax.custom_jvp
def clipped(x):
    """A square whose derivative is another function's."""
    return jnp.sum(x**2)


clipped.defjvp(lambda x, dx: (clipped(*x), jnp.sum(jnp.clip(2 * x[0], -1, 1) * dx[0])))


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x: 2.0, 0),
        (lambda x: jnp.exp(X) @ x[0], 1),
        (lambda x: jnp.stack([x, X]), 1),
        (lambda x: x.T @ x, 2),
        (lambda x: (x[0] * x[1]) * x[2], 3),
        (lambda x: jnp.sum(x, 0) ** 4, 4),
        (lambda x: jnp.where(jnp.isfinite(x), x**2, -jnp.inf), 2),
        (lambda x: jnp.where(X > 0, x, x**2), 2),
        (lambda x: jax.scipy.linalg.solve_triangular(jnp.eye(3), x), 1),
        (lambda x: jax.jit(jnp.square)(x) + x, 2),
        (lambda x: jax.vmap(lambda row: row @ row)(x), 2),
        (lambda x: jnp.where(x > 0, x, 2 * x), math.inf),
        (lambda x: jnp.where(x != 3.0, x, 2 * x), math.inf),
        (jnp.abs, math.inf),
        (lambda x: x.astype(int).astype(float), math.inf),
        (lambda x: jnp.sign(x) * x, math.inf),
        (lambda x: 1 / x, math.inf),
        (jax.lax.stop_gradient, math.inf),
        (lambda x: (1.0 - (jnp.exp(x) ** 0 + jnp.exp(x))) ** 2, math.inf),
        (lambda x: jnp.where(jnp.isfinite(jnp.log(x)), x, 0), math.inf),
        (lambda x: jnp.where(jnp.log(x) != -jnp.inf, 1.0, 0), math.inf),
        (clipped, math.inf),
        (lambda x: x**-1, math.inf),
        (lambda x: jnp.maximum(x, 100.0), math.inf),
        (lambda x: X[jnp.floor(x[0, 0]).astype(int)], math.inf),
        (lambda x: jax.lax.fori_loop(0, 2, lambda i, y: y * y, x), math.inf),
        (lambda x: jax.scipy.linalg.solve_triangular(jnp.eye(3) * x[0, 0], x), math.inf),
    ],
)
def test_degrees(function, expected):
    assert degree(function, (X,), 0) == expected


def normal(t, z):
    return dist.Normal(t["mu"], t["tau"]).log_prob(z).sum()


def correlated(t, z):
    below = jnp.array([[1.0, 0.0], [0.5, 1.0]]) * t["tau"]
    return dist.MultivariateNormal(t["mu"] * jnp.ones(2), scale_tril=below).log_prob(z)


@pytest.mark.parametrize(
    "log_local, expected",
    [
        (normal, True),
        (correlated, True),
        (lambda t, z: -jnp.sum((z - t["mu"]) ** 2) / t["tau"], True),
        (lambda t, z: dist.StudentT(4.0, t["mu"], t["tau"]).log_prob(z).sum(), False),
        (lambda t, z: dist.Laplace(t["mu"], t["tau"]).log_prob(z).sum(), False),
        (lambda t, z: normal(t, jnp.sinh(z)), False),
    ],
)
def test_which_priors_are_normal(log_local, expected):
    """Laplace's is not, though its second derivative, where there is one, is constant."""
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real(2)},
        log_prior=lambda t: -(t["mu"] ** 2),
        log_local=lambda t, z, group: log_local(t, z["b"]),
        log_lik=lambda t, z, row: -((row["y"] - z["b"][0]) ** 2),
    )
    groups = rf.Groups.from_table({"g": [0, 1], "y": [0.0, 1.0]}, by="g", rows=["y"])
    assert normal_prior(model, example(groups)) == expected


@pytest.mark.parametrize("formula", ["y ~ x + (1 + x | g)", "y ~ x + (1 + x || g)", "y ~ (1 | g)"])
def test_formulas_have_normal_priors(formula):
    rng = np.random.default_rng(0)
    table = {"g": np.repeat(np.arange(6), 5), "x": rng.normal(size=30), "y": rng.normal(size=30)}
    model, groups = from_formula(formula, table)
    assert normal_prior(model, example(groups))
