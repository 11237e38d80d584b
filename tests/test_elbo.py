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
from ramify import _elbo
from ramify._data import Groups, cut, partition, to_device, whole
from ramify._elbo import elbo, terms, tight, weigh
from ramify._gaussian import FREEDOM
from ramify._model import Model

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


FAMILIES = {
    f"{make.__name__}-{covariance}": (make, covariance)
    for make in (rf.joint, rf.branch, rf.amortized)
    for covariance in oracle.COVARIANCES
} | {"solved": (rf.solved, None)}
# Where the covariance makes no difference to the code, these stand for all.
ONE_OF_EACH = ["joint-dense", "branch-dense", "amortized-dense", "solved"]


@cache
def family_of(name, model, groups):
    """A family away from its start, so that no two groups or coordinates look alike."""
    make, covariance = FAMILIES[name]
    family = make(model, groups) if covariance is None else make(model, groups, covariance)

    def where(f):
        if name.startswith("joint"):
            return f.parts
        if name.startswith("branch"):
            return f.theta, f.local.w
        return (f.theta, f.local.head.linears[-1]) if name.startswith("amortized") else (f.theta,)

    part, rest = eqx.partition(where(family), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(part)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    size = 0.02 if name.startswith("amortized") else 0.2
    noisy = [x + size * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves)]
    return eqx.tree_at(where, family, eqx.combine(jax.tree.unflatten(tree, noisy), rest))


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


def test_another_key_is_another_estimate(groups, key, x64):
    """What the tests above would not notice: that there is any noise at all."""
    model = skewed()
    family = family_of("branch-dense", model, groups)
    batch = block(groups, np.arange(N))
    keys = jax.random.split(key, 3)
    values = [float(value_and_gradient(k, family, model, batch, 2, 1)[0]) for k in keys]
    assert np.ptp(values) > 0.1


def test_terms_add_up_to_the_log_joint(groups, key, x64):
    """log p(theta, z, y) - log q at the draw, each density evaluated by hand."""
    model, batch = skewed(), whole(groups)
    family = family_of("branch-dense", model, groups)
    parts = terms(key, family, model, batch)
    draw = family.draw(key, model, batch)
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


# The conjugate regression: values known in closed form

CONJUGATE = np.array([3, 0, 5])


@pytest.fixture(scope="module")
def conjugate():
    data, _ = oracle.simulate(0, 3, CONJUGATE, DIM)
    return data, read(data, 3)


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
@pytest.mark.parametrize("method", ["joint", "branch", "solved"])
def test_at_the_optimum_every_draw_is_the_log_evidence(method, estimator, conjugate, key, x64):
    data, groups = conjugate
    model = regression(DIM)
    family, evidence = exact_family(method, model, data, 3), oracle.exact(data, 3).log_evidence
    for k in jax.random.split(key, 3):
        value, _ = value_and_gradient(k, family, model, whole(groups), draws=1, estimator=estimator)
        np.testing.assert_allclose(value, evidence, rtol=1e-9)


@pytest.mark.parametrize("method", ["joint", "branch", "solved"])
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


# The tight bound


@cache
def tiny() -> Model:
    """One dimension of everything, not conjugate: quadrature gives its local integrals exactly."""
    return Model(
        theta={"mu": rf.real()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 0.8).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=3 * z["b"] * row["x"]).log_prob(row["y"]),
    )


@pytest.fixture(scope="module")
def few():
    data = {"g": [0, 0, 0, 1, 1], "x": [1.0, 0.5, -1.0, 2.0, 1.0], "y": [1, 1, 0, 0, 1]}
    return Groups.from_table(data, by="g", rows=["x", "y"])


def log_evidences(theta, batch):
    """log p(y_i | theta) of each group by quadrature."""
    model, grid = tiny(), jnp.linspace(-9.0, 9.0, 2001)

    def at(point):
        z = jnp.full((2, 1), point)
        return model.log_local(theta, z, batch) + _elbo.group_log_lik(model, theta, z, batch)

    return jax.nn.logsumexp(jax.vmap(at)(grid), 0) + jnp.log(grid[1] - grid[0])


@pytest.mark.parametrize("name", ["branch-dense", "solved"])
def test_the_tight_bound_closes_on_the_evidence(name, few, key, x64):
    model, batch, theta = tiny(), whole(few), jnp.array([0.4])
    family = family_of(name, model, few)

    @jax.jit
    def gaps(keys):
        bound = lambda K: jax.lax.map(  # noqa: E731
            lambda k: weigh(k, family, model, batch, theta, K).bound, keys
        )
        return [log_evidences(theta, batch) - bound(K).mean(0) for K in (2, 64)]

    few_draws, many_draws = gaps(jax.random.split(key, 1000))
    assert np.all(few_draws > 0) and np.all(np.abs(many_draws) < few_draws / 8)
    assert np.all(np.abs(many_draws) < 0.02)


def test_the_tight_estimate_is_the_sum_of_bounds(few, key, x64):
    model, batch = tiny(), whole(few)
    family = family_of("branch-dense", model, few)
    key_theta, key_z = jax.random.split(key)
    theta, log_q = family.theta.draw(jax.random.normal(key_theta, (1,)))
    local = jax.jit(lambda k: weigh(k, family, model, batch, theta, 6).bound)(key_z).sum()
    value = jax.jit(lambda k: tight(k, family, model, batch._replace(scale=jnp.array(3.0)), 6))(key)
    np.testing.assert_allclose(value, model.log_prior(theta) - log_q + 3 * local)


def test_local_draws_need_local_conditionals(groups, key):
    model = skewed()
    with pytest.raises(ValueError, match=r"joint\(\) has none. Use branch\(\)"):
        elbo(key, rf.joint(model, groups), model, whole(groups), local_draws=4)


@pytest.mark.parametrize(
    "name, estimator", [("branch-dense", "total"), ("branch-dense", "stl"), ("solved", "total")]
)
def test_the_tight_gradient_of_theta_is_fishers_identity(name, estimator, few, key, x64):
    """With many draws: the derivative of log p(y_i | theta) at the draw, from quadrature."""
    model, batch = tiny(), whole(few)
    family = family_of(name, model, few)
    bound = lambda f, k: tight(k, f, model, batch, 4096, estimator)
    gradient = jax.jit(lambda k: eqx.filter_grad(bound)(family, k).theta)

    def exact(q, k):
        theta, log_q = q.draw(jax.random.normal(jax.random.split(k)[0], (1,)))
        log_q = jax.lax.stop_gradient(q).log_prob(theta) if estimator == "stl" else log_q
        return model.log_prior(theta) - log_q + log_evidences(theta, batch).sum()

    for k in jax.random.split(key, 3):
        expected = jax.grad(exact)(family.theta, k)
        actual = gradient(k)
        np.testing.assert_allclose(actual.mean, expected.mean, atol=0.02)
        np.testing.assert_allclose(actual.free, expected.free, atol=0.02)


def local_gradients(name, K, few, key, draws=10_000):
    """Gradients in the local parameters, draw by draw: of `tight`, and plainly of the bound."""
    model, batch = tiny(), whole(few)
    family = family_of(name, model, few)
    part = lambda f: f.local.w if hasattr(f.local, "w") else f.local.head.linears[-1].bias  # noqa: E731

    def plain(f, k):
        key_theta, key_z = jax.random.split(k)
        theta, _ = f.theta.draw(jax.random.normal(key_theta, (1,)))
        return weigh(key_z, f, model, batch, jax.lax.stop_gradient(theta), K).bound.sum()

    def both(k):
        doubly = eqx.filter_grad(lambda f: tight(k, f, model, batch, K))(family)
        return part(doubly).ravel(), part(eqx.filter_grad(plain)(family, k)).ravel()

    keys = jax.random.split(key, draws)
    return (np.asarray(g) for g in jax.jit(lambda k: jax.lax.map(both, k, batch_size=1000))(keys))


@pytest.mark.parametrize("name", ["branch-dense", "amortized-block"])
def test_the_tight_gradient_of_local_parameters_is_the_bounds(name, few, key, x64):
    """Four draws are independent of one another: then it is unbiased, and less noisy."""
    doubly, plain = local_gradients(name, 4, few, key)
    difference = doubly - plain
    error = difference.std(0) / np.sqrt(len(difference))
    assert np.all(np.abs(difference.mean(0)) < 4.5 * error)
    assert np.abs(plain.mean(0) / error).max() > 15  # a gradient of zero would not pass for it
    assert doubly.std(0).mean() < 0.7 * plain.std(0).mean()


def test_draws_spread_evenly_keep_its_direction(few, key, x64, monkeypatch):
    """With more than four draws: the gradient of the bound with independent ones, nearly."""
    spread, _ = (g.mean(0) for g in local_gradients("branch-dense", 16, few, key))

    def independent(key, index, K, M):
        draw = lambda i: jax.random.t(jax.random.fold_in(key, i), FREEDOM, (K, M))  # noqa: E731
        return jax.vmap(draw, out_axes=1)(index)

    monkeypatch.setattr(_elbo, "group_points", independent)
    apart, plain = (g.mean(0) for g in local_gradients("branch-dense", 16, few, key))
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    assert cosine(spread, apart) > 0.97 and cosine(apart, plain) > 0.9
