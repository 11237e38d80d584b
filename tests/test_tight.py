"""The tight bound: its value, and its gradients in theta and in the local parameters."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.inference import elbo as _elbo
from ramify.inference.elbo import tight, weigh
from ramify.models.model import Model
from ramify.numerics.triangular import FREEDOM
from shaken_families import family_of


@cache
def tiny() -> Model:
    """One dimension of everything, not conjugate: quadrature gives its local integrals exactly."""
    return Model(
        theta={"mu": rf.real()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 0.8).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=3 * z["b"] * row["x"]).log_prob(row["y"]),
    )


@pytest.fixture(scope="module")
def few():
    data = {"g": [0, 0, 0, 1, 1], "x": [1.0, 0.5, -1.0, 2.0, 1.0], "y": [1, 1, 0, 0, 1]}
    return Groups.from_table(data, by="g", rows=["x", "y"])


def log_evidences(theta, batch):
    """log p(y_i | theta) of each group by quadrature."""
    model, grid = tiny(), jnp.linspace(-9.0, 9.0, 2001)

    def at(point):
        z = jnp.full((2, 1), point)
        return model.log_local(theta, z, batch) + _elbo.group_log_lik(model, theta, z, batch)

    return jax.nn.logsumexp(jax.vmap(at)(grid), 0) + jnp.log(grid[1] - grid[0])


@pytest.mark.parametrize("name", ["branch-dense", slow("solved")])
def test_the_tight_bound_closes_on_the_evidence(name, few, key, x64):
    model, batch, theta = tiny(), whole(few), jnp.array([0.4])
    family = family_of(name, model, few)

    @jax.jit
    def gaps(keys):
        bound = lambda K: jax.lax.map(  # noqa: E731
            lambda k: (
                weigh(k, family.conditional(model, batch)(theta), model, batch, theta, K).bound
            ),
            keys,
        )
        return [log_evidences(theta, batch) - bound(K).mean(0) for K in (2, 64)]

    few_draws, many_draws = gaps(jax.random.split(key, 1000))
    assert np.all(few_draws > 0) and np.all(np.abs(many_draws) < few_draws / 8)
    assert np.all(np.abs(many_draws) < 0.02)


@pytest.mark.slow
def test_the_tight_estimate_is_the_sum_of_bounds(few, key, x64):
    model, batch = tiny(), whole(few)
    family = family_of("branch-dense", model, few)
    key_theta, key_z = jax.random.split(key)
    key_z = jax.random.fold_in(key_z, 0)
    theta, log_q = family.theta.draw(jax.random.normal(key_theta, (1,)))
    local = jax.jit(
        lambda k: weigh(k, family.conditional(model, batch)(theta), model, batch, theta, 6).bound
    )(key_z).sum()
    value = jax.jit(lambda k: tight(k, family, model, batch._replace(scale=jnp.array(3.0)), 6))(key)
    np.testing.assert_allclose(value, model.log_prior(theta) - log_q + 3 * local)


@pytest.mark.parametrize(
    "name, estimator",
    [slow("branch-dense", "total"), slow("branch-dense", "stl"), slow("solved", "total")],
)
def test_the_tight_gradient_of_theta_is_fishers_identity(name, estimator, few, key, x64):
    """With many draws: the derivative of log p(y_i | theta) at the draw, from quadrature."""
    model, batch = tiny(), whole(few)
    family = family_of(name, model, few)
    bound = lambda f, k: tight(k, f, model, batch, 4096, estimator)
    gradient = jax.jit(lambda k: eqx.filter_grad(bound)(family, k).theta)

    def exact(q, k):
        theta, log_q = q.draw(jax.random.normal(jax.random.split(k)[0], (1,)))
        log_q = jax.lax.stop_gradient(q).log_prob(theta) if estimator == "stl" else log_q
        return model.log_prior(theta) - log_q + log_evidences(theta, batch).sum()

    for k in jax.random.split(key, 3):
        expected = jax.grad(exact)(family.theta, k)
        actual = gradient(k)
        np.testing.assert_allclose(actual.mean, expected.mean, atol=0.02)
        np.testing.assert_allclose(actual.free, expected.free, atol=0.02)


def local_gradients(name, K, few, key, draws=10_000):
    """Gradients in the local parameters, draw by draw: of `tight`, and plainly of the bound."""
    model, batch = tiny(), whole(few)
    family = family_of(name, model, few)
    part = lambda f: f.local.w if hasattr(f.local, "w") else f.local.head.linears[-1].bias  # noqa: E731

    def plain(f, k):
        key_theta, key_z = jax.random.split(k)
        theta, _ = f.theta.draw(jax.random.normal(key_theta, (1,)))
        key_z = jax.random.fold_in(key_z, 0)
        fixed = jax.lax.stop_gradient(theta)
        return weigh(key_z, f.conditional(model, batch)(fixed), model, batch, fixed, K).bound.sum()

    def both(k):
        doubly = eqx.filter_grad(lambda f: tight(k, f, model, batch, K))(family)
        return part(doubly).ravel(), part(eqx.filter_grad(plain)(family, k)).ravel()

    keys = jax.random.split(key, draws)
    return (np.asarray(g) for g in jax.jit(lambda k: jax.lax.map(both, k, batch_size=1000))(keys))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branch-dense", "amortized-block"])
def test_the_tight_gradient_of_local_parameters_is_the_bounds(name, few, key, x64):
    """Four draws are independent of one another: then it is unbiased, and less noisy."""
    doubly, plain = local_gradients(name, 4, few, key)
    difference = doubly - plain
    error = difference.std(0) / np.sqrt(len(difference))
    assert np.all(np.abs(difference.mean(0)) < 4.5 * error)
    assert np.abs(plain.mean(0) / error).max() > 15  # a gradient of zero would not pass for it
    assert doubly.std(0).mean() < 0.7 * plain.std(0).mean()


@pytest.mark.slow
def test_draws_spread_evenly_keep_its_direction(few, key, x64, monkeypatch):
    """With more than four draws: the gradient of the bound with independent ones, nearly."""
    spread, _ = (g.mean(0) for g in local_gradients("branch-dense", 16, few, key))

    def independent(key, index, K, M):
        draw = lambda i: jax.random.t(jax.random.fold_in(key, i), FREEDOM, (K, M))  # noqa: E731
        return jax.vmap(draw, out_axes=1)(index)

    monkeypatch.setattr(_elbo, "group_points", independent)
    apart, plain = (g.mean(0) for g in local_gradients("branch-dense", 16, few, key))
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    assert cosine(spread, apart) > 0.97 and cosine(apart, plain) > 0.9
