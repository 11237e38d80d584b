"""What holds while JAX computes for a public function: one BLAS thread, full-precision products.

OpenBLAS, behind JAX's linear algebra on a CPU, starts threads of its own for a triangular solve with a
few hundred columns, which then wait for the cores that XLA's threads hold: a 0.1 ms solve was seen
to take 9 ms on two cores, and long fits to fall asleep. XLA already runs on every core.

On GPUs with tensor cores JAX multiplies float32 matrices in TF32, with three digits: enough for a
network, not for a density or the factor of a covariance. Networks ask for it themselves
(`fast_products`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes; everything is as before after it."""

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        from threadpoolctl import threadpool_limits  # its import sets an environment variable

        with threadpool_limits(1, "blas"), jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return exact


def fast_products() -> AbstractContextManager[None]:
    """For code that is traced inside: products of matrices may be rounded to TF32."""
    return jax.default_matmul_precision("tensorfloat32")
