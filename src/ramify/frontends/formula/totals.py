"""The population's part of the effects that vary by group, which makes them coefficients of a group.

Common effects and those that vary by group may be coded by other columns of the same space: with
`kind + (0 + kind | g)` the common intercept belongs to every level of `kind`. The part of common
effects b of columns X in the effects of columns W is A b, where W A = X.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float64

from ramify.frontends.formula.design import Coding, components

_ROWS = 20  # made-up rows for each column
_SAME = 1e-6  # of its largest value: by how much a column that W spans may differ
_ARITHMETIC = "I center scale standardize + - * /".split()  # which can be evaluated at any numbers


def population(
    common: Coding, group: Sequence[Coding], draws: Mapping[str, Any], prefix: str = ""
) -> Float64[np.ndarray, "S M"]:
    """Draws of the population's part of each effect in the codings of `group`.

    `draws` has the common effects by their names in results, which begin with the prefix. A common
    column that the varying ones do not span, such as a group's age, has no part in them.
    """
    names = [f"{prefix}{name}" for name in common.names]
    known = [k for k, name in enumerate(names) if name in draws]
    if not known:
        S = len(next(iter(draws.values())))
        return np.zeros((S, sum(len(coding.names) for coding in group)))
    b = np.stack([np.asarray(draws[names[k]], np.float64) for k in known], 1)
    return b @ _shares(common, group)[:, known].T


def _shares(common: Coding, group: Sequence[Coding]) -> Float64[np.ndarray, "M P"]:
    """A of W A = X; zero for a column of X that W does not span."""
    X, *parts = _columns([common, *group])
    W, names = np.concatenate(parts, 1), [name for coding in group for name in coding.names]
    A = np.linalg.lstsq(W, X, rcond=None)[0]
    A[:, (np.abs(W @ A - X) > _SAME * np.abs(X).max(0)).any(0)] = 0.0
    for k, name in enumerate(common.names):
        if name in names and np.array_equal(X[:, k], W[:, names.index(name)]):
            A[:, k] = np.arange(len(names)) == names.index(name)
    return np.where(np.abs(A) > _SAME * np.abs(A).max(0), A, 0.0)


def _columns(codings: Sequence[Coding]) -> Iterator[Float64[np.ndarray, "n P"]]:
    """The columns of each coding at the same rows, which are made up."""
    frame = _frame(codings)
    for coding in codings:
        own = [term for term in coding.terms if term.kind != "offset"]
        yield np.concatenate(
            [_term(term, coding.owners.count(term.name), frame) for term in own], 1
        )


def _frame(codings: Sequence[Coding]) -> Any:
    """A number for each column in use, or one of its levels where it is taken as a category."""
    import pandas as pd

    terms = [term for coding in codings for term in coding.terms]
    n, columns = 50 + _ROWS * sum(len(coding.names) for coding in codings), {}
    for name in {name for term in terms for name in term.var_names if name}:
        columns[name] = _random(name).normal(size=n)
    for component in components(terms):
        if component.kind == "categoric":
            levels, name = sorted(component.levels, key=str), _category(component)
            places = _random(name).permutation(np.arange(n) % len(levels))
            columns[name] = pd.Series(levels).to_numpy()[places]
    return pd.DataFrame(columns, index=range(n))


def _term(term: Any, count: int, frame: Any) -> Float64[np.ndarray, "n count"]:
    """The columns of a term, of which there are `count`."""
    if term.kind == "intercept":
        return np.ones((len(frame), 1))
    known = [_values(component, frame) for component in term.components]
    left = count // int(np.prod([own.shape[1] for own in known if own is not None]))
    values = [
        _random(component.name).normal(size=(len(frame), left)) if own is None else own
        for component, own in zip(term.components, known, strict=True)
    ]
    made = type(term)()
    made.kind = term.kind
    made.components = [SimpleNamespace(eval_new_data=lambda _, own=own: own) for own in values]
    return np.asarray(made.eval_new_data(None), np.float64).reshape(len(frame), -1)


def _values(component: Any, frame: Any) -> Float64[np.ndarray, "n k"] | None:
    """The values of a component; None for other functions, whose columns are like no others."""
    if component.kind == "categoric":
        places = {level: i for i, level in enumerate(component.levels)}
        return component.contrast_matrix.matrix[[places[x] for x in frame[_category(component)]]]
    if hasattr(component, "call") and not _is_arithmetic(component.call):
        return None
    return np.asarray(component.eval_new_data(frame), np.float64).reshape(len(frame), -1)


def _category(component: Any) -> str:
    """The column that a category is of, or the expression."""
    call = getattr(component, "call", None)
    return str(call.args[0]) if call and call.callee in ("C", "S", "T") else component.name


def _is_arithmetic(expression: Any) -> bool:
    """Whether an expression is of columns and numbers by arithmetic, scale() and the like."""
    if not hasattr(expression, "args"):
        return True
    known = getattr(expression, "callee", None) or expression.symbol
    return known in _ARITHMETIC and all(map(_is_arithmetic, expression.args))


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))
