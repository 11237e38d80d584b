"""Blocks packed from columns in host memory, or in memory-mapped files, by NumPy."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Shaped

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.partition import rounded, sequential, shared_shape, small_rows
from ramify.data.store import read_rows


class Range(NamedTuple):
    """Groups start..stop of one or more data sets, each as a batch."""

    start: int
    stop: int
    members: Int[np.ndarray, " B"]
    batches: tuple[Batch, ...]


def ranges(
    *data: Groups,
    rows: int | None = None,
    places: int | None = None,
    small: bool = False,
    largest: int = 0,
) -> Iterator[Range]:
    """Yields all groups in their order, in blocks of about `rows` rows and at most `places` groups."""
    # All data sets have the same groups in the same order, and so have the batches of a block. A block
    # has more than `rows` rows if its largest group does. Few shapes occur, so little is compiled;
    # `small` asks for the shape of small data; `largest` are the rows of the fit's largest group.
    sizes = np.max([groups.sizes for groups in data], axis=0)
    R, B = shared_shape(sizes, small, largest)
    R = max(min(R, rows or R), int(sizes.max(initial=1)))
    B = min(B, rounded(places or B))
    members = sequential(sizes, R, B)
    stops = np.cumsum((members >= 0).sum(1))
    starts = np.concatenate([[0], stops[:-1]])
    # On an accelerator, filler costs less than compiling another shape.
    least = rounded(R) if jax.default_backend() != "cpu" else small_rows(largest)
    least = min(least, rounded(R))
    fullest = [rounded(int(np.add.reduceat(g.sizes, starts).max()), least) for g in data]
    for start, stop, own in zip(starts.tolist(), stops.tolist(), members, strict=True):
        batches = tuple(pack(g, own, R) for g, R in zip(data, fullest, strict=True))
        yield Range(start, stop, own, batches)


def pack(groups: Groups, members: Int[np.ndarray, " B"], R: int) -> Batch:
    """The groups at these positions as a batch of R rows, with filler like that of `resident.cut`."""
    return sent(laid_out(groups, members, R))


def sent(batch: Batch) -> Batch:
    """Sends a batch of NumPy arrays to the device, in the precision that JAX computes in."""
    return jax.device_put(jax.tree.map(narrow, batch))


def laid_out(groups: Groups, members: Int[np.ndarray, " B"], R: int) -> Batch:
    """The batch that `pack` sends, as NumPy arrays. Does not use JAX, so any thread may call it."""
    real = members[members >= 0]
    B, sizes = len(members), groups.sizes[real]
    segment = np.repeat(np.arange(len(real), dtype=np.int32), sizes)
    take, total = groups._rows_of(real), len(segment)
    filled_rows = lambda own: _filled(own, R, own[-1])
    places = lambda c: _filled(c[real], B, c[real[0]])
    fields: dict[str, Any] = {
        "rows": {n: filled_rows(with_a_row(read_rows(c, take))) for n, c in groups.rows.items()},
        "group": {n: places(c) for n, c in groups.group.items()},
        "segment": _filled(segment, R, segment[-1] if total else 0),
        "index": places(groups.number).astype(np.int32),
        "count": _filled(sizes.astype(np.int32), B, 0),
        "row_mask": np.arange(R) < total,
        "group_mask": np.arange(B) < len(real),
        "scale": np.ones(()),
    }
    if groups.store is not None:
        groups.store.check()
    return Batch(**fields)


def some_groups(groups: Groups, rows: int, seed: int) -> Groups:
    """All groups, or a random sample of them with about that many rows, in their order."""
    if groups.n_rows + len(groups) <= rows:
        return groups
    order = np.random.default_rng(seed).permutation(len(groups))
    taken = np.cumsum(groups.sizes[order] + 1) <= rows
    taken[0] = True
    return groups.subset(positions=np.sort(order[taken]))


def with_a_row(column: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "_ ..."]:
    """The column, or a single row of ones (0 for integers) if it has no rows, to be masked."""
    # Logarithms and quotients are finite at one; an integer may be an index, and index 0 exists.
    if len(column):
        return column
    return np.full((1, *column.shape[1:]), column.dtype.kind == "f", column.dtype)


def _filled(values: Shaped[np.ndarray, "n ..."], size: int, with_: Any) -> np.ndarray:
    out = np.empty((size, *values.shape[1:]), values.dtype)
    out[: len(values)], out[len(values) :] = values, with_
    return out


def check_range(groups: Groups) -> None:
    """Raises where a column has values that the precision JAX computes in can't hold."""
    largest = float(jnp.finfo(jnp.result_type(float)).max)
    for name, column in (groups.rows | groups.group).items():
        if column.dtype.kind == "f" and column.size and column.dtype.itemsize > 4:
            parts = (read_rows(column, slice(k, k + 2**20)) for k in range(0, len(column), 2**20))
            most = float(max(max(part.max(), -part.min()) for part in parts))
            if np.isfinite(most) and most > largest:
                raise ValueError(
                    f'column "{name}" has values too large for float32 (up to {most:.3g}): rescale '
                    'it, or turn on jax.config.update("jax_enable_x64", True).'
                )


def narrow(column: Shaped[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """Floating-point columns in the precision JAX computes in."""
    wanted = jnp.result_type(float) if column.dtype.kind == "f" else column.dtype
    return column.astype(wanted, copy=False)
