"""Sums over blocks on the workers of a `dask.distributed.Client`, which open the store themselves.

A piece of blocks is one task. What a piece keeps from sweep to sweep, its groups' modes, stays as
the task's result on the worker that computed it, and is an input of the next task. If a worker
dies, Dask computes its results again elsewhere, from the first sweep on; sums are the same bits.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ramify.data.groups import Groups
from ramify.data.partition import sequential
from ramify.data.sources import BlockSource, streamed
from ramify.data.store import Store
from ramify.engine.local import BlockFunction, Kept, LocalEngine, added, pieces
from ramify.numerics.precision import computing


class Where(NamedTuple):
    """Where a worker finds blocks: a store, and the shape of its blocks."""

    folder: str
    content: str
    files: tuple[tuple[str, int, int], ...]  # names, times and sizes, as the client found them
    rows: int
    places: int


class Remote(NamedTuple):
    """A reference to what a worker keeps for a block."""

    piece: Any  # the future of a piece: its sum, and what is kept for its blocks
    place: int  # of the block in the piece


class DaskEngine:
    """Computes on the workers of a client."""

    def __init__(self, client: Any):
        """The client is the user's own, and stays open."""
        self._client = client
        self._functions: dict[int, tuple[BlockFunction, Any]] = {}  # and their futures

    def sum(
        self,
        function: BlockFunction,
        source: BlockSource,
        shared: Any,
        kept: Kept,
        numbers: Sequence[int],
        work: float = math.inf,
    ) -> Any:
        """See `Engine.sum`."""
        del work
        where, own = _where(source), self._shipped(function)
        made, sums = [], []
        for piece in pieces(numbers):
            before = _pieces_of(kept[n] for n in piece)
            taken = [_taken(kept[n], before) for n in piece]
            task = own, where, shared, before, taken, list(piece)
            made.append(self._client.submit(_sum_piece, *task, pure=False))
            sums.append(self._client.submit(_first, made[-1], pure=False))
        total = added(self._client.gather(sums))
        for piece, done in zip(pieces(numbers), made, strict=True):
            for place, number in enumerate(piece):
                kept[number] = Remote(done, place)
        return total

    def fetch(self, kept: Sequence[Any]) -> list[Any]:
        """See `Engine.fetch`."""
        asked = {id(p): self._client.submit(_second, p, pure=False) for p in _pieces_of(kept)}
        found = self._client.gather(asked)
        here = lambda own: found[id(own.piece)][own.place] if _is_remote(own) else own
        return jax.device_get([here(own) for own in kept])

    def _shipped(self, function: BlockFunction) -> Any:
        """The function as a result on the workers: each has one copy of it, and compiles it once."""
        if id(function) not in self._functions:
            shipped = self._client.submit(_same, function, pure=False)
            self._functions[id(function)] = function, shipped
        return self._functions[id(function)][1]


def _where(source: BlockSource) -> Where:
    if source.store is None:
        raise ValueError(
            "engine= is a Dask client, whose workers read the data from a store: make the groups by "
            "rf.Groups.from_parquet(..., store=folder), in a folder that all workers see."
        )
    own, places = source.store, source.members.shape[1]
    return Where(str(own.folder.resolve()), own.content, _files(own), source.rows, places)


def _files(store: Store) -> tuple[tuple[str, int, int], ...]:
    """What all machines agree on about the store's files; inode numbers may differ."""
    return tuple((stamp.name, stamp.time, stamp.size) for stamp in store.stamps)


def _pieces_of(kept: Iterable[Any]) -> list[Any]:
    """The pieces that hold what is kept, each once."""
    return list({id(own.piece): own.piece for own in kept if _is_remote(own)}.values())


def _is_remote(kept: Any) -> bool:
    return isinstance(kept, Remote)


def _taken(kept: Any, before: list[Any]) -> Any:
    """What is kept, for a task: an earlier piece and the place in it, or the value itself."""
    if not _is_remote(kept):
        return jax.device_get(kept)
    return next(k for k, piece in enumerate(before) if piece is kept.piece), kept.place


# What runs on a worker.


@computing
def _sum_piece(
    function: BlockFunction,
    where: Where,
    shared: Any,
    before: list[Any],
    taken: list[Any],
    numbers: list[int],
) -> tuple[Any, list[Any]]:
    """The sum over a piece, and what is kept for its blocks."""
    known = lambda own: before[own[0]][1][own[1]] if type(own) is tuple else own
    kept: Any = {
        n: jax.tree.map(jnp.asarray, known(t)) for n, t in zip(numbers, taken, strict=True)
    }
    total = LocalEngine().sum(function, _source(where), shared, kept, numbers)
    return total, jax.device_get([kept[number] for number in numbers])


@lru_cache(maxsize=4)
def _source(where: Where) -> BlockSource:
    groups = Groups.from_store(where.folder)
    own = groups.store
    if own is None or (own.content, _files(own)) != (where.content, where.files):
        raise ValueError(f"the store {where.folder} is not the one that the fit began with.")
    return streamed(groups, sequential(groups.sizes, where.rows, where.places), where.rows)


def _same(value: Any) -> Any:
    return value


def _first(pair: Any) -> Any:
    return pair[0]


def _second(pair: Any) -> Any:
    return pair[1]
