"""NUTS on theta's marginal posterior, beside exact answers where theta is far from Gaussian."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow_but
from ramify.inference.theta_nuts import quality
from ramify.numerics import budgets
from ramify.posterior.summary import reliability, shown_values

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools():
    """Eight schools, with a normal prior on their mean and a half Cauchy one on their sd."""
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"effect": rf.real()},
        log_prior=lambda theta: (
            dist.Normal(0, 5).log_prob(theta["mu"]) + dist.HalfCauchy(5).log_prob(theta["tau"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["tau"]).log_prob(
            z["effect"]
        ),
        log_lik=lambda theta, z, row: dist.Normal(z["effect"], row["s"]).log_prob(row["y"]),
    )
    table = {"school": np.arange(8), "y": Y, "s": S}
    return model, rf.Groups.from_table(table, by="school", rows=["y", "s"])


def schools_exactly():
    """Means and sds of mu and tau by a dense grid."""
    mu, log_tau = np.linspace(-25, 30, 400)[:, None], np.linspace(-9, 4.5, 600)[None]
    tau = np.exp(log_tau)
    log_p = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + log_tau
    for y, s in zip(Y, S, strict=True):
        log_p = log_p - 0.5 * (y - mu) ** 2 / (s**2 + tau**2) - 0.5 * np.log(s**2 + tau**2)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    values = [np.broadcast_to(mu, weight.shape), np.broadcast_to(tau, weight.shape)]
    mean = np.array([np.sum(weight * v) for v in values])
    return mean, np.sqrt([np.sum(weight * v**2) for v in values] - mean**2)


@pytest.fixture(scope="module")
def fitted():
    """Eight schools; its chains are judged by tau alone, beside a number that never moves."""
    tau = lambda adapter, theta: shown_values(adapter, theta)[:, 1:] * [1, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ramify.fitting.theta_shape.shown_values", tau)
        patch.setattr(budgets, "NUTS_DRAWS", (400, 400))  # fewer than usual, for the time it takes
        return rf.fit(*schools(), theta="nuts")


def check(summary, mean, sd):
    """Means within 0.1 sds, and sds within 5%, beyond three standard errors of the draws."""
    ess = np.asarray(summary["ess"])
    assert np.all(np.abs(summary["mean"] - mean) / sd < 0.1 + 3 / np.sqrt(ess))
    assert np.all(np.abs(np.log(summary["sd"] / sd)) < 0.05 + 3 / np.sqrt(ess))


def test_eight_schools_are_sampled_and_right(fitted):
    check(fitted.summary(), *schools_exactly())
    assert fitted.notes["theta_r_hat"] < 1.01 and fitted.notes["theta_effective_draws"] >= 400
    assert "r_hat" in fitted.summary().columns and not fitted.notes.get("warnings")


def test_chains_are_judged_by_what_is_shown(fitted):
    """By the sd itself, not by its logarithm, whose draws near zero are far away and mean nothing."""
    log_tau = np.asarray(fitted.family.weighted.points, np.float64)[:, 1].reshape(4, -1, 1)
    r_hat, effective = quality(np.exp(log_tau))
    assert fitted.notes["theta_effective_draws"] == pytest.approx(effective[0], rel=1e-3)
    assert fitted.notes["theta_r_hat"] == pytest.approx(r_hat[0], abs=1e-4)
    assert abs(quality(log_tau)[1][0] / effective[0] - 1) > 0.01


def test_numbers_that_are_the_same_in_all_draws_are_known():
    """Such as zeros of a Cholesky factor; of chains that stand still, or are stuck apart, nothing is."""
    moving = np.random.default_rng(0).normal(size=(4, 200, 1))
    r_hat, effective = quality(np.concatenate([moving, moving * 0, 1 + moving * 0], 2))
    alone = quality(moving)
    np.testing.assert_array_equal(r_hat, [alone[0][0], 1, 1])
    np.testing.assert_array_equal(effective, [alone[1][0], 800, 800])
    assert np.isnan(quality(0 * moving)).all()
    with np.errstate(all="ignore"):
        assert not quality(np.broadcast_to(np.arange(4.0)[:, None, None], (4, 200, 1)))[0][0] < 1.01
    weight = np.random.default_rng(1).dirichlet(np.full(800, 5.0))
    told = reliability(np.stack([moving.ravel(), np.zeros(800), np.ones(800)], 1), weight)
    assert told["k_hat"].max() < 0.5
    np.testing.assert_allclose(told["ess"][1:], 1 / np.sum(weight**2))


def correlated(x, y=None, *, g, n_g):
    """Intercepts and slopes, with a Cholesky factor whose first row is 1 and 0."""
    L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", n_g):
        b = numpyro.sample("b", dist.MultivariateNormal(jnp.zeros(2), scale_tril=L))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b[g, 0] + b[g, 1] * x, 0.5), obs=y)


@pytest.mark.slow
def test_constant_entries_of_theta_are_no_doubt(monkeypatch):
    """Chains end as soon as they may: where r-hat was NaN they ran a hundred times as long."""
    monkeypatch.setattr(budgets, "NUTS_DRAWS", (200, 200))
    rng = np.random.default_rng(0)
    g, x = np.repeat(np.arange(12), 3), rng.normal(size=36)
    groups = rf.Groups.from_table({"g": g, "x": x, "y": x}, by="g", rows=["x", "y"])
    posterior = rf.fit(rf.from_numpyro(correlated, groups), groups, theta="nuts")
    assert (
        posterior.notes["theta_r_hat"] < 1.01 and posterior.family.weighted.points.shape[0] < 2000
    )
    summary = posterior.summary()
    assert np.all(np.isfinite(summary["ess"])) and summary["L[0,1]"]["sd"] == 0
    assert "verdict: trust" in repr(posterior)


def test_draws_of_chains_are_saved(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    loaded = rf.load(tmp_path / "fit", fitted.model)
    assert loaded.family.weighted.chains == 4
    np.testing.assert_array_equal(loaded.summary()["ess"], fitted.summary()["ess"])


def centred_schools(own, error, y=None, *, school, n_school):
    """The effects are part of theta, as of schools above classes: one class each, one row each."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    effect = numpyro.sample("effect", dist.Normal(mu, tau).expand([8]).to_event(1))
    with numpyro.plate("classes", n_school):
        z = numpyro.sample("z", dist.Normal(effect[own], 0.6 * error))
    with numpyro.plate("rows", school.shape[0]):
        numpyro.sample("y", dist.Normal(z[school], 0.8 * error[school]), obs=y)


@pytest.mark.parametrize("seed", slow_but({0}, range(3)))
def test_a_funnel_of_theta_is_sampled_and_right(seed, monkeypatch):
    """A vector of globals with an sd of their own that may be zero, written centred."""
    monkeypatch.setattr(budgets, "NUTS_DRAWS", (400, 400))
    table = {"school": np.arange(8), "y": Y, "error": S, "own": np.arange(8)}
    groups = rf.Groups.from_table(table, by="school", rows=["y"], group=["error", "own"])
    posterior = rf.fit(rf.from_numpyro(centred_schools, groups), groups, theta="nuts", seed=seed)
    summary = posterior.summary()
    assert summary.names[2:] == [f"effect[{k}]" for k in range(8)]
    own = {name: np.asarray(summary[name])[:2] for name in ("mean", "sd", "ess")}
    check(own, *schools_exactly())
    assert own["ess"].min() >= 400 and not posterior.notes.get("warnings")


@pytest.mark.slow
def test_nuts_is_not_used_where_it_is_not_asked_for():
    for theta, weighted in (("gaussian", False), ("weighted", True)):
        posterior = rf.fit(*schools(), theta=theta)
        assert (posterior.family.weighted is not None) == weighted
        assert "theta_r_hat" not in posterior.notes
    check(posterior.summary(), *schools_exactly())  # weighted draws from a skewed proposal


def bernoulli(groups, rows, share):
    """Groups of 0 and 1, all the same in a group, with an intercept that varies; and the grid's theta."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(groups), rows)
    y = (rng.uniform(size=groups) < share).astype(int)[g]
    return {"g": g, "y": y}


def bernoulli_exactly(table):
    """Mean and sd of intercept and sd by a dense grid over both and over z; priors are the default's."""
    ones = int(table["y"].sum()) / np.bincount(table["g"])[0]
    rows, groups = np.bincount(table["g"])[0], table["g"][-1] + 1
    a, log_sd = np.linspace(-12, 12, 241), np.linspace(-7, 4, 221)
    e = np.linspace(-8, 8, 801)
    log_w = -0.5 * e**2 - np.log(np.sum(np.exp(-0.5 * e**2)))
    log_p = np.zeros((len(a), len(log_sd)))
    for j, s in enumerate(np.exp(log_sd)):
        eta = a[:, None] + s * e
        each = [np.logaddexp.reduce(log_w - rows * np.logaddexp(0, x), 1) for x in (-eta, eta)]
        log_p[:, j] = ones * each[0] + (groups - ones) * each[1]
        log_p[:, j] += -0.5 * (a / 2.5) ** 2 - 0.5 * (s / 2.5) ** 2 + log_sd[j]
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    values = [
        np.broadcast_to(a[:, None], weight.shape),
        np.broadcast_to(np.exp(log_sd), weight.shape),
    ]
    mean = np.array([np.sum(weight * v) for v in values])
    return mean, np.sqrt([np.sum(weight * v**2) for v in values] - mean**2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("groups", "rows"), [(300, 1), (60, 5)])
def test_groups_of_one_outcome(groups, rows, seed):
    table = bernoulli(groups, rows, 0.55)
    model, data = rf.from_formula("y ~ 1 + (1 | g)", table, likelihood="bernoulli")
    # Asked for: by default it is where the machine is fast enough.
    posterior = rf.fit(model, data, seed=seed, theta="nuts")
    check(posterior.summary(), *bernoulli_exactly(table))


@pytest.mark.slow
def test_a_rule_is_fine_enough_for_all_of_a_wide_posterior():
    """60 groups of one outcome, by default: a rule that is right at theta's mean was off at its ends."""
    table = bernoulli(60, 6, 0.6)
    posterior = rf.fit(*rf.from_formula("y ~ 1 + (1 | g)", table, likelihood="bernoulli"))
    summary, (mean, sd) = posterior.summary(), bernoulli_exactly(table)
    noise = 2 / np.sqrt(np.asarray(summary["ess"]))
    assert posterior.notes["bias_sds"] < 0.01 and not posterior.notes.get("warnings")
    assert np.all(np.abs(summary["mean"] - mean) / sd < 0.03 + noise)
    assert np.all(np.abs(np.log(summary["sd"] / sd)) < 0.03 + noise)


@pytest.mark.slow
def test_more_draws_are_weighted_where_theta_is_seen_not_to_be_gaussian(monkeypatch):
    """Data that are too many for weights by default, and for NUTS, with an sd near zero."""
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(100), 10), rng.normal(size=1000).round(3)
    table = {"g": g, "x": x, "y": (rng.random(1000) < 1 / (1 + np.exp(-0.4 - x))).astype(int)}
    monkeypatch.setattr(budgets, "NUTS_SECONDS", 0.0)
    monkeypatch.setitem(budgets.WEIGHTED_THETA_WORK, "cpu", 2**22)
    made = rf.from_formula("y ~ x + (1 | g)", table, likelihood="bernoulli")
    posterior = rf.fit(*made)
    assert posterior.family.weighted is not None and not posterior.notes.get("warnings")
    monkeypatch.setattr(budgets, "NEEDED_THETA_WORK", 1)
    assert rf.fit(*made).notes["theta_curves"] == ["sd(Intercept | g)"]
    monkeypatch.setitem(budgets.CURVES_WORK, "cpu", 1)
    assert "is not the Gaussian" in rf.fit(*made).notes["warnings"][0]


@pytest.mark.slow
def test_what_it_would_take_is_said_where_it_is_too_long(monkeypatch):
    """With no seconds to spare the weighted draws stay, with a warning."""
    monkeypatch.setattr(budgets, "NUTS_SECONDS", 0.0)
    monkeypatch.setattr("ramify.fitting.theta_cloud.MOST_NOISE", 0.0)  # that of even weights
    posterior = rf.fit(*schools())
    assert posterior.family.weighted.chains == 0 and posterior.notes["theta_nuts_seconds"] > 0
    assert 'theta="nuts"' in posterior.notes["warnings"][0]
