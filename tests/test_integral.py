"""A group's z integrated out: exact where the group is Gaussian, and better than without elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow
from ramify.data.batch import example
from ramify.data.resident import whole
from ramify.families.conditional import Local
from ramify.families.solver import recombine, solver
from ramify.inference import local_integral
from ramify.inference.local_integral import bound, parabola, weigh_block
from ramify.inference.louis import louis_hessian
from ramify.models.expansion import Quadratic
from ramify.numerics.points import group_points
from ramify.numerics.sums import log_mean_exp

THETA = jnp.array([0.3, -1.5])  # tau is small: groups say little of it


def model(log_lik) -> rf.Model:
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: -0.5 * t["mu"] ** 2,
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=log_lik,
    )


def table(binary: bool) -> rf.Groups:
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(100), rng.integers(1, 9, 100))
    eta = 0.3 + 0.2 * rng.normal(size=100)[g]
    y = rng.random(g.size) < 1 / (1 + np.exp(-eta)) if binary else eta + rng.normal(size=g.size)
    return rf.Groups.from_table({"g": g, "y": y.astype(np.float32)}, by="g", rows=["y"])


def drawer(m, groups, K):
    """A function of the thetas that sites are solved at and draws are made at, to their weights."""
    batch, own = whole(groups), solver(m, example(groups), rounds=0, points=2)

    @jax.jit
    def solve(centre, theta):
        site = own.prepare(m, batch, centre)
        local = recombine(m, batch, site, theta, own.uses_theta)
        return site, local, group_points(jax.random.key(0), batch.index, K, 1)

    def weigh(centre, theta):
        solved = solve(centre, theta)
        return lambda: weigh_block(m, own, batch, *solved)

    return weigh


def weigher(m, groups, K):
    """Each group's bound by draws at THETA, with control and without, as functions of theta."""
    weigh, batch = drawer(m, groups, K)(THETA, THETA), whole(groups)
    value = lambda t: weigh().bound(t)[0]
    plain = lambda t: bound(weigh().parts(t).log_weight)[0]
    return value, plain, batch


def normal(theta, z, row):
    return dist.Normal(z["b"], 1.0).log_prob(row["y"])


def normal_with_theta(theta, z, row):
    """The same, non-centred: the likelihood involves theta."""
    return dist.Normal(theta["mu"] + theta["tau"] * z["b"], 1.0).log_prob(row["y"])


def exact(groups, t):
    """The sum over groups of log p(y_i | theta), y_i jointly normal."""
    n = jnp.asarray(groups.sizes)
    group = jnp.repeat(jnp.arange(len(groups)), n, total_repeat_length=groups.n_rows)
    apart = jnp.asarray(groups.rows["y"]) - t[0]
    total = jax.ops.segment_sum(apart, group, len(groups))
    square = jax.ops.segment_sum(apart**2, group, len(groups))
    tau2 = jnp.exp(2 * t[1])
    spread = n * jnp.log(2 * jnp.pi) + jnp.log1p(n * tau2)
    return -0.5 * jnp.sum(spread + square - tau2 * total**2 / (1 + n * tau2))


@pytest.mark.parametrize("K", [8, slow(64)])
def test_a_gaussian_group_is_integrated_exactly(K, x64):
    """Value and gradient to rounding, whatever K, at theta itself; without control neither."""
    groups = table(binary=False)
    value, plain, batch = weigher(model(normal), groups, K)
    total = lambda f: lambda t: jnp.sum(jnp.where(batch.group_mask, f(t), 0))
    functions = (lambda t: exact(groups, t)), total(value), total(plain)
    each = jax.jit(lambda t: [jax.value_and_grad(f)(t) for f in functions])
    for truth, found, without in zip(*each(THETA), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-4)
        assert np.abs(np.asarray(without) - truth).max() > 1e-3


def test_where_the_likelihood_involves_theta(x64):
    """The expansion follows theta through the likelihood."""
    groups = table(binary=False)
    m = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: -0.5 * t["mu"] ** 2,
        log_local=lambda t, z, group: dist.Normal(0.0, 1.0).log_prob(z["b"]),
        log_lik=normal_with_theta,
    )
    value, _, batch = weigher(m, groups, 8)
    total = lambda t: jnp.sum(jnp.where(batch.group_mask, value(t), 0))
    functions = total, lambda t: exact(groups, t)
    each = jax.jit(lambda t: [jax.value_and_grad(f)(t) for f in functions])
    for found, truth in zip(*each(THETA), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-4)


def test_a_normal_priors_expansion_is_all_of_it(x64):
    """Weights by the expansion are those by the density at every draw, at any theta."""
    groups = table(binary=True)
    lik = lambda theta, z, row: dist.Bernoulli(logits=z["b"]).log_prob(row["y"])
    m, batch = model(lik), whole(groups)
    own = solver(m, example(groups), rounds=0, points=2)

    @jax.jit
    def both(theta):
        site = own.prepare(m, batch, THETA)
        points = group_points(jax.random.key(0), batch.index, 8, 1)
        local = recombine(m, batch, site, THETA, False)
        weigh = weigh_block(m, own, batch, site, local, points)
        assert weigh.density is None
        z = jax.vmap(local.propose)(points)[0]
        each = lambda theta: jax.vmap(lambda z: m.log_local(theta, z, batch))(z)
        return weigh.parts(theta), weigh._replace(density=each).parts(theta)

    for theta in (THETA, THETA + 0.7):
        parts, plain = both(theta)
        real = np.asarray(batch.group_mask)
        np.testing.assert_allclose(
            parts.log_weight[:, real], plain.log_weight[:, real], rtol=1e-9, atol=1e-9
        )


def test_a_parabola_by_pairs_of_entries_is_the_same(x64, monkeypatch):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(3, 4, 4))
    own = rng.normal(size=3), rng.normal(size=(3, 4)), half @ half.swapaxes(1, 2)
    q, step = Quadratic(*map(jnp.asarray, own)), jnp.asarray(rng.normal(size=(3, 4, 6)))
    by_pairs = parabola(q, step)
    monkeypatch.setattr(local_integral, "FEW_PAIRS", 0)
    np.testing.assert_allclose(by_pairs, parabola(q, step), rtol=1e-12)


def test_a_parabola_moved_is_the_same_parabola(x64):
    rng = np.random.default_rng(0)
    half, step = rng.normal(size=(5, 3, 3)), rng.normal(size=(5, 3, 7))
    q = Quadratic(
        *map(
            jnp.asarray, (rng.normal(size=5), rng.normal(size=(5, 3)), half @ half.swapaxes(-1, -2))
        )
    )
    move = jnp.asarray(rng.normal(size=(5, 3)))
    there = parabola(q, jnp.asarray(step) + move[..., None])
    np.testing.assert_allclose(parabola(q.moved(move), jnp.asarray(step)), there, rtol=1e-9)


@pytest.mark.parametrize("tau", [slow(1.0), slow(0.05), slow(0.003)])
def test_a_narrow_prior_keeps_its_digits(tau):
    """In float32, with draws made where the sd between groups is a thousand times smaller."""
    groups, far = table(binary=False), jnp.array([0.3, np.log(3.0)])
    m, batch, theta = model(normal), whole(groups), jnp.array([0.3, np.log(tau)])
    weigh = drawer(m, groups, 64)(far, theta)
    total = lambda t: jnp.sum(jnp.where(batch.group_mask, weigh().bound(t)[0], 0))
    value, slope = jax.jit(jax.value_and_grad(total))(theta)
    with jax.enable_x64():
        at = np.asarray(theta, np.float64)
        truth = jax.jit(jax.value_and_grad(lambda t: exact(groups, t)))(at)
    np.testing.assert_allclose(value, truth[0], rtol=2e-6)
    np.testing.assert_allclose(slope, truth[1], rtol=1e-3, atol=5e-3)


@pytest.mark.slow
def test_the_control_takes_most_of_the_noise_of_binary_groups(x64):
    """Gradients of 32 draws against those of 1,024: less than half the error of plain weights."""
    groups = table(binary=True)
    lik = lambda theta, z, row: dist.Bernoulli(logits=z["b"]).log_prob(row["y"])
    total = lambda f, batch: lambda t: jnp.sum(jnp.where(batch.group_mask, f(t), 0))
    many, _, batch = weigher(model(lik), groups, 1024)
    truth = jax.grad(total(many, batch))(THETA)
    value, plain, batch = weigher(model(lik), groups, 32)
    error = lambda f: np.abs(np.asarray(jax.grad(total(f, batch))(THETA) - truth)).max()
    assert error(value) < 0.5 * error(plain)


@pytest.mark.slow
def test_jackknife_removes_the_bias_of_log_mean_exp():
    """On log-normal weights with known mean, and the estimate of what is left covers it."""
    rng = np.random.default_rng(0)
    K, many, s = 16, 200_000, 0.8
    log_weight = jnp.asarray(s * rng.normal(size=(K, many)) - s**2 / 2)  # E[w] = 1
    plain = float(jnp.mean(jax.nn.logsumexp(log_weight, 0) - np.log(K)))
    corrected, left = bound(log_weight)
    error = float(jnp.std(corrected)) / np.sqrt(many)
    assert plain < -0.02
    assert abs(float(jnp.mean(corrected))) < 0.25 * abs(plain)
    assert abs(float(jnp.mean(corrected)) + float(jnp.mean(left))) < 5 * error + 0.002


@pytest.mark.parametrize("effects", ["1", slow("1 + x")])
def test_louis_hessian_is_that_of_the_controlled_estimate(effects, x64):
    """Against automatic differentiation of the same draws' estimate, one or two correlated effects."""
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(30), rng.integers(1, 9, 30))
    columns = {"g": g, "x": rng.normal(size=g.size), "y": (rng.random(g.size) < 0.4) * 1.0}
    formula = f"y ~ {effects} + ({effects} | g)"
    m, groups = rf.from_formula(formula, columns, likelihood="bernoulli")
    batch = whole(groups)
    theta = jnp.asarray(rng.normal(size=m.theta.size) * 0.3)
    own = solver(m, example(groups), rounds=0, points=2)
    site = jax.jit(lambda theta: own.prepare(m, batch, theta))(theta)
    points = jax.jit(lambda: group_points(jax.random.key(0), batch.index, 16, m.z.size))()
    weighed = lambda: weigh_block(m, own, batch, site, Local(site.anchor, site.scale), points)

    def estimate(t):
        weigh = weighed()
        parts = weigh.parts(t)
        control = parts.log_integral - log_mean_exp(parts.log_weight_gaussian)
        each = log_mean_exp(parts.log_weight) + jnp.where(weigh.definite, control, 0)
        return jnp.sum(jnp.where(batch.group_mask, each, 0))

    found = jax.jit(lambda t: louis_hessian(weighed(), t, batch.group_mask.astype(t.dtype)))(theta)
    exact = jax.jit(jax.hessian(estimate))(theta)
    np.testing.assert_allclose(found, exact, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_the_jackknife_removes_the_bias_in_one_over_k():
    """Log-normal weights, whose log mean is known: the plain bound is low, the corrected is not."""
    K, B = 40, 200_000
    w = 0.8 * np.random.default_rng(1).normal(size=(K, B)) - 0.32  # E[exp w] = 1
    corrected, _ = bound(jnp.asarray(w))
    plain = np.asarray(jax.nn.logsumexp(jnp.asarray(w), 0)) - np.log(K)
    error = float(np.std(np.asarray(corrected))) / np.sqrt(B)
    assert plain.mean() < -0.008
    assert abs(float(np.mean(np.asarray(corrected)))) < 5 * error + 1e-3


@pytest.mark.parametrize("K", [9, 11, 40])
def test_quarters_of_any_size(K):
    """The jackknife's formula, its correction kept below one, where K is no multiple of four too."""
    w = np.random.default_rng(2).normal(size=(K, 3))
    lme = lambda pieces: np.log(np.mean(np.exp(np.concatenate(pieces)), 0))
    quarters = np.array_split(w, 4)
    half = 0.5 * (lme(quarters[:2]) + lme(quarters[2:]))
    fine = lme(quarters) + np.tanh(lme(quarters) - half)
    coarse = half + np.tanh(half - sum(lme([quarter]) for quarter in quarters) / 4)
    corrected, left = bound(jnp.asarray(w))
    np.testing.assert_allclose(corrected, fine, rtol=1e-6)
    np.testing.assert_allclose(left, (coarse - fine) / 3, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_half_of_the_draws_without_weight():
    """Plainly the jackknife says 15,000 nats here; the answer and its slope stay where they can be."""
    w = jnp.asarray(np.r_[np.random.default_rng(2).normal(size=16), np.full(16, -3e4)][:, None])
    plain = jax.nn.logsumexp(w, 0) - np.log(32)
    corrected, left = bound(w)
    assert 0 <= float((corrected - plain)[0]) <= 1.0
    assert float(left[0]) < -1000  # and the bias that is reported tells that all is not well
    assert np.isfinite(jax.grad(lambda w: bound(w)[0].sum())(w)).all()


def test_far_from_the_draws_an_integral_is_never_too_large():
    """Groups of three effects drawn where tau is 1, at a tau of 0.007: p(y | tau) is then p(y | z = 0).

    The control alone would add some 60 nats to each group there, and a search for theta believe them.
    """
    rng = np.random.default_rng(3)
    g, b = np.repeat(np.arange(30), 20), rng.normal(size=(30, 3))
    x = rng.normal(size=(g.size, 2))
    y = rng.poisson(np.exp(1 + b[g, 0] + (b[g, 1:] * x).sum(1)).clip(max=200)).astype(float)
    counts = lambda eta: dist.NegativeBinomial2(jnp.exp(1 + eta), 3.0)
    m = rf.Model(
        theta={"log_tau": rf.real()},
        z={"b": rf.real(3)},
        log_prior=lambda t: -(t["log_tau"] ** 2),
        log_local=lambda t, z, group: dist.Normal(0, jnp.exp(t["log_tau"])).log_prob(z["b"]).sum(),
        log_lik=lambda t, z, row: counts(z["b"][0] + z["b"][1:] @ row["x"]).log_prob(row["y"]),
    )
    batch = whole(rf.Groups.from_table({"g": g, "x": x, "y": y}, by="g", rows=["x", "y"]))
    own = solver(m, batch, rounds=0)

    @jax.jit  # op by op each operation would compile
    def bound_at(theta):
        site = own.prepare(m, batch, jnp.zeros(1))
        points = group_points(jax.random.key(0), batch.index, 40, 3)
        weigh = weigh_block(m, own, batch, site, Local(site.anchor, site.scale), points)
        return weigh.bound(theta)[0]

    exact = jax.ops.segment_sum(counts(0.0).log_prob(y), g, 30)
    assert np.all(bound_at(jnp.array([-5.0])) < exact + 3.0)
