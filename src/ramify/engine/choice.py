"""Chooses the engine of a fit by its options."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ramify.engine.dask import DaskEngine
from ramify.engine.local import Engine, LocalEngine


def chosen_engine(
    engine: Any, devices: int | Sequence[Any] | None, threads: int | Callable[[], int] = 1
) -> Engine:
    """The engine for `engine=` and `devices=` of a fit; `threads` is for a single device."""
    if engine is None:
        return LocalEngine(chosen_devices(devices), threads)
    if devices is not None:
        raise ValueError("devices= are those of this process: leave it out where engine= is given.")
    if type(engine).__module__.split(".")[0] == "distributed":
        return DaskEngine(engine)
    if isinstance(engine, Engine):
        return engine
    raise TypeError(f"engine={engine!r:.60}; expected a dask.distributed.Client.")


def chosen_devices(devices: int | Sequence[Any] | None) -> list[Any]:
    """The devices to compute on: the given ones, the first local ones, or by default all GPUs."""
    local = jax.local_devices()
    if devices is None:
        return [] if jax.default_backend() == "cpu" else local
    if not isinstance(devices, int):
        if not isinstance(devices, Sequence) or not all(isinstance(d, jax.Device) for d in devices):
            raise TypeError(
                f"devices={devices!r:.60}; expected a number, or a list of JAX's devices."
            )
        return list(devices)
    if not 1 <= devices <= len(local):
        raise ValueError(f"devices={devices}; expected 1 to {len(local)}, as many as JAX has here.")
    return local[:devices]
