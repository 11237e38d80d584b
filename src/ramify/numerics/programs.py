"""How our functions are compiled: `equinox.filter_jit` with options that all our programs need."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx

from ramify.numerics.kept_programs import kept

# jaxlib 0.10 gives small sums on a CPU to a library (YNNPACK) that computes some of them wrongly:
# `a + jnp.sum(x[None] * b[:, None], -1)` with shapes [128, 512], [512, 2] and [128, 2], for one.
EXACT = {"xla_cpu_experimental_ynn_fusion_type": ""}
# A GPU's compiler tries each product of matrices in many ways first, or has Triton write a kernel for
# it, which takes seconds; ours are small. Products of a group's few numbers become part of the loops
# around them: cuBLAS pads each to 32 x 32, which took two thirds of a fit with M = 5.
QUICK = EXACT | {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_gemm_rewrite_size_threshold": 4096,
}

filter_jit: Any = eqx.filter_jit  # whose other options its types leave out
# For what runs thousands of times.
training_program = partial(filter_jit, compiler_options=EXACT)


def program(function: Callable[..., Any]) -> Any:
    """For what is compiled once and runs a few times. Its program is kept on disk."""
    return kept(function, QUICK, filter_jit(function, compiler_options=QUICK))
