"""From the mode of theta to its mean, where many groups say little of an sd."""

from types import SimpleNamespace

import numpy as np
import pytest

import ramify as rf
from ramify.inference.theta_mean import centred
from ramify.numerics import budgets

DF = 20.0  # of the information on log s


class Scale:
    """F of (log s, psi): s^2 is about chi^2 with DF degrees of freedom, psi ~ N(2 log s, 1/10)."""

    points = 8

    def with_draws(self, local_draws):
        return self

    def blocks_with(self, groups):
        return 1

    def check_budget(self):
        """There is no budget."""

    def expand(self, thetas, blocks=None):
        a, apart = thetas[:, 0], thetas[:, 1] - 2 * thetas[:, 0]
        values = DF * a - 0.5 * DF * np.exp(2 * a) - 50 * apart**2
        slope = np.stack([DF * (1 - np.exp(2 * a)) + 200 * apart, -100 * apart], 1)
        return values, slope


def learned(precision):
    value = SimpleNamespace(mean=np.zeros(2), precision=precision, local_draws=1)
    value._replace = lambda **new: SimpleNamespace(**(vars(value) | new))
    return value


def test_mean_and_sd_are_those_of_the_best_gaussian():
    """Log s has mean (digamma(k) - log k) / 2 and variance trigamma(k) / 4, k = DF / 2."""
    from scipy.special import digamma, polygamma

    mode = np.array([[2 * DF + 400.0, -200.0], [-200.0, 100.0]])
    found = centred(Scale(), learned(mode))
    assert found.mode[1] is mode and not found.mode[0].any()
    k = DF / 2
    mean, sd = 0.5 * (digamma(k) - np.log(k)), 0.5 * np.sqrt(polygamma(1, k))
    assert abs(mean) / sd > 0.15  # of the mode, at zero
    np.testing.assert_allclose(found.mean, [mean, 2 * mean], atol=0.04 * sd)
    assert np.sqrt(np.linalg.inv(found.precision)[0, 0]) == pytest.approx(sd, rel=0.04)


def test_a_mode_that_is_the_mean_stays():
    """Where sds are small, nothing is computed; where F is a parabola, nothing moves."""
    own = learned(np.diag([1e4, 1e4]))
    assert centred(None, own) is own


@pytest.mark.slow
def test_an_sd_near_zero_with_many_groups(monkeypatch):
    """Its log is skewed: weighted draws know its mean and sd, and the mode is far off."""
    rng = np.random.default_rng(0)
    g, x = np.repeat(np.arange(600), 12), rng.normal(size=7200).round(3)
    own = rng.normal([-1.2, 0.4], [0.6, 0.3], (600, 2))[g]
    y = rng.random(7200) < 1 / (1 + np.exp(-own[:, 0] - own[:, 1] * x))
    table = {"g": g, "x": x, "y": y.astype(int)}
    made = rf.from_formula("y ~ x + (1 + x || g)", table, likelihood="bernoulli")
    exact = rf.fit(*made, theta="weighted").summary()
    monkeypatch.setattr(budgets, "LAPLACE_GROUPS", 500)
    found = rf.fit(*made, theta="gaussian").summary()
    noise = 2 / np.sqrt(exact["ess"])
    off = np.abs(found["mean"] - exact["mean"]) / exact["sd"]
    assert np.all(off < 0.06 + noise)
    assert np.all(np.abs(np.log(found["sd"] / exact["sd"])) < 0.05 + noise)
    monkeypatch.setattr("ramify.inference.theta_mean.WIDE", np.inf)
    mode = rf.fit(*made, theta="gaussian").summary()
    assert np.max(np.abs(mode["mean"] - exact["mean"]) / exact["sd"]) > 0.2
    print(
        off,
        found["sd"] / exact["sd"],
        np.abs(mode["mean"] - exact["mean"]) / exact["sd"],
        mode["sd"] / exact["sd"],
    )
