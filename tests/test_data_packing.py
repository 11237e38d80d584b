"""Packing: every group in exactly one block, every row in its place, whatever the filler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.data.groups import Groups
from ramify.data.partition import block_shape, minibatches, partition, rows_needed, sequential
from ramify.data.resident import Resident, cut, to_device, whole

jitted = jax.jit(cut, static_argnames="R")


def make(sizes):
    """Groups of these sizes; y is the row's number in the table, u ten times the label."""
    sizes = np.asarray(sizes)
    g = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Groups.from_table(
        {"g": g, "y": np.arange(len(g)), "x": np.arange(2.0 * len(g)).reshape(-1, 2)},
        by="g",
        rows=["y", "x"],
        group="u",
        group_table={"g": np.arange(len(sizes)), "u": 10.0 * np.arange(len(sizes))},
    )


def movielens_like(seed=0):
    """Sizes like those of MovieLens 1M: 6,040 groups of 20 to 2,314 rows, mean about 165."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(96), 1.04, 6040), 20, 2314).round().astype(np.int64)


def loads(members, sizes):
    return np.where(members >= 0, sizes[members], 0).sum(axis=1)


def check_blocks(members, sizes, R, B):
    real = members >= 0
    assert members.dtype == np.int32 and members.shape[1] == B
    assert sorted(members[real]) == list(range(len(sizes)))  # each group in exactly one block
    assert real[:, 0].all() and (np.diff(real.astype(int), axis=1) <= 0).all()  # fillers last
    assert (loads(members, sizes) <= R).all()


def check_batch(groups, batch, members):
    """The batch holds precisely the members' rows, in order, and filler as promised."""
    everyone, place = list(groups), 0
    filled = int(batch.row_mask.sum())
    for b, member in enumerate(members):
        copied = member if member >= 0 else members[0]
        assert bool(batch.group_mask[b]) == (member >= 0)
        assert batch.index[b] == groups.number[copied]
        assert batch.group["u"][b] == groups.group["u"][copied]
        size = int(groups.sizes[member]) if member >= 0 else 0
        assert batch.count[b] == size
        here = slice(place, place + size)
        for name in groups.rows:
            np.testing.assert_array_equal(batch.rows[name][here], everyone[copied][1][name][:size])
        assert (batch.segment[here] == b).all() and batch.row_mask[here].all()
        place += size
    assert place == filled and not batch.row_mask[place:].any()
    assert (np.diff(batch.segment) >= 0).all()
    last = max(place - 1, 0)
    for column in (batch.segment, batch.rows["y"], batch.rows["x"]):
        copies = np.repeat(column[last:][:1], len(column) - place, 0)
        np.testing.assert_array_equal(column[place:], copies)


shapes = st.tuples(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(9, 30),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)


@given(shapes)
def test_partition_and_sequential_hold_each_group_once(shape):
    sizes, R, B, seed = np.array(shape[0]), *shape[1:]
    check_blocks(partition(np.random.default_rng(seed), sizes, R, B), sizes, R, B)
    members = sequential(sizes, R, B)
    check_blocks(members, sizes, R, B)
    assert (np.diff(members[members >= 0]) > 0).all()


@settings(max_examples=8)
@given(shapes)
def test_cut_returns_precisely_the_groups_rows(shape):
    # One static shape for all examples, so that there is one compilation for each count of groups.
    sizes, seed = np.array((shape[0] * 4)[:16]), shape[3]
    groups = make(sizes)
    members = partition(np.random.default_rng(seed), sizes, 24, 6)
    data = to_device(groups)
    total = 0
    for block in members:
        batch = jax.tree.map(np.asarray, jitted(data, jnp.asarray(block), len(members), R=24))
        check_batch(groups, batch, block)
        assert batch.scale == len(members)
        total += int(batch.row_mask.sum())
    assert total == groups.n_rows


def test_cut_inside_scan_sums_to_the_total():
    groups = make([3, 0, 5, 1, 1, 0, 8, 2])
    members = jnp.asarray(partition(np.random.default_rng(1), groups.sizes, 9, 4))

    def step(total, block):
        batch = cut(data, block, 1.0, R=9)
        return total + jnp.where(batch.row_mask, batch.rows["y"], 0).sum(), batch.count.sum()

    data = to_device(groups)
    total, counts = jax.lax.scan(step, jnp.int32(0), members)
    assert total == groups.rows["y"].sum() and counts.sum() == groups.n_rows


def test_cut_is_traced_once_per_shape():
    traces = []

    def traced(data, members):
        traces.append(1)
        return cut(data, members, 2.0, R=16)

    groups = make([3, 4, 5, 6, 1, 2])
    step, data = jax.jit(traced), to_device(groups)
    rng = np.random.default_rng(0)
    for _ in range(20):
        for block in partition(rng, groups.sizes, 16, 5):
            step(data, jnp.asarray(block))
    assert len(traces) == 1


@pytest.mark.parametrize("members", [[1, 3, -1], [1, -1, -1], [3, 1, 0], [0, 1, -1], [1, 0, 3]])
def test_cut_around_groups_without_rows(members):
    groups = make([2, 0, 3, 0])
    batch = jitted(to_device(groups), jnp.array(members), 1.0, R=4)
    check_batch(groups, jax.tree.map(np.asarray, batch), members)


def test_a_block_without_rows_copies_the_first_row():
    batch = jitted(to_device(make([2, 0, 3, 0])), jnp.array([3, 1, -1]), 1.0, R=4)
    first = make([2, 0, 3, 0]).rows["y"][0]
    assert not batch.row_mask.any() and (batch.rows["y"] == first).all()
    assert (batch.segment == 0).all() and batch.group_mask.tolist() == [True, True, False]


def test_data_without_rows_has_one_that_is_nobodys():
    empty = make([2, 0, 0]).subset(positions=[2, 1])
    batch = whole(empty)
    assert batch.rows["x"].tolist() == [[1.0, 1.0]] and batch.rows["y"].tolist() == [0]
    assert not batch.row_mask.any() and batch.index.tolist() == [2, 1]
    assert batch.count.tolist() == [0, 0] and batch.group_mask.all()


def test_rows_without_columns():
    groups = Groups.from_table({"g": ["a", "b", "a"]}, by="g", rows=())
    batch = cut(to_device(groups), jnp.array([1, 0]), 1.0, R=4)
    assert batch.rows == {} and batch.segment.tolist() == [0, 1, 1, 1]


def test_whole_is_the_data_in_order():
    groups = make([3, 0, 5])
    batch = jax.tree.map(np.asarray, whole(groups))
    assert whole(groups).index.tolist() == [0, 1, 2]
    check_batch(groups, batch, [0, 1, 2])
    assert batch.row_mask.all() and batch.scale == 1.0
    np.testing.assert_array_equal(batch.rows["y"], groups.rows["y"])


def test_index_is_the_number_and_not_the_position():
    part = make([3, 1, 5, 2]).subset(positions=[3, 1])
    batch = cut(to_device(part), jnp.array([1, 0]), 1.0, R=3)
    assert batch.index.tolist() == [1, 3] and batch.group["u"].tolist() == [10.0, 30.0]


def test_order_of_members_moves_groups_and_changes_none():
    groups = make([3, 0, 5, 1])
    data = to_device(groups)
    sums = {}
    for members in ([0, 1, 2, 3], [2, 3, 1, 0], [3, 0, 2, 1]):
        batch = cut(data, jnp.array(members), 1.0, R=12)
        y = jnp.where(batch.row_mask, batch.rows["y"] + 1, 0)
        each = jax.ops.segment_sum(y, batch.segment, 4, indices_are_sorted=True)
        sums[tuple(members)] = dict(zip(batch.index.tolist(), each.tolist(), strict=True))
    assert len({tuple(sorted(each.items())) for each in sums.values()}) == 1


def test_dtypes_on_the_device():
    table = {"g": [0, 1], "f": [1.0, 2.0], "h": np.ones(2, np.float32), "i": [1, 2]}
    groups = Groups.from_table(table | {"b": [True, False]}, by="g", rows=["f", "h", "i", "b"])
    single, scale = to_device(groups), cut(to_device(groups), jnp.array([0]), 2, R=2).scale
    assert [str(c.dtype) for c in single.rows.values()] == ["float32", "float32", "int32", "bool"]
    assert scale.dtype == jnp.float32 and isinstance(single, Resident)
    with jax.enable_x64(True):
        double = to_device(groups)
        kept = ["float64", "float64", "int32", "bool"]
        assert [str(c.dtype) for c in double.rows.values()] == kept
        batch = cut(double, jnp.array([1, 0, -1], jnp.int32), 2, R=4)
        assert batch.scale.dtype == jnp.float64
        assert {batch.segment.dtype, batch.index.dtype, batch.count.dtype} == {jnp.dtype("int32")}


@pytest.mark.parametrize("seed", range(5))
def test_fill_is_above_97_percent_for_sizes_like_movielens(seed):
    sizes, rng = movielens_like(seed), np.random.default_rng(seed)
    R, B = block_shape(sizes, rows=16_384)
    assert R == 16_384
    for _ in range(20):
        members = partition(rng, sizes, R, B)
        check_blocks(members, sizes, R, B)
        assert sizes.sum() / (len(members) * R) > 0.97


def test_blocks_are_about_equally_full():
    # 1.05 blocks' worth of rows makes two halves, not a full block and a crumb.
    sizes, rng = np.full(105, 10), np.random.default_rng(0)
    members = partition(rng, sizes, 1000, 105)
    assert len(members) == 2 and loads(members, sizes).min() > 500


def test_blocks_come_in_random_order_and_groups_in_random_company():
    sizes, rng = np.array([9, 1, 1, 1, 1, 1]), np.random.default_rng(0)
    drawn = [partition(rng, sizes, 9, 6) for _ in range(400)]
    first = np.mean([0 in members[0] for members in drawn])
    assert all(len(members) == 2 for members in drawn) and 0.4 < first < 0.6


def test_a_group_larger_than_a_block():
    with pytest.raises(ValueError, match="position 2 has 30 rows and a block holds 16: blocks"):
        partition(np.random.default_rng(0), np.array([1, 2, 30]), 16, 4)
    with pytest.raises(ValueError, match="a block of 0 groups"):
        sequential(np.array([1, 2]), 16, 0)


def test_block_shape():
    assert block_shape(np.array([3, 0, 2])) == (5, 3)
    assert block_shape(np.array([0, 0])) == (1, 2)
    assert block_shape(movielens_like(), rows=16_384)[1] % 8 == 0
    assert block_shape(np.array([100, 1, 1]), rows=10)[0] == 100  # never less than a group
    R, B = block_shape(np.zeros(100_000, int))
    assert R == 1 and B >= 10_000  # groups without rows fill blocks of groups
    R, B = block_shape(np.full(1_700, 10))
    assert 8_500 <= R < 9_000  # two even blocks, and not 16,384 rows half empty
    with pytest.raises(ValueError, match="blocks of 0 rows were asked for"):
        block_shape(np.array([3]), rows=0)


@given(st.integers(1, 30), st.data())
def test_minibatches_are_without_replacement(N, data):
    size = data.draw(st.integers(1, N))
    members = minibatches(np.random.default_rng(0), N, size, steps=5)
    assert members.shape == (5, size) and members.dtype == np.int32
    assert all(len(set(block.tolist())) == size for block in members)
    assert members.min() >= 0 and members.max() < N


def test_minibatches_are_uniform():
    members = minibatches(np.random.default_rng(0), N=5, size=2, steps=4000)
    pairs = np.unique(np.sort(members, axis=1), axis=0, return_counts=True)[1]
    # 400 expected for each of the ten pairs, sd 19.
    assert len(pairs) == 10 and (np.abs(pairs - 400) < 80).all()
    with pytest.raises(ValueError, match="a minibatch of 6 groups was asked for; expected 1 to 5"):
        minibatches(np.random.default_rng(0), N=5, size=6, steps=1)


@given(st.integers(0, 10**7))
def test_rows_needed_holds_all_rows_on_a_short_ladder(rows):
    needed = rows_needed(np.array([0, -1]), np.array([rows, 7]))
    assert needed >= rows and (needed == 8 or needed <= 1.25 * rows)
    mantissa = needed // 2 ** max(needed.bit_length() - 3, 0)
    assert needed % 2 ** max(needed.bit_length() - 3, 0) == 0 and 4 <= mantissa <= 7


def test_minibatches_lose_no_rows():
    groups, rng = make(movielens_like()[:60]), np.random.default_rng(0)
    members = minibatches(rng, 60, 7, steps=6)
    R = rows_needed(members, groups.sizes)
    data = to_device(groups)
    for block in members:
        batch = jitted(data, jnp.asarray(block), 60 / 7, R=R)
        assert batch.row_mask.sum() == groups.sizes[block].sum()
        assert (batch.count == groups.sizes[block]).all()


@pytest.mark.slow
def test_partition_of_ten_million_groups():
    sizes = np.random.default_rng(0).integers(1, 20, 10_000_000)
    R, B = block_shape(sizes, rows=65_536)
    members = partition(np.random.default_rng(0), sizes, R, B)
    assert np.bincount(members[members >= 0], minlength=len(sizes)).max() == 1
    assert (members >= 0).sum() == len(sizes) and loads(members, sizes).max() <= R
    assert sizes.sum() / (len(members) * R) > 0.99
