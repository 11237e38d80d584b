"""Data on the device, and blocks cut out of them there, also inside `jit` and `lax.scan`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Num

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import check_range, narrow, pack, with_a_row
from ramify.numerics.memory import check_memory

Places = Int[Array, " B"]  # the position of the group at each place, -1 for filler
Scale = Num[Array, ""] | float | int  # see `Batch.scale`


class Resident(NamedTuple):
    """A whole data set on the device."""

    # Row columns [n_rows, ...]; without rows, a single made-up row as the source of filler.
    rows: dict[str, Array]
    group: dict[str, Array]  # group columns, each [N, ...]
    start: Int[Array, " N"]  # first row of each group
    # Rows of each group, n_i.
    count: Int[Array, " N"]  # pyright: ignore[reportIncompatibleMethodOverride]
    number: Int[Array, " N"]  # number of each group: what `Batch.index` reports


def to_device(groups: Groups) -> Resident:
    """Copies a data set to the device, in the precision that JAX computes in."""
    if groups.n_rows > np.iinfo(np.int32).max:
        raise ValueError(
            f"the data has {groups.n_rows:,} rows; one device counts up to 2,147,483,647 of them: "
            "fit fewer rows."
        )
    if groups.store is not None:
        cure = "Use solved(), which streams them, or fewer rows"
        check_memory(groups.n_bytes, None, f"all rows of {groups.store.folder} on the device", cure)
    check_range(groups)
    data = Resident(
        rows={name: jnp.asarray(narrow(with_a_row(c))) for name, c in groups.rows.items()},
        group={name: jnp.asarray(narrow(c)) for name, c in groups.group.items()},
        start=jnp.asarray(groups.starts.astype(np.int32)),
        count=jnp.asarray(groups.sizes.astype(np.int32)),
        number=jnp.asarray(groups.number.astype(np.int32)),
    )
    if groups.store is not None:
        groups.store.check()
    return data


def cut(data: Resident, members: Places, scale: Scale, R: int) -> Batch:
    """Cuts a block out of the data, on the device.

    The first member is real, and filler places (-1) come last: they copy the group at place 0, with a
    count of 0. Filler rows copy the last real row and belong to its group, so `segment` never
    decreases. A block without rows has copies of the data's first row at place 0, all masked. R is
    static, and at least the members' rows together, or some get lost.

    Example:
        >>> groups = Groups.from_table({"g": [1, 1, 2], "y": [3.0, 4.0, 5.0]}, by="g", rows="y")
        >>> batch = cut(to_device(groups), jnp.array([1, 0, -1]), 1.0, R=4)
        >>> batch.rows["y"].tolist(), batch.segment.tolist(), batch.count.tolist()
        ([5.0, 3.0, 4.0, 4.0], [0, 1, 1, 1], [1, 2, 0])
    """
    return filled(data, members, scale, lay_out(data, members, R))


cut_out = jax.jit(cut, static_argnames="R")


class RowPlan(NamedTuple):
    """Where the rows of a block come from."""

    segment: Int[Array, " R"]  # place of the group that each row belongs to
    row: Int[Array, " R"]  # each row's number in the data
    total: Int[Array, ""]  # how many of the rows are real, the first ones


def lay_out(data: Resident, members: Places, R: int) -> RowPlan:
    """Lays a block out: the part of `cut` that only sums counts of rows."""
    # Separate, so that it can be mapped over many blocks ahead of their steps: one block at a time,
    # these sums take a fifth of a short step on an accelerator.
    real = members >= 0
    member = jnp.where(real, members, members[0])
    count = jnp.where(real, data.count[member], 0)
    end = jnp.cumsum(count, dtype=jnp.int32)
    total = end[-1]
    segment = _segments(end, R)
    place = jnp.arange(R, dtype=jnp.int32)
    shift = (data.start[member] - (end - count))[segment]
    row = jnp.where(total > 0, jnp.minimum(place, total - 1) + shift, 0)
    return RowPlan(segment, row, total)


def filled(data: Resident, members: Places, scale: Scale, layout: RowPlan) -> Batch:
    """The block of these members, its rows taken from where the layout says."""
    real = members >= 0
    member = jnp.where(real, members, members[0])
    return Batch(
        rows={name: column[layout.row] for name, column in data.rows.items()},
        group={name: column[member] for name, column in data.group.items()},
        segment=layout.segment,
        index=data.number[member],
        count=jnp.where(real, data.count[member], 0),
        row_mask=jnp.arange(len(layout.row), dtype=jnp.int32) < layout.total,
        group_mask=real,
        scale=jnp.asarray(scale, jnp.result_type(float)),
    )


def _segments(end: Int[Array, " B"], R: int) -> Int[Array, " R"]:
    """Returns the place of each row's group: the number of groups whose rows end at or before it."""
    # Counting ends and summing up is faster than a search for each row. Ends at the very end are left
    # out, so that filler rows go with the last real row.
    inner = jnp.where(end < end[-1], end, R)  # R is out of bounds: dropped
    return jnp.cumsum(jnp.zeros(R, jnp.int32).at[inner].add(1, mode="drop"), dtype=jnp.int32)


def whole(groups: Groups) -> Batch:
    """Returns the whole data set as one batch, with scale 1 and no filler."""
    return pack(groups, np.arange(len(groups)), max(groups.n_rows, 1))
