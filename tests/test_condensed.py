"""Rows of a gaussian formula in fewer rows: the same likelihood, so the same fit."""

import jax.numpy as jnp
import numpy as np
import pytest

import ramify as rf
from ramify.data.resident import whole

FORMULA = "y | weights(w) ~ x + v + k + offset(o) + (1 + x | g)"


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(4), [60, 70, 90, 100])
    x, v, o = rng.normal([[2.0], [0.0], [5.0]], [[1.0], [3.0], [0.5]], (3, len(g)))
    k = np.array([1.0, 2.0, 4.0, 1.5])[g]
    y = (
        100
        + x * rng.normal(1, 1, 4)[g]
        + 0.3 * v
        + o
        + rng.normal(0, 2, 4)[g]
        + rng.normal(size=len(g))
    )
    table = {"g": g, "x": x, "v": v, "o": o, "k": k, "y": y, "w": rng.uniform(0.2, 3, len(g))}
    return rf.from_formula(FORMULA, table)


def log_liks(model, groups, theta, z):
    """Of each group."""
    batch = whole(groups)
    rows = model.log_lik(jnp.asarray(theta), batch.at_rows(jnp.asarray(z)), batch)
    return np.bincount(np.asarray(batch.segment), np.asarray(rows, np.float64), len(groups))


def test_the_likelihood_of_every_group_is_the_same(made):
    model, groups = made
    few = model.adapter.condensed(groups)
    assert few.n_rows == 4 * 4 and groups.n_rows == 320
    rng = np.random.default_rng(1)
    for _ in range(5):
        theta, z = rng.normal(0, 0.5, model.theta.size), rng.normal(size=(4, 2))
        many = log_liks(model, groups, theta, z)
        np.testing.assert_allclose(log_liks(model, few, theta, z), many, rtol=2e-6, atol=1e-3)


@pytest.mark.parametrize("change", [dict(likelihood="student_t"), dict(link="log")], ids=str)
def test_other_likelihoods_keep_their_rows(change):
    rng = np.random.default_rng(0)
    table = {"g": np.repeat([0, 1], 100), "y": rng.uniform(1, 2, 200)}
    model, groups = rf.from_formula(
        "y ~ 1 + (1 | g)", table, **{"likelihood": "gaussian", **change}
    )
    assert model.adapter.condensed(groups) is groups


def test_small_groups_and_a_common_intercept_keep_their_rows():
    rng = np.random.default_rng(0)
    table = {"g": np.repeat(np.arange(50), 4), "x": rng.normal(size=200), "y": rng.normal(size=200)}
    for formula in ("y ~ x + (1 | g)", "y ~ 1 + (0 + x | g)"):
        table["g"] = table["g"] if "0" not in formula else np.repeat([0, 1], 100)
        model, groups = rf.from_formula(formula, table)
        assert model.adapter.condensed(groups) is groups


@pytest.mark.slow
def test_the_fit_is_the_same_and_says_how_many_rows_it_took(made, monkeypatch):
    model, groups = made
    fits = [rf.fit(model, groups, theta="gaussian")]
    assert fits[0].notes["condensed_rows"] == 16 and fits[0].groups.n_rows == 320
    monkeypatch.setattr("ramify.frontends.formula.condensed.FEWER", 1e9)
    fits.append(rf.fit(model, groups, theta="gaussian"))
    assert "condensed_rows" not in fits[1].notes
    few, many = (fit.summary() for fit in fits)
    assert np.max(np.abs(few["mean"] - many["mean"]) / many["sd"]) < 5e-3
    np.testing.assert_allclose(few["sd"], many["sd"], rtol=5e-3)
