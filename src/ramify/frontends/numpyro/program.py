"""A function traced once, without gathers that are identities and without dead equations.

A NumPyro model picks each row's group by `beta[user]`. On a block where every row is a group of its own
`user` is 0, 1, 2, ..., and that gather is the identity. XLA does not see this, and the derivative of a
gather is a scatter, which doubles the cost of a likelihood's curvature. So the traced program is read
once per block shape: constant integers are propagated, and a gather at 0, 1, 2, ... becomes a slice.
JAX's own interpreter runs the result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

Known = dict[Var, np.ndarray]


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
        known = dict(zip(traced.jaxpr.constvars, map(_integers, traced.consts), strict=True))
        jaxpr, _ = _rewritten(traced.jaxpr, {v: x for v, x in known.items() if x is not None})
        self._tree = jax.tree.structure(self.shapes)
        self._closed = _without_unused_constants(ClosedJaxpr(jaxpr, traced.consts))
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
        for equation in jaxpr.eqns:
            if any(v in found for v in _variables(equation.invars)):
                found.update(equation.outvars)
        flags = [not isinstance(v, Literal) and v in found for v in jaxpr.outvars]
        return jax.tree.unflatten(self._tree, flags)


def _rewritten(jaxpr: Jaxpr, known: Known) -> tuple[Jaxpr, list[np.ndarray | None]]:
    """The program without identity gathers, and the known values of its outputs."""
    same: dict[Var, Any] = {}
    through = lambda v: v if isinstance(v, Literal) else same.get(v, v)
    equations: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        equation = equation.replace(invars=[through(v) for v in equation.invars])
        values = [_known(v, known) for v in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            equation = _inside(equation, values, known)
        elif equation.primitive.name == "gather" and values[1] is not None:
            replaced = _as_slice(equation, values[1], same)
            equations += [equation] if replaced is None else replaced
            continue
        elif values and all(v is not None for v in values):
            _fold(equation, values, known)
        equations.append(equation)
    outputs = [through(v) for v in jaxpr.outvars]
    alive = _alive(equations, outputs)
    return jaxpr.replace(eqns=alive, outvars=outputs), [_known(v, known) for v in outputs]


def _inside(equation: JaxprEqn, values: list[Any], known: Known) -> JaxprEqn:
    """A call of a jitted function, with that function rewritten."""
    closed = equation.params["jaxpr"]
    inner = dict(zip(closed.jaxpr.invars, values, strict=True))
    inner |= dict(zip(closed.jaxpr.constvars, map(_integers, closed.consts), strict=True))
    jaxpr, outputs = _rewritten(closed.jaxpr, {v: x for v, x in inner.items() if x is not None})
    found = zip(equation.outvars, outputs, strict=True)
    known.update({v: x for v, x in found if x is not None})
    return equation.replace(params=equation.params | {"jaxpr": closed.replace(jaxpr=jaxpr)})


def _as_slice(gather: JaxprEqn, indices: np.ndarray, same: dict[Var, Any]) -> list[JaxprEqn] | None:
    """The equations that replace an identity gather; None for other gathers."""
    operand = gather.invars[0]
    pick = _own_slice(operand.aval.shape, indices, gather.params)  # pyright: ignore[reportAttributeAccessIssue]
    if pick is None:
        return None
    shape = jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype)  # pyright: ignore[reportAttributeAccessIssue]
    traced = jax.make_jaxpr(pick)(shape).jaxpr
    same[traced.invars[0]] = operand
    if traced.outvars[0] is traced.invars[0]:  # nothing but the operand itself
        same[gather.outvars[0]] = operand
        return []
    last = traced.outvars[0]
    through = lambda v: v if isinstance(v, Literal) else same.get(v, v)
    return [
        e.replace(
            invars=[through(v) for v in e.invars],
            outvars=[gather.outvars[0] if v is last else v for v in e.outvars],
        )
        for e in traced.eqns
    ]


def _own_slice(
    shape: tuple[int, ...], indices: np.ndarray, params: dict[str, Any]
) -> Callable[[Any], Any] | None:
    """Operand -> what the gather gives, if row r takes entry r of one axis and fixed ones of others."""
    numbers = params["dimension_numbers"]
    if numbers.operand_batching_dims or indices.ndim != 2 or len(indices) < 2:
        return None
    found = _own_axis(shape, indices, numbers, params["slice_sizes"])
    if found is None:
        return None
    own, start, stop = found
    gone = [axis for axis in numbers.collapsed_slice_dims if axis != own]
    before = own - sum(axis < own for axis in gone)
    (place,) = set(range(len(numbers.offset_dims) + 1)) - set(numbers.offset_dims)

    def pick(operand: Any) -> Any:
        part = operand
        if any(start) or tuple(stop) != shape:  # else an equation that does nothing
            part = jax.lax.slice(operand, start, stop)
        part = jax.lax.squeeze(part, gone) if gone else part
        return part if before == place else jnp.moveaxis(part, before, place)

    return pick


def _own_axis(
    shape: tuple[int, ...], indices: np.ndarray, numbers: Any, sizes: Sequence[int]
) -> tuple[int, list[int], list[int]] | None:
    """The axis at which row r takes entry r, and where the slice starts and stops at each axis."""
    start, stop, own = [0] * len(shape), list(sizes), None
    for axis, column in zip(numbers.start_index_map, indices.T, strict=True):
        if len(column) == shape[axis] and np.array_equal(column, np.arange(len(column))):
            if own is not None or axis not in numbers.collapsed_slice_dims:
                return None
            own, stop[axis] = axis, shape[axis]
        elif np.all(column == column[0]) and 0 <= column[0] <= shape[axis] - sizes[axis]:
            start[axis], stop[axis] = int(column[0]), int(column[0]) + sizes[axis]
        else:
            return None
    return None if own is None else (own, start, stop)


def _fold(equation: JaxprEqn, values: list[Any], known: Known) -> None:
    """Evaluates an equation of known integers, for the primitives that indexing uses."""
    params, out = equation.params, equation.outvars[0]
    name, first = equation.primitive.name, values[0]
    if name == "lt":
        known[out] = np.less(*values)
    elif name == "add":
        known[out] = np.add(*values)
    elif name == "select_n" and len(values) == 3:
        known[out] = np.where(first, values[2], values[1])
    elif name == "concatenate":
        known[out] = np.concatenate(values, params["dimension"])
    elif name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        shape = [1] * len(params["shape"])
        for axis, size in zip(dims, first.shape, strict=True):
            shape[axis] = size
        known[out] = np.broadcast_to(first.reshape(shape), params["shape"])
    elif name in ("reshape", "squeeze"):
        known[out] = first.reshape(out.aval.shape)  # pyright: ignore[reportAttributeAccessIssue]
    elif name == "convert_element_type" and np.dtype(params["new_dtype"]).kind in "iub":
        known[out] = first.astype(params["new_dtype"])


def _alive(equations: list[JaxprEqn], outputs: list[Any]) -> list[JaxprEqn]:
    """The equations that the outputs need, and those with effects."""
    needed, alive = _variables(outputs), []
    for equation in reversed(equations):
        if equation.effects or any(v in needed for v in equation.outvars):
            alive.append(equation)
            needed |= _variables(equation.invars)
    return alive[::-1]


def _without_unused_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    needed = _variables(jaxpr.outvars)
    for equation in jaxpr.eqns:
        needed |= _variables(equation.invars)
    kept = [(v, x) for v, x in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed]
    return ClosedJaxpr(jaxpr.replace(constvars=[v for v, _ in kept]), [x for _, x in kept])


def _variables(atoms: Sequence[Any]) -> set[Var]:
    return {v for v in atoms if not isinstance(v, Literal)}


def _known(atom: Any, known: Known) -> np.ndarray | None:
    return _integers(atom.val) if isinstance(atom, Literal) else known.get(atom)


def _integers(value: Any) -> np.ndarray | None:
    """A constant as a NumPy array, if it holds integers or booleans."""
    if value is None:
        return None
    dtype = getattr(value, "dtype", type(value))
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # keys of random numbers: not NumPy's
        return None
    return np.asarray(value) if np.dtype(dtype).kind in "iub" else None
