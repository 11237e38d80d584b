"""A function of many things, computed by several threads of a CPU; results keep the order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import jax

from ramify.numerics.precision import same_settings

Thing = TypeVar("Thing")

MOST_THREADS = 16  # each with working memory of its own


def cores() -> int:
    """Cores that this process may use, up to `MOST_THREADS`; one where an accelerator computes."""
    if jax.default_backend() != "cpu":
        return 1
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    own = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    # Dask sets this variable for its workers, and batch systems for their jobs.
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(own, int(asked) if asked.isdigit() and int(asked) else own, MOST_THREADS)


def by_threads(
    function: Callable[[Thing], Any], things: Iterable[Thing], threads: int, alone: bool = True
) -> Iterator[Any]:
    """Yields the function's result for each thing, in order, as NumPy arrays.

    With `alone` the first call ends before others begin, which would compile the same programs.
    """
    settings = same_settings()  # JAX keeps settings per thread

    def compute(thing: Thing) -> Any:
        with settings():
            return jax.device_get(function(thing))

    pool, running = ThreadPoolExecutor(threads), deque()
    try:
        for thing in things:
            if len(running) > threads:  # limits the results in memory
                yield running.popleft().result()
            running.append(pool.submit(compute, thing))
            if alone:
                wait(running)
                alone = False
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
