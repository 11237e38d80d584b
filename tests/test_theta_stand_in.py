"""The stand-in for F that NUTS moves on: exact where it can be, bounded far out, and corrected by F."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.data.resident import whole
from ramify.data.sources import kept
from ramify.engine.local import LocalEngine
from ramify.families.solver import solver
from ramify.fitting import theta_shape
from ramify.inference.marginal import Marginal, Tilt
from ramify.inference.sweep import Problem
from ramify.inference.theta_search import Learned
from ramify.inference.theta_stand_in import (
    FARTHEST,
    Parabola,
    begin,
    corrected,
    held_tilt,
    stand_in,
)
from ramify.inference.theta_weights import few_count, first_points, weigh_theta
from ramify.numerics import budgets


def normal_model(own: bool = False) -> tuple[rf.Model, rf.Groups]:
    """Groups with a normal intercept and slope, and rows of a known sd: sites are exact.

    The groups have one prior, or each has its `own`.
    """
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(30), 6)
    x = rng.normal(size=len(g)).astype(np.float32)
    z = rng.normal([1.0, -0.5], [0.7, 0.4], (30, 2))[g]
    y = (z[:, 0] + z[:, 1] * x + rng.normal(size=len(g))).astype(np.float32)
    sd = lambda theta, group: theta["sd"] * jnp.exp(group["u"] if own else 0.0)
    prior = rf.NormalPrior(mean=lambda theta, group: theta["mu"], scale=sd)
    model = rf.Model(
        theta={"mu": rf.real(2), "sd": rf.positive(2)},
        z={"own": rf.real(2)},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["sd"]).sum()
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], sd(theta, group)).log_prob(z["own"]).sum()
        ),
        log_lik=lambda theta, z, row: dist.Normal(
            z["own"][0] + z["own"][1] * row["x"], 1.0
        ).log_prob(row["y"]),
        structure=rf.Structure(prior=prior),
    )
    table = {"g": g, "x": x, "y": y, "u": rng.normal(size=30).astype(np.float32)[g] / 4}
    columns = {"group": ["u"]} if own else {}
    return model, rf.Groups.from_table(table, by="g", rows=["x", "y"], **columns)


@pytest.fixture(scope="module")
def made() -> tuple[Marginal, Learned]:
    return of_model(*normal_model())


def of_model(model: rf.Model, groups: rf.Groups) -> tuple[Marginal, Learned]:
    """F by a fine rule, and a q(theta) near its mode."""
    batch = whole(groups)
    source = kept(groups, np.arange(30).reshape(3, 10), 60)
    solved = solver(model, batch, rounds=0)
    problem = Problem(model, solved, 49).with_rule(7)
    F = Marginal(problem, source, LocalEngine(), jax.random.key(0), 16, lambda row: None)
    mean = np.array([1.0, -0.5, np.log(0.7), np.log(0.4)])
    unknown: Any = None
    return F, Learned(mean, np.diag([60.0, 80, 30, 10]), 0.0, unknown, None, None, unknown)


def test_it_is_exact_where_the_likelihood_is_normal(made):
    F, learned = made
    thetas = learned.mean + np.random.default_rng(1).normal(size=(12, 4)) * [0.3, 0.3, 0.5, 1.0]
    values, slopes = stand_in(F, learned).expansions(thetas)
    exact, exact_slopes = F.expand(thetas)
    apart = values - exact
    np.testing.assert_allclose(apart, apart.mean(), atol=2e-3)
    np.testing.assert_allclose(slopes, exact_slopes, atol=5e-3)


@pytest.mark.parametrize("own", [False, True])
def test_its_slope_is_that_of_its_value(own):
    """Whether groups share the prior's root or have their own."""
    made = stand_in(*of_model(*normal_model(own)))
    assert made.sites.known.sum() == 30 < len(made.sites.known)  # some are filler
    assert made._prior(jnp.zeros(4)).root.ndim == 2 + own
    theta = jnp.array([0.9, -0.3, -0.6, -1.2])
    exact = jax.grad(lambda theta: made._groups(theta)[0].sum())(theta)
    np.testing.assert_allclose(made._groups(theta)[1], exact, rtol=2e-4, atol=2e-3)


def test_few_points_that_count_are_seen_by_a_quarter_of_them():
    """A t as wide as q(theta) where F is as wide, and where it is much wider."""
    D = 5
    learned: Any = SimpleNamespace(mean=np.zeros(D), precision=np.eye(D))
    for sd, few in ((1.0, False), (4.0, True)):
        F = lambda thetas: -0.5 * np.sum((thetas / sd) ** 2, 1)  # noqa: B023
        first = first_points(F, learned, 1200, 0)
        assert len(first[0]) == 300 and few_count(first, theta_shape.NEEDED) == few
        for found, same in zip(
            weigh_theta(F, learned, 1200, 0, first), weigh_theta(F, learned, 1200, 0)
        ):
            np.testing.assert_array_equal(found, same)


def test_its_parabola_adds_what_the_sites_lack(made):
    """F with a tilt, which is a parabola that sites know nothing of."""
    F, learned = made
    F.tilt = Tilt(learned.mean, np.array([1.0, -2.0, 3.0, 0.5]), -3 * learned.precision)
    try:
        own, at = begin(F, learned)
    finally:
        F.tilt = Tilt(learned.mean, np.zeros(4), np.zeros((4, 4)))
    values, slopes = own.expansions(at.thetas)
    np.testing.assert_allclose(values, at.values, atol=1e-2)
    np.testing.assert_allclose(slopes, at.slopes, atol=0.1)


def test_a_parabola_is_held_constant_far_out_unless_it_falls():
    D = 3
    zero, one = jnp.zeros(D), jnp.ones(D)
    curvature = jnp.array([-0.2, 0.0, 2.0])
    own = Parabola(zero, jnp.eye(D), jnp.zeros(()), one, curvature, curvature > 1)
    far = [float(own.at(1e4 * jnp.eye(D)[k])) for k in range(D)]
    assert far[0] == pytest.approx(FARTHEST + 0.1 * FARTHEST**2, rel=1e-3)
    assert far[1] == pytest.approx(FARTHEST, rel=1e-3) and far[2] < -1e7


def test_draws_are_corrected_by_weight():
    """Draws of N(0, 1), where F says N(1/2, 1)."""
    theta = np.random.default_rng(0).normal(size=(4, 2000, 1))
    none = Tilt(np.zeros(1), np.zeros(1), np.zeros((1, 1)))
    F: Any = SimpleNamespace(values=lambda theta: 0.5 * theta[:, 0], tilt=none)
    where = np.zeros(1), np.eye(1)
    own: Any = SimpleNamespace(
        expansions=lambda theta: (np.zeros(len(theta)), None), parabola=where
    )
    found, log_weight = corrected(F, own, theta, 8000, 0)
    assert found.shape == theta.shape and log_weight.shape == (8000,)
    assert found.mean() == pytest.approx(0.5, abs=0.06)
    assert found.std() == pytest.approx(1.0, abs=0.05)


def test_the_tilt_is_held_constant_far_out():
    """What averages over draws add to F is known near the centre alone."""
    F: Any = SimpleNamespace(tilt=Tilt(np.ones(2), np.array([0.3, 0.0]), np.diag([0.0, 0.2])))
    own: Any = SimpleNamespace(parabola=(np.ones(2), np.eye(2)))
    thetas = np.ones(2) + np.array([[0.01, 0.01], [1e4, 0], [0, 1e4]])
    total = F.tilt.at(thetas)[0] + held_tilt(F, own, thetas)
    exact = [0.3 * 0.01 + 0.1 * 0.01**2, 0.3 * FARTHEST, 0.1 * FARTHEST**2]
    np.testing.assert_allclose(total, exact, rtol=1e-3)


@pytest.mark.slow
def test_a_fit_by_a_stand_in_is_that_by_nuts(monkeypatch):
    """Counts whose shape is in the likelihood, and an sd near zero; NUTS on F is one that is known."""
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(40), 8)
    x, w = rng.normal(size=(2, len(g))).round(3)
    own = rng.normal([1.0, 0.3, 0.0], [0.5, 0.2, 0.05], (40, 3))[g]
    mean = np.exp(own[:, 0] + own[:, 1] * x + own[:, 2] * w)
    y = rng.poisson(mean * rng.gamma(3.0, 1 / 3, len(g)))
    table = {"g": g, "x": x, "w": w, "y": y}
    made = rf.from_formula("y ~ x + w + (1 + x + w | g)", table, likelihood="negative_binomial")
    known = rf.fit(*made, theta="nuts").summary()
    monkeypatch.setattr(budgets, "NUTS_SECONDS", 0.0)
    weighed = theta_shape.weighed_cloud
    uneven = lambda *own: weighed(*own)._replace(even=False, enough=False)
    monkeypatch.setattr(theta_shape, "weighed_cloud", uneven)
    tried = []

    def rejected_once(F, own, *rest):
        theta, log_weight = corrected(F, own, *rest)
        tried.append(own)
        return theta, log_weight if len(tried) > 1 else 20 * log_weight

    monkeypatch.setattr(theta_shape, "corrected", rejected_once)
    posterior = rf.fit(*made)
    assert len(tried) == 2
    found, notes = posterior.summary(), posterior.notes
    assert notes["theta_r_hat"] < 1.01 and notes["theta_effective_draws"] > 400
    noise = 3 * (1 / known["ess"] + 1 / notes["theta_effective_draws"]) ** 0.5
    assert np.all(np.abs(found["mean"] - known["mean"]) / known["sd"] < 0.05 + noise)
    assert np.all(np.abs(np.log(found["sd"] / known["sd"])) < 0.05 + noise)
