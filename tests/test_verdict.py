"""What `print` says of fits that are broken in a known way, and of good ones."""

import re
from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.families.branched import Branched
from ramify.families.gaussian import gaussian
from ramify.families.solver import Solver
from ramify.families.weighted_theta import WeightedTheta
from ramify.fitting import solved
from ramify.inference.prior_check import prior_reach, rising_priors
from ramify.inference.theta_search import finish
from ramify.posterior import trust
from ramify.posterior.fitted import mean_theta_sd
from ramify.posterior.posterior import Posterior
from ramify.posterior.trust import findings


def verdict_of(posterior) -> str:
    return re.search("verdict: (trust|check|do not trust)", repr(posterior))[1]


@cache
def model(seen=lambda a: a, likelihood=1.0, local=1.0, prior=1.0):
    """Student-t rows around what is seen of a; a factor of -1 is a wrong sign."""
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"a": rf.real()},
        log_prior=lambda t: (
            prior * (dist.Normal(0, 2).log_prob(t["mu"]) + dist.HalfNormal(1).log_prob(t["tau"]))
        ),
        log_local=lambda t, z, group: local * dist.Normal(t["mu"], t["tau"]).log_prob(z["a"]),
        log_lik=lambda t, z, row: (
            likelihood * dist.StudentT(5, seen(z["a"]), 0.6).log_prob(row["y"])
        ),
    )


def data(seed=0, N=60, seen=lambda a: a):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(N), 5)
    y = seen(0.5 + 0.8 * rng.normal(size=N))[shop] + 0.6 * rng.standard_t(5, shop.size)
    return rf.Groups.from_table({"shop": shop, "y": y}, by="shop", rows=["y"])


square = np.square


def test_two_modes_and_an_early_stop_are_told():
    """The sign of a is not seen: Newton finds the other mode from the other side."""
    posterior = rf.fit(model(lambda a: a**2), data(seen=square), max_steps=6, theta="gaussian")
    assert verdict_of(posterior) == "do not trust"
    said = repr(posterior)
    assert re.search(r"posterior of a has a second mode.* in \d+ of 60 groups looked at", said)
    assert "short of where it was going" in said or "had not converged" in said
    assert posterior.notes["second_modes"] > 10


@pytest.mark.slow
def test_a_good_fit_is_trusted_and_its_narrowed_copy_is_not(monkeypatch):
    """The same search, whose sds of theta are then multiplied by 0.9."""
    good = rf.fit(model(), data(), theta="gaussian")
    assert verdict_of(good) == "trust" and good.notes["theta_width"] == pytest.approx(1, abs=0.02)
    assert good.notes["looked_at"] == 60 and not good.notes["second_modes"]
    narrow = lambda s, F: (q := finish(s, F))._replace(precision=q.precision / 0.9**2)
    monkeypatch.setattr(solved, "finish", narrow)
    posterior = rf.fit(model(), data(), theta="gaussian")
    assert verdict_of(posterior) == "check"
    assert "sds of the global parameters are some 10% too small" in repr(posterior)
    told = rf.diagnose(posterior)
    assert told.verdict == "check" and "would change the sd of" in str(told)


def rising(**priors):
    """Whose log_prior rises without bound: priors of mu and tau, functions of theta."""
    own = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive(), "share": rf.unit(), "w": rf.simplex(3)},
        z={"a": rf.real()},
        log_prior=lambda t: sum(density(t[name]) for name, density in priors.items()),
        log_local=lambda t, z, group: z["a"],
        log_lik=lambda t, z, row: z["a"],
    )
    return rising_priors(own, np.array([3.0, -2.0, 0.5, 0.0, 1.0]))


def test_a_prior_with_a_wrong_sign_is_no_density():
    """Flat ones and those that fall slowly are left alone."""
    log_prob = lambda d: d.log_prob
    wrong = lambda d: lambda x: -d.log_prob(x)
    heavy, half = dist.StudentT(1, 0, 2), dist.HalfCauchy(1.0)
    good = {"mu": log_prob(heavy), "tau": log_prob(half), "share": log_prob(dist.Beta(0.5, 0.5))}
    assert rising(mu=lambda x: 0.0 * x) == []
    assert rising(**good, w=log_prob(dist.Dirichlet(np.full(3, 0.3)))) == []
    assert rising(tau=lambda x: -jnp.log(x), mu=log_prob(dist.Normal(2e5, 1.0))) == []
    assert rising(**good | {"mu": wrong(heavy)}) == ["mu"]
    assert rising(mu=wrong(dist.Normal(0, 10)), tau=wrong(half)) == ["mu", "tau"]
    assert rising(mu=log_prob(heavy), tau=wrong(dist.HalfNormal(1))) == ["tau"]
    assert rising(tau=wrong(dist.InverseGamma(2, 1))) == ["tau"]


def test_steps_are_of_the_priors_scale():
    """A search from zero must get to locations in the hundreds; logarithms and flat priors have none."""
    own = rf.Model(
        theta={"mu": rf.real(2), "tau": rf.positive(), "flat": rf.real()},
        z={"a": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, jnp.array([500.0, 0.1])).log_prob(t["mu"]).sum()
            + dist.HalfNormal(100).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: z["a"],
        log_lik=lambda t, z, row: z["a"],
    )
    np.testing.assert_array_equal(prior_reach(own, np.zeros(4)), [100, 1, 1, 1])


@pytest.mark.slow
def test_a_search_reaches_a_mode_that_is_far():
    """Effects that are not centred, around 600: the search for theta begins at zero."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(25), 8)
    table = {"g": g, "y": 600 + 120 * rng.normal(size=25)[g] + 60 * rng.normal(size=g.size)}
    half = dist.HalfNormal(100)
    own = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive(), "sigma": rf.positive()},
        z={"e": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 500).log_prob(t["mu"])
            + half.log_prob(t["tau"])
            + half.log_prob(t["sigma"])
        ),
        log_local=lambda t, z, group: dist.Normal(0, 1).log_prob(z["e"]),
        log_lik=lambda t, z, row: dist.Normal(t["mu"] + t["tau"] * z["e"], t["sigma"]).log_prob(
            row["y"]
        ),
    )
    posterior = rf.fit(own, rf.Groups.from_table(table, by="g", rows=["y"]), theta="gaussian")
    assert posterior.notes["left_sds"] < 0.5
    found = posterior.summary()["mean"]
    assert np.all(np.abs(found / [600, 120, 60] - 1) < [0.15, 0.5, 0.2])


def test_a_changed_q_of_theta_is_told():
    """The verdict is of the fit: another q(theta) in its place is not what was judged."""
    notes = {"method": "solved", "bias_sds": 0.0}
    local = Solver(jnp.zeros((1, 1)), None, 0, 40, False)
    own = Branched(gaussian(2, diagonal=False, scale=0.3), local, 60)
    narrow = Branched(gaussian(2, diagonal=False, scale=0.27), local, 60)
    weighted = WeightedTheta(jnp.asarray([[-1.0, 2.0], [1.0, 0.0]]), jnp.log(jnp.ones(2) / 2))
    notes["theta_sd"] = mean_theta_sd(own)
    said = lambda family: repr(Posterior(model(), family, data(), notes=notes))
    assert "verdict: trust" in said(own)
    assert "verdict: check" in said(narrow) and "0.9 times those that the fit found" in said(narrow)
    assert "verdict: do not trust" in said(replace(own, weighted=weighted))
    assert mean_theta_sd(replace(own, weighted=weighted)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("r_hat", "effective", "verdict"),
    [
        (1.005, 500, "trust"),
        (1.05, 500, "check"),
        (1.005, 300, "check"),
        (1.2, 500, "do not trust"),
        (1.005, 30, "do not trust"),
        (np.nan, 500, "do not trust"),
        (1.005, np.nan, "do not trust"),
    ],
)
def test_chains_that_do_not_agree_or_are_short_are_told(r_hat, effective, verdict):
    chains = {"theta_r_hat": r_hat, "theta_effective_draws": effective, "theta_worst": "tau"}
    found = findings({"bias_sds": 0.0} | chains, 60)
    assert trust.verdict_of(found) == verdict
    assert all("effective draws of tau" in finding.said for finding in found)


@pytest.mark.parametrize(
    "note", ["bias_sds", "noise_sds", "theta_width", "theta_k_hat", "laplace_sds"]
)
def test_a_number_of_a_fit_that_is_not_known_is_a_doubt(note):
    assert trust.verdict_of(findings({note: np.nan}, 60)) != "trust"


@pytest.mark.slow
def test_a_wrong_sign_in_a_density_is_told():
    posterior = rf.fit(model(likelihood=-1.0), data())
    assert verdict_of(posterior) == "do not trust" and "second mode" in repr(posterior)
    posterior = rf.fit(model(prior=-1.0), data())
    assert verdict_of(posterior) == "do not trust"
    assert "log_prior is not a density: it rises without bound as mu, tau goes" in repr(posterior)
    with pytest.raises(FloatingPointError, match=r"ran away, to .*wrong sign"):
        rf.fit(model(local=-1.0), data())


@pytest.mark.slow
def test_uneven_weights_of_theta_are_told_where_they_were_asked_for():
    """300 groups of one Bernoulli row: their sd has a long tail that few of the points reach."""
    y = (np.random.default_rng(3).random(300) < 0.7).astype(int)
    own = rf.from_formula("y ~ 1 + (1 | g)", {"g": np.arange(300), "y": y}, likelihood="bernoulli")
    posterior = rf.fit(*own, theta="weighted")
    assert verdict_of(posterior) != "trust" and "weighted unevenly" in repr(posterior)


@pytest.mark.slow
def test_a_horseshoe_that_is_written_centred_is_refused_in_words():
    rng = np.random.default_rng(12)
    shop = np.repeat(np.arange(100), 3)
    effect = np.where(rng.random(100) < 0.15, rng.normal(0, 4, 100), rng.normal(0, 0.1, 100))
    table = {"shop": shop, "y": effect[shop] + rng.normal(size=300)}
    groups = rf.Groups.from_table(table, by="shop", rows=["y"])

    def horseshoe(of):
        return rf.Model(
            theta={"tau": rf.positive()},
            z={"scale": rf.positive(), "a": rf.real()},
            log_prior=lambda t: dist.HalfNormal(1).log_prob(t["tau"]),
            log_local=lambda t, z, group: (
                dist.HalfCauchy(1.0).log_prob(z["scale"])
                + dist.Normal(0, 1 if of else t["tau"] * z["scale"]).log_prob(z["a"])
            ),
            log_lik=lambda t, z, row: dist.Normal(
                z["a"] * (t["tau"] * z["scale"] if of else 1), 1
            ).log_prob(row["y"]),
        )

    with pytest.raises(FloatingPointError, match=r"scale of group \d+ .*tau \* scale \* e"):
        rf.fit(horseshoe(False), groups)
    assert "looked_at" in rf.fit(horseshoe(True), groups, max_steps=20).notes


@pytest.mark.slow
def test_good_fits_raise_few_alarms():
    """Twenty data sets of three kinds whose sds are far from zero: at most one is doubted."""
    rng, alarms = np.random.default_rng(0), []
    for seed in range(20):
        kind = ["poisson", "bernoulli", "gaussian"][seed % 3]
        few, many = (15, 30) if kind == "bernoulli" else (4, 12)  # enough for every sd
        shop = np.repeat(np.arange(80), rng.integers(few, many, 80))
        x = rng.normal(size=shop.size)
        own = rng.normal([0.5, 0.4], [0.8, 0.8], (80, 2))[shop]
        eta = own[:, 0] + own[:, 1] * x
        y = {
            "poisson": rng.poisson(np.exp(eta)),
            "bernoulli": (rng.random(shop.size) < 1 / (1 + np.exp(-eta))).astype(int),
            "gaussian": eta + rng.normal(size=shop.size),
        }[kind]
        table = {"shop": shop, "x": x, "y": y}
        fitted = rf.fit(*rf.from_formula("y ~ x + (1 + x | shop)", table, likelihood=kind))
        told = rf.diagnose(fitted)
        if verdict_of(fitted) != "trust" or told.verdict != "trust":
            alarms.append(f"{kind} {seed}: {fitted}\n{told}")
    assert len(alarms) <= 1, "\n".join(alarms)
