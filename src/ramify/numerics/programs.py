"""How our functions are compiled: programs that most users wait for once, and run a few times."""

from functools import partial
from typing import Any

import equinox as eqx

# A GPU's compiler tries each product of matrices in many ways first, which takes seconds; ours are small.
OPTIONS = {"xla_gpu_autotune_level": 0}

# `equinox.filter_jit`: arrays among the arguments are traced, everything else is static.
filter_jit: Any = eqx.filter_jit  # whose other options its types leave out
program = partial(filter_jit, compiler_options=OPTIONS)
