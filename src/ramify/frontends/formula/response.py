"""The left side of a formula: what the outcome is, and whether the likelihood allows it."""

import re
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from ramify.frontends.formula.design import check_by_row, code, variables
from ramify.frontends.formula.frame import is_sorted_text, read_frame, rows_in_words
from ramify.frontends.formula.text import FormulaText, unquoted

Levels = list[Any] | None


class Response(NamedTuple):
    """Outcomes as numbers, with their levels, trials and weights."""

    y: Float64[np.ndarray, " n"]  # numbers, counts, 0 and 1, or positions in `levels`
    levels: Levels  # of an ordered or two-level response
    trials: Float64[np.ndarray, " n"] | None  # of a binomial response
    weights: Float64[np.ndarray, " n"] | None  # how often each row counts


def response_columns(parts: FormulaText) -> list[str]:
    """Names of the columns that the left side uses."""
    name, _ = _named(parts.response)
    if name is None:
        check_by_row(f"0 + {parts.response}", parts.text)
    return [name] if name else variables(f"0 + {parts.response}", parts.text)


def read_extra(parts: FormulaText, table: Any, n: int, what: str) -> dict[str, np.ndarray]:
    """Trials and weights of the rows, if the formula has them."""
    found = {}
    for role, column in (("trials", parts.trials), ("weights", parts.weights)):
        if column is None:
            continue
        if column.isdigit():
            found[role] = np.full(n, float(column))
            continue
        values = np.asarray(read_frame(table, [column], what)[column])
        if values.dtype.kind not in "biuf":
            said = f"the {role}, holds text; expected numbers."
            raise TypeError(f'column "{column}" of {what}, {said}')
        found[role] = numbers = values.astype(np.float64)
        bad, kind = numbers < 0, "numbers of zero or more"
        if role == "trials":
            bad, kind = bad | (numbers % 1 != 0), f"whole {kind}"
        _check(f'column "{column}", the {role},', numbers, bad, f"expected {kind}")
    return found


def _check(what: str, values: np.ndarray, bad: Bool[np.ndarray, " n"], expected: str) -> None:
    if bad.any():
        where = rows_in_words(bad)
        raise ValueError(f"{what} is {values[bad][0]:g} in {where}; {expected}.")


def read_response(
    parts: FormulaText, table: Any, support: str, likelihood: str, levels: Levels, what: str
) -> Response:
    """Reads and checks the outcomes; `levels` are those of the fit, None before a fit."""
    frame = read_frame(table, response_columns(parts), what)
    extra = read_extra(parts, table, len(frame), what)
    name, level = _named(parts.response)
    if name is None:
        values: Any = code(f"0 + {parts.response}", parts.text, frame)[1][:, 0]
    else:
        is_category = hasattr(frame[name].dtype, "categories")
        values = frame[name] if is_category else np.asarray(frame[name])
    if support == "levels" and levels is None and name and is_sorted_text(table, name, what):
        warnings.warn(
            f"the levels of {name} are text, and taken in the order of the alphabet: "
            f"{' < '.join(map(str, values.cat.categories))}. Give an ordered categorical, or numbers, "
            "for another.",
            stacklevel=3,
        )
    y, levels = _numbers(parts.response, values, support, likelihood, level, levels)
    trials = extra.get("trials")
    if support == "trials" and trials is None:
        raise ValueError(
            "likelihood='binomial' needs the number of trials: write 'y | trials(n) ~ ...' or "
            "'p(y, n) ~ ...', or use likelihood='bernoulli' for outcomes of 0 and 1."
        )
    if support != "trials" and trials is not None:
        raise ValueError(f"trials are for likelihood='binomial'; this is {likelihood!r}.")
    _check_support(parts.response, y, support, likelihood, trials)
    return Response(y, levels, trials, extra.get("weights"))


def _named(text: str) -> tuple[str | None, str | None]:
    """The column and the level of a response such as `y` or `y[yes]`; (None, None) for others."""
    match = re.fullmatch(r"([^\W\d]\w*|`[^`]+`)\s*(?:\[\s*([^\[\]]+?)\s*\])?", text)
    if match is None:
        return None, None
    return unquoted(match[1]), match[2].strip("'\"") if match[2] else None


def _numbers(
    name: str, values: Any, support: str, likelihood: str, level: str | None, levels: Levels
) -> tuple[np.ndarray, Levels]:
    if level is not None:
        return np.asarray([str(x) == level for x in values], np.float64), None
    if support == "levels" or (hasattr(values, "cat") and support == "binary"):
        return _places(name, values, likelihood, levels)
    if hasattr(values, "cat"):
        raise TypeError(
            f"the response {name} holds text or categories; likelihood={likelihood!r} takes numbers."
        )
    return np.asarray(values, np.float64), None


def _places(name: str, values: Any, likelihood: str, levels: Levels) -> tuple[np.ndarray, Levels]:
    """The position of each value in the levels; the second of two levels counts as a success."""
    if levels is None:
        found = values.cat.categories.tolist() if hasattr(values, "cat") else np.unique(values)
        levels = [x.item() if isinstance(x, np.generic) else x for x in found]
        binary = likelihood == "bernoulli"
        if len(levels) != 2 if binary else len(levels) < 3:
            takes = f"likelihood={likelihood!r} takes {'two' if binary else 'three or more'}"
            raise ValueError(f"the response {name} has {len(levels)} levels; {takes}.")
        if len(levels) > 100:
            raise ValueError(
                f"the response {name} has {len(levels):,} different values, too many for levels; "
                "round it, or use likelihood='gaussian'."
            )
    place = {level: float(i) for i, level in enumerate(levels)}
    y = np.asarray([place.get(x, np.nan) for x in values.tolist()])
    if np.isnan(y).any():
        where, known = rows_in_words(np.isnan(y)), ", ".join(map(repr, levels))
        what = f"a level that the fit has not seen in {where}; it knows {known}."
        raise ValueError(f"the response {name} has {what}")
    return y, levels


def _check_support(
    name: str, y: np.ndarray, support: str, likelihood: str, trials: np.ndarray | None
) -> None:
    no_count = (y < 0) | (y % 1 != 0)
    too_many = y > (y if trials is None else trials)
    allowed: dict[str, tuple[str, Bool[np.ndarray, " n"]]] = {
        "real": ("finite numbers", ~np.isfinite(y)),
        "binary": ("0 or 1, true or false, or two categories", (y != 0) & (y != 1)),
        "count": ("whole numbers of zero or more", no_count),
        "levels": ("ordered levels", np.zeros(len(y), bool)),
        "trials": ("whole numbers between zero and the trials", no_count | too_many),
    }
    expected, bad = allowed[support]
    _check(f"the response {name}", y, bad, f"likelihood={likelihood!r} takes {expected}")
