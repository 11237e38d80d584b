"""How our functions are compiled: `equinox.filter_jit` with options that all our programs need."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx

from ramify.numerics.kept_programs import kept

# jaxlib 0.10 gives small sums on a CPU to a library (YNNPACK) that computes some of them wrongly:
# `a + jnp.sum(x[None] * b[:, None], -1)` with shapes [128, 512], [512, 2] and [128, 2], for one.
EXACT = {"xla_cpu_experimental_ynn_fusion_type": ""}
# A GPU's compiler first tries each matrix product in many ways, or writes a Triton kernel for it,
# which takes seconds; our matrices are small. cuBLAS pads the products of one group to 32 x 32, which
# took two thirds of a fit with M = 5: up to this size they become part of the loops around them.
QUICK = EXACT | {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_gemm_rewrite_size_threshold": 4096,
}

# Compiles in half the time. Programs take up to seven times as long.
BRIEF = QUICK | {"xla_backend_optimization_level": 0}

filter_jit: Any = eqx.filter_jit  # Any, since its types leave out the compiler's options
# For functions that run thousands of times.
training_program = partial(filter_jit, compiler_options=EXACT)


def program(function: Callable[..., Any]) -> Any:
    """For functions that are compiled once and run a few times. The program is kept on disk."""
    return kept(function, QUICK, filter_jit(function, compiler_options=QUICK))


def brief_program(function: Callable[..., Any]) -> Any:
    """The same for functions of theta alone, which compute little however large the data."""
    return kept(function, BRIEF, filter_jit(function, compiler_options=BRIEF))
