"""Rules whose directions are turned at random: exact where they say so, right and honest about noise."""

from functools import cache
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow
from ramify.data.resident import whole
from ramify.data.sources import kept
from ramify.engine.local import LocalEngine
from ramify.families.solver import solver
from ramify.inference import marginal, theta_search
from ramify.inference.marginal import Marginal
from ramify.inference.sweep import Problem
from ramify.numerics.points import group_turns, sphere_rule, turned_rule


@pytest.mark.parametrize("M", [3, 4, 5, 6, 7])
def test_a_turned_rule_is_exact_for_polynomials(M):
    """Moments of a standard normal: all of degree five and less, and some of the length of x."""
    rule = turned_rule(4, M, 5 * len(sphere_rule(M)[1]))
    x, log_density = rule.points, -0.5 * np.sum(rule.points**2, 1) - M / 2 * np.log(2 * np.pi)
    weight = np.exp(rule.log_weight + log_density)
    moment = {0: 1, 1: 0, 2: 1, 3: 0, 4: 3, 5: 0}
    rng = np.random.default_rng(0)
    for _ in range(30):
        powers = np.bincount(rng.integers(0, M, rng.integers(0, 6)), minlength=M)
        exact = prod(moment[p] for p in powers)
        assert np.sum(weight * np.prod(x**powers, 1)) == pytest.approx(exact, abs=1e-9)
    squared = np.sum(x**2, 1)
    assert np.sum(weight * squared**4) == pytest.approx(M * (M + 2) * (M + 4) * (M + 6))
    turned = x @ np.linalg.qr(rng.normal(size=(M, M)))[0]
    assert np.sum(weight * turned[:, 0] ** 4) == pytest.approx(3)


def test_dimensions_without_positive_weights_are_refused():
    with pytest.raises(ValueError, match="3 to 7 dimensions, got 8"):
        sphere_rule(8)


def test_turns_belong_to_the_group_and_their_number(key):
    turns = jax.jit(lambda number, index: group_turns(key, number, index, (2, 3)))
    one, next_ = (np.asarray(turns(number, jnp.arange(500))) for number in (0, 1))
    again = np.asarray(turns(0, jnp.arange(500)[::-1]))
    np.testing.assert_array_equal(one, again[::-1])
    eye = np.broadcast_to(np.eye(3), one.shape)
    np.testing.assert_allclose(one @ one.swapaxes(-1, -2), eye, atol=1e-5)
    # 81 correlations, each with a standard error of 1 / sqrt(1000).
    both = np.concatenate([one.reshape(-1, 9), next_.reshape(-1, 9)], 1)
    assert abs(np.corrcoef(both.T)[:9, 9:]).max() < 4.5 / np.sqrt(1000)


@cache
def answers():
    """60 groups with three effects, each seen by rows of its own: the integral is one over each."""
    rng = np.random.default_rng(1)
    z = rng.normal([0.5, -0.5, 0.0], 1.0, (60, 3))
    group, effect = np.repeat(np.arange(60), 12), np.tile(np.repeat(np.arange(3), 4), 60)
    y = rng.random(len(group)) < 1 / (1 + np.exp(-z[group, effect]))
    x = np.eye(3, dtype=np.float32)[effect]
    table = {"g": group, "x": x, "y": y.astype(np.int32)}
    groups = rf.Groups.from_table(table, by="g", rows=["x", "y"])
    model = rf.Model(
        theta={"mu": rf.real(3)},
        z={"b": rf.real(3)},
        log_prior=lambda theta: 0.0 * theta["mu"].sum(),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], 1).log_prob(z["b"]).sum(),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=row["x"] @ z["b"]).log_prob(row["y"]),
    )
    ones = np.add.reduceat(y, np.arange(0, len(y), 4)).reshape(60, 3)
    return model, groups, ones


def F(seed=0, K=24, hessian=False):
    model, groups, _ = answers()
    source = kept(groups, np.arange(60).reshape(6, 10), 120)
    problem = Problem(model, solver(model, whole(groups), rounds=0), K, hessian=hessian)
    return Marginal(problem, source, LocalEngine(), jax.random.key(seed), 8, lambda row: None)


def test_a_turned_rule_expands_the_prior_by_the_program_of_f(monkeypatch):
    """With the Hessian, though the rule has none: another program would be compiled for it."""
    asked, expand = [], marginal.expand_priors
    spy = lambda model, thetas, curved: asked.append(curved) or expand(model, thetas, curved)
    monkeypatch.setattr(marginal, "expand_priors", spy)
    f, mu = F(hessian=True), np.zeros(3)
    f(mu[None], 1, curved=True)
    f.by_turned_rule(5).turned_slope(mu, 1)
    assert asked == [True, True]


def exact_slope(mu):
    """d/dmu of sum_i log p(y_i | mu), by a fine grid of each effect."""
    _, _, ones = answers()
    grid = np.linspace(-9, 9, 4001)
    log_lik = ones[..., None] * grid - 4 * np.log1p(np.exp(grid))
    log_mass = log_lik - 0.5 * (grid - mu[:, None]) ** 2
    share = np.exp(log_mass - log_mass.max(-1, keepdims=True))
    return np.sum((share * grid).sum(-1) / share.sum(-1) - mu, 0)


def test_slopes_by_a_turned_rule_against_a_grid():
    """Off by no more than the noise and the bias that it tells; fewer radii are worse than that."""
    mu, rule = np.array([0.4, -0.4, 0.1]), F().by_turned_rule(5)
    bias, variance = rule.judged(mu, 6, 8)
    slope, noise = rule.turned_slope(mu, 8), np.sqrt(np.diag(variance))
    error = np.abs(slope - exact_slope(mu))
    assert (error < 4 * noise / np.sqrt(8) + np.abs(bias)).all()
    coarse = rule._sweep(mu[None], 6, problem=rule.problem.with_rule(1))[1].slopes[0]
    assert np.abs(coarse - exact_slope(mu)).max() > 10 * error.max()
    # The variance is what other seeds show: a ratio of two estimates of it from 40 and 8 slopes.
    seeds = np.stack([F(seed).by_turned_rule(5).turned_slope(mu, 1) for seed in range(8)])
    ratio = np.trace(np.cov(seeds.T)) / np.trace(variance)
    assert 1 / 4 < ratio < 4
    by_draws = np.stack([F(seed).slopes_by_other_draws(mu[None], [0])[0, 0] for seed in range(8)])
    assert np.trace(variance) < 0.1 * np.trace(np.cov(by_draws.T))


def test_the_search_ends_at_the_mode_of_the_turned_rule():
    """From the mode by few draws it moves to the exact one; with K chosen by the user it does not."""
    own, mode, near = F(), np.zeros(3), np.array([1e-3, 0.0, 0.0])
    for _ in range(30):
        mode = mode + exact_slope(mode) / 40
    columns = [exact_slope(mode - np.roll(near, j)) - exact_slope(mode) for j in range(3)]
    precision = np.array(columns) / 1e-3
    sds = np.sqrt(np.diag(np.linalg.inv(precision)))
    start = theta_search.init(mode + 0.2 * sds, precision, 24, 2048, 1)
    start = start._replace(phase="bias", stage=-1)
    state = theta_search.step(start, own)
    assert theta_search.done(state) and state.noise.max() <= 0.02
    # Newton's step from there is short by terms of the order of 0.2 sds squared over sqrt(N).
    error = np.abs(state.mean - mode) / sds
    assert (error < 4 * state.noise + np.abs(state.bias) + 0.2**2 / np.sqrt(60)).all()
    slope = own.expand(mode[None])[1][0] + state.tilt.at(mode)[1]
    assert (
        np.abs(slope / np.diag(precision) / sds).max() < 0.05
    )  # F with its tilt has its mode there
    chosen = theta_search.step(start._replace(most_draws=24), own)
    assert chosen.phase == "noise" and not chosen.by_draws
    assert theta_search.step(start._replace(mean=mode + 2 * sds), own).by_draws


@pytest.mark.slow
@pytest.mark.parametrize("M", [3, slow(5)])
def test_seeds_differ_by_the_noise_that_fits_tell(M):
    """Four fits of 2,500 groups by default: their means spread as `noise_sds` says."""
    rng = np.random.default_rng(M)
    group = np.repeat(np.arange(2500), rng.integers(5, 40, 2500))
    x = np.column_stack([np.ones(len(group)), rng.normal(size=(len(group), M - 1))])
    z = rng.normal(0.3, 0.8, (2500, M))[group]
    y = rng.random(len(group)) < 1 / (1 + np.exp(-np.sum(x * z, 1)))
    names = [f"x{j}" for j in range(1, M)]
    table = {"g": group, "y": y.astype(int)} | {n: x[:, j + 1] for j, n in enumerate(names)}
    terms = " + ".join(["1", *names])
    fits = [
        rf.fit(f"y ~ {terms} + ({terms} | g)", table, likelihood="bernoulli", seed=seed)
        for seed in range(4)
    ]
    means = np.stack([np.asarray(p.family.theta.mean, float) for p in fits])
    sd = np.sqrt(np.diag(np.asarray(fits[0].family.theta.covariance)))
    told = max(p.notes["noise_sds"] for p in fits)
    assert told <= 0.02 and all(p.notes["bias_sds"] < 0.05 for p in fits)
    rms = np.sqrt(np.mean(np.var(means / sd, axis=0, ddof=1)))
    assert rms < 1.5 * told  # the largest of any coordinate, of which rms is the mean
    assert max(p.notes["sweeps"] for p in fits) < 40
