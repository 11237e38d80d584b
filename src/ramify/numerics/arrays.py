"""Arrays for the device that are made on the host."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def floats(values: Any) -> Float[Array, "..."]:
    """Numbers on the device, in the precision JAX computes in.

    NumPy converts them, and then they are only copied: `jnp.asarray` compiles a program per shape.

    Example:
        >>> floats(np.ones(2)).dtype
        dtype('float32')
    """
    return jax.device_put(np.asarray(values, jnp.result_type(float)))
