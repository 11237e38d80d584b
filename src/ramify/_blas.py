"""Keeps the BLAS behind JAX's CPU linear algebra to one thread while JAX computes.

OpenBLAS starts threads of its own for a triangular solve with a few hundred columns, which then wait
for the cores that XLA's threads hold: a 0.1 ms solve was seen to take 9 ms on two cores, and long
fits to fall asleep. XLA already runs on every core.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes: one BLAS thread inside, as before after."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        from threadpoolctl import threadpool_limits  # its import sets an environment variable

        with threadpool_limits(1, "blas"):
            return function(*args, **kwargs)

    return limited
