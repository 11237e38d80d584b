"""Which groups go together: partitions into blocks, and the paper's uniform minibatches.

NumPy on the host, and only numbers of groups: the data itself is not touched.
"""

import heapq

import numpy as np
from jaxtyping import Int, Int32

from ramify.numerics import budgets

Sizes = Int[np.ndarray, " N"]  # rows of each group
Bounds = Int[np.ndarray, " bounds"]  # where blocks begin and end
Members = Int32[np.ndarray, "J B"]  # positions of the groups in each block, -1 in filler places


def block_shape(sizes: Sizes, rows: int | None = None, most: int | None = None) -> tuple[int, int]:
    """Chooses the static shape of blocks: R rows and B groups."""
    # All data make one block if they are small. Otherwise blocks have `rows` rows or, by default, about
    # equally many up to `most`; never fewer than the largest group. B is the mean number of groups in
    # R rows and two of its standard deviations: nearly always rows fill a block.
    if rows is not None and rows < 1:
        raise ValueError(f"blocks of {rows} rows were asked for; expected at least 1.")
    limit = rows or most or budgets.on_this_device(budgets.BLOCK_ROWS)
    total, largest = int(sizes.sum()), int(sizes.max())
    if total <= limit and len(sizes) <= limit:
        return max(total, 1), len(sizes)
    mean = max(total / len(sizes), 1e-9)
    met = float(np.square(sizes, dtype=float).mean()) / mean  # size of the group a row meets
    even = -(-total // -(-total // limit)) + round(2 * met) if total else 1
    R = max(limit if rows else min(limit, even), largest, 1)
    B = min(_groups_in(sizes, R), max(R, limit)) + 1
    return R, min(-(-B // 8) * 8, len(sizes))


def shared_shape(sizes: Sizes, small: bool = False, largest: int = 0) -> tuple[int, int]:
    """R rows and B groups of a block, from few sizes: similar data share a shape, and its programs."""
    # On a CPU, small blocks are as fast as large ones unless there are too many for the host.
    # An accelerator needs large ones.
    total = int(sizes.sum())
    small = small or total <= budgets.SMALL_DATA_ROWS
    R = small_rows(largest) if small else budgets.result_rows(total)
    R, B = max(R, rounded(int(sizes.max(initial=1)))), budgets.SMALL_BLOCK_GROUPS
    # A third of the rows may stay empty, so that part of the data has the shape of the whole; three
    # fifths of them in small blocks, where compiling another shape takes longer than the filler.
    spare = 2.5 if small else 1.5
    while spare * B < min(_groups_in(sizes, R), len(sizes), R):
        B *= 4
    return R, B


def small_rows(largest: int) -> int:
    """Rows of a small block; twice as many if the largest group of the fit's data needs that."""
    # Then rows of any groups share the programs of a report, some of whose pictures show the largest.
    few = budgets.SMALL_BLOCK_ROWS
    return 2 * few if few < largest <= 2 * few else few


def _groups_in(sizes: Sizes, R: int) -> int:
    """The mean number of groups in R rows, and two of its standard deviations."""
    mean = max(float(sizes.mean()), 1e-9)
    met = float(np.square(sizes, dtype=float).mean()) / mean  # size of the group a row meets
    return int(min(R / mean + 2 * np.sqrt(max(R / mean * (met / mean - 1), 0.0)), 2**31))


def rounded(n: int, least: int = 1) -> int:
    """The next power of two, since each different shape is compiled separately."""
    return max(2 ** max(n - 1, 0).bit_length(), least)


def partition(rng: np.random.Generator, sizes: Sizes, R: int, B: int) -> Members:
    """Cuts a random permutation of the groups into blocks of at most R rows and B groups."""
    # Every group is in exactly one block, so J times the sum over one block, chosen uniformly, is
    # unbiased for the sum over all groups. Blocks come in random order. They are about equally full,
    # since a small one would add to the noise: a small last block fills gaps, or all shrink.
    _check_shape(sizes, R, B)
    permuted = rng.permutation(len(sizes)).astype(np.int32)
    size = sizes[permuted]
    bounds = _next_fit(size, R, B)
    block = _without_last(size, bounds, R, B)
    if block is None:
        bounds = _evened(size, bounds, R, B)
        block = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    members = _members(permuted, block, B)
    return members[rng.permutation(len(members))]


def sequential(sizes: Sizes, R: int, B: int) -> Members:
    """Cuts the groups, in their order, into blocks of at most R rows and B groups."""
    _check_shape(sizes, R, B)
    bounds = _next_fit(sizes, R, B)
    block = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return _members(np.arange(len(sizes), dtype=np.int32), block, B)


def _check_shape(sizes: Sizes, R: int, B: int) -> None:
    largest = int(sizes.argmax())
    if sizes[largest] > R:
        raise ValueError(
            f"the group at position {largest} has {sizes[largest]:,} rows and a block holds "
            f"{R:,}: blocks must hold the largest group; give them at least that many rows."
        )
    if B < 1:
        raise ValueError(f"a block of {B} groups cannot hold any; expected at least 1.")


def _next_fit(size: Sizes, R: int, B: int) -> Bounds:
    """Fills one block after the other, in order."""
    end = np.cumsum(size)
    bounds = [0]
    while bounds[-1] < len(size):
        first = bounds[-1]
        before = end[first - 1] if first else 0
        bounds.append(min(int(end.searchsorted(before + R, "right")), first + B))
    return np.array(bounds)


def _without_last(size: Sizes, bounds: Bounds, R: int, B: int) -> Int[np.ndarray, " N"] | None:
    """The last block's groups moved, largest first, into the largest gaps; None if they don't fit."""
    J, last = len(bounds) - 1, int(bounds[-2])
    block = np.repeat(np.arange(J), np.diff(bounds))
    gaps = R - np.add.reduceat(size, bounds[:-1])[:-1]
    room = B - np.diff(bounds)[:-1]
    if gaps.sum() < size[last:].sum() or room.sum() < len(size) - last:
        return None
    heap = [(-int(gaps[j]), j) for j in range(J - 1) if room[j] > 0]
    heapq.heapify(heap)
    for group in last + np.argsort(-size[last:], kind="stable"):
        if not heap or -heap[0][0] < size[group]:
            return None
        gap, j = heapq.heappop(heap)
        block[group] = j
        room[j] -= 1
        if room[j]:
            heapq.heappush(heap, (gap + int(size[group]), j))
    return block


def _evened(size: Sizes, bounds: Bounds, R: int, B: int) -> Bounds:
    """Finds, by bisection, about the fewest rows per block that need as many blocks."""
    J = len(bounds) - 1
    low, high = max(int(size.max()), -(-int(size.sum()) // J)), R
    while high - low > max(R // 128, 1):
        middle = (low + high) // 2
        tried = _next_fit(size, middle, B)
        if len(tried) == J + 1:
            bounds, high = tried, middle
        else:
            low = middle
    return bounds


def _members(groups: Int32[np.ndarray, " N"], block: Int[np.ndarray, " N"], B: int) -> Members:
    """Lays the groups of each block out in a row, with -1 after the last."""
    counts = np.bincount(block)
    members = np.full((len(counts), B), -1, np.int32)
    members[np.arange(B) < counts[:, None]] = groups[np.argsort(block, kind="stable")]
    return members


def minibatches(rng: np.random.Generator, N: int, size: int, steps: int) -> Members:
    """Draws the paper's uniform minibatches: in each, `size` of the N groups without replacement."""
    if not 1 <= size <= N:
        raise ValueError(f"a minibatch of {size:,} groups was asked for; expected 1 to {N:,}.")
    drawn = [rng.choice(N, size, replace=False, shuffle=False) for _ in range(steps)]
    return np.array(drawn, np.int32).reshape(steps, size)


def rows_needed(members: Int[np.ndarray, "*steps B"], sizes: Sizes) -> int:
    """Returns a static number of rows that holds each of these minibatches."""
    # From a short ladder, 4 to 7 times a power of two: few compilations, at most a fifth filler.
    rows = int(np.where(members >= 0, sizes[members], 0).sum(axis=-1).max())
    step = 2 ** max((max(rows, 1) - 1).bit_length() - 3, 0)
    return max(-(-rows // step) * step, 8)
