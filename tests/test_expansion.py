"""Expansions of log p(z | theta) from one group, where it is the same parabola for all groups."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow
from ramify.data.resident import whole
from ramify.models.expansion import expand, expand_local, local_density
from ramify.models.traced import normal_prior, shared_normal

THETA = {"mean": rf.real(2), "sd": rf.positive(2), "L": rf.correlation_cholesky(2)}


def multivariate(theta, z, group):
    scale = theta["sd"][:, None] * theta["L"]
    return dist.MultivariateNormal(theta["mean"], scale_tril=scale).log_prob(z["b"])


def model_with(log_local, z=None):
    return rf.Model(
        theta=THETA,
        z=z or {"b": rf.real(2)},
        log_prior=lambda theta: -0.5 * jnp.sum(theta["mean"] ** 2),
        log_local=log_local,
        log_lik=lambda theta, z, row: dist.Normal(jnp.sum(z["b"]), 1).log_prob(row["y"]),
    )


def a_block():
    group = np.repeat(np.arange(3), 2)
    table = {"g": group, "y": np.arange(6.0), "u": 0.5 * group}
    groups = rf.Groups.from_table(table, by="g", rows=["y"], group=["u"])
    return whole(groups)


def directly(model, batch, theta):
    return lambda z: expand(lambda z: model.log_local(theta, z, batch), z)


DENSITIES = {
    "normal": multivariate,
    "independent": lambda t, z, u: dist.Normal(t["mean"], t["sd"]).log_prob(z["b"]).sum(),
    # More than a density of z: the rest of the term must stay.
    "not normalised": lambda t, z, u: multivariate(t, z, u) + 3 * jnp.sum(t["mean"] ** 2),
    "flat": lambda t, z, u: jnp.sum(t["mean"] * z["b"]),
    "flat in one direction": lambda t, z, u: -0.5 * (z["b"][0] - t["mean"][0]) ** 2,
}


@pytest.mark.parametrize("name", [slow("normal"), *list(DENSITIES)[1:]])
def test_one_group_tells_all(name, x64):
    model, batch = model_with(DENSITIES[name]), a_block()
    assert shared_normal(model, batch)
    theta, rng = jnp.array([0.3, -1.2, -0.5, 0.4, 0.7]), np.random.default_rng(0)
    z = jnp.asarray(rng.normal(size=(3, 2)))
    weight = jnp.asarray(rng.normal(size=(3, 7)))

    def total(theta, way):
        return jnp.sum(weight * way(model, batch, theta)(z).packed())

    @partial(jax.jit, static_argnums=0)  # op by op each operation would compile
    def found(way):
        expansion = way(model, batch, theta)(z)
        return expansion, [each(total)(theta, way) for each in (jax.grad, jax.hessian)]

    @jax.jit
    def densities():
        return local_density(model, batch, theta)(z), model.log_local(theta, z, batch)

    (own, derivatives), (other, exact) = found(expand_local), found(directly)
    for one, direct in zip(own, other, strict=True):
        np.testing.assert_allclose(one, direct, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(*densities(), rtol=1e-9)
    for one, direct in zip(derivatives, exact, strict=True):
        np.testing.assert_allclose(one, direct, rtol=1e-7, atol=1e-9)


def test_far_from_zero_it_is_as_exact_as_the_density():
    model, batch = model_with(multivariate), a_block()
    theta = jnp.array([1000.0, -2000.0, -1.0, -2.0, 0.5])  # means of thousands of sds
    z = theta[:2] + jnp.array([[0.1, -0.2], [0.0, 0.1], [-0.3, 0.05]])
    both = jax.jit(lambda z: [way(model, batch, theta)(z) for way in (expand_local, directly)])
    own, other = both(z)
    np.testing.assert_allclose(own.value, other.value, rtol=1e-3)
    np.testing.assert_allclose(own.slope, other.slope, rtol=1e-3, atol=1e-2)


def by_column(theta, z, group):
    return dist.Normal(theta["mean"] * group["u"], theta["sd"]).log_prob(z["b"]).sum()


def by_whether_there_is_a_column(theta, z, group):
    return multivariate(theta, z, group) * (2.0 if "u" in group else 1.0)


def test_a_density_that_reads_a_group_column_is_expanded_for_each_group():
    model, batch = model_with(by_column), a_block()
    assert normal_prior(model, batch) and not shared_normal(model, batch)


def test_a_density_may_ask_which_columns_there_are(x64):
    model, batch = model_with(by_whether_there_is_a_column), a_block()
    assert shared_normal(model, batch)
    theta, z = jnp.zeros(5), jnp.ones((3, 2))
    both = jax.jit(
        lambda z: (expand_local(model, batch, theta)(z).value, model.log_local(theta, z, batch))
    )
    own, exact = both(z)
    np.testing.assert_allclose(own, exact, rtol=1e-12)
    without = batch._replace(group={})
    np.testing.assert_allclose(expand_local(model, without, theta)(z).value, own / 2, rtol=1e-12)


def test_densities_that_are_no_parabola_are_not_taken_for_one():
    student = model_with(
        lambda t, z, u: dist.StudentT(4, t["mean"], t["sd"]).log_prob(z["b"]).sum()
    )
    positive = model_with(
        lambda t, z, u: dist.Normal(t["mean"], t["sd"]).log_prob(z["b"]).sum(),
        {"b": rf.positive(2)},
    )
    assert not shared_normal(student, a_block()) and not shared_normal(positive, a_block())
