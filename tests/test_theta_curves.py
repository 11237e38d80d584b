"""Skewed marginals of theta by F along curves, beside exact answers and NUTS on the same F."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import ramify as rf
from ramify.inference.marginal import Tilt
from ramify.inference.shared_draws import with_slope
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
    drawn, log_density, shift = draw_theta(F, centre, -hessian, curves, 0)
    s = np.exp(drawn[:, 0])
    assert abs(s.mean() - np.sqrt(2 / np.pi)) < 0.05 * s.std() and shift < 0.5
    assert abs(s.std() / np.sqrt(1 - 2 / np.pi) - 1) < 0.03
    assert abs(np.mean(s < 0.1) - 0.0797) < 0.015
    sd = np.sqrt(1 + WIDER + 2 * SLOPE**2)
    assert np.all(np.abs(drawn[:, 1:].mean(0) - SLOPE) < 0.05 * sd)
    assert np.all(np.abs(drawn[:, 1:].std(0) / sd - 1) < 0.06)
    # Weights by their density: even, with exact moments up to three standard errors.
    log_weight = F.expand(drawn)[0] - log_density
    weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    effective = 1 / np.sum(weight**2)
    assert effective > 0.85 * len(drawn)
    noise = 3 / np.sqrt(effective)
    assert abs(weight @ s - np.sqrt(2 / np.pi)) < noise * s.std()
    assert abs(weight @ s**2 - 1) < noise * np.sqrt(2)
    assert np.all(np.abs(weight @ drawn[:, 1:] - SLOPE) < noise * sd)


def test_values_with_a_wrong_slope_get_that_of_F():
    """The correction is linear near the mean, and bounded far from it."""
    F = HalfNormal()
    precision = np.diag([4.0, 1.0, 2.0, 1.0])
    precision[0, 1] = precision[1, 0] = 0.5
    mean, wrong = np.array([0.1, -0.2, 0.3, 0.0]), np.array([0.7, -0.4, 0.2, 0.5])
    learned = SimpleNamespace(mean=mean, precision=precision)
    values = lambda thetas: F.expand(thetas)[0] + (thetas - mean) @ wrong
    corrected = with_slope(values, F, learned)
    near = mean + 0.05 * np.eye(4)
    np.testing.assert_allclose(corrected(near), F.expand(near)[0], atol=2e-3)
    far = mean + np.diag([-9.0, 0, 0, 0])
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert abs(corrected(far) - values(far))[0] < 1.01 * 2.5 * sd[0] * wrong[0]


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


@pytest.mark.slow
def test_draws_by_curves_are_weighed_where_they_share_points_of_z(monkeypatch):
    """Few Bernoulli rows a group; all common effects vary, two of them with an sd of zero."""
    rng = np.random.default_rng(3)
    g, x = np.repeat(np.arange(150), 6), rng.normal(size=(900, 3)).round(3)
    own = np.array([0.5, 0.3, -0.4, 0.2]) + rng.normal(size=(150, 4)) * [0.8, 0.7, 0, 0]
    eta = own[g, 0] + np.sum(x * own[g, 1:], 1)
    table = {"g": g, "y": (rng.random(900) < 1 / (1 + np.exp(-eta))).astype(int)}
    table |= {f"x{k}": x[:, k] for k in range(3)}
    formula = "y ~ x0 + x1 + x2 + (1 + x0 + x1 + x2 || g)"
    made = rf.from_formula(formula, table, likelihood="bernoulli")
    exact = rf.fit(*made, theta="weighted").summary()
    monkeypatch.setattr(budgets, "LAPLACE_GROUPS", 100)
    monkeypatch.setattr(budgets, "NUTS_SECONDS", 0.0)
    monkeypatch.setitem(budgets.WEIGHTED_THETA_WORK, "cpu", 1)
    posterior = rf.fit(*made)
    notes, found = posterior.notes, posterior.summary()
    assert "theta_curves" not in notes and notes["theta_effective_draws"] > 800
    sd = np.asarray(exact["sd"])
    noise = 3 * np.sqrt(1 / exact["ess"] + 1 / found["ess"])
    assert np.all(np.abs(found["mean"] - exact["mean"]) / sd < 0.05 + noise)
    assert np.all(np.abs(np.log(found["sd"] / sd)) < 0.05 + noise)
    monkeypatch.setitem(budgets.WEIGHED_CURVE_WORK, "cpu", 1)
    assert len(rf.fit(*made).notes["theta_curves"]) >= 2
