"""Functions of many points in chunks of one size, so that the number of points is never a shape."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

CHUNK = 1024


def in_chunks(
    function: Callable[[Any], Any],
    points: Shaped[np.ndarray, "S ..."],
    size: int = CHUNK,
) -> Any:
    """`function` of all points, `size` at a time, the last filled up; results together on the host."""

    def at(start: int) -> Any:
        own = points[start : start + size]
        kind = jax.dtypes.canonicalize_dtype(own.dtype)
        # Copied as they are: of `jnp.asarray` each shape is a program.
        filled = np.resize(own, (size, *own.shape[1:])).astype(kind)
        return function(jax.device_put(filled))

    return put_together([at(start) for start in range(0, len(points), size)], len(points))


def put_together(chunks: list[Any], count: int) -> Any:
    """Results of chunks as one array each, on the host, without the copies that fill the last."""
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *jax.device_get(chunks))
