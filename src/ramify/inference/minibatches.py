"""Which groups each step sees: blocks of a fresh partition each epoch, or uniform minibatches."""

from typing import NamedTuple

import numpy as np

from ramify.data.groups import Groups
from ramify.data.partition import block_shape, minibatches, partition, rows_needed
from ramify.data.resident import everything


class Chunk(NamedTuple):
    """The groups of T steps, -1 for filler, and what scales each block's sum to all groups."""

    members: np.ndarray
    scales: np.ndarray
    rows: int


class Feed:
    """Endless chunks of steps; a function of the seed and of how many steps were taken.

    With blocks, the groups are permuted anew each epoch and cut into J blocks, which are visited in
    random order: each step's block is uniform among the J, and scaling by J is unbiased for any
    partition. With `minibatch` each step takes that many groups uniformly, scaled N/|B|, as the paper.
    """

    def __init__(
        self, groups: Groups, seed: int, *, whole: bool, rows: int | None, minibatch: int | None
    ):
        """`whole` asks for all groups in every step; `rows` for blocks of that many."""
        self._sizes, self._minibatch, self._seed = groups.sizes, minibatch, seed
        _check(groups, whole, rows, minibatch)
        self._R, self._B = block_shape(groups.sizes, rows)
        one_block = len(groups) <= self._B and groups.n_rows <= self._R
        self.whole = whole or (minibatch is None and one_block)
        if self.whole:
            self._members = everything(groups)
            self._R = max(int(groups.n_rows), 1)
        self._taken, self._epoch = 0, 0
        self._queue, self._queue_scales = np.zeros((0, self._B), np.int32), np.zeros(0)

    @property
    def rows_per_step(self) -> int:
        """About how many rows a step touches."""
        if self._minibatch is None or self.whole:
            return self._R
        return max(1, int(self._sizes.mean() * self._minibatch))

    def take(self, steps: int) -> Chunk:
        """The groups of the next steps."""
        if self.whole:
            return Chunk(np.tile(self._members, (steps, 1)), np.ones(steps), self._R)
        if self._minibatch is not None:
            members = np.concatenate([self._another_minibatch() for _ in range(steps)])
            scale = len(self._sizes) / self._minibatch
            return Chunk(members, np.full(steps, scale), rows_needed(members, self._sizes))
        while len(self._queue) < steps:
            self._another_epoch()
        chunk = Chunk(self._queue[:steps], self._queue_scales[:steps], self._R)
        self._queue, self._queue_scales = self._queue[steps:], self._queue_scales[steps:]
        return chunk

    def _another_minibatch(self) -> np.ndarray:
        rng = np.random.default_rng([self._seed, 1, self._taken])
        self._taken += 1
        return minibatches(rng, len(self._sizes), self._minibatch or 1, 1)

    def _another_epoch(self) -> None:
        rng = np.random.default_rng([self._seed, 0, self._epoch])
        self._epoch += 1
        blocks = partition(rng, self._sizes, self._R, self._B)  # in random order
        self._queue = np.concatenate([self._queue, blocks])
        self._queue_scales = np.concatenate([self._queue_scales, np.full(len(blocks), len(blocks))])


def _check(groups: Groups, whole: bool, rows: int | None, minibatch: int | None) -> None:
    if minibatch is not None and not 1 <= minibatch <= len(groups):
        raise ValueError(
            f"minibatch must be between 1 and the {len(groups)} groups; got {minibatch}."
        )
    partial = (minibatch or len(groups)) < len(groups) or (rows or groups.n_rows) < groups.n_rows
    if whole and partial:
        asked = f"minibatch={minibatch}" if minibatch else f"blocks of {rows} rows"
        raise ValueError(
            f"This family draws all {len(groups)} groups in every step and can't subsample; got "
            f"{asked}. Use branch(), amortized() or solved() to subsample."
        )
