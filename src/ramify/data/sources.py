"""Where blocks come from: the data cut into blocks, on the host or on the device."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Int

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import check_range, pack
from ramify.data.resident import cut_out, to_device


@dataclass(frozen=True)
class BlockSource:
    """Groups cut into J blocks of one static shape."""

    sizes: Int[np.ndarray, " N"]  # rows of each group of the data
    members: Int[np.ndarray, "J B"]  # positions of the groups of each block, -1 in filler places
    rows: int  # R, rows of a block
    block: Callable[[int], Batch]  # a block by its number, on the device

    def __len__(self) -> int:
        return len(self.members)


def packed(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """Columns in host memory: a block is packed and sent when it is asked for."""
    block = lambda number: pack(groups, members[number], rows)
    return BlockSource(groups.sizes, members, rows, block)


def kept(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """Blocks that the host packs at once and the device keeps."""
    check_range(groups)
    batches = [pack(groups, own, rows) for own in members]
    return BlockSource(groups.sizes, members, rows, batches.__getitem__)


def resident(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """Columns on the device, in the order of the groups: a block is cut out there."""
    data = to_device(groups)
    block = lambda number: cut_out(data, members[number], 1.0, rows)
    return BlockSource(groups.sizes, members, rows, block)


def on_device(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for data that fit on the device, which then stay there."""
    # An accelerator cuts blocks out faster than the host packs them. A CPU need not compile to pack.
    return (kept if jax.default_backend() == "cpu" else resident)(groups, members, rows)
