"""Solved conditionals: exact where exactness is known, and long NUTS or quadrature elsewhere."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
import problems
import ramify as rf
from quick import slow
from ramify.data.batch import example
from ramify.data.resident import whole
from ramify.fitting import solved
from ramify.inference import theta_remainder
from ramify.inference.elbo import elbo
from ramify.models.traced import uses_theta
from ramify.numerics import budgets


@cache  # one model, so that its programs are compiled once
def conjugate(dim: int) -> rf.Model:
    """The paper's hierarchical regression."""
    return rf.Model(
        theta={"mu": rf.real(dim)},
        z={"beta": rf.real(dim)},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]).sum(),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=lambda t, z, row: dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"]),
        simulate=lambda key, t, z, row: row["x"] @ z["beta"] + jax.random.normal(key),
    )


def small() -> tuple[rf.Model, rf.Groups]:
    """Eight groups in two dimensions: the fits of several tests, compiled once."""
    table, _ = oracle.simulate(0, 8, 5, 2)
    return conjugate(2), rf.Groups.from_table(table, by="group", rows=["x", "y"])


def intercepts(log_lik, **extra) -> rf.Model:
    """Groups with one intercept, for any likelihood of one row."""
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 3).log_prob(t["mu"]) + dist.HalfNormal(2).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=log_lik,
        **extra,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minibatch": 2}, r"minibatch= is for fits by steps.*leave it out, or ask for steps"),
        ({"estimator": "total"}, r"estimator= is for fits by steps"),
        ({"theta": "nuts", "local_draws": 1}, r'theta="nuts" is for fits with more local draws'),
        ({"theta": "weighted", "local_draws": 1}, r'theta="weighted" is for fits with more'),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        rf.fit(*small(), progress=False, **options)


def test_a_fit_of_other_groups_has_the_family_that_was_asked_for():
    """It had the default one, with its one round of variational Newton."""
    model, groups = small()
    family = rf.solved(model, groups, rounds=0)
    first = rf.fit(model, groups, family=family, theta="gaussian", progress=False)
    again = first.again(groups.subset(positions=np.arange(7)))
    assert again.family.N == 7 and again.family.local.rounds == 0
    assert again.notes["why"] == "as asked"


@pytest.mark.parametrize("N, rows, dim", [(8, 5, 2), slow(10, 100, 10)])
def test_conjugate_is_exact(N, rows, dim):
    """ELBO = log evidence to 0.01 nats, means to 0.05 sd, sds to 1%, of theta and z."""
    table, _ = oracle.simulate(0, N, rows, dim)
    groups, exact = (
        rf.Groups.from_table(table, by="group", rows=["x", "y"]),
        oracle.exact(table, N),
    )
    posterior = rf.fit(conjugate(dim), groups)
    assert abs(posterior.elbo(groups, draws=200) - exact.log_evidence) < 0.01
    sd = np.sqrt(np.diag(exact.theta_cov))
    q = posterior.family.theta
    np.testing.assert_allclose(np.asarray(q.mean) / sd, exact.theta_mean / sd, atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(q.covariance)), sd, rtol=0.01)
    # z is linear in theta given theta, so its moments follow in closed form from the family.
    local = posterior.family.conditional(posterior.model, whole(groups))(q.mean)
    z_sd = np.sqrt(np.diagonal(exact.z_cov, axis1=1, axis2=2))
    np.testing.assert_allclose(np.asarray(local.mean) / z_sd, exact.z_mean / z_sd, atol=0.05)
    given = np.asarray(local.scale @ local.scale.swapaxes(1, 2))
    slope = exact.z_slope
    cov = given + slope @ np.asarray(q.covariance) @ slope.swapaxes(1, 2)
    np.testing.assert_allclose(np.sqrt(np.diagonal(cov, axis1=1, axis2=2)), z_sd, rtol=0.01)


def test_the_default_says_why():
    """A small smooth z is solved for, and the result says so."""
    model, groups = small()
    posterior = rf.fit(model, groups)
    assert posterior.notes["method"] == "solved"
    assert "smooth" in repr(posterior)
    assert jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), posterior.history))


def test_budgets_of_solved_are_hard():
    """All sweeps count: those for the curvature and for weighted draws of theta too."""
    model, groups = small()
    for allowed in range(1, 13):
        short = rf.fit(model, groups, max_steps=allowed)
        assert short.notes["sweeps"] == allowed
        assert short.family.weighted is None
        assert allowed > 3 or not short.notes["converged"]
        # A q(theta) that was not found is the one that the fit began with.
        if allowed == 1:
            start = rf.solved(model, groups).theta.covariance
            np.testing.assert_allclose(short.family.theta.covariance, start, rtol=1e-4)
    whole = rf.fit(model, groups)
    assert whole.notes["converged"] and whole.family.weighted is not None
    cut = rf.fit(model, groups, max_steps=whole.notes["sweeps"] - 1)
    assert cut.notes["sweeps"] == whole.notes["sweeps"] - 1 and cut.family.weighted is None
    assert cut.notes["converged"] and "before theta's draws were made" in str(cut)


@pytest.mark.slow
def test_a_budget_that_ends_as_draws_double_keeps_what_was_found(monkeypatch):
    """The first sweep with more draws is the last allowed: q(theta) is that of the search before."""
    for bias in ("MOST_BIAS", "MOST_RULE_BIAS"):
        monkeypatch.setattr(theta_remainder, bias, 0.0)
    monkeypatch.setattr(budgets, "MOST_LOCAL_DRAWS", 600)
    monkeypatch.setattr(solved, "normal_posterior", lambda *_: False)  # else few points are exact
    model, groups = small()
    whole = rf.fit(model, groups)
    draws, step = whole.history["local_draws"], whole.history["step"]
    assert draws[-1] > draws[0]
    last = int(step[draws > draws[0]][0])
    cut = rf.fit(model, groups, max_steps=last)
    before = rf.fit(model, groups, local_draws=int(draws[0]))
    sd = lambda fit: np.sqrt(np.diag(fit.family.theta.covariance))
    np.testing.assert_allclose(sd(cut), sd(before), rtol=0.02)
    assert np.all(np.abs(cut.family.theta.mean - before.family.theta.mean) < 0.1 * sd(before))


@pytest.mark.slow
def test_conjugate_is_exact_at_a_hundred_thousand_groups():
    """|ELBO - log evidence| <= 1e-4 nats per group."""
    N = 100_000
    table, _ = oracle.simulate(0, N, 100, 10)
    groups, exact = rf.Groups.from_table(table, by="group", rows=["x", "y"]), oracle.exact(table, N)
    posterior = rf.fit(conjugate(10), groups)
    assert abs(posterior.elbo(groups, draws=2) - exact.log_evidence) < 1e-4 * N
    sd = np.sqrt(np.diag(exact.theta_cov))
    q = posterior.family.theta
    np.testing.assert_allclose(np.asarray(q.mean) / sd, exact.theta_mean / sd, atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(q.covariance)), sd, rtol=0.01)


def compare(name: str, mean_rms: float, sd_median: float, corr: float, z_sd: float | None) -> None:
    """Holds a default fit to the stored reference of a problem, on the unconstrained scale.

    Tolerances allow for the reference's own error (ESS in the thousands: 0.03 sd, 2% of an sd) and
    for that of K draws a group (about 0.1 sd).
    """
    problem = problems.make(name)
    model, groups = problems.for_ramify(problem)
    reference, posterior = problems.reference(problem), rf.fit(model, groups)
    said = posterior.family.weighted or posterior.family.theta
    mean, covariance = np.asarray(said.mean), np.asarray(said.covariance)
    sd = np.sqrt(np.diag(covariance))
    error = (mean - reference.u_mean) / reference.u_sd
    assert np.sqrt(np.mean(error**2)) < mean_rms, error
    assert abs(np.median(sd / reference.u_sd) - 1) < sd_median, sd / reference.u_sd
    ours = covariance / np.outer(sd, sd)
    assert np.sqrt(np.mean((ours - reference.u_corr) ** 2)) < corr
    assert posterior.notes["bias_sds"] < 0.1
    if z_sd is not None:
        draws = posterior.sample(4000, groups)
        z = np.concatenate([draws[n].reshape(4000, len(groups), -1) for n in problem.z], -1)
        ratio = z.std(0) / reference.z_sd.reshape(z.shape[1:])
        assert abs(np.median(ratio) - 1) < z_sd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mean_rms", "sd_median", "corr", "z_sd"),
    [
        ("logistic_100", 0.25, 0.10, 0.1, 0.02),
        ("logistic_1000", 0.25, 0.06, 0.1, 0.02),
        ("random_intercept", 0.25, 0.05, 0.05, None),
        ("poisson", 0.25, 0.06, 0.1, 0.02),
        ("negative_binomial", 0.25, 0.06, 0.1, 0.02),
        ("student_t", 0.25, 0.06, 0.1, 0.02),
        ("ordered_logit", 0.25, 0.06, 0.1, 0.02),
        ("varying_noise", 0.25, 0.06, 0.1, 0.02),
        ("radon", 0.25, 0.06, 0.1, 0.02),
    ],
)
def test_against_references(name, mean_rms, sd_median, corr, z_sd):
    """Means, sds and correlations of theta, and sds of z, with the defaults."""
    compare(name, mean_rms, sd_median, corr, z_sd)


@pytest.mark.slow
def test_one_draw_reproduces_the_paper_and_its_bias():
    """K = 1 is the best Gaussian conditional: its theta is further from NUTS than the tight one's."""
    problem = problems.make("logistic_1000")
    model, groups = problems.for_ramify(problem)
    reference = problems.reference(problem)
    rms = {}
    for how in (dict(local_draws=1, draws=4, max_steps=500), {}):
        family = rf.solved(model, groups)
        posterior, K = rf.fit(model, groups, family=family, **how), how.get("local_draws")
        q = posterior.family.theta
        assert K is None or posterior.notes["steps"] < 500  # the sweeps before them count
        rms[K] = np.sqrt(np.mean(((np.asarray(q.mean) - reference.u_mean) / reference.u_sd) ** 2))
    assert rms[1] > 0.4 > 0.25 > rms[None]


def test_groups_that_did_not_converge_are_named():
    """A likelihood without a mode in one group: counted and named, not hidden."""

    def runaway(theta, z, row):
        # Group "bad" has a likelihood that rises for ever, faster than the prior falls.
        return jnp.where(
            row["y"] > 5, 5 * jnp.exp(z["b"]), dist.Normal(z["b"], 1).log_prob(row["y"])
        )

    rng = np.random.default_rng(0)
    y = np.r_[rng.normal(size=5), 9, 9, rng.normal(size=5)]
    table = {"g": ["a"] * 5 + ["bad"] * 2 + ["c"] * 5, "y": y}
    groups = rf.Groups.from_table(table, by="g", rows=["y"])
    model = intercepts(runaway)
    solver = rf.solved(model, groups).local
    site = jax.jit(lambda theta: solver.prepare(model, whole(groups), theta))(jnp.zeros(2))
    assert np.asarray(site.converged).tolist() == [True, False, True]
    assert np.isfinite(np.asarray(site.scale)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_lik", "word"),
    [
        (lambda t, z, row: dist.Laplace(z["b"], 1).log_prob(row["y"]), "kinks"),
        (lambda t, z, row: jnp.where((z["b"] > 0) == (row["y"] > 0), -0.1, -2.3), "steps"),
    ],
)
def test_likelihood_without_useful_curvature(log_lik, word):
    """solved() refuses and says why; the default goes to amortized() and says why."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 8)
    y = rng.normal(size=60)[group] + rng.laplace(size=480)
    groups = rf.Groups.from_table({"g": group, "y": y}, by="g", rows=["y"])
    model = intercepts(log_lik)
    with pytest.raises(ValueError, match=word):
        rf.fit(model, groups, family=rf.solved(model, groups))
    posterior = rf.fit(model, groups, max_steps=20)
    assert posterior.notes["method"] == "amortized"
    assert word in posterior.notes["why"]


def test_whether_the_likelihood_uses_theta_is_read_from_its_program():
    """The site is reused for every theta only where the likelihood does not involve it."""
    groups = rf.Groups.from_table({"g": [0, 1], "y": [0.0, 1.0]}, by="g", rows=["y"])
    without = intercepts(lambda t, z, row: dist.Normal(z["b"], 1.0).log_prob(row["y"]))
    within = intercepts(lambda t, z, row: dist.Normal(z["b"], t["tau"]).log_prob(row["y"]))
    assert not uses_theta(without, example(groups))
    assert uses_theta(within, example(groups))


@pytest.mark.slow
def test_new_groups_as_if_they_had_been_fitted():
    """Predicting an unseen group from its rows equals, to noise, including it in the fit."""
    table, _ = oracle.simulate(3, 200, 12, 2)
    old = {name: column[table["group"] < 190] for name, column in table.items()}
    new = {name: column[table["group"] >= 190] for name, column in table.items()}
    model = conjugate(2)
    make = lambda t: rf.Groups.from_table(t, by="group", rows=["x", "y"])
    without, within = rf.fit(model, make(old)), rf.fit(model, make(table))
    ours = without.sample(4000, make(new), seed=1)["beta"]
    theirs = within.sample(4000, make(new), seed=2)["beta"]
    error = np.sqrt(ours.var(0) / 4000 + theirs.var(0) / 4000)
    sd = theirs.std(0)
    # Theta itself moves a little with ten more groups: a few hundredths of z's sd.
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error + 0.05 * sd).all()
    np.testing.assert_allclose(ours.std(0), sd, rtol=0.1)


@pytest.mark.slow
def test_tight_bound_rises_with_draws():
    """On a skewed model the bound rises from K = 1 toward the evidence."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 2)
    table = {"g": group, "y": rng.integers(0, 2, size=60)}
    groups = rf.Groups.from_table(table, by="g", rows=["y"])
    model = intercepts(lambda t, z, row: dist.Bernoulli(logits=z["b"]).log_prob(row["y"]))
    family, batch = rf.solved(model, groups), whole(groups)
    wide = jnp.array([0.0, 1.5])  # tau = 4.5: one-sided groups have skewed posteriors
    family = eqx.tree_at(lambda f: f.theta.mean, family, wide)
    at = eqx.filter_jit(
        lambda K: elbo(jax.random.key(0), family, model, batch, draws=2000, local_draws=K)
    )
    one, many = float(at(1)), float(at(32))
    assert many > one + 0.05


@pytest.mark.slow
def test_refine_closes_the_amortization_gap():
    """After a short training the gap is real; refined, the family is at its best, the solved one."""
    table, _ = oracle.simulate(0, 40, 10, 2)
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y"])
    model = conjugate(2)
    short = rf.fit(model, groups, family=rf.amortized(model, groups), max_steps=200)
    refined, gaps = short.refine(groups)
    assert gaps.amortization.mean() > 0.05
    assert (gaps.amortization >= 0).all()
    # The dense branch family contains the exact conditional of a conjugate model.
    assert np.abs(gaps.structure).max() < 0.05
    before, after = short.elbo(groups, draws=2000), refined.elbo(groups, draws=2000)
    noise = before.se * np.sqrt(2000 / 64)  # the gaps are judged on 64 draws
    assert abs(after - before - gaps.amortization.sum()) < 5 * noise
    with pytest.raises(ValueError, match="solved"):
        rf.fit(model, groups).refine()
