"""Every likelihood of formulas finds the parameters that data were simulated with; three of them are
calibrated: over data sets drawn from the prior, the truth is anywhere in the posterior alike often."""

from functools import partial

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit

import ramify as rf
from benchmarks import likelihood_coverage

pytestmark = pytest.mark.slow

TRUE = {"Intercept": 0.4, "x": 0.7, "kind[b]": -0.5}
SD, COR = np.array([0.8, 0.5]), -0.4
FAMILY = {"sigma": 0.8, "nu": 4.0, "shape": 3.0, "cutpoints": np.array([-1.0, 0.2, 1.5])}


def outcome(rng, likelihood, eta, family=FAMILY):
    """Simulated by NumPy, not by the library."""
    n = len(eta)
    if likelihood == "gaussian":
        return rng.normal(eta, family["sigma"])
    if likelihood == "student_t":
        return eta + family["sigma"] * rng.standard_t(family["nu"], n)
    if likelihood == "bernoulli":
        return rng.binomial(1, expit(eta))
    if likelihood == "binomial":
        return rng.binomial(6, expit(eta))
    if likelihood == "poisson":
        return rng.poisson(np.exp(eta))
    if likelihood == "negative_binomial":
        return rng.poisson(np.exp(eta) * rng.gamma(family["shape"], 1 / family["shape"], n))
    return 1 + np.sum(rng.logistic(size=n) + eta > family["cutpoints"][:, None], 0)


def simulated(likelihood, N=250, seed=0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(N), rng.integers(8, 25, N))
    n = len(group)
    x, kind = rng.normal(1, 1, n), rng.choice(["a", "b"], n)
    factor = np.linalg.cholesky([[1, COR], [COR, 1]])
    own = (rng.normal(size=(N, 2)) @ factor.T * SD)[group]
    level = 0.0 if likelihood == "ordered" else TRUE["Intercept"]
    eta = level + TRUE["x"] * x + TRUE["kind[b]"] * (kind == "b") + own[:, 0] + own[:, 1] * x
    return {"g": group, "x": x, "kind": kind, "y": outcome(rng, likelihood, eta)}


def truth(likelihood):
    """By the names of a summary."""
    values = {n: v for n, v in TRUE.items() if n != "Intercept" or likelihood != "ordered"}
    values |= {"sd(Intercept | g)": SD[0], "sd(x | g)": SD[1], "cor(Intercept, x | g)": COR}
    own = {"gaussian": ["sigma"], "student_t": ["sigma", "nu"], "negative_binomial": ["shape"]}
    values |= {name: FAMILY[name] for name in own.get(likelihood, [])}
    if likelihood == "ordered":
        values |= {f"cutpoint({k + 1}|{k + 2})": FAMILY["cutpoints"][k] for k in range(3)}
    return values


@pytest.mark.parametrize(
    "likelihood",
    ["gaussian", "student_t", "bernoulli", "binomial", "poisson", "negative_binomial", "ordered"],
)
def test_parameters_are_recovered(likelihood):
    response = "y | trials(6)" if likelihood == "binomial" else "y"
    model, groups = rf.from_formula(
        f"{response} ~ x + kind + (x | g)", simulated(likelihood), likelihood=likelihood
    )
    summary = rf.fit(model, groups, seed=0).summary(draws=4000)
    expected = truth(likelihood)
    assert summary.names == list(expected)
    z = (np.array(list(expected.values())) - summary["mean"]) / summary["sd"]
    assert np.abs(z).max() < 3.5, dict(zip(summary.names, z.round(2), strict=True))
    assert np.sum(z**2) < stats.chi2(len(z)).ppf(0.9999)
    effects = np.array([expected[name] for name in summary.names])
    assert np.all(summary["sd"] < 0.35 * np.maximum(np.abs(effects), 1.0)), "the data say little"


@pytest.mark.parametrize("case", likelihood_coverage.CASES)
def test_intervals_hold_the_truth_as_often_as_they_say(case):
    """`python -m benchmarks likelihood_coverage` does the same with default fits of 100 data sets."""
    model, groups = likelihood_coverage.problem(case)
    found = rf.calibrate(model, groups, 25, draws=39, fit=partial(rf.fit, theta="gaussian"), seed=1)
    assert not likelihood_coverage.wrong(found), found


PRIORS = {
    "Intercept": dist.Normal(0, 1),
    "x": dist.Normal(0, 1),
    "sd": dist.HalfNormal(0.7),
    "cor": dist.LKJ(2, 2.0),
}


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
def test_simulation_based_calibration(likelihood, simulations=25, N=40):
    """With a Gaussian theta: to weigh its draws takes ten times as long as all the rest."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(N), 8)
    x = rng.normal(0.5, 1, len(group))
    table = {"g": group, "x": x, "y": outcome(rng, likelihood, 0.3 * x, {"sigma": 1.0})}
    priors = PRIORS | ({"sigma": dist.Exponential(1.0)} if likelihood == "gaussian" else {})
    model, groups = rf.from_formula("y ~ x + (x | g)", table, likelihood=likelihood, priors=priors)
    by_gaussian = partial(rf.fit, theta="gaussian")
    found = rf.calibrate(model, groups, simulations, draws=39, fit=by_gaussian, seed=1)
    assert found.p_value > 0.01, found
    for level in (0.5, 0.9):
        shares = found.coverage(level).values()
        assert all(abs(share - level) < 3.5 * se for share, se in shares), found
