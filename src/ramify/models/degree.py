"""The degree of a function as a polynomial in one argument, followed through its traced equations.

Unknown primitives get infinite degree, so the answer is an upper bound.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Primitives whose result is linear in all operands together, in the first, in the others, in each.
LINEAR = set(
    "add sub neg reduce_sum broadcast_in_dim reshape transpose squeeze slice concatenate copy cumsum "
    "rev pad convert_element_type stack add_any split".split()
)
LINEAR_IN_FIRST = set("div gather dynamic_slice".split())
LINEAR_IN_REST = set("triangular_solve select_n".split())
MULTILINEAR = set("mul dot_general".split())
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # with their own derivatives


def degree(function: Callable[..., Any], arguments: tuple[Any, ...], which: int) -> float | int:
    """The highest degree of a result in one of the arguments, which must be a single array."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    place = len(jax.tree.leaves(arguments[:which]))
    return max(_degrees(program, [int(i == place) for i in range(len(program.invars))]))


def _degrees(program: Any, inputs: list[Any]) -> list[Any]:
    """The degrees of a program's outputs, given those of its inputs."""
    found = dict(zip(program.invars, inputs, strict=True))
    of = lambda v: 0 if hasattr(v, "val") else found.get(v, 0)  # a literal, or a constant
    for equation in program.eqns:
        into = [of(v) for v in equation.invars]
        out = _outputs(equation, into) if any(into) else [0] * len(equation.outvars)
        found.update(zip(equation.outvars, out, strict=True))
    return [of(v) for v in program.outvars]


def _outputs(equation: Any, into: list[Any]) -> list[Any]:
    name, count = equation.primitive.name, len(equation.outvars)
    if name in CALLS:
        return _degrees(equation.params[CALLS[name]].jaxpr, into)
    if _asks_finite(equation) and max(into) < math.inf:  # polynomials are finite: a constant
        return [0]
    floats = lambda: all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.outvars)
    if name in LINEAR and floats():  # a conversion to whole numbers is a function with steps
        return [max(into)] * count
    if name in MULTILINEAR:
        return [sum(into)]
    if name in ("integer_pow", "square"):
        power = equation.params.get("y", 2)
        return [power * into[0] if power > 0 else math.inf]
    if name in LINEAR_IN_FIRST and not any(into[1:]):
        return [into[0]]
    if name in LINEAR_IN_REST and not into[0]:
        return [max(into)]
    return [math.inf] * count


def _asks_finite(equation: Any) -> bool:
    """Whether the equation is part of the finiteness test that NumPyro makes of every value."""
    name, operands = equation.primitive.name, equation.invars
    if name == "ne":
        return any(np.isinf(getattr(v, "val", 0.0)) for v in operands)
    return name == "is_finite" or (name == "eq" and operands[0] is operands[1])
