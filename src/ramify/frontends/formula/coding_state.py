"""Constants of scale(), poly(), bs() and the like from all rows of a table that is read in parts."""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from ramify.frontends.formula.design import Coding, components, inside
from ramify.frontends.formula.moments import Moments, moments
from ramify.numerics.memory import check_memory

Frames = Callable[[], Iterator[Any]]  # the rows of all parts, as pandas frames
COPIES = 16  # copies of its column that a spline or polynomial makes, about


def with_state(coding: Coding, frames: Frames, n: int) -> Coding:
    """The coding of a sample, with the constants of functions taken from all n rows."""
    for component in components(coding.terms):
        for call in reversed([*inside(getattr(component, "call", None))]):  # inner ones first
            if call.stateful_transform is not None:
                own = _centred if call.callee in ("center", "scale") else _of_whole_column
                call.stateful_transform = own(call, component.env, frames, n)
    return coding


def _centred(call: Any, environment: Any, frames: Frames, n: int) -> Any:
    """The transformation of center() or scale(), with the mean and sd of all rows."""
    column = lambda frame: np.asarray(call.args[0].eval(frame, environment), np.float64)
    found = reduce(Moments.and_of, (moments(column(frame)) for frame in frames()))
    new = type(call.stateful_transform)()
    vars(new).update(params_set=True, mean=found.mean)
    if call.callee == "scale":
        new.std = found.sd
    return new


def _of_whole_column(call: Any, environment: Any, frames: Frames, n: int) -> Any:
    """The transformation of a spline or polynomial, whose constants need a whole column at once."""
    cure = "Give it fewer rows, or make columns of it first"
    check_memory(8 * COPIES * n, None, f"the constants of {call} in {n:,} rows", cure)
    each = [[own.eval(frame, environment) for own in call.args] for frame in frames()]
    columns = [
        np.concatenate(own) if np.ndim(own[0]) else own[0] for own in zip(*each, strict=True)
    ]
    named = {name: own.eval(None, environment) for name, own in call.kwargs.items()}
    new = type(call.stateful_transform)()
    new(*columns, **named)
    return new
