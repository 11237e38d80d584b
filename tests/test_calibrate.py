"""Simulation-based calibration: right posteriors pass, wrong ones do not; draws agree with densities."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import oracle
import ramify as rf
from exact_fits import exact_family, gaussian, read, regression
from quick import slow_but
from ramify.data.resident import whole
from ramify.diagnostics.calibration import Calibration
from ramify.diagnostics.uniformity import bands, p_value
from ramify.fitting.calibrate import _data
from ramify.models.densities import log_joints
from ramify.models.simulation import Simulated
from ramify.numerics.programs import program
from ramify.posterior.posterior import Posterior

SIZES = np.array([2, 0, 3, 1, 2, 2, 3, 1, 4, 2, 1, 2])
N, DIM = len(SIZES), 1


@pytest.fixture(scope="module")
def groups():
    return read(oracle.simulate(3, N, SIZES, DIM)[0], N)


def simulate(rng, groups):
    """The regression of `oracle`, by NumPy."""
    mu = rng.normal(size=DIM)
    beta = mu + rng.normal(size=(N, DIM))
    x = groups.rows["x"]
    y = np.sum(x * np.repeat(beta, groups.sizes, 0), 1) + rng.normal(size=len(x))
    return {"mu": mu}, {"beta": beta}, {"y": y}


def exact(model, groups, seed, theta=1.0, z=1.0):
    """The posterior itself, its sds multiplied."""
    table = {"group": np.repeat(np.arange(N), groups.sizes), **groups.rows}
    family, post = exact_family("branch", model, table, N), oracle.exact(table, N)
    q = gaussian(post.theta_mean, theta**2 * post.theta_cov)
    w = family.local.w.at[:, -1].add(np.log(z))  # log of the only entry of z's factor
    family = eqx.tree_at(lambda f: (f.theta, f.local.w), family, (q, w))
    return Posterior(model, family, groups)


def calibrated(groups, fit=exact, simulations=60, **more):
    return rf.calibrate(regression(DIM), groups, simulations, fit=fit, simulate=simulate, **more)


def test_a_right_posterior_is_calibrated(groups):
    found = calibrated(groups, draws=99)
    assert list(found.theta_ranks) == ["mu[0]"] and list(found.z_ranks) == ["z: beta[0]"]
    assert found.theta_ranks["mu[0]"].shape == (60,)
    assert found.z_ranks["z: beta[0]"].shape == (60, 10)
    assert found.p_value > 0.05
    for level in (0.5, 0.9):
        assert all(abs(x.share - level) < 3 * x.se for x in found.coverage(level).values())
    assert "no sign of error" in repr(found) and "60 simulations" in repr(found)


@pytest.mark.parametrize("scales, names", [((0.4, 1.0), ["mu[0]"]), ((1.0, 0.4), ["z: beta[0]"])])
def test_a_narrow_posterior_is_found_out(groups, scales, names):
    found = calibrated(groups, partial(exact, theta=scales[0], z=scales[1]), draws=99)
    assert {name for name, p in found.p_values.items() if p < 0.01} == set(names)
    share, se = found.coverage(0.9)[names[0]]
    assert share < 0.9 - 3 * se
    assert "not calibrated" in repr(found)


def test_fits_that_fail_and_doubtful_ones_are_told(groups):
    def sometimes(model, groups, seed):
        if groups.rows["y"][0] > 1:
            raise FloatingPointError("y is too large")
        bad = groups.rows["y"][0] < -1
        family = exact(model, groups, seed).family
        return Posterior(model, family, groups, notes={"bias_sds": 9.0} if bad else {})

    found = calibrated(groups, sometimes, 20, draws=19)
    assert 0 < len(found.failures) < 20 and set(found.failures) == {"y is too large"}
    assert len(found.theta_ranks["mu[0]"]) == 20 - len(found.failures)
    assert sum(found.verdicts.values()) == 20 - len(found.failures)
    assert f"{len(found.failures)} fits failed" in repr(found) and "y is too large" in repr(found)
    assert f'{found.verdicts["do not trust"]} of the fits say "do not trust"' in repr(found)

    def never(model, groups, seed):
        raise FloatingPointError("no")

    with pytest.raises(ArithmeticError, match="all 3 fits failed. The first said: no"):
        calibrated(groups, never, 3)


def test_the_same_seed_gives_the_same_ranks(groups):
    first, again, other = (calibrated(groups, simulations=4, seed=seed) for seed in (1, 1, 2))
    same = lambda a, b: all(np.array_equal(a.tested[n], b.tested[n]) for n in a.tested)
    assert same(first, again) and not same(first, other)


def test_errors_say_what_to_do(groups):
    without = regression(DIM)
    without._simulate = None
    with pytest.raises(ValueError, match=r"Pass simulate=, a function \(rng, groups\)"):
        rf.calibrate(without, groups, 2)
    wrong = lambda rng, groups: ({"mu": np.zeros(2)}, {}, {})
    with pytest.raises(ValueError, match=r"its theta has mu \[2\]; expected mu \[1\]"):
        rf.calibrate(regression(DIM), groups, 2, simulate=wrong)
    with pytest.raises(ValueError, match="simulations=0; expected a whole number"):
        rf.calibrate(regression(DIM), groups, 0)


def test_p_values_of_uniform_ranks_are_uniform():
    """And bands are where that test has its level."""
    rng, L, n = np.random.default_rng(0), 49, 80
    ranks = rng.integers(0, L + 1, (400, n))
    ps = np.array([p_value(own, L) for own in ranks])
    assert abs(np.mean(ps < 0.05) - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 400)
    low, high = bands(n, L)
    below = np.stack([np.sum(own[:, None] < np.arange(1, L + 1), 0) for own in ranks]) / n
    outside = np.any((below < low) | (below > high), 1)
    assert np.mean(outside != (ps < 0.05)) < 0.01
    assert p_value(np.sort(ranks[0]) // 2, L) < 0.001  # all in the lower half


def test_a_plot_has_a_panel_for_each_parameter():
    pytest.importorskip("plotly")
    ranks = np.random.default_rng(0).integers(0, 20, (30, 4))
    found = Calibration(19, {"a": ranks[:, 0], "b": ranks[:, 1]}, {"z: c": ranks}, np.arange(4), {})
    figure = found.plot()
    assert [title.text.split(",")[0] for title in figure.layout.annotations] == ["a", "b", "z: c"]
    low, high, own = figure.data[:3]
    assert np.all(np.asarray(low.y) <= np.asarray(high.y))
    np.testing.assert_allclose(own.y[9] + 10 / 20, np.mean(ranks[:, 0] < 10))


# Data drawn from a model agree with its densities: for draws of p(u), u flat and unconstrained, the score
# d log p / d u has mean 0, and u times the score has mean -1.

TABLE = {
    "g": np.repeat(np.arange(4), [3, 2, 4, 3]),
    "x": np.linspace(-1, 2, 12),
    "trials": np.arange(12) % 4 + 1,
}
PRIORS = {"Intercept": dist.Normal(0.5, 1), "x": dist.Normal(0, 0.5), "sd": dist.Gamma(4.0, 8.0)}
OWN = {
    "gaussian": {"cor": dist.LKJ(2, 3.0), "sigma": dist.Gamma(4.0, 4.0)},
    "student_t": {"sigma": dist.Gamma(4.0, 4.0), "nu": dist.Gamma(5.0, 1.0)},
    "skew_normal": {"sigma": dist.Gamma(4.0, 4.0), "alpha": dist.Normal(1.0, 2.0)},
    "negative_binomial": {"shape": dist.Gamma(4.0, 2.0)},
    "ordered": {"cutpoints": dist.Normal(0, 2.0)},
    "lognormal": {"sigma": dist.Gamma(4.0, 4.0)},
    "gamma": {"shape": dist.Gamma(6.0, 2.0)},
    "exponential": {},
    "weibull": {"shape": dist.Gamma(6.0, 3.0)},
    "beta": {"phi": dist.Gamma(8.0, 1.0)},
    "beta_binomial": {"phi": dist.Gamma(6.0, 2.0)},
    "zero_inflated_poisson": {"zi": dist.Beta(2.0, 3.0)},
    "zero_inflated_negative_binomial": {"shape": dist.Gamma(4.0, 2.0), "zi": dist.Beta(2.0, 3.0)},
    "hurdle_poisson": {"hu": dist.Beta(2.0, 3.0)},
    "hurdle_negative_binomial": {"shape": dist.Gamma(4.0, 2.0), "hu": dist.Beta(2.0, 3.0)},
}
LEFT = {name: "y | trials(trials)" for name in ("binomial", "beta_binomial")}
LEFT |= {name: "y | cens(late)" for name in ("exponential", "weibull", "lognormal")}


def formula(likelihood):
    y = np.random.default_rng(0).integers(0, 2, 12)
    y = np.arange(12) % 3 if likelihood == "ordered" else y
    y = y + 100.0 if likelihood == "gaussian" else y
    if likelihood in ("lognormal", "gamma", "exponential", "weibull", "beta"):
        y = np.linspace(0.2, 0.9, 12)
    table = TABLE | {"y": y, "late": np.arange(12) % 4 == 0}
    left = LEFT.get(likelihood, "y")
    priors = {k: v for k, v in PRIORS.items() if likelihood != "ordered" or k != "Intercept"}
    if likelihood == "gaussian":
        priors["Intercept"] = dist.Normal(100.0, 2.0)
    priors |= OWN.get(likelihood, {})
    return rf.from_formula(f"{left} ~ x + (x | g)", table, likelihood=likelihood, priors=priors)


def function(x, y=None, count=None, *, g, n_g):
    mu = numpyro.sample("mu", dist.Normal(1, 2))
    tau = numpyro.sample("tau", dist.LogNormal(-1, 0.5))
    share = numpyro.sample("share", dist.Beta(3, 4))
    with numpyro.plate("groups", n_g):
        b = numpyro.sample("b", dist.Normal(mu, tau))
        c = numpyro.sample("c", dist.Gamma(3, 2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b[g] + share * x, c[g]), obs=y)
        numpyro.sample("count", dist.Poisson(c[g]), obs=count)


def from_function():
    rng = np.random.default_rng(0)
    table = TABLE | {"y": rng.normal(size=12), "count": rng.poisson(1.0, 12)}
    groups = rf.Groups.from_table(table, by="g", rows=["x", "y", "count"])
    return rf.from_numpyro(function, groups), groups


MODELS = {name: partial(formula, name) for name in ("bernoulli", "binomial", "poisson", *OWN)}
MODELS["numpyro"] = from_function


def parameter_formula():
    y = np.random.default_rng(0).normal(50, 3, 12)
    priors = {name: PRIORS["sd"] for name in ("sd", "sigma_sd")} | {"sigma_x": dist.Normal(0, 0.3)}
    priors |= {"Intercept": dist.Normal(50, 3), "sigma_Intercept": dist.Normal(1, 0.5)}
    text = "y ~ x + (1 | g); sigma ~ x + (x | g)"
    return rf.from_formula(text, TABLE | {"y": y}, priors=priors | {"x": dist.Normal(0, 1)})


MODELS["parameter formula"] = parameter_formula


def categories():
    table = TABLE | {"y": np.array(["c", "a", "b"])[np.arange(12) % 3]}
    priors = {"b": dist.Normal(0, 1), "sd": PRIORS["sd"]}
    priors |= {f"mu{level}_Intercept": dist.Normal(0, 1) for level in "bc"}
    text = "y ~ x + (x | g); mub ~ (1 | g)"
    return rf.from_formula(text, table, likelihood="categorical", priors=priors)


MODELS["categorical"] = categories


@program
def scores(model, batch, drawn):
    """The slope of log p(theta, z, y) in theta and z, flat, and where it was taken."""

    def one(theta, z, rows):
        own = batch._replace(rows=batch.rows | rows)
        log_joint = lambda theta, z: (
            model.log_prior(theta) + jnp.sum(log_joints(model, own, theta, z[None]))
        )
        flat = lambda pair: jnp.concatenate([pair[0], pair[1].ravel()])
        return flat(jax.grad(log_joint, (0, 1))(theta, z)), flat((theta, z))

    return jax.vmap(one)(*drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["gaussian"], MODELS))
def test_simulated_data_follow_the_densities(name, simulations=150):
    model, groups = MODELS[name]()
    simulator, rng, batch = model.adapter.simulator(groups), np.random.default_rng(5), whole(groups)
    drawn = jax.tree.map(lambda *x: np.stack(x), *(simulator(rng) for _ in range(simulations)))
    rows = {n: y.astype(batch.rows[n].dtype) for n, y in drawn.rows.items()}
    slope, at = (np.asarray(x, np.float64) for x in scores(model, batch, drawn._replace(rows=rows)))
    at = at - at.mean(0)
    for values, mean in ((slope, 0.0), (slope * at, -1.0)):
        se = values.std(0) / np.sqrt(simulations)
        assert np.abs((values.mean(0) - mean) / se).max() < 4.5


@pytest.mark.slow
def test_weights_and_densities_without_draws_are_refused():
    table = TABLE | {"y": np.arange(12.0), "w": np.ones(12) + TABLE["g"]}
    model, groups = rf.from_formula("y ~ x + (1 | g)", table, weights="w")
    with pytest.raises(ValueError, match="Leave the weights out"):
        rf.calibrate(model, groups, 2)

    def potential(x, y, *, g, n_g):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.plate("groups", n_g):
            b = numpyro.sample("b", dist.Normal(mu, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.factor("far", -((y - b[g]) ** 2))

    def logarithm(x, y, *, g, n_g):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.plate("groups", n_g):
            b = numpyro.sample("b", dist.Normal(mu, 1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("log_y", dist.Normal(b[g], 1), obs=jnp.log1p(y))

    groups = rf.Groups.from_table(table, by="g", rows=["x", "y"])
    with pytest.raises(ValueError, match='can\'t draw site "far"'):
        rf.calibrate(rf.from_numpyro(potential, groups), groups, 2)
    with pytest.raises(ValueError, match='column that site "log_y" observes'):
        rf.calibrate(rf.from_numpyro(logarithm, groups), groups, 2)


@pytest.fixture(scope="module")
def counts():
    """Counts of 20 groups with four rows each, by a NumPyro model."""

    def model(y=None, *, g, n_g):
        mu = numpyro.sample("mu", dist.Normal(1, 1))
        tau = numpyro.sample("tau", dist.LogNormal(-1, 0.5))
        with numpyro.plate("groups", n_g):
            b = numpyro.sample("b", dist.Normal(mu, tau))
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b[g])), obs=y)

    table = {"g": np.repeat(np.arange(20), 4), "y": np.ones(80, int)}
    groups = rf.Groups.from_table(table, by="g", rows="y")
    return rf.from_numpyro(model, groups), groups


@pytest.mark.slow
def test_fits_are_calibrated(counts):
    found = rf.calibrate(*counts, 60, draws=99, fit=partial(rf.fit, theta="weighted"))
    assert found.p_value > 0.05, found
    assert not found.failures


@pytest.mark.slow
def test_fits_with_small_sds_are_found_out(counts):
    def narrow(model, groups, seed):
        fit = rf.fit(model, groups, theta="gaussian", seed=seed)
        q = fit.family.theta
        q = gaussian(np.asarray(q.mean), 0.49 * np.asarray(q.covariance))
        family = eqx.tree_at(lambda f: f.theta, fit.family, q)
        return Posterior(model, family, groups, local_draws=fit.local_draws, notes=fit.notes)

    found = rf.calibrate(*counts, 150, fit=narrow, draws=39)
    assert found.p_value < 0.05 and "not calibrated" in repr(found), found
    shares = [found.coverage(0.9)[name] for name in found.theta_ranks]
    assert all(share < 0.9 - 2 * se for share, se in shares), found


def test_simulated_outcomes_are_not_cut_to_whole_numbers(groups):
    """Data whose outcomes happen to be whole numbers have integers, which a normal's are not."""
    whole = replace(groups, rows={**groups.rows, "y": np.arange(groups.n_rows)})
    y = np.linspace(-1, 1, groups.n_rows)
    data = lambda y: _data(Simulated(np.zeros(1), np.zeros((N, 1)), {"y": y}), whole).rows["y"]
    np.testing.assert_array_equal(data(y), y)
    assert data(np.floor(y)).dtype == whole.rows["y"].dtype
    with pytest.raises(FloatingPointError, match='a simulated "y" is not finite'):
        data(np.where(y > 0, np.nan, y))
