"""The Dask workers that a command computes on."""

from typing import Any


def client_of(address: str | None) -> Any:
    """A client of the scheduler at an address; None without one."""
    if address is None:
        return None
    try:
        from dask.distributed import Client
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            '--scheduler needs Dask, here and on its workers: pip install "ramify[dask]"',
            name="dask",
        ) from None
    try:
        return Client(address, timeout=20)
    except (OSError, ValueError) as error:
        raise OSError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}). Start one by `dask "
            "scheduler`, and workers by `dask worker ADDRESS --nthreads 1`."
        ) from error
