"""What is known of a model: as it was declared or, where nothing was, as its traced program says.

The degree of densities as polynomials in theta or z is followed through the traced equations. Unknown
primitives get infinite degree, so the answer is an upper bound: a likelihood may be said to use theta
where it does not, and a normal prior may be missed, which costs time only. A numeric test at some
points would be wrong where they miss a branch, such as rows of a rare kind with theta in their density.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.batch import Batch
from ramify.models.model import Model

# Results that are linear in all their operands together, in the first, in the others, or in each.
LINEAR = set(
    "add sub neg reduce_sum broadcast_in_dim reshape transpose squeeze slice concatenate copy cumsum "
    "rev pad convert_element_type stack add_any split".split()
)
LINEAR_IN_FIRST = set("div gather dynamic_slice".split())
LINEAR_IN_REST = set("triangular_solve select_n".split())
MULTILINEAR = set("mul dot_general".split())
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}  # with their own derivatives


def uses_theta(model: Model, batch: Batch) -> bool:
    """Whether the likelihood of rows with these columns involves theta at all."""
    declared = model.structure.likelihood
    if declared is not None and declared.uses_theta is not None:
        return declared.uses_theta(batch)
    theta, z = _arguments(model, batch.segment.shape[0])
    return degree(model.log_lik, (theta, z, batch), 0) != 0


def normal_prior(model: Model, batch: Batch) -> bool:
    """Whether log p(z | theta, u) is quadratic in z, so that any expansion is the whole of it."""
    if model.structure.prior is not None:
        return True
    theta, z = _arguments(model, batch.index.shape[0])
    return degree(model.log_local, (theta, z, batch), 1) <= 2


def normal_posterior(model: Model, batch: Batch) -> bool:
    """Whether log p(z, y_i | theta) is quadratic in z, so that p(z | theta, y_i) is normal."""
    theta, z = _arguments(model, batch.segment.shape[0])
    return normal_prior(model, batch) and degree(model.log_lik, (theta, z, batch), 1) <= 2


def _arguments(model: Model, count: int) -> tuple[Any, Any]:
    theta = jax.ShapeDtypeStruct((model.theta.size,), jnp.result_type(float))
    return theta, jax.ShapeDtypeStruct((count, model.z.size), theta.dtype)


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
    if _asks_finite(equation) and max(into) < math.inf:  # a polynomial of ours is finite
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
    """Whether it is a part of "is this finite?", which NumPyro asks of every value."""
    name, operands = equation.primitive.name, equation.invars
    if name == "ne":
        return any(np.isinf(getattr(v, "val", 0.0)) for v in operands)
    return name == "is_finite" or (name == "eq" and operands[0] is operands[1])
