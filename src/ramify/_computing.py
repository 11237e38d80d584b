"""What holds while JAX computes for a public function: one BLAS thread, full-precision products.

OpenBLAS, behind JAX's linear algebra on a CPU, starts threads of its own for a triangular solve with a
few hundred columns, which then wait for the cores that XLA's threads hold: a 0.1 ms solve was seen
to take 9 ms on two cores, and long fits to fall asleep. XLA already runs on every core.

On GPUs with tensor cores JAX multiplies float32 matrices in TF32, with three digits: enough for a
network, not for a density or the factor of a covariance. Networks ask for it themselves
(`fast_products`).

Compiling takes longer than the work of many a call. XLA's older emitters for CPUs compile in two thirds
of the time, to code that is as fast but for networks (`compiled`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax.core import Tracer

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes; everything is as before after it."""

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        one_thread = _libraries().limit(limits=1, user_api="blas")
        with one_thread, jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return exact


@cache
def _libraries() -> Any:
    """The BLAS libraries of this process; to look for them takes longer than a small prediction."""
    import scipy.linalg  # noqa: F401  # whose BLAS is JAX's
    from threadpoolctl import ThreadpoolController  # its import sets an environment variable

    return ThreadpoolController()


def fast_products() -> AbstractContextManager[None]:
    """For code that is traced inside: products of matrices may be rounded to TF32."""
    return jax.default_matmul_precision("tensorfloat32")


def compiled(function: Callable[P, T], **options: Any) -> Callable[P, T]:
    """`eqx.filter_jit` for all but the steps of a network, with the compiler's `options`.

    Made at the first call: what may be asked of the compiler depends on the device. Traced inside
    another function it is that function's, since only what is outermost can have options.
    """

    @cache
    def made() -> Callable[P, T]:
        asked: Any = {"compiler_options": options | _quick_to_compile()}
        return eqx.filter_jit(function, **asked)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (function if traced else made())(*args, **kwargs)

    return call


@cache
def _quick_to_compile() -> dict[str, Any]:
    """The older emitters where they are known; a release of XLA may no longer have them."""
    if jax.default_backend() != "cpu":
        return {}
    older = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=older).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return older
