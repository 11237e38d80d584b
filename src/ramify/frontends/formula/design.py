"""Design matrices by the `formulae` package, and the state needed to code new rows the same way.

Their state (levels and contrasts of categories, knots, the constants of scale() and poly()) is saved by
`saved_coding`.
"""

import copy
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from ramify.frontends.formula.dependent import warn_of_dependent
from ramify.frontends.formula.frame import is_category, rows_in_words
from ramify.frontends.formula.text import FormulaError, error
from ramify.numerics.user_warning import warn_user

# Functions that a formula may call, in addition to the stateful transformations (scale, center, poly,
# bs, cr, cc, tp, C, T, S). The list is fixed: a saved formula must not be able to call anything else.
_PLAIN = (
    "abs exp exp2 expm1 log log10 log1p log2 sqrt sin cos tan arcsin arccos arctan sinh cosh tanh "
    "floor ceil sign square maximum minimum power where"
).split()
_ELSEWHERE = dict.fromkeys(("factor", "as.factor", "ordered"), "write C(), as C(kind)") | {
    "s": "splines are bs(x, df=5), cr(x, df=5) and tp(x, df=5)",
    "ns": "natural splines are cr(x, df=5)",
}  # functions of R
_LEVELS = 100  # most levels of a category, unless they are at most a tenth of the rows
_LARGEST = 1e30  # largest value that float32 can compute with
_SAME = 1e-10  # smallest eigenvalue of the columns of a spline or polynomial that differ


class Coding(NamedTuple):
    """One part of a formula, evaluated: its terms and their state."""

    text: str  # that part
    terms: list[Any]  # the coding library's terms, offsets included
    names: list[str]  # of the columns, in order: `Intercept`, `x`, `kind[b]`, `x:kind[b]`, ...
    owners: list[str]  # the term that each column belongs to
    kinds: dict[str, str]  # of the table's columns in use: "number" or "category"

    def matrix(self, frame: Any, what: str = "table") -> Float64[np.ndarray, "n P"]:
        """The design matrix of new rows; `what` is what the user calls their table."""
        frame = _plain(frame)
        own = [t for t in self.terms if t.kind not in ("intercept", "offset")]
        with np.errstate(all="ignore"):
            parts = [term.eval_new_data(frame) for term in own]
        for term, part in zip(own, parts, strict=True):
            _check_finite(term, part, frame, what)
        return _joined(len(frame), "Intercept" in self.names, parts)

    def offset(self, frame: Any, what: str = "table") -> Float64[np.ndarray, " n"] | None:
        """The sum of the offsets of new rows, if there are any."""
        own = [term for term in self.terms if term.kind == "offset"]
        frame = _wide(frame)
        with np.errstate(all="ignore"):
            found = [np.asarray(t.eval_new_data(frame), np.float64).ravel() for t in own]
        for term, part in zip(own, found, strict=True):
            _check_finite(term, part, frame, what)
        return np.sum(found, 0) if found else None

    def unchecked(self, frame: Any) -> Float64[np.ndarray, "n P"]:
        """The columns of new rows, finite or not: without the intercept's, and then those of offsets."""
        frame = _plain(frame)
        own = [term for term in self.terms if term.kind != "intercept"]
        own.sort(key=lambda term: term.kind == "offset")
        with np.errstate(all="ignore"):
            parts = [np.asarray(term.eval_new_data(frame), np.float64) for term in own]
        return np.column_stack([np.zeros((len(frame), 0)), *parts])


def check_installed() -> None:
    """Raises if a package that formulas need is not there."""
    missing = [name for name in ("formulae", "pandas") if find_spec(name) is None]
    if missing:
        what = f"formulas need {' and '.join(missing)}"
        raise ImportError(f'{what}: install them with pip install "ramify[formula]".')


def components(terms: list[Any]) -> list[Any]:
    """The variables and calls that terms are made of."""
    return [component for term in terms for component in getattr(term, "components", [])]


def variables(part: str, whole: str) -> list[str]:
    """Names of the table's columns that a part of a formula uses."""
    return sorted(name for name in described(part, whole).var_names if name)


def check_by_row(part: str, whole: str) -> None:
    """Raises if a response calls a stateful function such as scale().

    Its constants would be those of the rows at hand, not those of the fit.
    """
    from formulae.transforms import TRANSFORMS

    for call in _calls(described(part, whole).common_terms):
        if call.callee in TRANSFORMS and call.callee != "I":
            cure = "make a column of it first (write y[yes] for a level of y)"
            what = f"{call.callee}() can't be applied to the response: {cure}"
            raise error(whole, call.callee, what)


def code(
    part: str, whole: str, frame: Any, n: int | None = None
) -> tuple[Coding, Float64[np.ndarray, "n P"]]:
    """Evaluates a part of a formula on the rows of a fit: its coding and its design matrix.

    `n` is the number of rows of the fit if the frame has only some of them; see `with_state`.
    """
    description = described(part, whole)
    if not description.common_terms:
        return Coding(part, [], [], [], {}), np.zeros((len(frame), 0))
    for term in description.common_terms:
        if hasattr(term, "components"):
            # In a/b, the terms a and a:b share a component but are coded differently.
            term.components = copy.deepcopy(term.components)
    _check_level_counts(description.common_terms, frame, n or len(frame))
    _evaluate(description, part, _wide(frame))
    terms = in_order(description.common_terms)
    own = [t for t in terms if t.kind not in ("intercept", "offset")]
    first = ["Intercept"] if len(terms) and terms[0].kind == "intercept" else []
    names = first + [label for term in own for label in term.labels]
    owners = first + [term.name for term in own for _ in term.labels]
    used = {name for term in own for name in term.var_names if name}
    kinds = {name: _kind(frame[name]) for name in sorted(used)}
    matrix = _joined(len(frame), bool(first), [term.data for term in own])
    if len(names) != matrix.shape[1]:
        raise FormulaError(
            f"formula: {part!r} is coded by {matrix.shape[1]} columns and their names are "
            f"{', '.join(names)}: one name for each was expected. Write its terms out one by one, as "
            "a + a:b for a/b."
        )
    for term in own:
        _check_finite(term, np.asarray(term.data), frame, "table")
        _check_columns_differ(term)
    _warn_of_booleans(terms, frame)
    if n in (None, len(frame)):
        warn_of_dependent(names, matrix)
    return Coding(part, terms, names, owners, kinds), matrix


def _plain(frame: Any) -> Any:
    """New rows as calls take them: wide numbers, and categories as their values."""
    text = {n: frame[n].astype(object) for n in frame.columns if is_category(frame[n])}
    return _wide(frame).assign(**text)


def _wide(frame: Any) -> Any:
    """The frame with 64-bit numbers: products of smaller ones may wrap around or lose digits."""
    to = {"i": np.int64, "u": np.int64, "f": np.float64}
    small = [n for n in frame.columns if frame[n].dtype.kind in to and frame[n].dtype.itemsize < 8]
    large = [n for n in frame.columns if frame[n].dtype == np.uint64]
    kinds = {n: to[frame[n].dtype.kind] for n in small} | dict.fromkeys(large, np.float64)
    return frame.astype(kinds) if kinds else frame


def _evaluate(description: Any, part: str, frame: Any) -> None:
    """Evaluates the terms on the rows of the frame; they keep the results."""
    from formulae.environment import Environment
    from formulae.matrices import DesignMatrices

    try:
        with np.errstate(all="ignore"):
            DesignMatrices(description, frame, Environment([namespace()]))
    except Exception as problem:  # functions that users call may raise anything
        text = [n for n in frame.columns if is_category(frame[n])]
        if isinstance(problem, TypeError | ValueError) and text and description.common_terms:
            for call in _calls(description.common_terms):
                if call.callee not in ("C", "T", "S", "where") and (mine := _named_in(call, text)):
                    who = f'column "{mine}" holds text or categories, and {call.callee}() takes numbers'
                    raise FormulaError(f"formula: {part!r} can't be evaluated: {who}.") from problem
        raise FormulaError(f"formula: {part!r} can't be evaluated: {problem}") from problem


def _named_in(call: Any, names: list[str]) -> str | None:
    """The first of the names that a call uses."""
    from formulae.terms.call_utils import CallVarsExtractor

    used = CallVarsExtractor(call).get()
    return next((name for name in names if name in used), None)


def _warn_of_booleans(terms: list[Any], frame: Any) -> None:
    """Warns where R would code both values of a boolean column, which counts as a number here."""
    made = {frozenset(c.name for c in components([term])) for term in terms}
    for component in components(terms):
        name = component.name
        if hasattr(component, "call") or frame[name].dtype != bool:
            continue
        without = [own - {name} for own in made if name in own and own - {name} not in made]
        if without:
            term = ":".join(sorted(without[0] | {name})) if without[0] else f"0 + {name}"
            warn_user(
                f'column "{name}" is boolean and counts as 0 or 1: {term} has no effect where it is '
                f"false. Write C({name}) for an effect of either value, as R codes it."
            )
            return


def _check_level_counts(terms: list[Any], frame: Any, n: int) -> None:
    """Raises if a category has so many levels that it was probably not meant as one."""
    names = [(f'column "{c.name}"', c.name) for c in components(terms) if hasattr(c, "reference")]
    asked = [(n, name) for n, name in names if is_category(frame[name])]
    for call in _calls(terms):
        if call.callee in ("C", "T", "S") and hasattr(call.args and call.args[0], "name"):
            asked.append((str(call), call.args[0].name))
    for title, name in asked:
        count = frame[name].nunique()
        if (count > _LEVELS and count > n / 10) or (count == n and title == f"C({name})"):
            raise ValueError(
                f"{title} has {count:,} different categories in {n:,} rows, and each would be an "
                "effect: use it as a number, merge categories, or let effects vary by it, "
                f"(1 | {name})."
            )


def _check_columns_differ(term: Any) -> None:
    """Raises if the columns of a polynomial or spline are combinations of each other in these rows."""
    X = np.asarray(term.data, np.float64)
    if term.kind != "numeric" or X.ndim != 2 or X.shape[1] < 2:
        return
    X = X / np.linalg.norm(X, axis=0)
    different = int((np.linalg.eigvalsh(X.T @ X) > _SAME).sum()) if np.isfinite(X).all() else 0
    if different < X.shape[1]:
        raise FormulaError(
            f"formula: {term.name} makes {X.shape[1]} columns, more than can be told apart in these "
            f"{len(X):,} rows: lower its degree, or its number of knots."
        )


def _check_finite(term: Any, values: Any, frame: Any, what: str) -> None:
    """Raises if a term has a value that is not finite or too large, such as log(x) of a negative x."""
    if not len(frame):
        return
    values = np.asarray(values, np.float64).reshape(len(frame), -1)
    bad: Bool[np.ndarray, " n"] = ~(np.abs(values) < _LARGEST).all(1)
    if not bad.any():
        return
    row, used = int(np.argmax(bad)), [n for n in sorted(term.var_names) if n in frame.columns]
    value = values[row][~(np.abs(values[row]) < _LARGEST)][0]
    where = " and ".join(f'column "{name}" is {frame[name].iloc[row]!s:.8}' for name in used)
    raise ValueError(
        f"{term.name} is {value:.3g} in {rows_in_words(bad)} of {what}; in row {row} {where}. Expected "
        "finite numbers of moderate size: drop these rows, rescale, or use another function."
    )


def _kind(column: Any) -> str:
    return "category" if is_category(column) else "number"


def _joined(n: int, intercept: bool, parts: list[Any]) -> Float64[np.ndarray, "n P"]:
    """The columns of terms side by side, after those of an intercept."""
    return np.column_stack([np.ones((n, int(intercept))), *(np.asarray(part) for part in parts)])


def namespace() -> dict[str, Any]:
    """The functions that a formula may call."""
    plain = {name: _of_floats(name, getattr(np, name)) for name in _PLAIN}
    return {**plain, "np": SimpleNamespace(**plain)}


def _of_floats(name: str, function: Any) -> Any:
    """A function of NumPy that takes its inputs alone, and whole numbers as floats, which don't wrap."""
    if not isinstance(function, np.ufunc):
        return function

    def call(*inputs: Any, **named: Any) -> Any:
        if len(inputs) != function.nin or named:
            takes = f"{function.nin} argument{'s' if function.nin > 1 else ''}"
            got = f"{len(inputs)}{' and ' + ', '.join(named) if named else ''}"
            raise TypeError(f"{name}() takes {takes}, and got {got}")
        whole = [np.asarray(x).dtype.kind in "biu" for x in inputs]
        return function(*(x * 1.0 if own else x for x, own in zip(inputs, whole, strict=True)))

    return call


def check_levels(coding: Coding, frame: Any, what: str) -> None:
    """Raises if new rows have a category that the fit has not seen, or text in place of numbers."""
    for name, kind in coding.kinds.items():
        if _kind(frame[name]) != kind:
            now, then = ("categories", "numbers") if kind == "number" else ("numbers", "categories")
            said = f"holds {now}; in the fit it held {then}: convert it."
            raise TypeError(f'column "{name}" of {what} {said}')
    for component in components(coding.terms):
        if component.kind != "categoric":
            continue
        values = _values(component, frame)
        unseen = [x for x in values.unique() if x not in component.levels]
        if unseen:
            row = int(np.argmax(np.asarray(values == unseen[0])))
            title = component.name if hasattr(component, "call") else f'column "{component.name}"'
            plain = lambda x: repr(x.item() if isinstance(x, np.generic) else x)
            near = get_close_matches(str(unseen[0]), map(str, component.levels), 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Leave such rows out, or refit."
            more = ", ..." if len(component.levels) > 8 else ""
            raise ValueError(
                f"{title} of {what} is {plain(unseen[0])} in row {row}, a category that the "
                f"fit has not seen; it knows {', '.join(map(plain, component.levels[:8]))}{more}. "
                f"{hint}"
            )


def _values(component: Any, frame: Any) -> Any:
    """The categories of a column, or of a call such as C(n), in the rows of a frame."""
    import pandas as pd

    if not hasattr(component, "call"):
        return frame[component.name]
    found = component.call.eval(_plain(frame), component.env)
    return pd.Series(np.asarray(getattr(found, "data", found)))


def described(part: str, whole: str) -> Any:
    """A part of a formula as `formulae` reads it; raises at a function that is not in the list."""
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    from ramify.frontends.formula.parser import UNREADABLE, describe

    try:
        description = describe(part)
    except (*UNREADABLE, ValueError, TypeError, AttributeError) as problem:
        at = max(whole.find(part.removeprefix("0 + ")), 0)
        raise error(whole, at, f"can't read {part!r}: {problem}") from problem
    known = [*TRANSFORMS, *ENCODINGS, *_PLAIN]
    for call in _calls(description.common_terms):
        if call.callee.removeprefix("np.") not in known:
            near = get_close_matches(call.callee, known, 2)
            hint = f"did you mean {' or '.join(near)}" if near else "make a column of it first"
            hint = _ELSEWHERE.get(call.callee, hint)
            raise error(whole, call.callee, f"unknown function {call.callee!r}: {hint}")
        if call.callee in ("C", "S", "T") and (name := _bare(call)):
            what = f"{name} in {call.callee}() is no column: "
            cure = "contrasts are written Sum() or Treatment('a'), and levels as text, T(kind, 'a')"
            raise error(whole, name, what + cure)
    return description


def _bare(call: Any) -> str | None:
    """A name among the arguments of C(), beside the column: contrasts or a level without quotes."""
    names = [getattr(own, "name", None) for own in (*call.args[1:], *call.kwargs.values())]
    return next((name for name in names if name), None)


def _calls(terms: list[Any]) -> Iterator[Any]:
    """Every call in the terms, inner ones after the outer, always in the same order."""
    for component in components(terms):
        if hasattr(component, "call"):
            yield from inside(component.call)


def inside(expression: Any) -> Iterator[Any]:
    """The calls of an expression, inner ones after the outer."""
    if hasattr(expression, "callee"):
        yield expression
    keywords = getattr(expression, "kwargs", {})
    for argument in (*getattr(expression, "args", []), *keywords.values()):
        yield from inside(argument)


def in_order(terms: list[Any]) -> list[Any]:
    """The intercept, if there is one, and the other terms in their order."""
    return sorted(terms, key=lambda term: term.kind != "intercept")
