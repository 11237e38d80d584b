"""Sums over blocks: the protocol of an engine, and the engine that computes in this process."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ramify.data.batch import Batch
from ramify.data.sources import BlockSource

# (block, what all blocks are told, what is kept for this block) -> (what to add up, what to keep)
BlockFunction = Callable[[Batch, Any, Any], tuple[Any, Any]]


@runtime_checkable
class Engine(Protocol):
    """Adds a function of a block up over blocks."""

    def sum(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: list[Any],
        numbers: Sequence[int],
    ) -> Any:
        """The sum of what the function returns, a tree of float64 arrays.

        Args:
            function: called once for each block.
            source: where blocks come from.
            shared: a tree of arrays that is the same for all blocks.
            kept: a tree for each block of the source, replaced by what the function returns.
            numbers: the blocks to add up, in this order.
        """
        ...


class LocalEngine:
    """Computes in this process, one block after the other, on JAX's default device."""

    def sum(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: list[Any],
        numbers: Sequence[int],
    ) -> Any:
        """See `Engine.sum`. The device works ahead: its results are read after the last block."""
        parts = []
        for number in numbers:
            part, kept[number] = function(source.block(number), shared, kept[number])
            parts.append(part)
        return added(jax.device_get(parts))


def added(parts: Sequence[Any]) -> Any:
    """Trees of arrays added up in float64, in their order.

    Example:
        >>> added([{"a": np.float32(1)}, {"a": np.float32(2)}])
        {'a': np.float64(3.0)}
    """
    double = [jax.tree.map(lambda x: np.asarray(x, np.float64), part) for part in parts]
    return reduce(lambda total, part: jax.tree.map(np.add, total, part), double)
