"""Blocks sent from the host: the same batches as cut on the device, sums without rounding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ramify.data import sources
from ramify.data.groups import Groups
from ramify.data.host import pack, ranges
from ramify.data.partition import rounded, shared_shape
from ramify.data.resident import cut, to_device
from ramify.numerics.budgets import chunk_size
from ramify.numerics.chunks import in_chunks
from ramify.numerics.sums import precise_sum


@pytest.fixture(scope="module")
def groups():
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(7), [3, 1, 4, 1, 5, 2, 6])
    table = {"g": g, "x": rng.normal(size=(len(g), 2)), "k": rng.integers(0, 9, len(g))}
    every = {"g": np.arange(8), "u": rng.normal(size=8)}
    return Groups.from_table(table, by="g", rows=["x", "k"], group="u", group_table=every)


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (2, 5), (7, 8)])
def test_pack_is_cut(groups, start, stop):
    R, B = 32, 10
    members = np.full(B, -1)
    members[: stop - start] = np.arange(start, stop)
    expected = cut(to_device(groups), jnp.asarray(members), 1.0, R)
    found = pack(groups, members, R)
    real = np.asarray(expected.row_mask)
    for name, column in expected.rows.items():
        assert found.rows[name].dtype == column.dtype
        # a block without rows has filler of its own
        keep = slice(None) if real.any() else slice(0, 0)
        np.testing.assert_array_equal(found.rows[name][keep], column[keep])
    for field in ("group", "segment", "index", "count", "row_mask", "group_mask", "scale"):
        jax.tree.map(np.testing.assert_array_equal, getattr(found, field), getattr(expected, field))


def test_sources_give_the_same_blocks(groups):
    """Packed on the host or cut on the device, groups in any order."""
    members = np.array([[6, 1, 3], [0, 7, -1], [5, 4, 2]], np.int32)
    host, *others = (
        make(groups, members, 16) for make in (sources.packed, sources.kept, sources.resident)
    )
    for number in range(len(host)):
        expected = host.block(number)
        for source in others:
            jax.tree.map(np.testing.assert_array_equal, source.block(number), expected)
            assert len(source) == 3 and source.rows == 16


def test_blocks_hold_every_group_once(groups):
    found = list(ranges(groups, groups, rows=12, places=3))
    assert [b.start for b in found] == [0, *(b.stop for b in found[:-1])]
    assert found[-1].stop == len(groups)
    shapes = {b.rows["x"].shape for block in found for b in block.batches}
    assert len(shapes) == 1
    count = sum(int(b.batches[1].row_mask.sum()) for b in found)
    assert count == groups.n_rows


def test_few_shapes_for_many_sizes(groups):
    """New rows have the shape of a fit of some thousand rows; larger groups need a larger one."""
    shapes = set()
    for n in (1, 3, 40, 500, 600, 1000, 1025):
        table = {"g": np.zeros(n, int), "y": np.ones(n)}
        small = Groups.from_table(table, by="g", rows="y")
        (block,) = ranges(small)
        shapes.add((*block.batches[0].segment.shape, *block.batches[0].index.shape))
    assert shapes == {(512, 32), (1024, 32), (2048, 32)}
    assert (
        shared_shape(np.full(200, 22)) == shared_shape(np.full(320, 10)) == (512, 32)
    )  # and half of it
    assert shared_shape(np.full(2000, 1)) == (512, 512)
    assert shared_shape(np.full(10_000, 36)) == shared_shape(np.full(19_000, 36)) == (16_384, 512)
    assert max(rounded(n, 8) / n for n in range(64, 5000)) < 2


def test_few_rows_share_the_shape_of_the_largest_group(groups):
    """Of a fit with a group of 600 rows; a much larger one would make small predictions slow."""
    few = groups.subset(positions=[0, 1])
    for largest, R in ((0, 512), (512, 512), (600, 1024), (1024, 1024), (1025, 512)):
        (block,) = ranges(few, groups.subset(positions=[2, 3]), largest=largest)
        assert {batch.segment.shape for batch in block.batches} == {(R,)}
        assert block.members.shape == (32,)


def test_groups_without_any_rows(groups):
    bare = dataclasses.replace(
        groups,
        sizes=np.zeros(8, np.int64),
        rows={n: c[:0] for n, c in groups.rows.items()},
        row_order=np.zeros(0, np.int64),
    )
    (block,) = ranges(bare)
    batch = block.batches[0]
    assert not batch.row_mask.any() and batch.group_mask.sum() == 8
    assert np.isfinite(batch.rows["x"]).all() and (batch.rows["k"] == 0).all()


def test_sums_lose_nothing():
    """10^5 numbers whose float32 sum is off by more than their last digit."""
    values = np.random.default_rng(1).normal(100, 30, size=100_003).astype(np.float32)
    exact = values.astype(np.float64).sum()
    high, low = jax.jit(precise_sum)(jnp.asarray(values))
    assert float(high) + float(low) == pytest.approx(exact, rel=1e-12)
    assert abs(float(high) - exact) > 1e-3
    rows = jax.jit(precise_sum)(jnp.asarray(values[:12].reshape(3, 4)))
    np.testing.assert_allclose(rows[0], values[:12].reshape(3, 4).sum(1), rtol=1e-6)


def test_chunks_are_few_powers_of_two():
    assert {chunk_size(draws, 1) for draws in range(1, 17)} == {16}
    assert {chunk_size(draws, 1) for draws in (17, 200, 1000, 10_000)} == {128}
    assert chunk_size(1000, 2**22 // 50) == 32
    assert chunk_size(10, 2**40) == 1


def test_points_in_chunks_are_all_the_points():
    points = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    found = in_chunks(lambda x: {"sum": x.sum(1), "same": x}, points, size=3)
    np.testing.assert_array_equal(found["same"], points)
    np.testing.assert_allclose(found["sum"], points.sum(1), rtol=1e-6)
