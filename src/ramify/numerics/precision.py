"""Settings while a public function computes: BLAS threads, options of JAX, programs on disk.

OpenBLAS, which JAX uses on a CPU, starts threads of its own for a triangular solve with a few
hundred columns. They wait for cores that XLA's threads hold: 9 ms for a 0.1 ms solve on two cores.
On GPUs with tensor cores JAX multiplies float32 matrices in TF32, with three digits: enough for a
network, which asks for it, but not for a density or the factor of a covariance. NaN is a normal
value here (a step that Newton refuses, a mode that is not known yet), and vectors are added to
matrices. So JAX's checks for debugging, `jax_debug_nans`, `jax_debug_infs` and rank promotion
"raise", are off in this thread while the library computes, also inside a model's functions: where a
density is NaN, `inference.failures` says which one and for which group. XLA's older emitters for
CPUs (`xla_cpu_use_fusion_emitters=False`) are not asked for: they take two thirds of the time, but
in jaxlib 0.10 they are wrong for a gather with a small sum after it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import jax

from ramify.numerics.compilation_cache import programs_on_disk
from ramify.numerics.options import check_options

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function that computes: checks options, sets and restores settings."""
    parameters = signature(function)
    options = {n for n, p in parameters.parameters.items() if p.default is not p.empty}

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            given = parameters.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # raises too, and its message names the function
        check_options({name: given[name] for name in options & given.keys()})
        _check_devices()
        with _one_thread(), _settings(), programs_on_disk():
            return function(*args, **kwargs)

    return exact


@cache
def _check_devices() -> None:
    """Raises if JAX was asked for devices that are not there."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            f"JAX_PLATFORMS is {asked!r}, and JAX finds no such device here. Unset it, set it to cpu, "
            'or for NVIDIA GPUs install "ramify[cuda]" and a driver.'
        ) from error


@contextmanager
def _settings() -> Iterator[None]:
    """JAX's settings for this thread, whatever the user's are."""
    with (
        jax.default_matmul_precision("highest"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


# Settings that a user may have changed for a thread, with the contexts that change them.
_OF_A_THREAD: dict[str, Callable[[Any], Any]] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_device": jax.default_device,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
}


def same_settings() -> Callable[[], AbstractContextManager[Any]]:
    """A context for another thread, with the settings with which this thread computes."""
    values = {name: getattr(jax.config, name) for name in _OF_A_THREAD}

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_settings())
            for name, value in values.items():
                stack.enter_context(_OF_A_THREAD[name](value))
            yield

    return entered


_lock, _running, _limits = threading.Lock(), 0, []


@contextmanager
def _one_thread() -> Iterator[None]:
    """A context with one BLAS thread; the last of several concurrent calls restores the limits."""
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
    """Lets other threads set OpenBLAS's limit: since threadpoolctl 3.8 only its last setter may."""
    from threadpoolctl import OpenBLASController

    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread()  # does nothing if another thread set them


@cache
def _libraries() -> Any:
    """The BLAS libraries of this process; finding them takes longer than a small prediction."""
    import scipy.linalg  # noqa: F401  # JAX uses its BLAS
    from threadpoolctl import ThreadpoolController  # its import sets an environment variable

    return ThreadpoolController()
