"""The paper's metrics against closed forms of the conjugate model."""

from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import oracle
from exact_fits import exact_fit, gaussian, read, regression
from quick import slow
from ramify.data.groups import Groups
from ramify.families.build import branch
from ramify.families.weighted_theta import WeightedTheta
from ramify.posterior import held_out as _held_out
from ramify.posterior import metrics as _metrics
from ramify.posterior.metrics import Estimate, EvidenceForm, check_form
from ramify.posterior.posterior import Posterior

SIZES = np.array([4, 0, 3, 6, 1])
N, DIM = len(SIZES), 2


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(3, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def fits(table):
    return {method: exact_fit(method, table, N) for method in ("joint", "branch", "solved")}


@pytest.fixture(scope="module")
def wide(table, fits):
    """Branch with a q(theta) twice as wide as the posterior's, and its exact ELBO."""
    exact, family = oracle.exact(table, N), fits["branch"].family
    q = gaussian(exact.theta_mean, 4 * exact.theta_cov)
    kl = oracle.gaussian_kl(
        exact.theta_mean, 4 * exact.theta_cov, exact.theta_mean, exact.theta_cov
    )
    family = eqx.tree_at(lambda f: f.theta, family, q)
    return Posterior(fits["branch"].model, family, read(table, N)), exact.log_evidence - kl


@pytest.mark.parametrize("method", ["joint", "branch", "solved"])
def test_elbo_and_evidence_are_exact_at_the_optimum(fits, table, method):
    exact = oracle.exact(table, N).log_evidence
    fit = fits[method]
    elbo, evidence = fit.elbo(draws=20), fit.log_evidence(draws=20)
    assert float(elbo) == pytest.approx(exact, abs=2e-4)
    assert float(evidence) == pytest.approx(exact, abs=2e-4)
    assert elbo.se < 1e-4 and evidence.se < 1e-4
    assert evidence.ess == pytest.approx(20, rel=1e-3)


def test_elbo_away_from_the_optimum(wide):
    fit, exact = wide
    elbo = fit.elbo(draws=4000)
    assert 0.005 < elbo.se < 0.1
    assert abs(elbo - exact) < 4 * elbo.se


@pytest.mark.parametrize("form", ["joint", slow("per_group")])
def test_evidence_away_from_the_optimum(wide, table, form):
    fit, elbo = wide
    exact = oracle.exact(table, N).log_evidence
    found = fit.log_evidence(draws=4000, form=form, local_draws=64)
    assert exact - elbo > 1  # what the average of weights must make up for
    assert 0 < found.se < 0.2 and found.ess < 3000
    assert abs(found - exact) < 4 * found.se


def test_optima_of_block_covariance(table):
    best = oracle.optimum(table, N, "branch", "block")
    model, groups = regression(DIM), read(table, N)
    family = branch(model, groups, "block")
    scale = [gaussian(m, c).free for m, c in zip(best.z_mean, best.z_cov, strict=True)]
    w = jnp.concatenate([jnp.asarray(best.z_mean), jnp.stack(scale)], -1)
    q = gaussian(best.theta_mean, best.theta_cov)
    family = eqx.tree_at(lambda f: (f.theta, f.local.w), family, (q, w))
    found = Posterior(model, family, groups).elbo(draws=4000)
    assert abs(found - best.elbo) < 4 * found.se
    assert found.se < 0.1


def test_mean_likelihood(fits, table):
    """E_q p(y | z) is the density of y under the posterior predictive of the same rows."""
    brute, group, x = oracle.brute_force(table, N), table["group"], table["x"]
    design = np.zeros((len(group), len(brute.mean)))
    for r, i in enumerate(group):
        design[r, DIM * (1 + i) : DIM * (2 + i)] = x[r]
    cov = np.eye(len(group)) + design @ brute.cov @ design.T
    exact = oracle.gaussian_log_density(table["y"], design @ brute.mean, cov)
    found = fits["branch"].log_evidence(draws=4000, form="mean_likelihood")
    assert abs(found - exact) < 4 * found.se
    assert found.se < 0.15 and found.ess > 100


@pytest.fixture(scope="module")
def held_out(table):
    """Training fit, test groups, and the exact predictive densities in the three forms."""
    train, test = read(table, N).split(0.4, seed=1)
    rows = {"group": np.repeat(np.arange(N), train.sizes), **train.rows}
    brute = oracle.brute_force(rows, N)
    owner = np.repeat(np.arange(N), test.sizes)
    design = np.zeros((test.n_rows, len(brute.mean)))
    for r, i in enumerate(owner):
        design[r, DIM * (1 + i) : DIM * (2 + i)] = test.rows["x"][r]
    mean, cov = design @ brute.mean, np.eye(test.n_rows) + design @ brute.cov @ design.T
    density = lambda r: oracle.gaussian_log_density(test.rows["y"][r], mean[r], cov[np.ix_(r, r)])
    exact = {
        "joint": density(np.arange(test.n_rows)),
        "per_group": sum(density(np.flatnonzero(owner == i)) for i in np.unique(owner)),
        "per_row": sum(density(np.array([r])) for r in range(test.n_rows)),
    }
    return rows, train, test, exact


@pytest.mark.parametrize(
    ("method", "form"),
    [
        ("branch", "joint"),
        ("branch", "per_group"),
        ("branch", "per_row"),
        ("joint", "joint"),
        slow("solved", "joint"),
        slow("solved", "per_group"),
        ("solved", "per_row"),
    ],
)
def test_log_predictive(held_out, method, form):
    rows, train, test, exact = held_out
    found = exact_fit(method, rows, N).log_predictive(train, test, draws=4000, form=form)
    assert abs(found - exact[form]) < 4 * found.se
    assert found.se < 0.1
    assert abs(exact["joint"] - exact["per_row"]) > 0.05  # the forms do differ


@pytest.mark.parametrize("form", ["per_row", "per_group"])
def test_equal_draws_of_theta_are_predicted_from_once(held_out, form, monkeypatch):
    """By all their draws of z; the standard error knows how few thetas there are."""
    rows, train, test, exact = held_out
    fit, post = exact_fit("solved", rows, N), oracle.exact(rows, N)
    rng, found = np.random.default_rng(0), []
    monkeypatch.setattr(_held_out, "test_values", None)  # of one draw of z
    for _ in range(20):
        points = rng.multivariate_normal(post.theta_mean, post.theta_cov, 50)
        own = with_weighted(fit, points)
        found.append(own.log_predictive(train, test, 500, form, local_draws=16))
    se = np.mean([estimate.se for estimate in found])
    assert 0.7 < np.std(found) / se < 1.4
    assert abs(np.mean(found) - exact[form]) < 4 * np.std(found) / 20**0.5 + 0.02
    assert {estimate.draws for estimate in found} == {500}


@pytest.mark.slow
def test_solved_conditions_on_the_rows_given(held_out, table):
    """A fit to all rows, told to condition on the training rows, must not peek at the test rows."""
    rows, train, test, _ = held_out
    peeking = exact_fit("solved", table, N)
    honest = peeking.log_predictive(train, test, draws=4000, form="per_row")
    cheating = peeking.log_predictive(None, test, draws=4000, form="per_row")
    assert cheating > honest + 4 * (honest.se + cheating.se)


@pytest.mark.slow
def test_tight_bound_rises_to_the_evidence(fits, table):
    """Locals twice too wide: K = 1 loses their KL, K = 64 nearly nothing."""
    exact, family = oracle.exact(table, N), fits["branch"].family
    M = DIM
    family = eqx.tree_at(lambda f: f.local.w, family, family.local.w.at[:, -3:-1].add(jnp.log(2.0)))
    assert family.local.form.sizes == (M, M * M, 3)
    fit = Posterior(fits["branch"].model, family, read(table, N))
    bounds = [fit.elbo(draws=4000, local_draws=K) for K in (1, 64)]
    lost = N * 0.5 * M * (4 - 1 - np.log(4))
    assert abs(bounds[0] - (exact.log_evidence - lost)) < 4 * bounds[0].se
    assert bounds[0] + 1 < exact.log_evidence - 0.1 < bounds[1]
    assert bounds[1] < exact.log_evidence + 4 * bounds[1].se
    found = fit.log_evidence(draws=20, form="per_group", local_draws=512)
    assert abs(found - exact.log_evidence) < 4 * found.se + 0.01
    assert 0.001 < found.se < 0.2


def test_draws_of_theta_share_local_noise(fits):
    """With exact conditionals the weights of theta are then equal, however noisy the locals."""
    found = fits["branch"].log_evidence(draws=20, form="per_group", local_draws=4)
    assert found.se > 0.01
    assert found.ess == pytest.approx(20, abs=0.01)


def with_weighted(fit, points):
    """The fit with draws of theta of equal weight."""
    weighted = WeightedTheta.even(points)
    family = eqx.tree_at(lambda f: f.weighted, fit.family, weighted, is_leaf=lambda x: x is None)
    return Posterior(fit.model, family, fit.groups)


def test_draws_of_theta_in_the_fit_are_where_evidence_is_weighed(fits, table):
    """With q(theta) three sds off most draws are lost; points of the posterior tell where it is."""
    exact, bad = oracle.exact(table, N), fits["branch"]
    q = gaussian(exact.theta_mean + 3 * np.sqrt(np.diag(exact.theta_cov)), exact.theta_cov)
    family = eqx.tree_at(lambda f: f.local.w, bad.family, moved_to(bad.family, q))
    family = eqx.tree_at(lambda f: f.theta, family, q)
    bad = Posterior(bad.model, family, bad.groups)
    points = np.random.default_rng(0).multivariate_normal(exact.theta_mean, exact.theta_cov, 1000)
    good = with_weighted(bad, points)
    lost, found = (
        f.log_evidence(draws=1000, form="per_group", local_draws=64) for f in (bad, good)
    )
    assert lost.ess < 100 and found.ess > 700
    assert abs(found - exact.log_evidence) < 4 * found.se and found.se < 0.2


def moved_to(family, q):
    """Parameters of the same conditionals, which are written around q's mean."""
    M, w = DIM, family.local.w
    slopes = w[:, M : M + M * M].reshape(N, M, M)
    return w.at[:, :M].add(slopes @ (q.mean - family.theta.mean))


def test_more_draws_of_theta_are_taken_where_they_help(wide, monkeypatch):
    """A thousand are enough where the groups' noise is more than theta's, and all where it is less."""
    monkeypatch.setattr(_metrics, "DRAWS", 1500)
    fit, _ = wide
    noisy = fit.log_evidence(form="per_group", local_draws=2)
    every = fit.log_evidence(draws=1500, form="per_group", local_draws=2)
    assert (noisy.draws, every.draws) == (1000, 1500)
    assert noisy.ess > 50 and every.se > 0.95 * noisy.se
    assert fit.log_evidence(form="per_group", local_draws=64).draws == 1500


def test_estimates_do_not_depend_on_order_or_blocks(fits, table, monkeypatch):
    fit, groups = fits["branch"], read(table, N)
    backwards = groups.subset(positions=np.arange(N)[::-1])
    family = eqx.tree_at(lambda f: f.local.w, fit.family, fit.family.local.w + 0.1)
    fit = Posterior(fit.model, family, groups)
    found = fit.elbo(draws=20)
    assert found.se > 0.01
    assert float(fit.elbo(backwards, draws=20)) == pytest.approx(float(found), abs=1e-4)
    monkeypatch.setattr(_metrics, "ranges", partial(_metrics.ranges, rows=4, places=2))
    assert float(fit.elbo(draws=20)) == pytest.approx(float(found), abs=1e-4)


@pytest.mark.slow
def test_precision_near_ten_million_nats():
    """Right to 0.01 nats in float32, where a float32 sum steps by one."""
    groups, n = 2000, 500
    table = oracle.simulate(0, groups, n, 1)[0]
    table["y"] = table["y"] + 4 * np.random.default_rng(1).normal(size=table["y"].shape)
    exact = oracle.exact(table, groups).log_evidence
    assert -1.1e7 < exact < -0.9e7
    fit = exact_fit("branch", table, groups)
    assert fit.family.theta.mean.dtype == jnp.float32
    assert float(fit.elbo(draws=4)) == pytest.approx(exact, abs=0.01)
    assert float(fit.log_evidence(draws=4)) == pytest.approx(exact, abs=0.01)


def test_estimate_is_a_float():
    estimate = Estimate(-12.3456, se=0.0123, draws=100)
    assert estimate + 1 == -11.3456 and f"{estimate:.1f}" == "-12.3"
    assert repr(estimate) == "-12.346 ± 0.012"
    assert "only 1.5 of 1,000 draws effective" in repr(Estimate(1.0, 0.5, ess=1.5, draws=1000))
    assert repr(Estimate(1.0, se=0.0)) == "1.0000 ± 0.0000"


def test_tables_will_do(fits, table):
    groups = read(table, N)
    test = {name: column[:3] for name, column in table.items()}
    first = Groups.from_table(test, by="group", rows=["x", "y"])
    found = fits["branch"].log_predictive(table, test, draws=20)
    assert found == fits["branch"].log_predictive(groups, first, draws=20)


def test_refusals(fits, table):
    fit = fits["joint"]
    with pytest.raises(ValueError, match=r"joint\(\) covers all 5 groups of its fit .* got 4"):
        fit.elbo(read(table, N).subset(positions=[0, 1, 2, 3]))
    with pytest.raises(
        ValueError, match=r"q\(z_i \| theta\) of each group, and joint\(\) has none"
    ):
        fit.elbo(local_draws=2)
    with pytest.raises(ValueError, match="draws=0; expected a whole number of at least 1"):
        fit.elbo(draws=0)
    with pytest.raises(ValueError, match='row column of test "y" is missing'):
        fit.log_predictive(None, {"group": [0], "x": np.ones((1, DIM))})
    with pytest.raises(ValueError, match='one of "joint", "per_group", "mean_likelihood"; got .x'):
        check_form("log_evidence", "x", EvidenceForm)
