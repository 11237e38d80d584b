"""Draws, summaries and labels of a posterior, against the exact posterior where there is one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import oracle
from exact_fits import exact_fit, gaussian, read
from quick import slow_but
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.families.build import branch, joint
from ramify.models.model import Model
from ramify.models.parameters import positive, real
from ramify.numerics import budgets
from ramify.numerics.hashing import keys_of, normals
from ramify.posterior.draws import draw_theta
from ramify.posterior.posterior import Posterior

SIZES = np.array([4, 0, 3, 6, 1])
N, DIM = len(SIZES), 2
METHODS = ["joint", "branch", "solved"]


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(3, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def fits(table):
    return {method: exact_fit(method, table, N) for method in METHODS}


@pytest.mark.parametrize("method", slow_but(["branch"], METHODS))
def test_moments_of_samples(fits, table, method):
    """Every mean and every covariance of (theta, z_1 .. z_N) within 4.5 standard errors."""
    draws = 4000
    sample = fits[method].sample(draws)
    assert {n: (v.shape, v.dtype) for n, v in sample.items()} == {
        "mu": ((draws, DIM), np.float32),
        "beta": ((draws, N, DIM), np.float32),
    }
    x = np.concatenate([sample["mu"], sample["beta"].reshape(draws, -1)], 1).astype(float)
    brute = oracle.brute_force(table, N)
    var = np.diagonal(brute.cov)
    assert np.all(np.abs(x.mean(0) - brute.mean) < 4.5 * np.sqrt(var / draws))
    error = np.sqrt((np.outer(var, var) + brute.cov**2) / draws)
    assert np.all(np.abs(np.cov(x.T) - brute.cov) < 4.5 * error)


def test_samples_are_those_of_the_family(fits):
    """For K = 1 a draw of z is the family's own given theta, made with the draw's key."""
    fit = fits["branch"]
    sample, batch = fit.sample(20, seed=7), whole(fit.groups)
    key = jax.random.wrap_key_data(jnp.asarray(keys_of(jax.random.key(7), np.arange(20))[3]))
    local = fit.family.conditional(fit.model, batch)(sample["mu"][3])
    z, _ = local.draw(normals(key, batch.index, (DIM,)))
    np.testing.assert_allclose(sample["beta"][3], z, atol=1e-6)


def test_draws_of_theta_are_those_of_q(fits):
    """Mean and covariance within five standard errors; more draws begin with the same ones."""
    fit, S = fits["branch"], 20_000
    mu, q = fit.sample_theta(S, seed=1)["mu"], fit.family.theta
    covariance = np.asarray(q.covariance)
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_array_less(np.abs(mu.mean(0) - q.mean), 5 * sd / np.sqrt(S))
    spread = np.outer(sd, sd)
    np.testing.assert_array_less(np.abs(np.cov(mu.T) - covariance), 5 * spread * np.sqrt(2 / S))
    np.testing.assert_array_equal(fit.sample_theta(7, seed=1)["mu"], mu[:7])
    drawn = draw_theta(jax.random.key(1), fit.family, fit.model, 50)
    exact = [q.log_prob(jnp.asarray(theta)) for theta in drawn.theta]
    np.testing.assert_allclose(drawn.log_q, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", slow_but(["joint", "branch"], METHODS))
def test_blocks_hold_the_same_numbers(fits, method, monkeypatch):
    fit = fits[method]
    monkeypatch.setattr(budgets, "SAMPLED_NUMBERS", 20 * DIM * 2)  # two groups a block
    whole = fit.sample(20, seed=1)
    blocks = list(fit.sample_blocks(20, seed=1))
    assert [len(labels) for labels, _ in blocks] == [2, 2, 1]
    assert np.concatenate([labels for labels, _ in blocks]).tolist() == list(range(N))
    for _, block in blocks:
        np.testing.assert_array_equal(block["mu"], whole["mu"])
    beta = np.concatenate([block["beta"] for _, block in blocks], 1)
    np.testing.assert_array_equal(beta, whole["beta"])
    np.testing.assert_array_equal(fit.sample_theta(20, seed=1)["mu"], whole["mu"])


@pytest.mark.parametrize("method", METHODS)
def test_some_groups_get_the_same_draws(fits, table, method):
    fit = fits[method]
    some = read(table, N).subset(labels=[3, 0])
    np.testing.assert_allclose(
        fit.sample(20, some, seed=2)["beta"], fit.sample(20, seed=2)["beta"][:, [3, 0]], atol=1e-5
    )


def test_more_draws_begin_with_the_same(fits):
    few, many = fits["branch"].sample(10, seed=2), fits["branch"].sample(20, seed=2)
    for name, value in few.items():
        np.testing.assert_allclose(value, many[name][:10], atol=1e-5)


def test_groups_are_matched_by_label(table):
    """A fit to some groups of a data set, asked about others in another order."""
    groups = read(table, N)
    fitted = groups.subset(labels=[2, 3, 0])
    fit = exact_fit("branch", table, N)
    family = eqx.tree_at(lambda f: f.local.w, fit.family, fit.family.local.w[jnp.array([2, 3, 0])])
    family = type(family)(family.theta, family.local, 3)
    part = Posterior(fit.model, family, fitted)
    expected = fit.sample(4000)["beta"].mean(0)
    np.testing.assert_allclose(part.sample(4000)["beta"].mean(0), expected[[2, 3, 0]], atol=0.15)
    found = part.sample(4000, groups.subset(labels=[0, 2]))["beta"].mean(0)
    np.testing.assert_allclose(found, expected[[0, 2]], atol=0.15)
    assert np.ptp(expected, 0).min() > 0.5
    with pytest.raises(
        ValueError, match=r"branch\(\) has parameters for the 3 groups .* group 1 is"
    ):
        part.sample(10, groups)


@pytest.mark.parametrize("method", ["joint", "branch"])
def test_new_groups_are_refused(table, method):
    named = {**table, "group": np.array([f"u{i}" for i in table["group"]])}
    groups = Groups.from_table(named, by="group", rows=["x", "y"])
    make = joint if method == "joint" else branch
    model = exact_fit("branch", table, N).model
    fit = Posterior(model, make(model, groups), groups)
    new = Groups.from_table(
        {**named, "group": np.where(named["group"] == "u2", "new", named["group"])},
        by="group",
        rows=["x", "y"],
    )
    message = (
        rf"{method}\(\) has parameters for the 4 groups it was fitted to; group 'new' is new. "
        r"Fit an amortized\(\) or solved\(\) family to infer new groups."
    )
    for method_of_posterior in (fit.sample, fit.elbo):
        with pytest.raises(ValueError, match=message):
            method_of_posterior(groups=new)
    numbers = Groups.from_table(table, by="group", rows=["x", "y"])
    with pytest.raises(TypeError, match="holds integers and the data's labels are strings"):
        fit.sample(1, numbers)


def test_solved_takes_new_groups(fits, table):
    """The same rows under labels that the fit never saw: the same conditionals, other noise."""
    new = Groups.from_table({**table, "group": table["group"] + 100}, by="group", rows=["x", "y"])
    sample, exact = fits["solved"].sample(4000, new)["beta"], oracle.exact(table, N)
    sd = np.sqrt(np.diagonal(exact.z_cov, axis1=1, axis2=2))
    off = (sample.mean(0) - exact.z_mean[SIZES > 0]) / sd[SIZES > 0]
    assert np.abs(off).max() < 4.5 / 4000**0.5


@pytest.mark.slow
def test_resampling_by_weight():
    """Skewed locals, Gamma posteriors, under a poor Gaussian: K = 256 repairs what K = 1 can't."""
    shape, rate = 1.5, 2.0
    counts = {"g": np.repeat([0, 1, 2], [1, 2, 4]), "y": np.array([0, 2, 1, 5, 3, 4, 6])}
    groups = Groups.from_table(counts, by="g", rows="y")
    model = Model(
        theta={"mu": real()},
        z={"rate": positive()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.Gamma(shape, rate).log_prob(z["rate"]),
        log_lik=lambda t, z, row: dist.Poisson(z["rate"]).log_prob(row["y"]),
    )
    family = branch(model, groups, "diagonal")
    draws = 4000
    total = np.bincount(counts["g"], counts["y"])
    exact = stats.gamma(shape + total, scale=1 / (rate + groups.sizes))
    off = {}
    for K in (1, 256):
        fit = Posterior(model, family, groups, local_draws=K)
        rates = fit.sample(draws, local_draws=K)["rate"].astype(float)
        off[K] = np.abs(rates.mean(0) - exact.mean()) / (exact.std() / np.sqrt(draws))
    assert off[1].min() > 10
    assert off[256].max() < 4.5
    for i, (a, b) in enumerate(zip(shape + total, rate + groups.sizes, strict=True)):
        assert stats.kstest(rates[:, i], stats.gamma(a, scale=1 / b).cdf).pvalue > 1e-4


def test_memory_is_asked_for_politely(fits):
    with pytest.raises(
        MemoryError, match=r"1,000 draws of 5 groups take 48 kB; at most 1 kB .*sample_blocks"
    ):
        fits["branch"].sample(1000, max_bytes=1000)


def test_family_of_other_groups_is_refused(fits, table):
    fit = fits["branch"]
    with pytest.raises(
        ValueError, match=r"parameters for the 5 groups it was built for; got data wi"
    ):
        Posterior(fit.model, fit.family, read(table, N).subset(positions=[0, 1]))
    other = Model(
        theta={"mu": real(3)},
        z={"beta": real(DIM)},
        log_prior=lambda t: 0.0,
        log_local=lambda t, z, group: 0.0,
        log_lik=lambda t, z, row: 0.0,
    )
    with pytest.raises(ValueError, match="a theta of 2 dimensions; the model's has 3"):
        Posterior(other, fit.family, read(table, N))


def test_columns_of_other_data_are_refused(fits, table):
    fit = fits["solved"]
    without = Groups.from_table(table, by="group", rows=["x"])
    with pytest.raises(ValueError, match='row column of groups "y" is missing'):
        fit.elbo(without)
    wide = {**table, "x": np.concatenate([table["x"], table["x"]], 1)}
    with pytest.raises(ValueError, match=r'"x" has elements of shape \[4\]; expected \[2\]'):
        fit.sample(1, Groups.from_table(wide, by="group", rows=["x", "y"]))


@pytest.fixture(scope="module")
def scales():
    """Real and positive globals with a known q(theta)."""
    groups = Groups.from_table({"g": [0, 1], "y": [0.0, 1.0]}, by="g", rows="y")
    model = Model(
        theta={"mu": real(2), "tau": positive()},
        z={"b": real()},
        log_prior=lambda t: 0.0 * t["tau"],
        log_local=lambda t, z, group: 0.0 * z["b"],
        log_lik=lambda t, z, row: 0.0 * z["b"],
    )
    q = gaussian(np.array([1.0, -2.0, 0.5]), np.diag([0.25, 0.01, 0.04]))
    family = eqx.tree_at(lambda f: f.theta, branch(model, groups), q)
    return Posterior(model, family, groups, history={"elbo": np.array([-3.0, -2.0])})


def test_summary(scales):
    summary = scales.summary()
    assert summary.names == ["mu[0]", "mu[1]", "tau"]
    assert list(summary.columns) == ["mean", "sd", "q5", "q50", "q95"]
    np.testing.assert_allclose(summary["mean"][:2], [1, -2], rtol=1e-6)
    np.testing.assert_allclose(summary["sd"][:2], [0.5, 0.1], rtol=1e-6)
    np.testing.assert_allclose(summary["mu[0]"]["q95"], 1 + 0.5 * stats.norm.ppf(0.95), rtol=1e-6)
    tau = stats.lognorm(0.2, scale=np.exp(0.5))
    row = summary["tau"]
    assert row["mean"] == pytest.approx(tau.mean(), abs=4.5 * tau.std() / 20_000**0.5)
    assert row["q95"] == pytest.approx(tau.ppf(0.95), rel=0.01)
    assert row["sd"] == pytest.approx(tau.std(), rel=0.03)
    assert list(scales.summary(quantiles=[0.025]).columns) == ["mean", "sd", "q2.5"]
    with pytest.raises(KeyError, match="neither a column nor a parameter"):
        summary["nu"]


def test_summary_is_a_table(scales):
    summary = scales.summary(quantiles=[0.5])
    first, second, *_ = repr(summary).splitlines()
    assert first.split() == ["mean", "sd", "q50"]
    assert second.split() == ["mu[0]", "1.000", "0.500", "1.000"]
    frame = summary.to_pandas()
    assert frame.loc["mu[1]", "mean"] == pytest.approx(-2)


def test_repr_says_how_the_fit_went(scales):
    notes = {
        "why": "z is small",
        "steps": 1200,
        "seconds": 3.21,
        "converged": False,
        "unconverged": 7,
        "bias_sds": 0.3,
    }
    fit = Posterior(scales.model, scales.family, scales.groups, history=scales.history, notes=notes)
    assert repr(fit).splitlines() == [
        'Posterior by branch("dense"): N = 2 groups, D = 3, M = 1, K = 1',
        "  chosen because z is small",
        "  ELBO -2.50 nats after 1,200 steps, 3.21 s",
        "  verdict: do not trust",
        "  warning: it had not converged when its budget ended; give it more steps",
        "  warning: an estimate may be off by 0.3 of its sd, for too few local draws; raise local_draws",
        "  warning: the local solution of 7 groups did not converge",
    ]
    assert "a, b, c, ..." in repr(
        Posterior(
            scales.model,
            scales.family,
            scales.groups,
            notes={"unconverged": 4, "unconverged_groups": list("abcd")},
        )
    )
    assert repr(scales).splitlines()[1:] == ["  ELBO -2.00 nats"]


def test_to_arviz(fits, table):
    pytest.importorskip("arviz_base")
    fit = fits["branch"]
    tree = fit.to_arviz(draws=20, seed=4)
    posterior = tree["posterior"]
    assert posterior["beta"].dims == ("chain", "draw", "group", "beta_dim_0")
    sample = fit.sample(20, seed=4)["beta"]
    np.testing.assert_array_equal(posterior["beta"].sel(group=3).values[0], sample[:, 3])
    assert posterior["mu"].shape == (1, 20, DIM)
    assert posterior.attrs["inference_library"] == "ramify"
    part = fit.to_arviz(read(table, N).subset(labels=[2, 0]), draws=20, seed=4)
    np.testing.assert_allclose(part["posterior"]["beta"].sel(group=2)[0], sample[:, 2], atol=1e-6)


def test_double_precision(x64, table):
    fit = exact_fit("branch", table, N)
    assert fit.sample(2)["beta"].dtype == np.float64
    exact = oracle.exact(table, N).log_evidence
    assert float(fit.elbo(draws=5)) == pytest.approx(exact, abs=1e-10)
