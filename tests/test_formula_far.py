"""Outcomes far from zero: fits and predictions are those of the outcomes that begin at zero, moved.

And linear predictors far from zero: densities and their derivatives are right there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from scipy.stats import nbinom

import ramify as rf
from quick import slow
from ramify.data.resident import whole
from ramify.frontends.formula.row_densities import bernoulli, negative_binomial
from ramify.posterior.facts import outcome_of
from tampering import resealed

FAR = 1.7e9  # seconds since 1970: float32 knows them to within two minutes
S = 50


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(12), 6)
    x = rng.normal(3, 1, len(user))
    y = 1 + 0.5 * x + rng.normal(0, 0.7, 12)[user] + rng.normal(0, 0.5, len(user))
    # Multiples of 2^-20: adding FAR to them rounds nothing.
    return pd.DataFrame({"user": user, "x": x, "y": np.round(y * 2**20) / 2**20})


def moved(table, by=FAR):
    return table.assign(y=table.y + by)


@pytest.fixture(scope="module", params=["as it starts", slow("fitted")])
def fits(request, table):
    """Two posteriors; the default run takes the families as they start, and fits neither."""

    def posterior(data):
        model, groups = rf.from_formula("y ~ x + (1 | user)", data)
        if request.param == "fitted":
            # By a Gaussian: chains of NUTS part ways over the last digit.
            return rf.fit(model, groups, local_draws=16, theta="gaussian")
        return rf.Posterior(model, rf.solved(model, groups), groups, local_draws=16)

    return posterior(table), posterior(moved(table))


@pytest.mark.slow
def test_the_fit_is_the_same(fits):
    near, far = (posterior.summary() for posterior in fits)
    off = np.array([FAR, 0, 0, 0])
    assert far.names[0] == "Intercept"
    for column in ("mean", "q5", "q95"):
        np.testing.assert_allclose(far[column] - off, near[column], rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(far["sd"], near["sd"], rtol=2e-3)
    drawn = [posterior.sample(S)["Intercept"] for posterior in fits]
    np.testing.assert_allclose(drawn[1] - FAR, drawn[0], atol=1e-2)


@pytest.mark.parametrize("kind", ["response", slow("mean")])
def test_predictions_are_the_same(kind, fits, table):
    at, data = table.drop(columns="y")[:2].assign(user=99), table[:4].assign(user=99)
    near, far = (
        posterior.predict(at, rows, S, kind=kind)
        for posterior, rows in zip(fits, (data, moved(data)), strict=True)
    )
    for column in ("mean", "q5", "sd"):
        off = 0 if column == "sd" else FAR
        np.testing.assert_allclose(far[column] - off, near[column], atol=1e-2)
    draws = fits[1].predict(at, moved(data), S, kind=kind, summary=False)
    np.testing.assert_allclose(draws.mean(0), far["mean"], atol=1e-5)


@pytest.mark.slow
def test_totals_of_groups_are_the_same(fits):
    near, far = (posterior.group_effects(totals=True, draws=S) for posterior in fits)
    np.testing.assert_allclose(far.Intercept_mean - FAR, near.Intercept_mean, atol=1e-2)
    np.testing.assert_allclose(far.Intercept_sd, near.Intercept_sd, rtol=1e-2)


def test_observed_outcomes_are_the_users(fits, table):
    groups = fits[1].groups
    found = outcome_of(fits[1], groups)
    np.testing.assert_array_equal(found, moved(table).y.to_numpy()[groups.row_order])
    observed = fits[1].to_arviz(draws=S, rows=False)["observed_data"]["y"].to_numpy()
    np.testing.assert_allclose(observed - FAR, table.y.to_numpy()[groups.row_order], atol=1e-5)


def test_saved_fits_are_read_with_either_form_of_their_rows(fits, table, tmp_path):
    far = fits[1]
    far.save(tmp_path / "fit")
    at = table.drop(columns="y")[:5]
    expected = far.predict(at, draws=S)["mean"]
    again = rf.load(tmp_path / "fit").predict(at, draws=S)["mean"]
    np.testing.assert_array_equal(again, expected)
    rows = tmp_path / "fit" / "rows.safetensors"
    arrays = load_file(rows)
    arrays["rows/y"] += arrays.pop("origin")  # as fits were saved once
    save_file(arrays, rows)
    resealed(tmp_path / "fit")
    again = rf.load(tmp_path / "fit").predict(at, draws=S)["mean"]
    np.testing.assert_array_equal(again, expected)


def test_priors_of_the_intercept_are_those_of_the_users_scale(table):
    prior = dist.Normal(FAR, 2.0)
    model, _ = rf.from_formula("y ~ (1 | user)", moved(table), priors={"Intercept": prior})
    theta = jnp.stack([jnp.zeros(model.theta.size), jnp.eye(model.theta.size)[0]])
    found = float(model.log_prior(theta[1]) - model.log_prior(theta[0]))
    at = table.y.mean() + np.array([0, np.std(table.y)])
    assert found == pytest.approx(np.diff(-0.5 * (at / 2) ** 2)[0], abs=1e-4)


@pytest.mark.slow
def test_an_offset_that_is_far_as_well(table):
    """Then the intercept is near, and the outcomes alone are not."""
    model, groups = rf.from_formula("y ~ x + (1 | user)", table)
    offset = moved(table).assign(o=FAR)
    other, those = rf.from_formula("y ~ x + offset(o) + (1 | user)", offset)
    theta = jnp.arange(model.theta.size) / 4.0
    z = jnp.linspace(-1, 1, 12)[whole(groups).segment, None]
    terms = [m.log_lik(theta, z, whole(g)) for m, g in ((model, groups), (other, those))]
    np.testing.assert_allclose(terms[1], terms[0], rtol=1e-4)
    values = [m.adapter.global_values(theta[None]) for m in (model, other)]
    np.testing.assert_allclose(values[1]["Intercept"], values[0]["Intercept"], rtol=1e-5)


@pytest.mark.parametrize("y", [0, 1])
def test_bernoulli_and_its_derivatives(y):
    """Log probability, slope and curvature in the log odds, beside those in float64."""
    eta = np.concatenate(
        [np.linspace(-45, 45, 181), [-80, 80]]
    )  # at 0 and -30 there might be kinks
    log_p = lambda x: bernoulli("logit", x, {}, {"y": jnp.int32(y)})
    slope = jax.grad(log_p)
    found = [jax.vmap(f)(jnp.asarray(eta, jnp.float32)) for f in (log_p, slope, jax.grad(slope))]
    own, sign = (eta, 1) if y else (-eta, -1)
    exact = -np.logaddexp(0, -own), sign * expit(-own), -expit(own) * expit(-own)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("y", [0, 3, 200])
@pytest.mark.parametrize("shape", [0.01, 3.0, 1e6])
def test_negative_binomial_and_its_derivatives(y, shape):
    """Also where it is a Poisson count, for a large shape, and where all means are far from the count."""
    eta = np.append(np.linspace(-12, 12, 97), np.log(shape))
    family, row = {"shape": jnp.float32(shape)}, {"y": jnp.int32(y)}
    log_p = lambda x: negative_binomial("log", x, family, row)
    slope = jax.grad(log_p)
    functions = log_p, slope, jax.grad(slope)
    found = [jax.jit(jax.vmap(f))(jnp.asarray(eta, jnp.float32)) for f in functions]
    share = expit(eta - np.log(shape))
    exact = (
        nbinom.logpmf(y, shape, 1 - share),
        y * (1 - share) - shape * share,
        -(y + shape) * share * (1 - share),
    )
    # float32 knows eta and the log of the shape to 1e-6 each.
    rounding = 3e-6 * np.stack([np.abs(exact[1]), *np.abs(exact[2:]), np.abs(exact[2])])
    for one, other, known in zip(found, exact, rounding, strict=True):
        off = np.abs(np.asarray(one, np.float64) - other)
        assert np.all(off < known + 1e-4 * (1 + y / 10) + 5e-6 * np.abs(other))
