"""What holds while JAX computes for a public function: BLAS threads, precision, programs on disk.

OpenBLAS, behind JAX's linear algebra on a CPU, starts threads of its own for a triangular solve with a
few hundred columns. They wait for cores that XLA's threads hold: 9 ms for a 0.1 ms solve on two cores.
On GPUs with tensor cores JAX multiplies float32 matrices in TF32, with three digits: enough for a
network, which asks for it, not for a density or the factor of a covariance.
No options are asked of XLA's compiler: its older emitters for CPUs (`xla_cpu_use_fusion_emitters=False`)
take two thirds of the time, and are wrong in jaxlib 0.10 for a gather with a small sum after it.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import jax

from ramify.numerics.compilation_cache import programs_on_disk

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes; everything is as before after it."""

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        one_thread = _libraries().limit(limits=1, user_api="blas")
        with one_thread, jax.default_matmul_precision("highest"), programs_on_disk():
            return function(*args, **kwargs)

    return exact


@cache
def _libraries() -> Any:
    """The BLAS libraries of this process; to look for them takes longer than a small prediction."""
    import scipy.linalg  # noqa: F401  # whose BLAS is JAX's
    from threadpoolctl import ThreadpoolController  # its import sets an environment variable

    return ThreadpoolController()
