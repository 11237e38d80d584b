"""Log p(y | theta) at draws of theta, z integrated out, against exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import log_expit, logsumexp
from scipy.stats import multivariate_normal

import oracle
import ramify as rf
from exact_fits import exact_fit
from ramify.data.host import ranges
from ramify.posterior.conditioned import condition
from ramify.posterior.draws import draw_theta
from ramify.posterior.marginal_values import (
    _by_group,
    _by_sharing,
    _rule,
    marginal_log_liks,
    together,
)
from ramify.posterior.metrics import theta_terms
from ramify.posterior.theta_check import theta_log_weights

normal = lambda mean, sd, x: dist.Normal(mean, sd).log_prob(x)


def table(N, n, M, sd, seed=0):
    """Rows with a column `w` that has a common effect, and M columns with effects of each group."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(N), n)
    x = np.concatenate([np.ones((g.size, 1)), rng.normal(size=(g.size, M - 1))], 1)
    w = rng.normal(size=g.size)
    return {"g": g, "x": x, "w": w}, np.sum((0.5 + sd * rng.normal(size=(N, M)))[g] * x, 1) + 2 * w


def model(M, likelihood, more, common=True):
    """With or without theta in the likelihood: `beta` is an effect of `w`, or has its prior alone."""
    shift = lambda t, row: t["beta"] * row["w"] if common else 0.0
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive(), "beta": rf.real()} | more,
        z={"a": rf.real(M)},
        log_prior=lambda t: (
            normal(0, 2, t["mu"])
            + dist.HalfNormal(1).log_prob(t["tau"])
            + normal(0, 3, t["beta"])
            + sum(dist.HalfNormal(1).log_prob(t[name]) for name in more)
        ),
        log_local=lambda t, z, group: jnp.sum(normal(t["mu"], t["tau"], z["a"])),
        log_lik=lambda t, z, row: likelihood(t, z["a"] @ row["x"] + shift(t, row)).log_prob(
            row["y"]
        ),
    )


def bernoulli(N=12, n=6, sd=1.5, common=True):
    """Random intercepts: an integral over one number for each group."""
    columns, eta = table(N, n, 1, sd)
    y = (np.random.default_rng(1).random(eta.size) < 1 / (1 + np.exp(-eta))).astype(int)
    e = np.linspace(-9, 9, 2001)

    def exact(mu, tau, beta):
        own = mu + tau * e + (common * beta * columns["w"])[:, None]
        rows = log_expit(np.where(y == 1, 1, -1)[:, None] * own)
        by_group = np.stack([rows[columns["g"] == i].sum(0) for i in range(N)])
        log_p = -0.5 * e**2 - logsumexp(-0.5 * e**2)
        return logsumexp(by_group + log_p, axis=1).sum()

    likelihood = lambda t, eta: dist.Bernoulli(logits=eta)
    return model(1, likelihood, {}, common), columns | {"y": y}, exact


def gaussian(M, sd, N=10, n=20):
    """Normal rows: those of a group have a known covariance."""
    columns, eta = table(N, n, M, sd)
    y = eta + 0.6 * np.random.default_rng(1).normal(size=eta.size)

    def exact(mu, tau, beta, sigma):
        total = 0.0
        for i in range(N):
            own = columns["g"] == i
            x, mean = columns["x"][own], mu * columns["x"][own].sum(1) + beta * columns["w"][own]
            covariance = tau**2 * x @ x.T + sigma**2 * np.eye(n)
            total += multivariate_normal.logpdf(y[own], mean, covariance)
        return total

    likelihood = lambda t, eta: dist.Normal(eta, t["sigma"])
    return model(M, likelihood, {"sigma": rf.positive()}), columns | {"y": y}, exact


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(lambda: bernoulli(sd=0.1), id="bernoulli near zero"),
        pytest.param(lambda: bernoulli(sd=0.1, common=False), id="shared points near zero"),
        pytest.param(lambda: bernoulli(30, 10, common=False), id="shared", marks=pytest.mark.slow),
        pytest.param(bernoulli, id="bernoulli", marks=pytest.mark.slow),
        pytest.param(lambda: gaussian(1, 0.02), id="near zero", marks=pytest.mark.slow),
        pytest.param(lambda: gaussian(2, 0.7), id="two", marks=pytest.mark.slow),
        pytest.param(lambda: gaussian(3, 0.7), id="three", marks=pytest.mark.slow),
    ],
)
def test_z_is_integrated_out_wherever_theta_is(problem):
    """Theta is in the likelihood, too, and some of its draws are far from the centre of q(theta)."""
    own, columns, exact = problem()
    groups = rf.Groups.from_table(columns, by="g", rows=["x", "w", "y"])
    fit = rf.fit(own, groups, theta="gaussian")
    theta = draw_theta(jax.random.key(0), fit.family, own, 200)
    values = jax.vmap(own.theta.values)(jnp.asarray(theta.theta))
    each = zip(*(np.asarray(column, np.float64) for column in values.values()), strict=True)
    true = [exact(**dict(zip(values, row, strict=True))) for row in each]
    found = theta_log_weights(fit.family, own, groups, theta, 64)[0] - theta_terms(own, theta)
    np.testing.assert_allclose(found, true, atol=0.01)
    if own.z.size < 3:
        np.testing.assert_allclose(
            marginal_log_liks(fit.family, own, groups, theta.theta), true, atol=0.01
        )


@pytest.mark.slow
def test_effects_with_two_modes_are_integrated_over_both():
    """Groups of two kinds: exact where their kind is hardly seen, and where p(z | theta) is narrow."""
    rng, N, n = np.random.default_rng(0), 120, 3
    g = np.repeat(np.arange(N), n)
    y = np.where(rng.random(N) < 0.4, 2.0, -1.0)[g] + 0.3 * rng.normal(size=N)[g]
    table = {"g": g, "y": y + 1.5 * rng.normal(size=g.size)}
    kinds = lambda t: jnp.stack([t["low"], t["low"] + t["gap"]])
    own = rf.Model(
        theta={"low": rf.real(), "gap": rf.positive(), "tau": rf.positive()},
        z={"a": rf.real()},
        log_prior=lambda t: (
            normal(0, 2, t["low"])
            + dist.HalfNormal(3).log_prob(t["gap"])
            + dist.HalfNormal(1).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: jax.nn.logsumexp(
            jnp.log(jnp.array([0.6, 0.4])) + normal(kinds(t), t["tau"], z["a"])
        ),
        log_lik=lambda t, z, row: normal(z["a"], 1.5, row["y"]),
    )
    groups = rf.Groups.from_table(table, by="g", rows=["y"])
    fit = rf.fit(own, groups, theta="gaussian")
    assert fit.family.local.widened > 1 and fit.notes["second_modes"] == 0

    def exact(low, gap, tau):
        rows, covariance = table["y"].reshape(N, n), tau**2 + 1.5**2 * np.eye(n)
        of = lambda mean: multivariate_normal.logpdf(rows, [mean] * n, covariance)
        return logsumexp([np.log(0.6) + of(low), np.log(0.4) + of(low + gap)], axis=0).sum()

    values = [(-1.0, 3.0, 0.3), (-0.5, 2.0, 0.8), (-1.2, 4.0, 0.05)]
    thetas = np.stack(
        [own.theta.unconstrain(dict(zip(own.theta.parameters, v, strict=True))) for v in values]
    )
    found = marginal_log_liks(fit.family, own, groups, thetas, fit.notes["quadrature_points"])
    np.testing.assert_allclose(found, [exact(*v) for v in values], atol=0.03)  # 1e-4 a group
    # Kinds of the groups in draws of z: as often as their posterior probabilities say.
    low, gap, tau = (fit.sample_theta(2000)[name].mean() for name in own.theta.parameters)
    high = fit.sample(2000)["a"] > low + gap / 2
    mean, sd = table["y"].reshape(N, n).mean(1), np.sqrt(tau**2 + 1.5**2 / n)
    odds = 0.4 / 0.6 * np.exp(0.5 * ((mean - low) / sd) ** 2 - 0.5 * ((mean - low - gap) / sd) ** 2)
    assert np.abs(high.mean(0) - odds / (1 + odds)).max() < 0.15


def test_rows_to_condition_on_keep_a_column_that_those_to_predict_lack():
    of = lambda **more: rf.Groups.from_table(
        {"g": [0, 0, 1], "y": np.arange(3.0), **more}, by="g", rows=["y", *more]
    )
    plain, apart = of(), of(U_apart=np.arange(1.0, 4.0))
    assert together(apart, plain).rows["U_apart"].tolist() == [1, 2, 0, 0, 3, 0]
    assert together(plain, apart).rows["U_apart"].tolist() == [0, 0, 1, 2, 0, 3]


def test_all_thetas_of_a_chunk_that_is_not_full_share_points():
    """A theta that was left out would have points of its own, which takes much longer."""
    train = oracle.simulate(3, 12, 2, 2)[0]
    fit, exact = exact_fit("solved", train, 12), oracle.exact(train, 12)
    noise = np.random.default_rng(0).normal(size=(300, 2))
    thetas = (exact.theta_mean + noise @ np.linalg.cholesky(exact.theta_cov).T).astype(np.float32)
    known = condition(fit.family, fit.model, next(ranges(fit.groups)).batches[0], 2)
    own = known, fit.model, thetas, _rule(known.local, fit.model, 0), lambda log_mass: (log_mass,)
    (shared,), left = _by_sharing(*own)
    assert len(shared) == 300 and not left.size
    apart = _by_group(known, fit.model, thetas[-4:], own[3])
    np.testing.assert_allclose(shared[-4:, :12], np.asarray(apart)[:, :12], atol=1e-4)
