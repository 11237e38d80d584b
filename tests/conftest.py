"""What every test runs under: two devices, explicit keys."""

import os
from pathlib import Path

# Two simulated CPU devices, so that sharding is tested everywhere, and a compiler that hurries:
# tests compile much and compute little. XLA reads this once, before its first computation; a run on
# an accelerator has its own devices.
if not {"cuda", "gpu", "rocm", "tpu"} & set(os.environ.get("JAX_PLATFORMS", "").split(",")):
    for flag, value in (
        ("--xla_force_host_platform_device_count", 2),
        ("--xla_backend_optimization_level", 0),
    ):
        flags = os.environ.get("XLA_FLAGS", "")
        if flag not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}={value}".strip()

# The library keeps BLAS to one thread while it computes (see `numerics.precision`); tests that call its
# parts directly need the same, or small triangular solves wait for each other's threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Programs that were compiled by one worker, or by an earlier run, are not compiled again.
ROOT = Path(__file__).resolve().parents[1]
os.environ["RAMIFY_CACHE"] = "off"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import hypothesis
import jax
import pytest

# The first example compiles, so it has no deadline; the same examples every run.
hypothesis.settings.register_profile("ramify", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ramify")

# The files that take longest come first, so that all workers end at about the same time.
LONG = (
    "compile_budgets integral structure theta_nuts interpret solved docs metrics fit update marginal "
    "loo numpyro_posterior report first_release plots manners families"
).split()


def pytest_collection_modifyitems(items):
    """Puts the tests of the longest files first, in the order of `LONG`."""
    place = {f"test_{name}": k for k, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture
def key():
    """A PRNG key; split or fold it, never use it twice."""
    return jax.random.key(0)


@pytest.fixture
def x64():
    """The test runs in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_compiled():
    """Executables are freed after each file: thousands of them in one process bring XLA down."""
    yield
    jax.clear_caches()
