"""Functions of many points, evaluated in chunks of one size: the number of points is no shape."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

CHUNK = 1024


def in_chunks(
    function: Callable[..., Any],
    points: Shaped[np.ndarray, "S ..."],
    size: int = CHUNK,
    *,
    counted: bool = False,
) -> Any:
    """Evaluates `function` at all points, `size` at a time; returns the results on the host.

    If `counted`, also tells it how many points of the chunk are asked for; the others fill it up.
    """

    def at(start: int) -> Any:
        own = points[start : start + size]
        kind = jax.dtypes.canonicalize_dtype(own.dtype)
        # Only copied: `jnp.asarray` compiles a program per shape.
        filled = jax.device_put(np.resize(own, (size, *own.shape[1:])).astype(kind))
        return function(filled, np.int32(len(own))) if counted else function(filled)

    return put_together([at(start) for start in range(0, len(points), size)], len(points))


def put_together(chunks: list[Any], count: int) -> Any:
    """Joins the results of chunks on the host, without the copies that fill the last chunk."""
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *jax.device_get(chunks))
