"""Formulas of a likelihood's own parameters: densities against SciPy, names, results, and a saved fit."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit

import ramify as rf
from ramify.data.resident import whole
from ramify.frontends.formula.build import from_formula
from ramify.frontends.formula.text import FormulaError, split

N, ROWS = 6, 5
MEAN = "x + (1 + x | g)"


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(2), N * ROWS
    return {
        "g": np.repeat(np.arange(N), ROWS),
        "x": rng.normal(3, 2, n),
        "v": rng.normal(-1, 3, n),
        "kind": np.tile(["a", "b", "c"], 10),
        "y": rng.normal(1000, 40, n),
        "count": rng.poisson(1, n),
        "wait": rng.gamma(2.0, 3.0, n),
    }


def values_of(model, batch, seed=0):
    """Random theta and z, results by name, and each row's effects by their names."""
    rng = np.random.default_rng(seed)
    theta = jnp.asarray(rng.normal(0, 0.5, model.theta.size))
    z = jnp.asarray(rng.normal(0, 1, (N, model.z.size)))
    values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
    effects = np.asarray(model.adapter.local_values(theta, z, batch)["effects"])
    return theta, z, values, dict(zip(model.formula.varying, effects.T, strict=True))


def mean_predictor(t, v, u):
    g = t["g"]
    return v["Intercept"] + u["Intercept"][g] + (v["x"] + u["x"][g]) * t["x"]


def normal(t, v, u):
    g = t["g"]
    log_sigma = v["sigma_Intercept"] + u["sigma_Intercept"][g] + 0.1 * t["x"]
    log_sigma += v["sigma_v"] * t["v"] + u["sigma_v"][g] * t["v"]
    log_sigma += v["sigma_kind[b]"] * (t["kind"] == "b") + v["sigma_kind[c]"] * (t["kind"] == "c")
    eta = mean_predictor(t, v, u)
    return stats.norm(eta, np.exp(log_sigma)).logpdf(t["y"]), eta


def without_intercept(t, v, u):
    eta = mean_predictor(t, v, u)
    return stats.norm(eta, np.exp(v["sigma_v"] * t["v"])).logpdf(t["y"]), eta


def inflated(t, v, u):
    zi = expit(v["zi_Intercept"] + v["zi_v"] * t["v"] + u["zi_Intercept"][t["g"]])
    eta, y = mean_predictor(t, v, u), t["count"]
    found = zi * (y == 0) + (1 - zi) * stats.poisson(np.exp(eta)).pmf(y)
    return np.log(found), (1 - zi) * np.exp(eta)


def gamma(t, v, u):
    shape, eta = np.exp(v["shape_v"] * t["v"]), mean_predictor(t, v, u)
    return stats.gamma(shape, scale=np.exp(eta) / shape).logpdf(t["wait"]), np.exp(eta)


# formula, likelihood, log density and mean by hand
CASES = {
    "sigma": (
        f"y ~ {MEAN}; sigma ~ v + kind + offset(0.1 * x) + (1 + v | g)",
        "gaussian",
        normal,
    ),
    "no intercept": (f"y ~ {MEAN}; sigma ~ 0 + v", "gaussian", without_intercept),
    "zi": (f"count ~ {MEAN}; zi ~ v + (1 | g)", "zero_inflated_poisson", inflated),
    "shape": (f"wait ~ {MEAN}; shape ~ 0 + v", "gamma", gamma),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_densities_and_means_are_those_of_the_users_scale(name, table):
    formula, likelihood, by_hand = CASES[name]
    model, groups = from_formula(formula, table, likelihood=likelihood)
    batch = whole(groups)
    theta, z, values, effects = values_of(model, batch)
    expected, mean = (part[groups.row_order] for part in by_hand(table, values, effects))
    declared = model.structure.likelihood

    @jax.jit  # op by op each operation would compile
    def densities(z):
        z_rows = batch.at_rows(z)
        return model.log_lik(theta, z_rows, batch), declared.log_lik(
            theta, z_rows[..., None], batch
        )

    found, structure = densities(z)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(structure[:, 0], expected, rtol=1e-8, atol=1e-8)
    at = model.adapter.read(table, "at", outcomes=False)
    places = whole(at)._replace(group=batch.group)
    expect = jax.jit(lambda rows: model.adapter.expected("mean", theta, z[rows.segment], rows))
    for rows in (batch, places):
        np.testing.assert_allclose(expect(rows) + model.adapter.origin, mean, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_groups_effects_of_different_formulas_are_independent(table):
    model, groups = from_formula(CASES["sigma"][0], table)
    batch = whole(groups)
    theta, z, values, effects = values_of(model, batch)
    blocks = [
        np.outer(values[f"{p}sd"], values[f"{p}sd"]) * values[f"{p}cor"] for p in ("", "sigma_")
    ]
    covariance = np.block([[blocks[0], np.zeros((2, 2))], [np.zeros((2, 2)), blocks[1]]])
    exact = stats.multivariate_normal(np.zeros(4), covariance).logpdf(
        np.stack([*effects.values()], -1)
    )
    constant = np.sum(np.log(np.asarray(model.core.deviations)))
    np.testing.assert_allclose(model.log_local(theta, z, batch), exact + constant, rtol=1e-9)
    drawn = model.structure.prior(theta, batch).log_density(z)
    np.testing.assert_allclose(drawn, exact + constant, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_priors_are_those_of_the_users_scale(table):
    given = {
        "sigma_b": dist.Laplace(0, 2),
        "sigma_v": dist.StudentT(3, 1, 2),
        "sigma_cor": dist.LKJ(2, 4.0),
    }
    given |= {"sigma_sd": dist.Gamma(2, 1), "sigma_Intercept": dist.Normal(3, 1)}
    plain, _ = from_formula(CASES["sigma"][0], table)
    model, groups = from_formula(CASES["sigma"][0], table, priors=given)

    def apart(seed):
        theta, _, values, _ = values_of(model, whole(groups), seed)
        kinds = [values[f"sigma_kind[{k}]"] for k in "bc"]
        shares = [np.mean(table["kind"] == k) for k in "bc"]
        level = (
            values["sigma_Intercept"]
            + np.mean(table["v"]) * values["sigma_v"]
            + np.dot(kinds, shares)
        )
        total = stats.norm(3, 1).logpdf(level) - stats.norm(np.log(np.std(table["y"])), 2.5).logpdf(
            level
        )
        total += stats.laplace(0, 2).logpdf(kinds).sum() + stats.t(3, 1, 2).logpdf(
            values["sigma_v"]
        )
        for name in ("sigma_kind[b]", "sigma_kind[c]", "sigma_v"):
            total -= stats.norm(0, float(plain.priors[name].scale)).logpdf(values[name])
        scales = [float(plain.priors[f"sd({n} | g)"].scale) for n in ("sigma_Intercept", "sigma_v")]
        total += stats.gamma(2).logpdf(values["sigma_sd"]).sum()
        total -= stats.halfnorm(0, scales).logpdf(values["sigma_sd"]).sum()
        inside = model.theta.values(theta)["sigma_cor"]
        total += dist.LKJCholesky(2, 4.0).log_prob(inside) - dist.LKJCholesky(2, 1.0).log_prob(
            inside
        )
        return model.log_prior(theta) - plain.log_prior(theta) - total

    np.testing.assert_allclose([apart(0), apart(1)], 0, atol=1e-9)


def test_names_are_those_of_brms(table):
    model, _ = from_formula(CASES["sigma"][0], table)
    assert list(model.priors)[-7:] == [
        "sigma_Intercept", "sigma_v", "sigma_kind[b]", "sigma_kind[c]", "sd(sigma_Intercept | g)",
        "sd(sigma_v | g)", "sigma_cor",
    ]  # fmt: skip
    assert "sigma" not in model.priors and "sigma" not in model.theta.parameters
    known = {*model.adapter.coordinates()}
    assert {"sigma_Intercept", "sigma_v", "sd(sigma_v | g)"} <= known
    assert "cor(sigma_Intercept, sigma_v | g)" in known and "cor(Intercept, x | g)" in known


@pytest.mark.parametrize(
    "text, parts",
    [
        ("y ~ (1 | g)", ["y ~ (1 | g)"]),
        ("y ~ (1 | g) ; sigma ~ x;shape ~ 1", ["y ~ (1 | g)", "sigma ~ x", "shape ~ 1"]),
        (
            "`a;b` ~ C(k, 'x;y') + (1 | g); sigma ~ x",
            ["`a;b` ~ C(k, 'x;y') + (1 | g)", "sigma ~ x"],
        ),
    ],
)
def test_formulas_are_split_at_semicolons(text, parts):
    assert split(text) == parts


@pytest.mark.parametrize(
    "formula, likelihood, says",
    [
        ("y ~ (1 | g); nu ~ x", "gaussian", "'nu'; likelihood='gaussian' has sigma"),
        ("y ~ (1 | g); cutpoints ~ x", "ordered", "has no parameters"),
        ("count ~ (1 | g); sigma ~ x", "poisson", "has no parameters"),
        ("y ~ (1 | g); sigma ~ x + (1 | kind)", "gaussian", "grouping column of the response"),
        ("y ~ (1 | g); sigma ~ x; sigma ~ v", "gaussian", "'sigma' has two formulas"),
        ("y ~ (1 | g); sigma ~ nowhere", "gaussian", 'no column "nowhere"'),
        ("y ~ (1 | g); sigma ~ x + (1 | g) + (1 | g)", "gaussian", "grouping"),
        ("y ~ (1 | g); sigma", "gaussian", "expected one ~"),
        ("y ~ (1 | g); ", "gaussian", "nothing beside a semicolon"),
        ("y ~ (1 | g); sigma | weights(v) ~ x + (1 | g)", "gaussian", "formula of the response"),
    ],
)
def test_formulas_that_make_no_sense_are_refused(formula, likelihood, says, table):
    with pytest.raises(FormulaError, match=says):
        from_formula(formula, table, likelihood=likelihood)


def test_names_taken_twice_and_constants_are_refused(table):
    with pytest.raises(ValueError, match='two effects would be called "sigma_x"'):
        from_formula("y ~ sigma_x + (1 | g); sigma ~ x", table | {"sigma_x": table["v"]})
    with pytest.raises(ValueError, match='"flat" is constant'):
        from_formula("y ~ (1 | g); sigma ~ flat", table | {"flat": np.ones(N * ROWS)})


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(40), 12)
    x = rng.normal(size=len(g))
    own = rng.normal(0, [0.5, 0.4], (40, 2))[g]
    y = rng.normal(1 + 0.5 * x + own[:, 0], np.exp(-0.5 + 0.4 * x + own[:, 1]))
    table = pd.DataFrame({"g": [f"g{i}" for i in g], "x": x, "y": y})
    return rf.fit("y ~ x + (1 | g); sigma ~ x + (1 | g)", table, theta="gaussian"), table


@pytest.mark.slow
def test_parameters_are_recovered_and_named(fitted):
    summary = fitted[0].summary()
    true = {
        "Intercept": 1.0, "x": 0.5, "sigma_Intercept": -0.5, "sigma_x": 0.4,
        "sd(Intercept | g)": 0.5, "sd(sigma_Intercept | g)": 0.4,
    }  # fmt: skip
    assert summary.names == [*true]
    z = (np.asarray(summary["mean"]) - [*true.values()]) / np.asarray(summary["sd"])
    assert np.abs(z).max() < 3.5
    effects = fitted[0].group_effects()
    assert [c for c in effects.columns if c.endswith("_mean")] == [
        "Intercept_mean",
        "sigma_Intercept_mean",
    ]


@pytest.mark.slow
def test_saved_fits_predict_the_same(fitted, tmp_path):
    posterior, _ = fitted
    at = pd.DataFrame({"g": ["g3", "g3", "new"], "x": [-1.0, 2.0, 2.0]})
    before = posterior.predict(at, draws=200)
    assert before["sd"][1] > 1.5 * before["sd"][0]  # sigma grows with x
    posterior.save(tmp_path / "fit")
    again = rf.load(tmp_path / "fit")
    assert again.model.formula.text == "y ~ x + (1 | g); sigma ~ x + (1 | g)"
    pd.testing.assert_frame_equal(again.predict(at, draws=200), before)
