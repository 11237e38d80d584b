"""Groups of which only the square of z is seen: two far modes, two near ones, or a flat top."""

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

import ramify as rf
from benchmarks.right.issue import two_modes_model
from ramify.numerics import budgets
from ramify.numerics.points import box_points, wide_rule
from ramify.posterior.draws import draw_theta
from ramify.posterior.marginal_values import marginal_log_liks

ROWS = 4  # of each group
GRID = np.linspace(-5, 5, 20_001)


def log_joint(mean, a, mu, tau, sigma):
    """Log p(rows' mean, a), up to a constant: a ~ N(mu, tau), rows ~ N(a^2, sigma)."""
    rows = -0.5 * ROWS * ((mean - a**2) / sigma) ** 2
    return rows - 0.5 * ((a - mu) / tau) ** 2 - np.log(tau) - 0.5 * np.log(2 * np.pi)


@pytest.mark.parametrize("mean", [-0.05, 0.03, 0.1, 0.5, 2.0, 4.7])
def test_the_wide_rule_integrates_over_both_modes(mean):
    log_density = lambda a: log_joint(mean, a, 0.05, 0.7, 0.61)
    exact = logsumexp(log_density(GRID)) + np.log(GRID[1] - GRID[0])
    mode = GRID[np.argmax(log_density(GRID))]
    bend = log_density(mode + 1e-3) - 2 * log_density(mode) + log_density(mode - 1e-3)
    width = budgets.WIDENED[1] * 1e-3 / np.sqrt(-bend)
    rule = wide_rule(budgets.WIDENED_ORDER[1], 1, budgets.WIDENED_REACH[1])
    found = logsumexp(log_density(mode + width * rule.points[:, 0]) + rule.log_weight)
    assert found + np.log(width) == pytest.approx(exact, abs=3e-3)


@pytest.mark.parametrize("M", [1, 2])
def test_points_of_a_box_are_even_and_differ_between_groups(M):
    points, chance = box_points(jax.random.key(0), np.arange(3), 1024, M, 5.0)
    assert points.shape == (1024, 3, M) and chance.shape == (1024, 3)
    counts = [np.histogramdd(points[:, i], 4, [(-5, 5)] * M)[0] for i in range(3)]
    np.testing.assert_allclose(counts, 1024 / 4**M, rtol=0.1)
    assert np.abs(points[:, 0] - points[:, 1]).min() > 0


@pytest.mark.slow
def test_a_fit_and_its_draws_have_both_modes_of_every_group():
    rng, N = np.random.default_rng(10), 60
    g = np.repeat(np.arange(N), ROWS)
    y = (0.4 + rng.normal(size=N))[g] ** 2 + 0.6 * rng.normal(size=g.size)
    groups = rf.Groups.from_table({"g": g, "y": y}, by="g", rows=["y"])
    fit = rf.fit(rf.from_numpyro(two_modes_model, groups), groups, theta="weighted")
    assert fit.family.local.widened > 1 and fit.notes["second_modes"] == 0

    mean, square = (np.bincount(g, x) / ROWS for x in (y, y**2))
    own = fit.model
    theta = draw_theta(jax.random.key(0), fit.family, own, 50).theta
    values = {name: np.asarray(x) for name, x in jax.vmap(own.theta.values)(theta).items()}
    exact, upper = np.zeros(len(theta)), np.zeros((len(theta), N))
    for s, (mu, tau, sigma) in enumerate(zip(*(values[n] for n in ("mu", "tau", "sigma")))):
        each = log_joint(mean[:, None], GRID, mu, tau, sigma)
        mass = logsumexp(each, axis=1)
        upper[s] = np.exp(logsumexp(each[:, GRID > 0], axis=1) - mass)
        within = -0.5 * ROWS * (square - mean**2) / sigma**2
        within -= ROWS * (np.log(sigma) + 0.5 * np.log(2 * np.pi))
        exact[s] = np.sum(mass + np.log(GRID[1] - GRID[0]) + within)
    found = marginal_log_liks(fit.family, own, groups, theta, fit.notes["quadrature_points"])
    np.testing.assert_allclose(found, exact, atol=0.02)

    drawn = fit.sample(4000)
    share = (np.asarray(drawn["a"]) > 0).mean(0)
    # The exact share is a mean over all draws of theta, known here for 50 of them.
    error = np.sqrt(upper.mean(0) * (1 - upper.mean(0)) / 4000 + upper.var(0) / 50)
    assert np.abs((share - upper.mean(0)) / error).max() < 4.5
    assert share[mean > 4].max(initial=0) < 0.999
