"""Diagnoses of fits whose quality is known: exact ones, and the same spoiled."""

from copy import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
import ramify as rf
from exact_fits import exact_fit, gaussian, read
from ramify.diagnostics.diagnosis import Diagnosis, diagnose
from ramify.diagnostics.verdict import Locals
from ramify.families.weighted_theta import WeightedTheta
from ramify.numerics import budgets
from ramify.numerics.psis import effective_draws, k_hat
from ramify.posterior.draws import draw_theta
from ramify.posterior.posterior import Posterior
from ramify.posterior.summary import Summary, reliability, with_reliability
from ramify.posterior.theta_check import theta_log_weights
from ramify.posterior.trust import off_sds

SIZES = np.array([4, 0, 3, 6, 1, 5, 2, 3])
N, DIM = len(SIZES), 2


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(3, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def exact(table):
    return exact_fit("branch", table, N)


def spoiled(fit: Posterior, table, shift: float, factor: float) -> Posterior:
    """The exact fit with q(theta) moved by some sds in every coordinate, its sds multiplied."""
    post = oracle.exact(table, N)
    sd = np.sqrt(np.diag(post.theta_cov))
    q = gaussian(post.theta_mean + shift * sd, factor**2 * post.theta_cov)
    family = eqx.tree_at(lambda f: f.theta, fit.family, q)
    return Posterior(fit.model, family, fit.groups, local_draws=fit.local_draws)


def with_weighted(fit: Posterior, weighted: WeightedTheta) -> Posterior:
    family = eqx.tree_at(lambda f: f.weighted, fit.family, weighted, is_leaf=lambda x: x is None)
    return Posterior(fit.model, family, fit.groups)


@pytest.mark.parametrize("shape", [-0.3, 0.1, 0.5, 0.9])
def test_k_hat_is_that_of_arviz(shape):
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    rng = np.random.default_rng(1)
    weights = ((1 - rng.uniform(size=(5, 800))) ** -shape - 1) / shape + 1e-3
    found = k_hat(np.log(weights).T)
    assert found.shape == (5,)
    for own, column in zip(found, np.log(weights), strict=True):
        _, theirs = array_stats.psislw(-column)  # it takes what the weights divide by
        assert own == pytest.approx(float(theirs), abs=1e-6)
        assert k_hat(column) == own


def test_k_hat_at_the_edges():
    assert k_hat(np.full(100, -700.0)) == 0.0
    assert k_hat(np.append(np.zeros(99), 2000.0)) == np.inf
    assert k_hat(np.append(np.zeros(99), np.nan)) == np.inf
    assert k_hat(np.append(np.linspace(-744.0, -720.0, 99), 0.0)) == np.inf
    assert k_hat(np.append(np.random.default_rng(0).normal(size=99), -np.inf)) < 1
    with pytest.raises(ValueError, match="at least 25 weights"):
        k_hat(np.zeros(8))


def test_effective_draws():
    assert effective_draws(np.log([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
    assert effective_draws(np.stack([np.zeros(4), [0, 0, -np.inf, -np.inf]], 1)).tolist() == [4, 2]
    assert effective_draws(np.array([0.0, np.nan])) == 0


def test_an_exact_fit_is_trusted(exact):
    found = diagnose(exact, draws=200)
    assert found.verdict == "trust"
    assert found.k_hat < 0.3 and found.effective_draws > 195
    assert max(map(abs, found.shift.values())) < 0.02
    assert list(found.shift) == ["mu[0]", "mu[1]"]
    assert np.all(found.group_k_hat == 0) and np.all(found.group_effective > 0.999)
    np.testing.assert_allclose(found.gap, 0, atol=1e-3)
    assert found.labels.tolist() == list(range(N)) and found.sizes.tolist() == SIZES.tolist()


def test_a_spoiled_theta_is_not_trusted(exact, table):
    found = diagnose(spoiled(exact, table, shift=3, factor=0.5), draws=200)
    assert found.verdict == "do not trust"
    assert found.k_hat > 0.7 and found.effective_draws < 20
    assert "local_draws=" in found.reasons[0]
    assert min(found.shift.values()) < -1  # back to where it belongs


def test_a_mean_that_is_off_is_worth_a_look(exact, table):
    """Wide enough for even weights, but centred elsewhere."""
    found = diagnose(spoiled(exact, table, shift=0.8, factor=1.5), draws=400)
    assert found.verdict == "check" and found.k_hat < 0.5
    assert "would move mu[" in found.reasons[0]


def test_an_sd_that_is_a_tenth_too_small_is_worth_a_look(exact, table):
    found = diagnose(spoiled(exact, table, shift=0.0, factor=0.9), draws=1000)
    assert found.verdict == "check" and found.k_hat < 0.7
    assert "would change the sd of mu[" in found.reasons[0]
    assert all(0.05 < widening < 0.2 for widening in found.widening.values())
    assert max(map(abs, found.shift.values())) < 0.1


def true_log_weights(theta, table):
    post = oracle.exact(table, N)
    density = lambda t: oracle.gaussian_log_density(t, post.theta_mean, post.theta_cov)
    log_p = np.array([density(t) for t in np.asarray(theta.theta, np.float64)])
    return log_p - np.asarray(theta.log_q, np.float64)


def test_weights_of_theta_are_exact(exact, table):
    """With exact locals, weights are the density of the posterior over q's, known in closed form."""
    fit = spoiled(exact, table, shift=0.5, factor=1.2)
    theta = draw_theta(jax.random.key(0), fit.family, fit.model, 50)
    found, noise = theta_log_weights(fit.family, fit.model, fit.groups, theta, 512)
    truth = true_log_weights(theta, table)
    # The points are shared by all draws, so their noise is common to all but for a slope.
    np.testing.assert_allclose(found - found.mean(), truth - truth.mean(), atol=0.05)
    assert np.std(truth) > 0.3
    assert 0.2 < np.std(noise) / np.std(found - truth) < 5  # a sample of what is off


@pytest.mark.slow
def test_a_summary_with_a_check(exact, table):
    """Of an exact q(theta) all draws count; of one that is too narrow, few, and a k-hat says so."""
    good = exact.summary(check=True)
    assert list(good.columns)[-2:] == ["ess", "k_hat"] and "ess" not in exact.summary().columns
    assert np.all(good["ess"] > 600) and np.all(good["k_hat"] < 0.5)
    bad = spoiled(exact, table, shift=1.0, factor=0.5).summary(check=True)
    assert np.all(bad["ess"] < 0.2 * good["ess"]) and bad["k_hat"].max() > 0.5
    np.testing.assert_array_equal(bad["mean"], spoiled(exact, table, 1.0, 0.5).summary()["mean"])


def test_reliability_stays_with_its_parameter():
    """Whatever the order of the names: tau comes before mu here."""
    zero = lambda *_: jnp.zeros(())
    model = rf.Model({"tau": rf.positive(), "mu": rf.real(2)}, {"z": rf.real()}, zero, zero, zero)
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(400, 3)).astype(np.float32)
    log_weight = np.where(rng.random(400) < 0.01, np.nan, np.asarray(theta[:, 1], float))
    plain = Summary(["tau", "mu[0]", "mu[1]"], {"mean": np.zeros(3), "sd": np.ones(3)})
    found = with_reliability(plain, model.adapter, theta, log_weight)
    weight = np.where(np.isfinite(log_weight), np.exp(log_weight), 0)
    draws = np.asarray(theta, float) * 1.0
    draws[:, 0] = np.exp(draws[:, 0])
    expected = reliability(draws, weight / weight.sum())
    np.testing.assert_allclose(found["ess"], expected["ess"], rtol=1e-3)
    assert np.isfinite(found["ess"]).all() and found["ess"][1] == found["ess"].min()


@pytest.mark.slow
def test_a_solved_sites_gaussian_takes_the_noise_out(table):
    """The same for solved(), with few draws: a normal model has no noise left, but for rounding."""
    fit = spoiled(exact_fit("solved", table, N), table, shift=0.5, factor=1.2)
    theta = draw_theta(jax.random.key(0), fit.family, fit.model, 30)
    found, noise = theta_log_weights(fit.family, fit.model, fit.groups, theta, 18)
    truth = true_log_weights(theta, table)
    np.testing.assert_allclose(found - found.mean(), truth - truth.mean(), atol=1e-3)
    assert np.abs(noise).max() < 1e-3


def test_a_group_that_is_wrong_is_found(exact):
    """One group's Gaussian four times too narrow: its gap is the KL, and it comes first."""
    w = exact.family.local.w.at[3, -3:-1].add(-jnp.log(4.0))
    family = eqx.tree_at(lambda f: f.local.w, exact.family, w)
    found = diagnose(Posterior(exact.model, family, exact.groups), draws=100, seed=1)
    assert found.worst(1)["group"].tolist() == [3]
    assert found.group_k_hat[3] > 0.5 and np.delete(found.group_k_hat, 3).max() == 0
    assert found.verdict != "trust" and "3" in str(found)
    # Most of KL(q, p); where the weights are that uneven, the tight bound is not tight either.
    assert 0.3 < found.gap[3] < 0.5 * DIM * (1 / 16 - 1 + np.log(16)) + 0.2


def test_groups_are_worst_by_what_they_do_to_an_answer():
    """Not by k-hat alone: all draws of the second count, and of the fourth's 16 enough do."""
    k, effective = np.array([0.2, 0.9, 1.2, 0.8]), np.array([1.0, 0.99, 0.02, 0.5])
    off = off_sds(effective, 16)
    found = Locals(k, effective, off, np.zeros(4), np.ones(4, bool))
    assert found.bad.tolist() == [False, False, True, False]
    assert off_sds(effective, 1)[3] > 0.5  # of a single draw they do not
    nothing = "trust", [], 0.1, 100.0, 100, {}, 0.0, {}, 0.0, "g", np.arange(4), np.full(4, 3)
    assert Diagnosis(*nothing, *found).worst()["g"].tolist() == [2, 3, 1, 0]


@pytest.mark.slow
def test_tight_fits_are_judged_by_their_proposals(table):
    fit = exact_fit("solved", table, N)
    fit = Posterior(fit.model, fit.family, fit.groups, local_draws=32)
    found = diagnose(fit, draws=100)
    assert found.verdict == "trust"
    assert np.all(found.group_k_hat < 0.5) and np.all(found.group_effective > 0.6)
    np.testing.assert_allclose(found.gap, 0, atol=0.03)
    assert found.converged.all()


def test_joint_families_are_judged_as_a_whole(table):
    found = diagnose(exact_fit("joint", table, N), draws=100)
    assert found.verdict == "trust" and len(found.labels) == 0
    assert "everything together" in str(found)


def test_what_the_fit_noted_counts(exact):
    notes = {"converged": False, "bias_sds": 0.05}
    found = diagnose(Posterior(exact.model, exact.family, exact.groups, notes=notes), draws=100)
    assert found.verdict == "check"
    assert any("had not converged" in reason for reason in found.reasons)
    biased = Posterior(exact.model, exact.family, exact.groups, notes={"bias_sds": 0.8})
    assert diagnose(biased, draws=100).verdict == "do not trust"
    lost = Posterior(exact.model, exact.family, exact.groups, notes={"unconverged": 2})
    assert diagnose(lost, draws=100).verdict == "do not trust"  # two of eight groups


def test_only_some_of_very_many_groups_are_judged(exact, monkeypatch):
    monkeypatch.setattr(budgets, "GROUP_CHECK_WORK", 128 * 14)
    found = diagnose(exact, draws=100)
    assert 1 <= len(found.labels) < N and "taken at random" in str(found)


def test_bad_input(exact):
    with pytest.raises(ValueError, match="at least 25 draws"):
        diagnose(exact, draws=10)
    loaded = Posterior(exact.model, exact.family, None, schema=exact._schema)
    with pytest.raises(ValueError, match="pass groups="):
        diagnose(loaded)
    assert diagnose(loaded, read(oracle.simulate(3, N, SIZES, DIM)[0], N), draws=100).k_hat < 0.3


@pytest.mark.slow
def test_groups_match_by_label(exact):
    """A part of the groups in another order: the same weights for each of them."""
    whole = diagnose(exact, draws=100)
    part = exact.groups.subset(labels=[6, 2])
    found = diagnose(exact, part, draws=100)
    assert found.labels.tolist() == [6, 2]
    np.testing.assert_allclose(found.gap, whole.gap[[6, 2]], atol=1e-4)


@pytest.mark.slow
def test_weighted_draws_of_theta_are_judged_in_place_of_q(exact, table):
    """q(theta) spoiled, but weighted draws that make up for it: no reason to distrust."""
    post, rng = oracle.exact(table, N), np.random.default_rng(0)
    points = rng.multivariate_normal(post.theta_mean, post.theta_cov, 1000)
    bad = spoiled(exact, table, shift=0.0, factor=3.0)  # wide, but where its conditionals expect it
    even = WeightedTheta(jnp.asarray(points), jnp.full(1000, -np.log(1000)))
    found = diagnose(with_weighted(bad, even), draws=400)
    assert found.verdict == "trust" and found.effective_draws > 300
    moved = WeightedTheta(
        jnp.asarray(points + 3 * np.sqrt(np.diag(post.theta_cov))), even.log_weight
    )
    assert diagnose(with_weighted(bad, moved), draws=400).verdict == "do not trust"


@pytest.mark.slow
def test_a_draw_where_a_density_overflows_counts_for_nothing(exact):
    """One of a thousand weights that is no number must not be the diagnosis of all."""
    q, model = exact.family.theta, copy(exact.model)
    far, right = q.mean[0] + 2.5 * q.scale[0, 0], model._log_prior
    model._log_prior = lambda t: jnp.where(t["mu"][0] > far, jnp.nan, right(t))
    theta = draw_theta(jax.random.key(0), exact.family, model, 1000)
    total, noise = theta_log_weights(exact.family, model, exact.groups, theta, 64)
    assert 0 < np.isneginf(total).sum() < 30 and np.isfinite(noise).all()
    assert k_hat(total) < 0.5 and effective_draws(total) > 900


@pytest.mark.slow
def test_locals_that_theta_moves_far_are_solved_again():
    """Not centred, 200 rows a group: theta's spread moves z by many of its sds, and the fit is right."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 200)
    logit = (0.3 + 1.2 * rng.normal(size=30))[group]
    y = (rng.random(6000) < 1 / (1 + np.exp(-logit))).astype(int)
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"e": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 2).log_prob(t["mu"]) + dist.HalfNormal(2).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: dist.Normal(0, 1).log_prob(z["e"]),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=t["mu"] + t["tau"] * z["e"]).log_prob(
            row["y"]
        ),
    )
    groups = rf.Groups.from_table({"g": group, "y": y}, by="g", rows=["y"])
    found = diagnose(rf.fit(model, groups))
    assert found.verdict == "trust", str(found)


def test_more_local_draws_serve_sampling_too(exact):
    """What the fit had to raise, or was told to, is what z is chosen from; else sixteen are enough."""
    fit = lambda **notes: Posterior(
        exact.model, exact.family, exact.groups, local_draws=64, notes=notes
    )
    assert fit()._local_draws(None) == fit(local_draws_raised=False)._local_draws(None) == 16
    assert fit(local_draws_raised=True)._local_draws(None) == 64
    assert fit(local_draws_raised=True)._local_draws(8) == 8
