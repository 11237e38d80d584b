"""The examples run, and the page on translating says what is so."""

import importlib.util
import re
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import ramify as rf
from spaces import unconstrained

ROOT = Path(__file__).parents[1]

EXAMPLES = {
    "numpyro_osic": ["--patients", "25"],
    "numpyro_baseball": ["--draws", "20"],
    "numpyro_ucbadmit": ["--draws", "20"],
    "numpyro_forecast": "--origins 6 --destinations 2 --hours 3 --length 9 --steps 40".split(),
}


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, capsys):
    example(name).main(EXAMPLES[name])
    assert capsys.readouterr().out


def made_in(name):
    """The models of an example, with the groups it fits."""
    module = example(name)
    if name == "numpyro_osic":
        columns = ["Weeks", "FVC_obs"], ["map_patient_to_smoking_status"]
        groups = rf.Groups.from_table(
            module.patients(25), by="patient_code", rows=columns[0], group=columns[1]
        )
        return groups, [module.model, module.reparam_model_smoking_hierarchy]
    if name == "numpyro_baseball":
        table = {
            "player": list(module.HITS),
            "hits": list(module.HITS.values()),
            "at_bats": [45] * 18,
        }
        groups = rf.Groups.from_table(table, by="player", rows=["at_bats", "hits"])
        return groups, [module.partially_pooled, module.partially_pooled_with_logit]
    if name == "numpyro_ucbadmit":
        rows = ["male", "applications", "admit"]
        return rf.Groups.from_table(module.ADMISSIONS, by="dept", rows=rows), [module.glmm]
    y = module.trips(6, 2, 168, 200)
    table = {"origin": np.arange(6), "y": y, "covariates": np.zeros_like(y)}
    return rf.Groups.from_table(table, by="origin", rows=["y", "covariates"]), [module.model]


SITES = {
    "model": {"α", "β"},
    "model_smoking_hierarchy": {"α", "β"},
    "partially_pooled": {"phi"},
    "partially_pooled_with_logit": {"alpha"},
    "glmm": {"z"},
    "forecast": {"origin_seasonal", "pairwise", "origin_scale"},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow if x == "numpyro_osic" else ()) for x in EXAMPLES],
)
@pytest.mark.slow
def test_models_of_the_examples_are_understood(name):
    """NumPyro's own example models: which sites are the groups', and a short fit of each."""
    groups, functions = made_in(name)
    for function in functions:
        model = rf.from_numpyro(function, groups)
        known = "forecast" if name == "numpyro_forecast" else function.__name__
        assert set(model.z.parameters) == SITES[known]
        family = rf.branch(model, groups, covariance="diagonal")
        posterior = rf.fit(model, groups, family=family, max_steps=3, draws=1, progress=False)
        assert np.all(np.isfinite(posterior.history["elbo"]))
        found = posterior.predict(groups, draws=3, summary=False)
        assert found.shape[:2] == (3, groups.n_rows)


def blocks_of(page):
    """The Python code of a page, but for what is marked not to be run."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_translated_model_is_the_one_that_was_meant(x64):
    """The page's model against the density of its Stan program, written out with SciPy."""
    code = blocks_of("translating.md")
    assert len(code) == 4 and "def model" in code[0] and "rf.fit" in code[1]
    names: dict = {}
    exec(code[0], names)
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(5), [3, 1, 4, 2, 5])
    table = {"user": user, "x": rng.normal(size=15), "y": rng.integers(0, 2, 15)}
    groups = rf.Groups.from_table(table, by="user", rows=["x", "y"])
    model = rf.from_numpyro(names["model"], groups)
    assert list(model.layout.deterministics) == ["correlation"]

    intercept, slope, sd, rho = 0.3, -0.7, np.array([0.8, 0.5]), 0.4
    L = np.array([[1.0, 0.0], [rho, np.sqrt(1 - rho**2)]])
    z = rng.normal(size=(2, 5))
    r = (np.diag(sd) @ L @ z).T
    logits = intercept + r[user, 0] + (slope + r[user, 1]) * table["x"]
    lkj = np.log(0.75 * (1 - rho**2))  # eta = 2; in two dimensions L[1, 0] is rho itself
    stan = (
        stats.norm(0, 2.5).logpdf(intercept)
        + stats.norm(0, 1).logpdf(slope)
        + stats.halfnorm.logpdf(sd).sum()
        + lkj
        + stats.norm.logpdf(z).sum()
        - 5 * np.log(np.abs(np.linalg.det(np.diag(sd) @ L)))  # from z to r
        + stats.bernoulli.logpmf(table["y"], 1 / (1 + np.exp(-logits))).sum()
    )
    values = {"intercept": intercept, "slope": slope, "sd": sd, "L": L, "r": r}
    arguments = {**groups.rows, "user": user, "n_user": 5}

    @jax.jit
    def densities(values):
        model_of = partial(names["model"], n_user=arguments.pop("n_user"))
        total, _ = log_density(model_of, (), arguments, values)
        theta = unconstrained(model.theta, values)
        return total, sum(model.evaluator.evaluate("term", "theta", theta).values())

    total, prior = densities(values)
    np.testing.assert_allclose(total, stan, rtol=1e-9)
    np.testing.assert_allclose(
        prior,
        stats.norm(0, 2.5).logpdf(intercept)
        + stats.norm(0, 1).logpdf(slope)
        + stats.halfnorm.logpdf(sd).sum()
        + lkj,
        rtol=1e-9,
    )


@pytest.mark.slow
def test_the_recipe_for_censoring_fits_in_float32():
    """Half of the rows are censored, and some so late that their tail is 0 in float32."""
    names: dict = {}
    code = blocks_of("translating.md")
    exec(code[0] + code[2], names)
    rng = np.random.default_rng(5)
    user, a = np.repeat(np.arange(50), 8), rng.normal(1, 0.5, 50)
    time, until = np.exp(a[user]) * rng.weibull(1.5, 400), rng.exponential(6, 400)
    table = {"user": user, "time": np.minimum(time, until), "event": time <= until}
    groups = rf.Groups.from_table(table, by="user", rows=["time", "event"])
    summary = rf.fit(rf.from_numpyro(names["survival"], groups), groups, progress=False).summary()
    for name, truth in {"mu": 1.0, "tau": 0.5, "k": 1.5}.items():
        assert abs(summary[name]["mean"] - truth) < 3 * summary[name]["sd"]


@pytest.mark.parametrize(
    "name, exact",
    [
        ("Weibull(scale, k)", stats.weibull_min(1.5, scale=2)),
        ("Exponential(rate)", stats.expon(scale=1 / 0.3)),
        ("Normal(mu, sd)", stats.norm(0.5, 2)),
        ("LogNormal(mu, sd)", stats.lognorm(2, scale=np.exp(0.5))),
        ("Logistic(mu, s)", stats.logistic(0.5, 0.7)),
    ],
)
def test_the_tails_of_the_page_are_right_far_out(name, exact):
    text = (ROOT / "docs/translating.md").read_text()
    (tail,) = re.findall(rf"^\| `{re.escape(name)}` \| `(.*)` \|$", text, re.MULTILINE)
    t = np.array([0.1, 2.0, 30.0, 200.0], np.float32)
    given = {"scale": 2.0, "k": 1.5, "rate": 0.3, "mu": 0.5, "sd": 2.0, "s": 0.7}
    found = eval(tail, {"jax": jax, "jnp": jax.numpy, "t": t, **given})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact.logsf(t), rtol=1e-5)
