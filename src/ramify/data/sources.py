"""Where blocks come from: the data cut into blocks, on the host or on the device."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import check_range, laid_out, pack, sent
from ramify.data.resident import cut_out, to_device
from ramify.data.store import Store

AHEAD = 4  # blocks that are read before they are asked for


@dataclass(frozen=True)
class BlockSource:
    """Groups cut into J blocks of one static shape."""

    sizes: Int[np.ndarray, " N"]  # rows of each group of the data
    members: Int[np.ndarray, "J B"]  # positions of the groups of each block, -1 in filler places
    rows: int  # R, rows of a block
    block: Callable[[int], Batch]  # a block by its number, on the device

    # For a source that streams: reads a block by its number and lays it out, in any thread.
    read: Callable[[int], Batch] | None = None
    store: Store | None = None  # that its groups are from

    def __len__(self) -> int:
        return len(self.members)

    def blocks(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Yields some blocks; another thread reads ahead if the source streams."""
        if self.read is None:
            yield from map(self.block, numbers)
            return
        with ThreadPoolExecutor(1) as thread:
            reading = deque(thread.submit(self.read, number) for number in numbers[:AHEAD])
            for k in range(len(numbers)):
                block = reading.popleft().result()
                if k + AHEAD < len(numbers):
                    reading.append(thread.submit(self.read, numbers[k + AHEAD]))
                yield sent(block)


def packed(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for columns in host memory: packs and sends a block when it is asked for."""
    block = lambda number: pack(groups, members[number], rows)
    return BlockSource(groups.sizes, members, rows, block)


def kept(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source whose blocks are packed once, in advance, and kept on the device."""
    check_range(groups)
    batches = [pack(groups, own, rows) for own in members]
    return BlockSource(groups.sizes, members, rows, batches.__getitem__)


def streamed(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for columns in the files of a store: reads a block when asked for it, or ahead."""
    check_range(groups)
    read = lambda number: laid_out(groups, members[number], rows)
    block = lambda number: sent(read(number))
    return BlockSource(groups.sizes, members, rows, block, read, groups.store)


def resident(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for columns on the device, in the order of the groups: cuts blocks out there."""
    data = to_device(groups)
    block = lambda number: cut_out(data, members[number], 1.0, rows)
    return BlockSource(groups.sizes, members, rows, block)


def on_device(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for data that fit on the device, which then stay there."""
    # An accelerator cuts blocks out faster than the host packs them. Packing needs no compilation.
    return (kept if jax.default_backend() == "cpu" else resident)(groups, members, rows)
