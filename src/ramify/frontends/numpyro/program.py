"""A function traced once, without gathers that are identities and without dead equations.

A NumPyro model picks each row's group by `beta[user]`. On a block where every row is a group of its own
that gather is the identity. XLA does not see this, and the derivative of a gather is a scatter, which
doubles the cost of a likelihood's curvature. So constant integers are propagated through the traced
program, and a gather at 0, 1, 2, ... becomes a slice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr_consts

Known = dict[Var, np.ndarray | None]  # integers whose values are known
Same = dict[Var, Any]  # replacements of variables

# The primitives that indexing uses, as functions of their parameters and of known integers.
_FOLDED: dict[str, Callable[..., Any]] = {
    "lt": lambda params, a, b: a < b,
    "add": lambda params, a, b: a + b,
    "select_n": lambda params, which, *cases: np.choose(which, cases),
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "broadcast_in_dim": lambda params, a: _broadcast(a, **params),
    "reshape": lambda params, a: a.reshape(params["new_sizes"]),
    "squeeze": lambda params, a: a.squeeze(params["dimensions"]),
    "convert_element_type": lambda params, a: a.astype(params["new_dtype"]),
}


class Program:
    """A function of arrays, traced for arguments of given shapes and types.

    Attributes:
        shapes: shapes and types of what it returns.

    Example:
        >>> own = np.arange(4)
        >>> program = Program(lambda x: x[own] + 1.0, jax.ShapeDtypeStruct((4,), jnp.float32))
        >>> program
        { lambda ; a:f32[4]. let b:f32[4] = add a 1.0:f32[] in (b,) }
        >>> program(jnp.zeros(4)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, function: Callable[..., Any], *shapes: Any):
        """Traces the function; what it returns may be any tree of arrays."""
        traced, self.shapes = jax.make_jaxpr(function, return_shape=True)(*shapes)
        self._tree = jax.tree.structure(self.shapes)
        self._closed = _alive(_rewritten(traced, {})[0])
        self._run = jaxpr_as_fun(self._closed)

    def __call__(self, *arguments: Any) -> Any:
        """Runs the program, under whatever transformation is going on."""
        return jax.tree.unflatten(self._tree, self._run(*jax.tree.leaves(arguments)))

    def __repr__(self) -> str:
        """The equations."""
        return str(self._closed)

    def reached(self, inputs: Sequence[bool]) -> Any:
        """Which outputs may depend on the marked inputs: an upper bound."""
        jaxpr = self._closed.jaxpr
        found = {v for v, marked in zip(jaxpr.invars, inputs, strict=True) if marked}
        depends = lambda v: not isinstance(v, Literal) and v in found
        for equation in jaxpr.eqns:
            if any(map(depends, equation.invars)):
                found.update(equation.outvars)
        return jax.tree.unflatten(self._tree, map(depends, jaxpr.outvars))


def _rewritten(closed: ClosedJaxpr, given: Known) -> tuple[ClosedJaxpr, list[np.ndarray | None]]:
    """The program without identity gathers, and the known values of its outputs."""
    jaxpr, same, equations = closed.jaxpr, {}, []
    known = given | dict(zip(jaxpr.constvars, map(_integers, closed.consts), strict=True))
    for equation in jaxpr.eqns:
        equation = _renamed(equation, same)
        values = [_known(v, known) for v in equation.invars]
        name = equation.primitive.name
        if name in ("jit", "pjit"):
            equation = _inside(equation, values, known)
        elif name in _FOLDED and all(v is not None for v in values):
            known[equation.outvars[0]] = _integers(_FOLDED[name](equation.params, *values))
        replaced = None
        if name == "gather" and values[1] is not None:
            replaced = _as_slice(equation, values[1], same)
        equations += [equation] if replaced is None else replaced
    outputs = [_through(v, same) for v in jaxpr.outvars]
    found = closed.replace(jaxpr=jaxpr.replace(eqns=equations, outvars=outputs))
    return found, [_known(v, known) for v in outputs]


def _inside(equation: JaxprEqn, values: list[Any], known: Known) -> JaxprEqn:
    """A call of a jitted function, with that function rewritten."""
    closed = equation.params["jaxpr"]
    closed, outputs = _rewritten(closed, dict(zip(closed.jaxpr.invars, values, strict=True)))
    known.update(zip(equation.outvars, outputs, strict=True))
    return equation.replace(params=equation.params | {"jaxpr": closed})


def _as_slice(gather: JaxprEqn, indices: np.ndarray, same: Same) -> list[JaxprEqn] | None:
    """The equations that replace an identity gather; None for other gathers."""
    operand, numbers = gather.invars[0], gather.params["dimension_numbers"]
    aval: Any = operand.aval
    found = _own_axis(aval.shape, indices, numbers, gather.params["slice_sizes"])
    if found is None:
        return None
    own, start, stop = found
    gone = [axis for axis in numbers.collapsed_slice_dims if axis != own]
    before = own - sum(axis < own for axis in gone)
    (place,) = set(range(len(numbers.offset_dims) + 1)) - set(numbers.offset_dims)

    def pick(part: Any) -> Any:
        if any(start) or tuple(stop) != aval.shape:  # otherwise the slice would change nothing
            part = jax.lax.slice(part, start, stop)
        part = jax.lax.squeeze(part, gone)
        return part if before == place else jnp.moveaxis(part, before, place)

    traced = jax.make_jaxpr(pick)(jax.ShapeDtypeStruct(aval.shape, aval.dtype)).jaxpr
    same[traced.invars[0]] = operand
    equations = [_renamed(equation, same) for equation in traced.eqns]
    same[gather.outvars[0]] = _through(traced.outvars[0], same)
    return equations


def _own_axis(
    shape: tuple[int, ...], indices: np.ndarray, numbers: Any, sizes: Sequence[int]
) -> tuple[int, list[int], list[int]] | None:
    """The axis, if any, at which row r takes entry r; the slice's start and stop at each axis."""
    start, stop, own = [0] * len(shape), list(sizes), None
    if numbers.operand_batching_dims or indices.ndim != 2 or len(indices) < 2:
        return None
    for axis, column in zip(numbers.start_index_map, indices.T, strict=True):
        alone = own is None and axis in numbers.collapsed_slice_dims
        if alone and np.array_equal(column, np.arange(shape[axis])):
            own, stop[axis] = axis, shape[axis]
        elif np.all(column == column[0]) and 0 <= column[0] <= shape[axis] - sizes[axis]:
            start[axis], stop[axis] = int(column[0]), int(column[0]) + sizes[axis]
        else:
            return None
    return None if own is None else (own, start, stop)


def _renamed(equation: JaxprEqn, same: Same) -> JaxprEqn:
    return equation.replace(invars=[_through(v, same) for v in equation.invars])


def _through(atom: Any, same: Same) -> Any:
    return atom if isinstance(atom, Literal) else same.get(atom, atom)


def _broadcast(
    values: np.ndarray, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any
) -> np.ndarray:
    new = [axis for axis in range(len(shape)) if axis not in broadcast_dimensions]
    return np.broadcast_to(np.expand_dims(values, new), shape)


def _alive(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the equations and constants that its outputs do not need."""
    jaxpr = closed.jaxpr
    kept = [False] * len(jaxpr.constvars) + [True] * len(jaxpr.invars)
    jaxpr, used, _ = dce_jaxpr_consts(jaxpr, [True] * len(jaxpr.outvars), kept)
    return ClosedJaxpr(jaxpr, [x for x, needed in zip(closed.consts, used, strict=True) if needed])


def _known(atom: Any, known: Known) -> np.ndarray | None:
    return _integers(atom.val) if isinstance(atom, Literal) else known.get(atom)


def _integers(value: Any) -> np.ndarray | None:
    """A constant as a NumPy array, if it holds integers or booleans."""
    dtype = getattr(value, "dtype", type(value))
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # keys of random numbers: not NumPy's
        return None
    return np.asarray(value) if np.dtype(dtype).kind in "iub" else None
