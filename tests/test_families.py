"""The paper's nine families and the solved one: densities, draws, structure and refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import oracle
import ramify as rf
from conjugate import assemble
from exact_fits import read, regression
from quick import slow, slow_but
from ramify.data.groups import Groups
from ramify.data.resident import cut, to_device, whole
from ramify.families.network import Pooled, Single

SIZES, DIM = np.array([4, 0, 7, 1]), 3
N = len(SIZES)
MAKERS = {"joint": rf.joint, "branch": rf.branch, "amortized": rf.amortized}
NINE = [(method, covariance) for method in MAKERS for covariance in oracle.COVARIANCES]
IDS = [f"{method}-{covariance}" for method, covariance in NINE]
KEPT = [("joint", "dense"), ("branch", "dense"), ("branch", "diagonal")]
FEW_OF_NINE = slow_but(KEPT, NINE)


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(0, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def groups(table):
    return read(table, N)


def shaken(family, seed=0):
    """The family away from its start: noise on all that is learned (a network: its last layer)."""

    def where(f):
        if hasattr(f, "parts"):
            return f.parts
        return f.theta, f.local.w if hasattr(f.local, "w") else f.local.head.linears[-1]

    part, rest = eqx.partition(where(family), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(part)
    size = 0.05 if hasattr(getattr(family, "local", None), "head") else 0.3
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = [x + size * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves)]
    return eqx.tree_at(where, family, eqx.combine(jax.tree.unflatten(tree, noisy), rest))


def make(method, covariance, model, groups, **options):
    return shaken(MAKERS[method](model, groups, covariance=covariance, **options))


def flat(draw):
    """(theta, z_1 .. z_N) as one vector."""
    return np.concatenate([draw.theta, np.asarray(draw.z).ravel()])


@pytest.mark.parametrize(
    "method, covariance, scale_map",
    slow_but(
        [(*family, "log") for family in KEPT],
        [(*family, "log") for family in NINE],
    )
    + [slow("branch", "dense", "paper")],
)
def test_log_q_is_the_assembled_normals(method, covariance, scale_map, groups, key, x64):
    model, batch = regression(DIM), whole(groups)
    family = make(method, covariance, model, groups, scale_map=scale_map)
    mean, cov = assemble(family, model, groups)
    reference = stats.multivariate_normal(mean, cov)
    draw = jax.jit(lambda k: family.draw(k, model, batch))
    log_q = jax.jit(lambda d: family.log_q(model, batch, d))
    for k in jax.random.split(key, 3):
        d = draw(k)
        from_noise = d.log_q_theta + d.log_q_z.sum()
        np.testing.assert_allclose(from_noise, reference.logpdf(flat(d)), rtol=1e-9)
        for a, b in zip(log_q(d), (d.log_q_theta, d.log_q_z), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        # Away from the draw as well: it is a density, not only a way to repeat a number.
        moved = d._replace(theta=d.theta + 0.3, z=d.z - 0.2)
        q_theta, q_z = log_q(moved)
        np.testing.assert_allclose(q_theta + q_z.sum(), reference.logpdf(flat(moved)), rtol=1e-9)


@pytest.mark.parametrize("method, covariance", FEW_OF_NINE[3:], ids=IDS[3:])
def test_log_q_is_split_by_group(method, covariance, groups, key, x64):
    """Each group's part is log q(z_i | theta): together with theta's, that of its marginal."""
    model, batch = regression(DIM), whole(groups)
    family = make(method, covariance, model, groups)
    mean, cov = assemble(family, model, groups)
    draw = jax.jit(lambda k: family.draw(k, model, batch))(key)
    for i in range(N):
        keep = np.r_[:DIM, DIM * (i + 1) : DIM * (i + 2)]
        log_q = stats.multivariate_normal(mean[keep], cov[np.ix_(keep, keep)]).logpdf(
            flat(draw)[keep]
        )
        np.testing.assert_allclose(draw.log_q_theta + draw.log_q_z[i], log_q, rtol=1e-9)


@pytest.mark.parametrize(
    "method, covariance",
    slow_but(
        [("joint", "diagonal"), ("branch", "diagonal")],
        [("branch", "dense"), *((method, "diagonal") for method in MAKERS)],
    ),
)
def test_as_many_groups_as_dimensions(method, covariance, key, x64):
    """Three groups of three: a table of diagonal scales has the shape of a matrix, and is none."""
    table, _ = oracle.simulate(1, DIM, 4, DIM)
    model, groups = regression(DIM), read(table, DIM)
    family, batch = make(method, covariance, model, groups), whole(groups)
    reference = stats.multivariate_normal(*assemble(family, model, groups))
    draw = jax.jit(lambda k: family.draw(k, model, batch))(key)
    log_q_theta, log_q_z = jax.jit(lambda d: family.log_q(model, batch, d))(draw)
    expected = reference.logpdf(flat(draw))
    np.testing.assert_allclose(draw.log_q_theta + draw.log_q_z.sum(), expected, rtol=1e-9)
    np.testing.assert_allclose(log_q_theta + log_q_z.sum(), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method, covariance", NINE, ids=IDS)
def test_moments_of_draws(method, covariance, groups, key):
    model, batch, draws = regression(DIM), whole(groups), 20_000
    family = make(method, covariance, model, groups)
    mean, cov = assemble(family, model, groups)
    keys = jax.random.split(key, draws)
    d = jax.jit(jax.vmap(lambda k: family.draw(k, model, batch)))(keys)
    x = np.concatenate([d.theta, d.z.reshape(draws, -1)], 1).astype(float)
    var = np.diagonal(cov)
    # The largest of 135 standard normal errors is above 4.5 once in a thousand data sets.
    assert np.abs((x.mean(0) - mean) / np.sqrt(var / draws)).max() < 4.5
    error = np.sqrt((np.outer(var, var) + cov**2) / draws)
    assert np.abs((np.cov(x.T) - cov) / error).max() < 4.5


@pytest.mark.parametrize("method, covariance", slow_but(KEPT, NINE), ids=IDS)
def test_structure_of_the_papers_table(method, covariance, groups):
    """Which of theta and the z_i are correlated, and under what condition."""
    model = regression(DIM)
    _, cov = assemble(make(method, covariance, model, groups), model, groups)
    precision = np.linalg.inv(cov)
    blocks = lambda m: np.abs(m.reshape(N + 1, DIM, N + 1, DIM)).max((1, 3)) > 1e-6
    theta_z, between = blocks(cov)[0, 1:], blocks(precision)[1:, 1:][~np.eye(N, dtype=bool)]
    assert theta_z.all() if covariance == "dense" else not theta_z.any()
    joint_over_z = method == "joint" and covariance != "diagonal"
    assert between.all() if joint_over_z else not between.any()
    inside = np.abs(np.linalg.inv(cov[DIM:, DIM:][:DIM, :DIM])) > 1e-6
    assert inside.all() if covariance != "diagonal" else not inside[~np.eye(DIM, dtype=bool)].any()


@pytest.mark.parametrize("covariance", slow_but(["dense"], oracle.COVARIANCES))
def test_joint_looks_groups_up_by_number(covariance, groups, key):
    """In a shuffled block with filler every group still gets its own z."""
    model, data = regression(DIM), to_device(groups)
    family = make("joint", covariance, model, groups)
    ordered = family.draw(key, model, whole(groups))
    shuffled = cut(data, jnp.array([2, 0, 3, 1, -1, -1]), 1.0, 20)
    draw = family.draw(key, model, shuffled)
    np.testing.assert_array_equal(draw.z[:4], ordered.z[jnp.array([2, 0, 3, 1])])
    assert float(draw.log_q_theta) == float(ordered.log_q_theta)
    log_q_theta, log_q_z = family.log_q(model, shuffled, draw)
    np.testing.assert_allclose(log_q_theta, ordered.log_q_theta, rtol=1e-5)
    assert not np.any(log_q_z)


@pytest.mark.parametrize("covariance", oracle.COVARIANCES)
def test_marginal_of_theta_in_joint(covariance, groups):
    model = regression(DIM)
    family = make("joint", covariance, model, groups)
    mean, cov = assemble(family, model, groups)
    np.testing.assert_allclose(family.theta.mean, mean[:DIM], rtol=1e-6)
    np.testing.assert_allclose(family.theta.covariance, cov[:DIM, :DIM], rtol=1e-5, atol=1e-6)


def test_joint_refuses_a_part_of_the_groups(groups, key):
    model = regression(DIM)
    batch = cut(to_device(groups), jnp.array([0, 1, 2]), 1.0, 12)
    with pytest.raises(ValueError, match=r"all 4 groups at once; got a block of at most 3.*branch"):
        rf.joint(model, groups).draw(key, model, batch)


def test_joint_refuses_what_can_not_be_stored():
    many = Groups.from_table({"g": np.arange(7000), "y": np.zeros(7000)}, by="g", rows="y")
    with pytest.raises(ValueError, match=r"over 21003 dimensions \(7000 groups\).*use branch"):
        rf.joint(regression(DIM), many)
    assert rf.joint(regression(DIM), many, covariance="diagonal").N == 7000


@pytest.mark.parametrize("method", MAKERS)
def test_unknown_covariance(method, groups):
    with pytest.raises(Exception, match='(?s)covariance.*("dense", "block" or "diagonal"|full)'):
        MAKERS[method](regression(DIM), groups, covariance="full")


def exact_conditional(table, groups, theta):
    post = oracle.exact(table, N)
    return post.z_offset + post.z_slope @ theta, post.z_given_cov


@pytest.mark.slow
def test_solved_is_exact_on_the_conjugate_model(table, groups, x64):
    model = regression(DIM)
    conditional = rf.solved(model, groups).conditional(model, whole(groups))
    theta = np.array([0.3, -1.0, 2.0])
    local = jax.jit(conditional)(jnp.asarray(theta))
    mean, cov = exact_conditional(table, groups, theta)
    np.testing.assert_allclose(local.mean, mean, atol=1e-9)
    np.testing.assert_allclose(local.scale @ local.scale.swapaxes(1, 2), cov, atol=1e-9)


# Networks


@eqx.filter_jit
def parameters(family, batch):
    return family.local.parameters(batch)


def with_group_columns(table):
    every = {"group": np.arange(N), "u": np.array([1.0, -2.0, 0.5, 3.0])}
    return Groups.from_table(table, by="group", rows=["x", "y"], group="u", group_table=every)


@pytest.mark.slow
def test_pooling_does_not_see_the_order_of_rows(table, groups, x64):
    model = regression(DIM)
    order = np.random.default_rng(0).permutation(SIZES.sum())
    shuffled = read({name: column[order] for name, column in table.items()}, N)
    assert not np.array_equal(shuffled.rows["y"], groups.rows["y"])
    family = make("amortized", "dense", model, groups)
    a, b = parameters(family, whole(groups)), parameters(family, whole(shuffled))
    np.testing.assert_allclose(a, b, atol=1e-10)
    assert np.abs(a[0] - a[2]).max() > 1e-3  # it sees the rows


@pytest.mark.slow
def test_a_network_starts_almost_standard_normal(groups):
    model = regression(DIM)
    for covariance in oracle.COVARIANCES:
        family = rf.amortized(model, groups, covariance=covariance)
        local = family.conditional(model, whole(groups))(jnp.zeros(DIM))
        scale = np.asarray(local.scale)
        scale = scale if scale.ndim == 3 else scale[:, :, None] * np.eye(DIM)
        assert np.abs(local.mean).max() < 0.1 and np.abs(scale - np.eye(DIM)).max() < 0.1


@pytest.mark.slow
def test_the_papers_network(groups):
    local = rf.amortized(regression(DIM), groups, count_aware=False).local
    widths = lambda layers: [layer.weight.shape for layer in layers.linears]
    assert widths(local.encoder.features) == [(64, 4), (64, 64), (64, 64), (128, 64)]
    P = DIM + DIM * DIM + DIM * (DIM + 1) // 2
    assert widths(local.head) == [(256, 256), (256, 256), (256, 256), (P, 256)]
    # Truncated at two sds, a normal's sd is 0.88 of the one it was cut from.
    sd = lambda layer: float(np.asarray(layer.weight).std() * layer.weight.shape[1] ** 0.5)
    for layer in (*local.encoder.features.linears[1:], *local.head.linears[:-1]):
        np.testing.assert_allclose(sd(layer), 0.88, atol=0.03)
        assert not np.any(layer.bias)
    np.testing.assert_allclose(local.head.linears[-1].weight.std(), 0.001, rtol=0.1)


def test_embeddings_are_means_of_features_and_their_squares(groups, x64):
    encoder = rf.amortized(regression(DIM), groups).local.encoder
    assert isinstance(encoder, Pooled)
    batch, x = whole(groups), jax.random.normal(jax.random.key(0), (SIZES.sum(), DIM + 1))
    features = np.split(np.asarray(encoder.features(x)), np.cumsum(SIZES)[:-1])
    both = [np.concatenate([f, f**2], 1) for f in features]
    pooled = np.array([b.mean(0) if len(b) else np.zeros(256) for b in both])
    counts = np.stack([np.log1p(SIZES), (1 + SIZES) ** -0.5], 1)
    np.testing.assert_allclose(encoder(x, batch), np.concatenate([pooled, counts], 1), atol=1e-10)


@pytest.mark.parametrize("count_aware", [True, False])
def test_twice_the_same_rows(count_aware, table, groups, x64):
    """The paper's pooling can't tell them from once; with the count it can."""
    model = regression(DIM)
    twice = read({name: np.concatenate([c, c]) for name, c in table.items()}, N)
    family = make("amortized", "dense", model, groups, count_aware=count_aware)
    change = np.abs(parameters(family, whole(twice)) - parameters(family, whole(groups)))
    if count_aware:
        assert np.all(change[SIZES > 0].max(1) > 1e-4)
    else:
        assert change.max() < 1e-10
    assert change[SIZES == 0].max() < 1e-10


def test_group_columns_reach_the_parameter_network(table, x64):
    model, groups = regression(DIM), with_group_columns(table)
    family, batch = make("amortized", "dense", model, groups), whole(groups)
    other = batch._replace(group={"u": batch.group["u"].at[2].add(1.0)})
    change = np.abs(parameters(family, other) - parameters(family, batch)).max(1)
    assert change[2] > 1e-4 and not np.any(change[[0, 1, 3]])


@pytest.mark.slow
def test_columns_are_standardised(table, x64):
    """Units do not matter: the same network on rescaled, shifted columns."""
    model = regression(DIM)
    moved = {**table, "x": 1000 + 50 * table["x"], "y": 7 - 3.0 * table["y"]}
    moved["y"] = 7 + 3.0 * table["y"]
    for standardise, same in ((True, True), (False, False)):
        a, b = (make("amortized", "block", model, read(t, N), standardise=standardise)
                for t in (table, moved))  # fmt: skip
        one, other = parameters(a, whole(read(table, N))), parameters(b, whole(read(moved, N)))
        assert np.allclose(one, other, atol=1e-9) == same


@pytest.mark.slow
def test_constant_columns_are_left_alone():
    table = {"g": [0, 0, 1], "x": np.full(3, 5.0), "y": [1.0, 2.0, 3.0]}
    groups = Groups.from_table(table, by="g", rows=["x", "y"])
    mean, sd = rf.amortized(regression(1), groups).local.columns["x"]
    assert mean.tolist() == [0.0] and sd.tolist() == [1.0]


@pytest.mark.slow
def test_groups_of_one_row_are_not_pooled(x64):
    table, _ = oracle.simulate(0, 5, 1, DIM)
    model, groups = regression(DIM), read(table, 5)
    family = make("amortized", "dense", model, groups)
    assert isinstance(family.local.encoder, Single)
    data = to_device(groups)
    everyone = parameters(family, whole(groups))
    some = cut(data, jnp.array([3, 1, -1]), 1.0, 4)
    np.testing.assert_allclose(
        parameters(family, some)[:2], everyone[jnp.array([3, 1])], atol=1e-10
    )


class Counts(eqx.Module):
    """An encoder of its own: the number of rows and the largest y."""

    scale: jax.Array

    def __call__(self, x, batch):
        y = jnp.where(batch.row_mask, x[:, -1], -jnp.inf)
        top = jax.ops.segment_max(y, batch.segment, len(batch.index))
        top = jnp.where(batch.count > 0, top, 0.0)
        return jnp.stack([batch.count * self.scale, top], -1)


def test_any_encoder(groups):
    model = regression(DIM)
    family = rf.amortized(model, groups, encoder=Counts(jnp.ones(())))
    assert family.local.head.linears[0].weight.shape == (256, 2)
    assert parameters(family, whole(groups)).shape == (N, DIM + DIM * DIM + DIM * (DIM + 1) // 2)


def test_an_encoder_of_the_wrong_shape(groups):
    with pytest.raises(ValueError, match=r"returns \[B, E\]; for 2 groups it returned \(4, 7\)"):
        rf.amortized(regression(DIM), groups, encoder=lambda x, batch: jnp.zeros((4, 7)))


def test_seeds_make_networks(groups):
    weights = [
        rf.amortized(regression(DIM), groups, seed=s).local.head.linears[0].weight
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def size(family):
    return sum(x.size for x in jax.tree.leaves(eqx.filter(family, eqx.is_inexact_array)))


@pytest.mark.parametrize("covariance", slow_but(["dense"], oracle.COVARIANCES))
def test_how_parameters_grow(covariance):
    """A network's do not grow with N; a table's as its docstring says."""
    model = regression(DIM)
    few, many = (read(oracle.simulate(0, n, 2, DIM)[0], n) for n in (5, 50))
    network = [size(rf.amortized(model, g, covariance=covariance)) for g in (few, many)]
    assert network[0] == network[1]
    tables = [size(rf.branch(model, g, covariance=covariance)) for g in (few, many)]
    each = {"dense": 3 + 9 + 6, "block": 3 + 6, "diagonal": 2 * 3}[covariance]
    assert tables[1] - tables[0] == 45 * each
