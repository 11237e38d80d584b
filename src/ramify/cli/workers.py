"""The Dask workers that a command computes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def client_of(address: str | None) -> Iterator[Any]:
    """A client of the scheduler at an address; None without one."""
    if address is None:
        yield None
        return
    try:
        from dask.distributed import Client
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            '--scheduler needs Dask, here and on its workers: pip install "ramify[dask]"',
            name="dask",
        ) from None
    try:
        client = Client(address, timeout=20)
    except (OSError, ValueError) as error:
        raise OSError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}). Start one by `dask "
            "scheduler`, and workers by `dask worker ADDRESS --nthreads 1`."
        ) from error
    with client:
        yield client
