"""Blocks of groups sent from the host one after the other, in few static shapes.

For passes over data that need not fit on the device, and over small tables whose sizes vary from
call to call: shapes are rounded up to a short ladder, so that few of them are ever compiled.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Shaped

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.partition import sequential


class Block(NamedTuple):
    """Groups start..stop of a data set, and of those that go with it, each as a batch."""

    start: int
    stop: int
    batches: tuple[Batch, ...]


def blocks(
    *data: Groups, rows: int = 16_384, places: int = 16_384, coarse: bool = False
) -> Iterator[Block]:
    """Yields all groups in their order, in blocks of about `rows` rows and at most `places` groups.

    Args:
        data: data sets with the same groups in the same order. Each block holds the same groups of
            all of them at the same places.
        rows: rows wanted in a block, counting those of all data sets; the largest group may need
            more.
        places: most groups in a block.
        coarse: round shapes up to powers of two rather than to sixteenths of them: for calls
            whose sizes vary.
    """
    sizes = np.sum([groups.sizes for groups in data], axis=0)
    members = sequential(sizes, max(rows, int(sizes.max(initial=1))), min(places, len(sizes)))
    stops = np.cumsum((members >= 0).sum(1))
    starts = np.concatenate([[0], stops[:-1]])
    B = rounded(int((stops - starts).max()), 1, coarse)
    R = [rounded(int(_rows_between(g, starts, stops).max()), 8, coarse) for g in data]
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        packed = tuple(pack(g, start, stop, r, B) for g, r in zip(data, R, strict=True))
        yield Block(start, stop, packed)


def rounded(n: int, least: int, coarse: bool) -> int:
    """The next number on the ladder: a power of two, or sixteenths of one.

    Example:
        >>> rounded(9, 8, True), rounded(9, 8, False), rounded(1000, 8, False), rounded(0, 8, True)
        (16, 9, 1024, 8)
    """
    power = max(n - 1, 0).bit_length()
    step = 2**power if coarse else 2 ** max(power - 4, 0)
    return max(-(-n // step) * step, least)


def pack(groups: Groups, start: int, stop: int, R: int, B: int) -> Batch:
    """Groups start..stop as a batch of R rows and B places, with filler like that of `cut`."""
    sizes = groups.sizes[start:stop]
    first, total = int(groups.starts[start]), int(sizes.sum())
    segment = np.repeat(np.arange(stop - start, dtype=np.int32), sizes)
    places = lambda c: _filled(_narrow(c[start:stop]), B, c[start])
    fields: dict[str, Any] = {
        "rows": {n: _rows(c, first, total, R) for n, c in groups.rows.items()},
        "group": {n: places(c) for n, c in groups.group.items()},
        "segment": _filled(segment, R, segment[-1] if total else 0),
        "index": places(groups.number).astype(np.int32),
        "count": _filled(sizes.astype(np.int32), B, 0),
        "row_mask": np.arange(R) < total,
        "group_mask": np.arange(B) < stop - start,
        "scale": np.ones((), jnp.result_type(float)),
    }
    return jax.device_put(Batch(**fields))


def _rows_between(
    groups: Groups, starts: Int[np.ndarray, " J"], stops: Int[np.ndarray, " J"]
) -> Int[np.ndarray, " J"]:
    """Rows of the groups start..stop of each block."""
    upto = np.concatenate([[0], np.cumsum(groups.sizes)])
    return upto[stops] - upto[starts]


def _rows(column: Shaped[np.ndarray, "n ..."], first: int, total: int, R: int) -> np.ndarray:
    """A block's rows of a column, filled up with its last, or ones (0 for integers) if empty."""
    own = _narrow(column[first : first + total])
    nobody = np.full(column.shape[1:], own.dtype.kind == "f", own.dtype)
    return _filled(own, R, own[-1] if total else nobody)


def _filled(values: Shaped[np.ndarray, "n ..."], size: int, with_: Any) -> np.ndarray:
    out = np.empty((size, *values.shape[1:]), values.dtype)
    out[: len(values)], out[len(values) :] = values, with_
    return out


def _narrow(column: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "n ..."]:
    """Floating-point columns in the precision JAX computes in."""
    wanted = jnp.result_type(float) if column.dtype.kind == "f" else column.dtype
    return column.astype(wanted, copy=False)
