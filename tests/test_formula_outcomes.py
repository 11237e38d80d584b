"""Outcomes that a formula's likelihood draws: their moments, and whose noise they have."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from quick import slow_but
from ramify.data.resident import whole
from ramify.families.build import solved
from ramify.fitting.solved import Task, Wish
from ramify.frontends.formula.build import from_formula
from ramify.frontends.formula.likelihoods import INVERSE, LIKELIHOODS
from ramify.frontends.formula.reading import _is_level
from ramify.posterior.posterior import Posterior

# By likelihood; test_categorical has the rest.
LINKS = {n: list(own.links) for n, own in LIKELIHOODS.items() if own.support != "categories"}
PAIRS = [(name, link) for name, links in LINKS.items() for link in links]
QUICK = [(name, LINKS[name][0]) for name in ("bernoulli", "gamma", "negative_binomial", "ordered")]

pytestmark = pytest.mark.usefixtures("x64")


def moments(own, link, family):
    """Mean and variance at eta = 0.4: sums over the density, or NumPyro's where it is the same."""
    eta, row = jnp.asarray(0.4), {"trials": jnp.asarray(6.0)}
    density = lambda y: own.log_density(link, eta, family, {**row, "y": y})
    if own.support in ("count", "trials", "levels"):
        y = jnp.arange({"trials": 7, "levels": 4}.get(own.support, 100)) * 1.0
        probability = jnp.exp(jax.vmap(density)(y))
        np.testing.assert_allclose(probability.sum(), 1, rtol=1e-9)
        return probability @ y, probability @ y**2 - (probability @ y) ** 2
    if own.distribution is None:  # a density on a fine grid
        y = jnp.linspace(-20.0, 20.0, 40_001)
        probability = jnp.exp(jax.vmap(density)(y)) * (y[1] - y[0])
        np.testing.assert_allclose(probability.sum(), 1, rtol=1e-9)
        return probability @ y, probability @ y**2 - (probability @ y) ** 2
    exact = own.distribution(link, eta, family, row)
    y = exact.sample(jax.random.key(0))
    np.testing.assert_allclose(density(y), exact.log_prob(y), rtol=1e-9)
    return exact.mean, exact.variance


@pytest.mark.parametrize(("name", "link"), slow_but(QUICK, PAIRS))
def test_outcomes_drawn_by_numpy_are_those_of_the_distribution(name, link):
    """Mean and variance of 100,000 draws, within five standard errors."""
    own, eta = LIKELIHOODS[name], np.full((200, 500), 0.4)
    family = {"sigma": 0.7, "nu": 9.0, "shape": 2.0, "cutpoints": np.array([-1.0, 0.3, 1.2])}
    family |= {"alpha": 2.0, "phi": 3.0, "zi": 0.2, "hu": 0.3}
    given = {key: np.asarray(family[key])[None, None] for key in own.parameters}
    given |= {"trials": np.full(eta.shape, 6.0)} if own.support == "trials" else {}
    mean = np.asarray(INVERSE[link](jnp.asarray(eta)))
    drawn = own.draw(np.random.default_rng(0), eta, mean, given).astype(np.float64)
    known = {key: jnp.asarray(family[key]) for key in own.parameters}
    expected, variance = moments(own, link, known)
    if own.mean is not None:
        by_entry = own.mean(jnp.asarray(mean[0, 0]), known)
        np.testing.assert_allclose(by_entry, expected, rtol=1e-9)
    apart, fourth = drawn - drawn.mean(), np.mean((drawn - drawn.mean()) ** 4)
    assert abs(drawn.mean() - expected) < 5 * np.sqrt(variance / drawn.size)
    assert abs(np.mean(apart**2) - variance) < 5 * np.sqrt(fourth / drawn.size)


@pytest.mark.slow
def test_noise_of_outcomes_is_not_that_of_theta():
    """As many rows as theta has numbers, the first seed: what rows add to their mean is their own."""
    rng, S = np.random.default_rng(1), 2000
    table = {"g": np.repeat(np.arange(6), 5), "y": rng.normal(size=30)}
    model, groups = from_formula("y ~ 1 + (1 | g)", table)
    posterior = Posterior(model, solved(model, groups), groups, local_draws=16)
    rows = {"g": np.arange(model.theta.size)}
    drawn, mean = (
        posterior.predict(rows, draws=S, kind=kind, summary=False) for kind in ("response", "mean")
    )
    theta = posterior.sample_theta(S)
    added = (drawn - mean) / np.asarray(theta["sigma"])[:, None]
    assert abs(added.std() - 1) < 5 / np.sqrt(2 * added.size)
    for name in ("Intercept", "sd", "sigma"):
        own = np.log(np.ravel(theta[name])) if name != "Intercept" else theta[name]
        apart = [np.corrcoef(own, added[:, row])[0, 1] for row in range(added.shape[1])]
        assert np.abs(apart).max() < 5 / np.sqrt(S)


def test_the_search_of_a_skew_normal_begins_where_the_likelihood_has_a_slope():
    """At alpha = 0 it has neither slope nor curvature in alpha, whatever the data."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(200), 5), rng.gamma(1.0, size=1000)
    y = 3 * x + rng.normal(size=200)[group] - rng.gamma(2.0, size=1000)
    data = {"g": group, "x": x, "y": y}
    model, groups = from_formula("y ~ x + (1 | g)", data, likelihood="skew_normal")
    where = model.theta.coordinates().index("alpha")
    mean = Task(model, groups, solved(model, groups), Wish(None, None, None, 0)).start().mean
    assert mean[where] < -1 and not np.delete(mean, where).any()
    batch, z = whole(groups), jnp.zeros((200, 1))
    total = lambda theta: jnp.sum(model.log_lik(theta, z[batch.segment], batch))
    assert abs(jax.grad(total)(jnp.zeros(len(mean)))[where]) < 1e-3
    assert abs(jax.grad(total)(jnp.asarray(mean))[where]) > 1


@pytest.mark.parametrize(
    "level, fitted, later",
    [("1", int, float), ("1.0", float, int), ("1", bool, int), ("True", bool, bool)],
)
def test_levels_that_are_numbers_are_compared_as_numbers(level, fitted, later):
    y, x, g = np.array([0, 1, 1, 0, 1, 0]), np.arange(6.0), np.array([0, 0, 1, 1, 2, 2])
    text, rows = f"y[{level}] ~ x + (1 | g)", {"y": y.astype(fitted), "x": x, "g": g}
    model, groups = from_formula(text, rows, likelihood="bernoulli")
    again = model.adapter.read({**rows, "y": y.astype(later)}, "given", outcomes=True)
    np.testing.assert_array_equal(groups.rows["y"], y)
    np.testing.assert_array_equal(again.rows["y"], y)


def test_levels_that_are_text_are_compared_as_text():
    """No text equals a number, whatever holds it: every outcome would be a failure."""
    for values in (["1", "0"], pd.Series(["1", "0"]), pd.Series(["1", "0"], dtype="category")):
        np.testing.assert_array_equal(_is_level(values, "1"), [True, False])
    np.testing.assert_array_equal(_is_level(pd.Series([1, None]).dropna(), "1"), [True])
