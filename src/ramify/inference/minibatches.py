"""Which groups each step sees: blocks of a fresh partition each epoch, or uniform minibatches."""

from typing import NamedTuple

import numpy as np

from ramify.data.groups import Groups
from ramify.data.partition import block_shape, minibatches, partition, rows_needed


class Chunk(NamedTuple):
    """The groups of T steps, -1 for filler; each step's factor from its sum to all groups; rows."""

    members: np.ndarray
    scales: np.ndarray
    rows: int


class Place(NamedTuple):
    """How many minibatches have been taken: epochs, and blocks of the current epoch."""

    epoch: int = 0  # the number of steps, if minibatches are uniform
    block: int = 0


class Minibatches:
    """Endless minibatches; those after a `Place` are a function of the seed and the place alone.

    With blocks, the groups are permuted anew each epoch and cut into J blocks, which are visited in
    random order: each step's block is uniform among the J, and scaling by J is unbiased for any
    partition. With `minibatch` each step takes that many groups uniformly, as the paper: N/|B|.
    """

    def __init__(
        self, groups: Groups, seed: int, *, whole: bool, rows: int | None, minibatch: int | None
    ):
        """`whole` asks for all groups in every step; `rows` for blocks of that many rows."""
        self._sizes, self._minibatch, self._seed = groups.sizes, minibatch, seed
        _check(groups, whole, rows, minibatch)
        self._R, self._B = block_shape(groups.sizes, rows)
        one_block = len(groups) <= self._B and groups.n_rows <= self._R
        self.whole = whole or (minibatch is None and one_block)
        if self.whole:
            self._members = np.arange(len(groups), dtype=np.int32)[None]
            self._R = max(int(groups.n_rows), 1)
        self._last: tuple[int, np.ndarray] | None = None  # the last epoch that was cut, kept

    @property
    def rows_per_step(self) -> int:
        """About how many rows a step touches."""
        if self._minibatch is None or self.whole:
            return self._R
        return max(1, int(self._sizes.mean() * self._minibatch))

    def take(self, place: Place, steps: int) -> tuple[Chunk, Place]:
        """The groups of the steps after a place, and the place after them."""
        if self.whole:
            return Chunk(np.tile(self._members, (steps, 1)), np.ones(steps), self._R), place
        if self._minibatch is not None:
            return self._uniform(place, steps, self._minibatch)
        members, scales = [], []
        while len(members) < steps:
            blocks = self._blocks(place.epoch)
            some = blocks[place.block :][: steps - len(members)]
            members += list(some)
            scales += [float(len(blocks))] * len(some)
            ended = place.block + len(some) == len(blocks)
            place = Place(place.epoch + 1) if ended else Place(place.epoch, place.block + len(some))
        return Chunk(np.stack(members), np.asarray(scales), self._R), place

    def _uniform(self, place: Place, steps: int, size: int) -> tuple[Chunk, Place]:
        N, epochs = len(self._sizes), range(place.epoch, place.epoch + steps)
        rngs = [np.random.default_rng([self._seed, 1, epoch]) for epoch in epochs]
        members = np.concatenate([minibatches(rng, N, size, 1) for rng in rngs])
        rows = rows_needed(members, self._sizes)
        return Chunk(members, np.full(steps, N / size), rows), Place(place.epoch + steps)

    def _blocks(self, epoch: int) -> np.ndarray:
        """The blocks of an epoch, in random order."""
        if self._last is None or self._last[0] != epoch:
            rng = np.random.default_rng([self._seed, 0, epoch])
            self._last = epoch, partition(rng, self._sizes, self._R, self._B)
        return self._last[1]


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
