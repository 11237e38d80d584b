"""Where blocks come from: one protocol, and which of its implementations suits the data.

| source | columns are | a block is |
|---|---|---|
| `host.HostBlocks` | in host memory, or in memory-mapped files | packed and sent when it is asked for |
| `host.KeptBlocks` | on the device, packed once | looked up |
| `resident.ResidentBlocks` | on the device, in the order of the groups | cut out on the device |
"""

from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Int

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import HostBlocks, KeptBlocks, check_range
from ramify.data.resident import ResidentBlocks, to_device


@runtime_checkable
class BlockSource(Protocol):
    """Groups cut into J blocks of one static shape."""

    @property
    def sizes(self) -> Int[np.ndarray, " N"]:
        """Rows of each group of the data."""
        ...

    @property
    def members(self) -> Int[np.ndarray, "J B"]:
        """Positions of the groups of each block, -1 in filler places."""
        ...

    @property
    def rows(self) -> int:
        """R, rows of a block."""
        ...

    def __len__(self) -> int:
        """J, the number of blocks."""
        ...

    def block(self, number: int) -> Batch:
        """One block, on the device."""
        ...


def on_device(groups: Groups, members: Int[np.ndarray, "J B"], rows: int) -> BlockSource:
    """A source for data that fit on the device, which then stay there.

    An accelerator cuts blocks out faster than the host packs them. On a CPU both are the same
    memory, and packing needs no compilation.
    """
    if jax.default_backend() != "cpu":
        return ResidentBlocks(to_device(groups), groups.sizes, members, rows)
    check_range(groups)
    return KeptBlocks.of(HostBlocks(groups, members, rows))
