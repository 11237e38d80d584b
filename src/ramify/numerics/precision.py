"""What holds while JAX computes for a public function: BLAS threads, precision, programs on disk.

OpenBLAS, behind JAX's linear algebra on a CPU, starts threads of its own for a triangular solve with a
few hundred columns. They wait for cores that XLA's threads hold: 9 ms for a 0.1 ms solve on two cores.
On GPUs with tensor cores JAX multiplies float32 matrices in TF32, with three digits: enough for a
network, which asks for it, not for a density or the factor of a covariance.
No options are asked of XLA's compiler: its older emitters for CPUs (`xla_cpu_use_fusion_emitters=False`)
take two thirds of the time, and are wrong in jaxlib 0.10 for a gather with a small sum after it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import jax

from ramify.numerics.compilation_cache import programs_on_disk
from ramify.numerics.options import check_options

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes: checks its options; everything is as before after it."""
    parameters = signature(function)

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        check_options(parameters.bind(*args, **kwargs).arguments)
        with _one_thread(), jax.default_matmul_precision("highest"), programs_on_disk():
            return function(*args, **kwargs)

    return exact


_lock, _running, _limits = threading.Lock(), 0, []


@contextmanager
def _one_thread() -> Iterator[None]:
    """BLAS has one thread within it; the last of several calls at once gives it back its own."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _limits.append(_libraries().limit(limits=1, user_api="blas"))
            _let_others_set()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _limits.pop().restore_original_limits()
                _let_others_set()


def _let_others_set() -> None:
    """Since threadpoolctl 3.8 only the thread that set OpenBLAS's threads may set them again."""
    from threadpoolctl import OpenBLASController

    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread()  # does nothing if another thread set them


@cache
def _libraries() -> Any:
    """The BLAS libraries of this process; to look for them takes longer than a small prediction."""
    import scipy.linalg  # noqa: F401  # whose BLAS is JAX's
    from threadpoolctl import ThreadpoolController  # its import sets an environment variable

    return ThreadpoolController()
