"""Log p(y | theta) at draws of theta, z integrated out, against exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import log_expit, logsumexp
from scipy.stats import multivariate_normal

import ramify as rf
from ramify.posterior.draws import draw_theta
from ramify.posterior.marginal_values import marginal_log_liks
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


def model(M, likelihood, more):
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
        log_lik=lambda t, z, row: likelihood(t, z["a"] @ row["x"] + t["beta"] * row["w"]).log_prob(
            row["y"]
        ),
    )


def bernoulli(N=12, n=6, sd=1.5):
    """Random intercepts: an integral over one number for each group."""
    columns, eta = table(N, n, 1, sd)
    y = (np.random.default_rng(1).random(eta.size) < 1 / (1 + np.exp(-eta))).astype(int)
    e = np.linspace(-9, 9, 2001)

    def exact(mu, tau, beta):
        own = mu + tau * e + (beta * columns["w"])[:, None]
        rows = log_expit(np.where(y == 1, 1, -1)[:, None] * own)
        by_group = np.stack([rows[columns["g"] == i].sum(0) for i in range(N)])
        log_p = -0.5 * e**2 - logsumexp(-0.5 * e**2)
        return logsumexp(by_group + log_p, axis=1).sum()

    return model(1, lambda t, eta: dist.Bernoulli(logits=eta), {}), columns | {"y": y}, exact


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
