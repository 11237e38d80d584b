"""Sweeps over F(theta): values, slopes and curvature, and Newton's steps."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import ramify as rf
from ramify.data.resident import whole
from ramify.data.sources import kept, packed
from ramify.engine.local import LocalEngine
from ramify.families.solver import solver
from ramify.inference import newton_updates as updates
from ramify.inference import theta_search
from ramify.inference.marginal import Expansion, Marginal
from ramify.inference.newton_updates import bfgs, measured_precision, shorter
from ramify.inference.sweep import Problem
from ramify.inference.theta_search import NotFinite, init, step
from ramify.inference.theta_weights import fitted_proposal
from ramify.numerics import budgets
from ramify.posterior.trust import findings, verdict_of


@pytest.mark.parametrize("by", ["draws", "a rule"])
def test_a_sweep_of_a_normal_model_is_exact(by):
    """F, its slopes and its Hessian, with z integrated out by hand; no bias is left."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(6), [1, 2, 3, 5, 8, 13])
    y = (rng.normal(size=6)[group] + rng.normal(size=len(group))).astype(np.float32)
    groups = rf.Groups.from_table({"g": group, "y": y}, by="g", rows=["y"])
    normal = lambda x, mean: dist.Normal(mean, 1).log_prob(x)
    model = rf.Model(
        theta={"mu": rf.real()},
        z={"b": rf.real()},
        log_prior=lambda theta: normal(theta["mu"], 0),
        log_local=lambda theta, z, group: normal(z["b"], theta["mu"]),
        log_lik=lambda theta, z, row: normal(row["y"], z["b"]),
    )
    members = np.array([[0, 1, 2, 5], [3, 4, -1, -1]])  # and two filler places
    problem = Problem(model, solver(model, whole(groups), rounds=0), 32, hessian=True)
    problem = problem if by == "draws" else problem._replace(local_draws=5).with_rule(5)
    own = packed(groups, members, 26), LocalEngine(), jax.random.key(0)
    F = Marginal(problem, *own, 3, lambda row: None)
    thetas = np.array([[-0.5], [0.1], [0.9]])
    n, mean = np.bincount(group), np.bincount(group, y) / np.bincount(group)
    slope = lambda t: -t + np.sum((mean - t) * n / (n + 1))
    np.testing.assert_allclose(
        F._slopes(thetas, 2)[:, 0], [slope(t) for t in thetas[:, 0]], rtol=1e-4
    )
    hessian = F.curvature(thetas[1], np.eye(1), 2)
    np.testing.assert_allclose(hessian, [[-1 - np.sum(n / (n + 1))]], rtol=1e-4)
    parts = [multivariate_normal(np.zeros(k), np.eye(k) + 1) for k in n]
    each = np.split(y, np.cumsum(n)[:-1])
    exact = [
        norm.logpdf(t) + sum(p.logpdf(v - t) for p, v in zip(parts, each, strict=True))
        for t in thetas[:, 0]
    ]
    np.testing.assert_allclose(F.values(thetas), exact, rtol=1e-5)
    np.testing.assert_allclose(F.bias(thetas[1]), 0, atol=1e-4)


@cache  # one model: a sweep is compiled for each
def answers():
    """200 groups with one to seven answers each, the sd between them known; no prior."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(200), rng.integers(1, 8, 200))
    y = rng.random(len(group)) < 1 / (1 + np.exp(-rng.normal(size=200)[group]))
    groups = rf.Groups.from_table({"g": group, "y": y.astype(np.int32)}, by="g", rows=["y"])
    model = rf.Model(
        theta={"mu": rf.real()},
        z={"b": rf.real()},
        log_prior=lambda theta: 0.0 * theta["mu"],
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], 1).log_prob(z["b"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=z["b"]).log_prob(row["y"]),
    )
    source = kept(groups, np.arange(200)[None], 1000)
    return model, solver(model, whole(groups), rounds=0), source


def logistic(K, order=None, seed=0):
    """Their F, by K draws or by a rule."""
    model, own, source = answers()
    problem = Problem(model, own, order or K)
    problem = problem if order is None else problem.with_rule(order)
    return Marginal(problem, source, LocalEngine(), jax.random.key(seed), 3, lambda row: None)


def test_draws_of_a_logistic_model_against_a_grid():
    """Slopes, all-zero groups among them, and what the bias is said to be.

    200 groups: the noise of a slope is told by seeds, and K = 16 leaves a bias that K = 8 has more of.
    """
    thetas = np.array([[-0.2], [0.0], [0.2]])
    fits = [logistic(16, seed=seed) for seed in range(8)]
    slopes = np.stack([F._slopes(thetas, 1)[:, 0] for F in fits])
    assert all(np.isfinite(F.modes).all() and F.converged.all() for F in fits)
    error = slopes.std(0, ddof=1) / np.sqrt(len(slopes))
    bias = np.mean([F.bias(thetas[1])[0] for F in fits])
    assert np.all(np.abs(slopes.mean(0) - _exact_slopes(thetas)) < 5 * error + 3 * abs(bias))
    assert np.all(error < 0.5) and 1e-5 < abs(bias) < 0.5  # sds of mu are about 0.1: a slope of 10


def test_a_rule_has_no_noise_and_says_what_error_is_left(x64):
    """The same slopes by quadrature: each order is better, and off by less than it says."""
    thetas, errors = np.array([[-0.2], [0.0], [0.2]]), []
    for order in (3, 7, 15):
        F = logistic(16, order)
        error = np.abs(F._slopes(thetas, 1)[:, 0] - _exact_slopes(thetas)).max()
        assert error < abs(F.bias(thetas[1])[0]) + 1e-6
        errors.append(error)
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    assert errors[2] < 1e-4


def test_some_blocks_stand_for_all():
    """Where all blocks are alike, one of them tells slopes and biases of F."""
    model, own, source = answers()
    more = replace(source, members=np.repeat(source.members, 3, 0), block=lambda _: source.block(0))
    F = Marginal(
        Problem(model, own, 3).with_rule(3), more, LocalEngine(), jax.random.key(0), 3, print
    )
    mean = np.array([0.3])
    assert F.blocks_with(200) == 1 and F.blocks_with(201) == 2 and F.blocks_with(10_000) == 3
    assert abs(F.bias(mean)[0]) > 0.1
    np.testing.assert_allclose(F.bias(mean, 1), F.bias(mean), rtol=1e-4)
    np.testing.assert_allclose(F.expand(mean[None], 1)[1], F.expand(mean[None])[1], rtol=1e-4)


class BiasBySome(Marginal):
    """Nine blocks, of which two say another bias than all of them."""

    problem, source = SimpleNamespace(rule=True), range(9)
    blocks_with = lambda self, groups: 2

    def __init__(self, by_some):
        self.by_some, self.asked = by_some, []

    def bias(self, mean, blocks=None):
        self.asked.append(blocks)
        return np.array([0.002 if blocks is None else self.by_some])


@pytest.mark.parametrize(("by_some", "asked"), [(0.005, [2]), (0.03, [2, None])])
def test_a_bias_that_is_not_little_is_estimated_from_all_groups(by_some, asked):
    F = BiasBySome(by_some)
    found = theta_search.PHASES["bias"](init(np.zeros(1), np.eye(1), 3, 9, 1), F)
    assert F.asked == asked and found.phase == "done"
    assert found.bias[0] == (by_some if asked == [2] else 0.002)


def _exact_slopes(thetas):
    """Those of the answers' F, by sums over a fine grid of z."""
    source = answers()[2]
    n, y = source.sizes, np.asarray(source.block(0).rows["y"])[: source.sizes.sum()]
    ones = np.add.reduceat(y, np.cumsum(n) - n)
    return [_exact_slope(t, ones, n) for t in thetas[:, 0]]


def _exact_slope(t, ones, n):
    z = np.linspace(-9, 9, 4001)
    log = ones[:, None] * z - n[:, None] * np.logaddexp(0, z) - 0.5 * (z - t) ** 2
    weight = np.exp(log - log.max(1, keepdims=True))
    return np.sum(weight @ (z - t) / weight.sum(1))


class Ridge(Marginal):
    """A function with the shape of a marginal far from its mode: neither concave nor quadratic."""

    points, newton_steps, memory, exact = 1, 0, None, False
    first_bad_block = lambda self, theta: 0
    groups_upto = np.array([100])

    def __init__(self):
        self.values_seen, self.slopes_seen, self.report = 0, 0, lambda row: None

    def __call__(self, thetas, blocks, curved=False):
        self.values_seen += 1
        return Expansion(float(self.value(thetas.mean(0))), self._slopes(thetas, blocks)[0])

    def _slopes(self, thetas, blocks, draws=0):
        self.slopes_seen += len(thetas)
        return np.asarray(jax.vmap(jax.grad(self.value))(jnp.asarray(thetas)), float)

    def reach(self, mean):
        return np.ones(len(mean))

    def value(self, t):
        return -50 * ((1 - t[0]) ** 2 + 20 * (t[1] - t[0] ** 2) ** 2)


def start(mean, points=4):
    """A search that has not begun."""
    return init(np.array(mean), np.eye(len(mean)), 32, 32, points)


def run(F, state, *phases):
    """Steps while the search is in these phases."""
    while state.phase in phases:
        state = step(state, F)
    return state


def climb(F, mean):
    """The search after it has climbed to the mode."""
    return run(F, start(mean), "open", "climb")


def test_newton_follows_a_bent_ridge():
    """Rosenbrock's valley upside down, from beyond its bend, in some forty values and sixty slopes."""
    ridge = Ridge()
    found = climb(ridge, [-1.5, 0.5])
    sd = np.sqrt(np.diag(np.linalg.inv(found.precision)))
    assert np.all(np.abs(found.mean - 1) < 0.5 * sd)
    assert ridge.values_seen <= 40 and ridge.slopes_seen <= 60


def test_steps_to_where_no_slope_is_are_not_taken():
    """A finite value with a slope that is no number: the search stays where both are."""

    class Cliff(Ridge):
        def _slopes(self, thetas, blocks, draws=0):
            slopes = super()._slopes(thetas, blocks)
            return np.where(thetas[:, :1] > -0.9, np.nan, slopes)

    found = climb(Cliff(), [-1.5, 0.5])
    assert found.mean[0] <= -0.9 and Expansion(found.value, found.slope).finite
    assert np.all(np.isfinite(found.precision)) and np.linalg.eigvalsh(found.precision).min() > 0
    with pytest.raises(NotFinite):
        climb(Cliff(), [0.5, 0.5])


class Rounded(Ridge):
    """Values of six million nats, as of as many rows, that round by far more than a step gains."""

    def __init__(self, seed):
        super().__init__()
        self.noise = np.random.default_rng(seed)

    tell = lambda self, *own: None

    def __call__(self, thetas, blocks, curved=False):
        found = super().__call__(thetas, blocks)
        return found._replace(value=found.value - 6e6 + 2 * self.noise.normal())


def test_a_search_among_rounded_values_follows_slopes():
    """Steps that raise F, by its slope, are taken though its value says that they lower it."""
    for seed in range(20):
        found = run(Rounded(seed), start([0.0, 0.5], 1), "open", "climb", "laplace", "newton")
        left = np.linalg.solve(found.precision, found.slope)
        assert updates.rms_sds(left, found.precision) < 0.5, seed


def test_averages_need_all_their_points():
    """Where F is not finite at one of them, the mode and its curvature are what is returned."""

    class Edge(Ridge):
        def __call__(self, thetas, blocks, curved=False):
            found = super().__call__(thetas, blocks)
            return found if len(thetas) == 1 else found._replace(value=np.nan)

    mode = climb(Edge(), [0.9, 0.8])
    found = run(Edge(), mode, "spread", "look", "average")
    np.testing.assert_array_equal(found.mean, mode.mean)
    assert found.value == mode.value and found.slope is mode.slope
    assert np.linalg.eigvalsh(found.precision).min() > 0


def test_a_look_around_is_never_far():
    """Where F is flat its own spread is wide; one coordinate moves by 1 at most."""

    class Flat(Ridge):
        def value(self, t):
            return -0.5 * (t[0] ** 2 + 1e-7 * t[1] ** 2)

        def _slopes(self, thetas, blocks, draws=0):
            assert np.abs(thetas).max() <= 1 + 1e-9  # from zero
            return super()._slopes(thetas, blocks)

    found = Flat().curvature(np.zeros(2), np.diag([1.0, 1e-7]), 1, one_sided=True)
    np.testing.assert_allclose(np.diag(found), [-1, -1e-7], rtol=1e-4)


def test_a_failed_step_is_cut_to_the_parabolas_top():
    here = Expansion(0.0, np.array([1.0]))
    assert shorter(here, here._replace(value=-1.0), np.array([1.0])) == 0.25
    assert shorter(here, here._replace(value=np.nan), np.array([1.0])) == 0.1


def test_a_step_teaches_the_curvature_along_it():
    """Where the slope fell as it should, the new precision explains it; elsewhere it stays definite."""
    P, move = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, -0.3])
    fall = np.array([3.0, 0.2])
    np.testing.assert_allclose(bfgs(P, move, fall) @ move, fall, rtol=1e-12)
    assert np.linalg.eigvalsh(bfgs(P, move, -fall)).min() > 0


class Skewed(Marginal):
    """Slopes of F(t) = -exp(t_0) + t_0 - t_1^2: curvature -1 and -2 at the mode, a third derivative."""

    points, exact = 2, False

    def __init__(self):
        pass

    def _slopes(self, thetas, blocks, draws=0):
        return np.stack([1 - np.exp(thetas[:, 0]), -2 * thetas[:, 1]], 1)


@pytest.mark.parametrize(("one_sided", "off"), [(False, 0.18), (True, 0.17)])
def test_secants_find_the_curvature(one_sided, off):
    """To either side an error of a sixth of a cubed sd is left, one-sided half of a 0.3 sds' step."""
    found = Skewed().curvature(np.zeros(2), np.diag([1.0, 2.0]), 1, one_sided)
    np.testing.assert_allclose(np.diag(found), [-1 - off, -2], atol=0.01)
    np.testing.assert_allclose(found[0, 1], 0, atol=1e-12)


def test_a_curvature_that_is_no_number_changes_nothing():
    class Broken(Ridge):
        def curvature(self, mean, precision, blocks, one_sided=False):
            return np.full((2, 2), np.nan)

    precision = np.diag([2.0, 3.0])
    np.testing.assert_array_equal(
        measured_precision(Broken(), np.zeros(2), precision, 1), precision
    )


def test_moments_of_weighted_points_that_one_dominates():
    """Its weight is cut; and where too few points are left to tell a covariance, none is told."""
    points = np.random.default_rng(0).normal(size=(1000, 2))
    points[0] = [30.0, 30.0]
    proposal = fitted_proposal(points, np.where(np.arange(1000) == 0, 7.0, 0.0))
    drawn, log_t = proposal.sample(np.random.default_rng(1), 4000)
    assert np.all(np.abs(drawn.mean(0)) < 3) and np.all(drawn.std(0) > 0.7)  # 15 uncut
    assert fitted_proposal(points, np.where(np.arange(1000) < 15, 30.0, 0.0)) is None
    assert fitted_proposal(points, np.full(1000, -np.inf)) is None


def test_a_proposal_follows_a_skewed_tail():
    """The log of a half normal beside a normal: weights nearly even, and right moments."""
    rng = np.random.default_rng(0)
    own = np.stack([np.log(np.abs(rng.normal(size=2000))), rng.normal(size=2000)], 1)
    own[:, 1] += 0.5 * own[:, 0]
    drawn, log_t = fitted_proposal(own, np.zeros(2000)).sample(rng, 20_000)
    u, v = drawn.T
    log_p = u - 0.5 * np.exp(2 * u) - 0.5 * (v - 0.5 * u) ** 2
    weight = np.exp(log_p - log_t - np.max(log_p - log_t))
    weight /= weight.sum()
    assert 1 / np.sum(weight**2) > 0.7 * len(weight)  # 0.4 without the skew
    mean = -0.5 * (np.euler_gamma + np.log(2))
    assert abs(weight @ u - mean) < 4 * 1.11 / np.sqrt(0.7 * 20_000)
    assert abs(weight @ (u - mean) ** 2 - np.pi**2 / 8) < 4 * 3 / np.sqrt(0.7 * 20_000)


def test_a_search_that_stalled_is_said_in_words():
    ((_, line),) = findings({"converged": False, "left_sds": 0.8}, 10)
    assert "0.8 of their sds short" in line
    assert findings({"converged": True, "left_sds": 0.1}, 10) == []
    assert (
        verdict_of(findings({"converged": False, "left_sds": 0.1, "noise_sds": 0.2}, 10)) == "check"
    )
    assert verdict_of(findings({"unconverged": 2, "bias_sds": 0.01}, 10)) == "do not trust"


def test_noise_of_draws_is_told_and_averaged_away():
    """F whose mode depends on its draws: the mean moves to the average mode, whose noise is known."""
    precision = np.array([[4.0, 1.0], [1.0, 2.0]])
    modes = 0.3 * np.random.default_rng(0).normal(size=(100, 2))
    modes[0] = 0.0  # that by the first draws, where the search ended

    class Noisy(Marginal):
        memory, points, exact = None, 32, False
        problem, groups_upto = SimpleNamespace(rule=None), np.array([4000])

        def __init__(self):
            pass

        def __call__(self, thetas, blocks, curved=False):
            return Expansion(0.0, -(thetas[0] - modes[0]) @ precision)

        def slopes_by_other_draws(self, thetas, numbers):
            return np.stack([-(thetas - modes[number]) @ precision for number in numbers])

    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    for points in (1, 8):  # many groups, and few
        state = theta_search.init(np.zeros(2), precision, 32, 32, points)._replace(phase="noise")
        while not theta_search.done(state):
            state = theta_search.step(state, Noisy())
        n = budgets.NOISE_SWEEPS["many" if points == 1 else "few"][1]
        np.testing.assert_allclose(state.mean, modes[:n].mean(0), atol=1e-9)
        np.testing.assert_allclose(state.noise, modes[:n].std(0, ddof=1) / sd / np.sqrt(n))
        np.testing.assert_allclose(state.tilt.slope, precision @ modes[:n].mean(0), atol=1e-9)
        np.testing.assert_allclose(state.tilt.hessian, 0, atol=1e-9)
