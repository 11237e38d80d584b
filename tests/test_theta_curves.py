"""Skewed marginals of theta by F along curves, beside exact answers and NUTS on the same F."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import ramify as rf
from ramify.inference.marginal import Tilt
from ramify.inference.theta_copula import draw_theta
from ramify.inference.theta_curves import follow
from ramify.numerics import budgets

SLOPE, WIDER = np.array([0.4, -0.3, 0.2]), 0.2


class HalfNormal:
    """F of (log s, psi): s is half normal, and psi normal around SLOPE s^2, wider for larger s."""

    tilt = Tilt(np.zeros(4), np.zeros(4), np.zeros((4, 4)))

    def log_density(self, theta):
        s2 = jnp.exp(2 * theta[0])
        around = norm.logpdf(theta[1:], SLOPE * s2, jnp.sqrt(1 + WIDER * s2))
        return theta[0] - 0.5 * s2 + jnp.sum(around)

    def expand(self, thetas):
        both = jax.vmap(jax.value_and_grad(self.log_density))(thetas)
        return tuple(np.asarray(x, np.float64) for x in both)

    def check_budget(self):
        """There is no budget."""


def test_a_half_normal_sd_and_what_depends_on_it():
    """E psi is SLOPE, var psi 1 + WIDER + SLOPE^2 var s^2; its density near zero is flat in s."""
    F, theta = HalfNormal(), np.zeros(4)
    newton = jax.jit(
        lambda theta: (jax.grad(F.log_density)(theta), jax.hessian(F.log_density)(theta))
    )
    for _ in range(10):
        slope, hessian = (np.asarray(x, np.float64) for x in newton(theta))
        theta = theta - np.linalg.solve(hessian, slope)
    centre, curves = follow(F, theta, -hessian, [0])
    drawn, shift = draw_theta(F, centre, -hessian, curves, 0)
    s = np.exp(drawn[:, 0])
    assert abs(s.mean() - np.sqrt(2 / np.pi)) < 0.05 * s.std() and shift < 0.5
    assert abs(s.std() / np.sqrt(1 - 2 / np.pi) - 1) < 0.03
    assert abs(np.mean(s < 0.1) - 0.0797) < 0.015
    sd = np.sqrt(1 + WIDER + 2 * SLOPE**2)
    assert np.all(np.abs(drawn[:, 1:].mean(0) - SLOPE) < 0.05 * sd)
    assert np.all(np.abs(drawn[:, 1:].std(0) / sd - 1) < 0.06)


def intercepts():
    """Bernoulli rows whose groups do not differ: an sd of zero."""
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(100), 10), rng.normal(size=1000).round(3)
    y = (rng.random(1000) < 1 / (1 + np.exp(-0.4 - x))).astype(int)
    return rf.from_formula("y ~ x + (1 | g)", {"g": g, "x": x, "y": y}, likelihood="bernoulli")


def slopes():
    """Rows of which two slopes do not differ between groups, and one does."""
    rng = np.random.default_rng(2)
    g, x = np.repeat(np.arange(300), 6), rng.normal(size=(1800, 3)).round(3)
    own = 0.7 * rng.normal(size=(300, 3)) * np.array([1, 0, 0])
    y = 0.5 + np.sum(x * (0.3 + own[g]), 1) + rng.normal(size=1800)
    table = {"g": g, "y": y.round(4)} | {f"x{k}": x[:, k] for k in range(3)}
    return rf.from_formula("y ~ x0 + x1 + x2 + (0 + x0 + x1 + x2 || g)", table)


@pytest.mark.slow
@pytest.mark.parametrize("made, exact", [(intercepts, "weighted"), (slopes, "nuts")])
def test_marginals_by_curves_are_those_of_draws(made, exact, monkeypatch):
    """Data that are too many for weights and for NUTS, with sds near zero."""
    model, groups = made()
    monkeypatch.setattr(budgets, "LAPLACE_GROUPS", 200)
    exact = rf.fit(model, groups, theta=exact).summary()
    monkeypatch.setattr(budgets, "NUTS_SECONDS", 0.0)
    monkeypatch.setitem(budgets.WEIGHTED_THETA_WORK, "cpu", 1)
    posterior = rf.fit(model, groups)
    assert posterior.notes["theta_curves"] and not posterior.notes.get("warnings")
    found = posterior.summary()
    sd, noise = np.asarray(exact["sd"]), 3 / np.sqrt(np.asarray(exact["ess"]))
    assert np.all(np.abs(found["mean"] - exact["mean"]) / sd < 0.1 + noise)
    assert np.all(np.abs(np.log(found["sd"] / sd)) < 0.05 + noise)
    gaussian = rf.fit(model, groups, theta="gaussian")  # of the log of an sd
    assert np.max(np.abs(gaussian.summary()["mean"] - exact["mean"]) / sd) > 0.5
    assert 'fit with theta="nuts"' in gaussian.notes["warnings"][0]
