"""Sums over blocks: the protocol of an engine, and the engine that computes in this process."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ramify.data.batch import Batch
from ramify.data.sources import BlockSource
from ramify.numerics import budgets
from ramify.numerics.threads import by_threads

# (block, `shared` of all blocks, what is kept for this block) -> (what to add up, what to keep)
BlockFunction = Callable[[Batch, Any, Any], tuple[Any, Any]]
Kept = list[Any] | dict[int, Any]  # by the number of the block

# Blocks whose results are added up first, before the sums of the pieces: the sum does not depend on
# who computes a piece. A device has at most two pieces of a streamed source at a time.
PIECE = 16


@runtime_checkable
class Engine(Protocol):
    """Adds a function of a block up over blocks."""

    def sum(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: Kept,
        numbers: Sequence[int],
        work: float = ...,
    ) -> Any:
        """The sum of what the function returns, a tree of float64 arrays.

        Args:
            function: called once for each block.
            source: where blocks come from.
            shared: a tree of arrays that is the same for all blocks.
            kept: a tree for each block, by its number, replaced by what the function returns.
            numbers: the blocks to add up, in this order.
            work: row likelihoods of a block: few take no longer than to hand the block to a thread.
        """
        ...

    def fetch(self, kept: Sequence[Any]) -> list[Any]:
        """What is kept for some blocks, as NumPy arrays."""
        ...


class LocalEngine:
    """Computes in this process, on one device or on several, or by several threads of a CPU."""

    def __init__(self, devices: Sequence[Any] = (), threads: int | Callable[[], int] = 1):
        """These devices compute pieces in turn; by default JAX's default device computes all.

        `threads` compute blocks on a single device; a function is called when they are first needed. An
        accelerator needs only one: it works ahead.
        """
        self.devices: list[Any] = list(devices) if len(devices) > 1 else [None]
        self._threads = threads if len(self.devices) == 1 else 1
        self._compiled: BlockFunction | None = None  # the function that the threads computed last

    @cached_property
    def threads(self) -> int:
        """Threads that compute blocks."""
        return self._threads if isinstance(self._threads, int) else self._threads()

    def sum(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: Kept,
        numbers: Sequence[int],
        work: float = math.inf,
    ) -> Any:
        """See `Engine.sum`. Devices work ahead: a piece's results are read one piece later."""
        if len(numbers) > 1 and work >= budgets.THREAD_WORK and self.threads > 1:
            parts = self._by_threads(function, source, shared, kept, numbers)
            return added([added([next(parts) for _ in piece]) for piece in pieces(numbers)])
        told = [shared if d is None else jax.device_put(shared, d) for d in self.devices]
        blocks, running, sums = source.blocks(numbers), deque(), []
        for k, piece in enumerate(pieces(numbers)):
            turn, parts = k % len(self.devices), []
            for number in piece:
                own = next(blocks), kept[number]
                if (device := self.devices[turn]) is not None:
                    own = jax.device_put(own, device)
                part, kept[number] = function(own[0], told[turn], own[1])
                parts.append(part)
            running.append(parts)
            if len(running) > len(self.devices):
                sums.append(added(jax.device_get(running.popleft())))
        return added([*sums, *(added(jax.device_get(parts)) for parts in running)])

    def _by_threads(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: Kept,
        numbers: Sequence[int],
    ) -> Iterator[Any]:
        """Yields what the function returns to be added up, block by block."""

        def compute(own: tuple[int, Batch]) -> Any:
            number, block = own
            part, kept[number] = function(block, shared, kept[number])
            return part

        new, self._compiled = function is not self._compiled, function
        return by_threads(
            compute, zip(numbers, source.blocks(numbers), strict=True), self.threads, alone=new
        )

    def fetch(self, kept: Sequence[Any]) -> list[Any]:
        """See `Engine.fetch`."""
        return jax.device_get(list(kept))


def pieces(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Blocks in runs of `PIECE`."""
    return [numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE)]


def added(parts: Sequence[Any]) -> Any:
    """Trees of arrays added up in float64, in their order.

    Example:
        >>> added([{"a": np.float32(1)}, {"a": np.float32(2)}])
        {'a': np.float64(3.0)}
    """
    double = [jax.tree.map(lambda x: np.asarray(x, np.float64), part) for part in parts]
    return reduce(lambda total, part: jax.tree.map(np.add, total, part), double)
