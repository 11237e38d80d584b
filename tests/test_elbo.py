"""The estimator: unbiased to rounding, blind to layout, with gradients that agree."""

from functools import cache
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
import ramify as rf
from conjugate import exact_elbo
from exact_fits import exact_family, read, regression
from quick import slow, slow_but
from ramify.data.groups import Groups
from ramify.data.partition import partition
from ramify.data.resident import cut, to_device, whole
from ramify.inference.elbo import elbo, seeds, terms
from ramify.models.model import Model
from shaken_families import FAMILIES, family_of

SIZES = np.array([4, 1, 0, 7, 3, 2, 6])
N, DIM = len(SIZES), 2


@cache
def skewed() -> Model:
    """Nothing Gaussian or symmetric: a scale, counts, a group column, theta in the likelihood."""
    return Model(
        theta={"mu": rf.real(DIM), "tau": rf.positive(DIM), "shift": rf.real()},
        z={"beta": rf.real(DIM)},
        log_prior=lambda t: (
            dist.Normal(0, 1).log_prob(t["mu"]).sum()
            + dist.HalfNormal(1).log_prob(t["tau"]).sum()
            + dist.Normal(0, 1).log_prob(t["shift"])
        ),
        log_local=lambda t, z, group: (
            dist.Normal(t["mu"] + 0.1 * group["u"], t["tau"]).log_prob(z["beta"]).sum()
        ),
        log_lik=lambda t, z, row: dist.Poisson(
            jnp.exp(0.3 * (row["x"] @ z["beta"]) + 0.2 * t["shift"])
        ).log_prob(row["y"]),
    )


def table(seed=0):
    rng = np.random.default_rng(seed)
    rows = SIZES.sum()
    x = rng.normal(size=(rows, DIM))
    return {"g": np.repeat(np.arange(N), SIZES), "x": x, "y": rng.poisson(1.5, rows)}


def read_table(data):
    every = {"g": np.arange(N), "u": np.linspace(-1, 1, N)}
    return Groups.from_table(data, by="g", rows=["x", "y"], group="u", group_table=every)


@pytest.fixture(scope="module")
def groups():
    return read_table(table())


# Where the covariance makes no difference to the code, these stand for all.
ONE_OF_EACH = ["joint-dense", "branch-dense", "amortized-dense", "solved"]


@eqx.filter_jit
def value_and_gradient(key, family, model, batch, draws=2, local_draws=1, estimator="total"):
    options = dict(draws=draws, local_draws=local_draws, estimator=estimator)
    function = lambda f: elbo(key, f, model, batch, **options)  # noqa: E731
    return eqx.filter_value_and_grad(function)(family)


def block(groups, members, scale=1.0):
    """These groups as one batch of 9 places and 30 rows, the same for all: one compilation."""
    places = np.concatenate([members, np.full(9 - len(members), -1)])
    return cut(to_device(groups), jnp.asarray(places), scale, 30)


def numbers(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))])


def same(one, other, tolerance=1e-9):
    """Two values with their gradients, equal to a relative tolerance."""
    np.testing.assert_allclose(one[0], other[0], rtol=tolerance)
    a, b = numbers(one[1]), numbers(other[1])
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(a).max()))


def mean_over(blocks, *arguments):
    """Mean value and gradient over blocks."""
    key, family, model, K = arguments
    each = [value_and_gradient(key, family, model, batch, 2, K) for batch in blocks]
    return jax.tree.map(lambda *x: sum(x) / len(x) if eqx.is_array(x[0]) else x[0], *each)


CASES = [(name, 1) for name in FAMILIES] + [(name, 6) for name in ONE_OF_EACH[1:]]
CASE_IDS = [f"{name}-{K}" for name, K in CASES]
CASES = slow_but([], CASES)


@pytest.mark.parametrize("name, K", CASES, ids=CASE_IDS)
def test_layout_changes_nothing(name, K, groups, key, x64):
    """Filler, the order of groups and the order of rows leave value and gradient as they are."""
    model = skewed()
    family = family_of(name, model, groups)
    order = np.random.default_rng(3).permutation(N)
    plain = value_and_gradient(key, family, model, block(groups, np.arange(N)), 2, K)
    if K == 1 and name in ONE_OF_EACH:  # without any filler
        same(value_and_gradient(key, family, model, whole(groups), 2, K), plain)
    same(value_and_gradient(key, family, model, block(groups, order), 2, K), plain)
    given, rows = table(), np.random.default_rng(4).permutation(SIZES.sum())
    shuffled = read_table({n: column[rows] for n, column in given.items()})
    assert not np.array_equal(shuffled.rows["y"], groups.rows["y"])
    same(value_and_gradient(key, family, model, block(shuffled, order), 2, K), plain)


@pytest.mark.parametrize("name, K", CASES[3:], ids=CASE_IDS[3:])
def test_blocks_of_a_partition_average_to_the_whole(name, K, groups, key, x64):
    """Mean of the block ELBOs = full ELBO, exactly: noise belongs to the group."""
    model = skewed()
    family = family_of(name, model, groups)
    full = value_and_gradient(key, family, model, block(groups, np.arange(N)), 2, K)
    for R, B in [(7, 1), (7, 3), (12, 5)]:
        members = partition(np.random.default_rng(R), groups.sizes, R, B)
        assert len(members) > 1
        blocks = [block(groups, m, len(members)) for m in members]
        same(mean_over(blocks, key, family, model, K), full)


@pytest.mark.parametrize("name, K", CASES[3:], ids=CASE_IDS[3:])
def test_all_minibatches_average_to_the_whole(name, K, groups, key, x64):
    """The paper's uniform minibatches: the mean over every one of them, scaled N/|B|."""
    model = skewed()
    family = family_of(name, model, groups)
    full = value_and_gradient(key, family, model, block(groups, np.arange(N)), 2, K)
    for size in (1, 3, N - 1):
        members = [np.array(m) for m in combinations(range(N), size)]
        same(mean_over([block(groups, m, N / size) for m in members], key, family, model, K), full)


@pytest.mark.slow
def test_another_key_is_another_estimate(groups, key, x64):
    """What the tests above would not notice: that there is any noise at all."""
    model = skewed()
    family = family_of("branch-dense", model, groups)
    batch = block(groups, np.arange(N))
    keys = jax.random.split(key, 3)
    values = [float(value_and_gradient(k, family, model, batch, 2, 1)[0]) for k in keys]
    assert np.ptp(values) > 0.1


@pytest.mark.slow
def test_terms_add_up_to_the_log_joint(groups, key, x64):
    """log p(theta, z, y) - log q at the draw, each density evaluated by hand."""
    model, batch = skewed(), whole(groups)
    family = family_of("branch-dense", model, groups)
    both = lambda k: (terms(k, family, model, batch), family.draw(k, model, batch))
    parts, draw = jax.jit(both)(key)
    t, z = model.theta.values(draw.theta), np.asarray(draw.z)
    prior = (
        dist.Normal(0, 1).log_prob(t["mu"]).sum()
        + dist.HalfNormal(1).log_prob(t["tau"]).sum()
        + dist.Normal(0, 1).log_prob(t["shift"])
        + draw.theta[DIM : 2 * DIM].sum()
    )
    np.testing.assert_allclose(parts.log_prior, prior)
    mean = t["mu"][None] + 0.1 * groups.group["u"][:, None]
    np.testing.assert_allclose(
        parts.log_local, dist.Normal(mean, t["tau"][None]).log_prob(z).sum(1)
    )
    owner = np.repeat(np.arange(N), SIZES)
    rate = np.exp(0.3 * (groups.rows["x"] * z[owner]).sum(1) + 0.2 * t["shift"])
    rows = dist.Poisson(rate).log_prob(groups.rows["y"])
    np.testing.assert_allclose(parts.log_lik, np.bincount(owner, rows, N), atol=1e-12)
    total = prior + parts.log_local.sum() + rows.sum() - draw.log_q_theta - draw.log_q_z.sum()
    np.testing.assert_allclose(parts.total(jnp.ones(())), total)


def test_local_draws_need_local_conditionals(groups, key):
    model = skewed()
    with pytest.raises(ValueError, match=r"joint\(\) has none. Use branch\(\)"):
        elbo(key, rf.joint(model, groups), model, whole(groups), local_draws=4)


# The conjugate regression: values known in closed form

CONJUGATE = np.array([3, 0, 5])


@pytest.fixture(scope="module")
def conjugate():
    data, _ = oracle.simulate(0, 3, CONJUGATE, DIM)
    return data, read(data, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joint-block", "branch-dense", "branch-diagonal"])
def test_the_mean_is_the_elbo(name, conjugate, key):
    """Within 4 standard errors of log evidence less KL, which has no Monte Carlo in it."""
    data, groups = conjugate
    model, batch = regression(DIM), whole(groups)
    family = family_of(name, model, groups)
    one = lambda k: terms(k, family, model, batch).total(jnp.ones(()))
    values = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, 20_000)), float)
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - exact_elbo(family, model, data, groups)) < 4 * error


@pytest.mark.parametrize("estimator", ["total", "stl"])
@pytest.mark.parametrize("method", [slow("joint"), "branch", slow("solved")])
def test_at_the_optimum_every_draw_is_the_log_evidence(method, estimator, conjugate, key, x64):
    data, groups = conjugate
    model = regression(DIM)
    family, evidence = exact_family(method, model, data, 3), oracle.exact(data, 3).log_evidence
    for k in jax.random.split(key, 3):
        value, _ = value_and_gradient(k, family, model, whole(groups), draws=1, estimator=estimator)
        np.testing.assert_allclose(value, evidence, rtol=1e-9)


@pytest.mark.parametrize("method", [slow("joint"), "branch", slow("solved")])
def test_stl_has_no_variance_at_the_optimum(method, conjugate, key, x64):
    data, groups = conjugate
    model = regression(DIM)
    family = exact_family(method, model, data, 3)
    gradients = {
        estimator: np.array([
            numbers(value_and_gradient(k, family, model, whole(groups), 1, 1, estimator)[1])
            for k in jax.random.split(key, 5)
        ])
        for estimator in ("stl", "total")
    }  # fmt: skip
    assert np.abs(gradients["stl"]).max() < 1e-7
    assert gradients["total"].std(0).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_OF_EACH, "joint-block", "branch-diagonal"])
def test_stl_and_total_gradients_agree_in_mean(name, conjugate, key):
    """Paired draw by draw; every coordinate's mean difference within 4.5 of its standard error."""
    _, groups = conjugate
    model, batch = regression(DIM), whole(groups)
    family = family_of(name, model, groups)
    learned = lambda g: g.theta if name.startswith("amortized") else g

    @jax.jit
    def difference(k):
        one, other = (
            eqx.filter_grad(lambda f: elbo(k, f, model, batch, estimator=e))(family)
            for e in ("stl", "total")
        )
        gradients = [jax.tree.leaves(learned(g)) for g in (one, other)]
        if name.startswith("amortized"):
            gradients = [
                [*g, f.local.head.linears[-1].bias] for g, f in zip(gradients, (one, other))
            ]
        flat = [jnp.concatenate([x.ravel() for x in g]) for g in gradients]
        return flat[0] - flat[1], flat[1]

    each, total = jax.lax.map(difference, jax.random.split(key, 4000), batch_size=500)
    each = np.asarray(each, float)
    error = each.std(0) / np.sqrt(len(each))
    assert np.abs(np.asarray(total)).mean(0).max() > 0.1
    assert error.max() > 1e-3  # they do differ draw by draw
    assert np.all(np.abs(each.mean(0)) <= 4.5 * error + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [slow("joint-dense"), "branch-dense"])
def test_draws_of_stl_come_in_mirror_images(name, groups, key, x64):
    """A pair's mean theta is that of q, and its noise cancels; of three draws one is alone."""
    model, batch = skewed(), whole(groups)
    family = family_of(name, model, groups)
    keys, signs = seeds(key, 3, "stl")
    draws = [family.draw(k, model, batch, s) for k, s in zip(keys, signs, strict=True)]
    mean = family.theta.mean
    np.testing.assert_allclose(draws[0].theta + draws[1].theta, 2 * mean, atol=1e-12)
    np.testing.assert_allclose(draws[0].noise[1], -draws[1].noise[1])
    assert np.abs(draws[0].theta + draws[2].theta - 2 * mean).min() > 1e-6
    independent, ones = seeds(key, 4, "total")
    assert len(np.unique(jax.random.key_data(independent), axis=0)) == 4 and np.all(ones == 1)


@pytest.mark.slow
@pytest.mark.parametrize("local_draws", [1, 4])
def test_which_groups_are_in_a_step_is_no_noise_to_a_scale(local_draws, key):
    """Groups far apart: their mean moves the slope in theta, and not that of q(theta)'s scale."""
    table = {"g": np.arange(200), "x": np.ones((200, 1)), "y": 10 * np.arange(-100.0, 100.0) / 100}
    groups = Groups.from_table(table, by="g", rows=["x", "y"])
    model, data = regression(1), to_device(groups)
    family = rf.branch(model, groups, "block")
    family = eqx.tree_at(lambda f: f.local.w, family, family.local.w.at[:, 0].set(table["y"] / 2))

    def slope(key, estimator):
        key, own = jax.random.split(key)
        batch = cut(data, jax.random.permutation(own, 200)[:10], 20.0, 10)
        one = lambda f: elbo(  # noqa: E731
            key, f, model, batch, draws=4, local_draws=local_draws, estimator=estimator
        )
        return eqx.filter_grad(one)(family).theta.free[0]

    spread = {
        e: np.std(
            jax.lax.map(lambda k, e=e: slope(k, e), jax.random.split(key, 400), batch_size=100)
        )
        for e in ("stl", "total")
    }
    assert spread["stl"] < 0.5 * spread["total"]
