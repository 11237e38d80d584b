"""Coordinates of theta without funnels: the map, its Jacobian, and which entries it is used for."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.inference.theta_funnels import OfStandard, Standard, without_funnels
from ramify.inference.theta_search import Learned


def model(y=None, *, g, n_g):
    """Sites drawn around others, one of them around another of them, and sites that are not."""
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(sd, 2))  # no funnel: its scale is a number
    region = numpyro.sample("region", dist.StudentT(4, slope, sd).expand([2]).to_event(1))
    with numpyro.plate("schools", 3):
        school = numpyro.sample("school", dist.Normal(region[jnp.array([0, 0, 1])], 2 * sd))
    weight = numpyro.sample("weight", dist.LogNormal(school[0], jnp.exp(slope)))
    with numpyro.plate("groups", n_g):
        z = numpyro.sample("z", dist.Normal(school.sum(), weight))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(z[g], 1.0), obs=y)


@pytest.fixture(scope="module")
def form():
    table = {"g": np.arange(6) // 2, "y": np.linspace(-1, 1, 6)}
    made = rf.from_numpyro(model, rf.Groups.from_table(table, by="g", rows=["y"]))
    return Standard(made, jnp.ones(made.theta.size, bool))


def test_the_map_is_that_of_each_site(form):
    space, e = form.model.theta, jnp.array([0.3, -0.2, 1.0, -0.4, 0.5, 0.1, -1.2, 0.7])
    assert space.coordinates()[:2] == ["sd", "slope"] and form.model.structure.around.sites == 3
    named = space.values(form.spread(e)[0])
    sd, slope = np.exp(0.3), -0.2
    region = slope + sd * np.array([1.0, -0.4])
    school = region[[0, 0, 1]] + 2 * sd * np.array([0.5, 0.1, -1.2])
    weight = np.exp(school[0] + np.exp(slope) * 0.7)
    expected = {"sd": sd, "slope": slope, "region": region, "school": school, "weight": weight}
    for name, value in expected.items():
        np.testing.assert_allclose(named[name], value, rtol=1e-5)


def test_the_map_has_its_inverse_and_its_jacobian(form):
    e = np.random.default_rng(0).normal(size=(5, form.model.theta.size))
    np.testing.assert_allclose(form.standardised(form.theta(e)), e, atol=1e-4)
    for own in jnp.asarray(e, jnp.result_type(float)):
        full = jax.jacfwd(lambda e: form.spread(e)[0])(own)
        assert float(form.spread(own)[1]) == pytest.approx(np.linalg.slogdet(full)[1], abs=1e-4)


class Standardised:
    """The log density of independent standard normals, as chains are given one."""

    def function(self, centre):
        return lambda theta: ((-0.5 * jnp.sum(theta**2), jnp.zeros(())), -theta)


def test_chains_move_on_the_density_of_e(form):
    """That of theta times the Jacobian of the map, and its slope."""
    e = jnp.array([0.3, -0.2, 1.0, -0.4, 0.5, 0.1, -1.2, 0.7])
    (high, low), slope = OfStandard(Standardised(), form).function(e)(e)

    def density(e):
        theta, full = form.spread(e)[0], jax.jacfwd(lambda e: form.spread(e)[0])(e)
        return -0.5 * jnp.sum(theta**2) + jnp.linalg.slogdet(full)[1]

    assert float(high + low) == pytest.approx(float(density(e)), abs=1e-4)
    np.testing.assert_allclose(slope, jax.grad(density)(e), rtol=1e-4, atol=1e-4)


def test_entries_that_the_data_tell_stay_as_they_are(form):
    """An entry that is known by little more than its prior is chosen, and no other of its site."""
    D = form.model.theta.size
    precision = np.diag([100.0, 100.0, 1.1, 30.0, 0.26, 30.0, 30.0, 30.0])
    learned = Learned(np.zeros(D), precision, 0.0, np.zeros(D), None, None, np.zeros(0, int))
    chosen = np.asarray(without_funnels(form.model, learned).chosen)
    np.testing.assert_array_equal(chosen, [False, False, True, False, True, False, False, False])
    learned = learned._replace(precision=100 * np.eye(D))
    assert without_funnels(form.model, learned) is None
