"""From a user's table to the columns of a formula's model, and to outcomes that the likelihood allows."""

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64

from ramify.data.groups import Groups
from ramify.data.tables import columns_of, n_rows, zone_of
from ramify.frontends.formula.design import check_by_row, check_levels, code, components, variables
from ramify.frontends.formula.formula import EffectLayout, Formula
from ramify.frontends.formula.frame import is_category, is_sorted_text, read_frame, rows_in_words
from ramify.frontends.formula.row_densities import MOST
from ramify.frontends.formula.text import FormulaText, error, unquoted
from ramify.numerics.user_warning import warn_user

Levels = list[Any] | None
Numbers = Float64[np.ndarray, " n"]
_MOST = 100  # levels of an ordered response
# Columns in addition to the response -> their names in messages.
ROLES = {"trials": "trials", "weights": "weights", "cens": "censoring"}


def read_rows(formula: Formula, table: Any, what: str, *, outcomes: bool) -> Groups:
    """Reads a table as the model's groups.

    `what` is what the caller calls the table; `outcomes`: whether rows are data to condition on, else
    places to predict.
    """
    columns_of(table, [formula.by, *predictors(*formula.every)], what)  # of one length
    _check_zone(formula, table, what)
    return coded_rows(formula, table, what, outcomes=outcomes)


def coded_rows(formula: Formula, table: Any, what: str, *, outcomes: bool) -> Groups:
    """As `read_rows`, without a check of the labels."""
    parts, units, n = formula.parts, formula.units, n_rows(table, formula.by)
    used = predictors(*formula.every)
    frame = read_frame(table, used, what, n)
    for coding in formula.codings:
        check_levels(coding, frame, what)
    own = [i for i, name in enumerate(formula.common.names) if name != "Intercept"]
    X = formula.common.matrix(frame, what)[:, own]
    W = formula.group.matrix(frame, what)
    rows = {"X_all": (X - np.asarray(units.centre)) / np.asarray(units.unit)}
    rows["W"] = W / np.asarray(units.group_unit)
    offset = formula.common.offset(frame, what)
    if offset is not None:
        rows["offset"] = (offset - units.offset_centre) / units.scale
    for part in formula.own:
        rows |= part.rows(frame, what)
    wanted = parts if outcomes else parts._replace(weights=None, cens=None)
    extra = read_extra(wanted, table, n, what)
    rows = {name: x.astype(jnp.result_type(float)) for name, x in {**rows, **extra}.items()}
    if outcomes:
        own = formula.family.support, formula.likelihood, formula.levels, extra.get("trials")
        rows["y"] = read_response(parts, table, *own, what)[0] - formula.origin
    groups = labelled_groups(rows, table, formula.by)
    return _arranged(formula.layout, groups) if outcomes else groups


def _check_zone(formula: Formula, table: Any, what: str) -> None:
    """Raises if labels are times with a zone, and those of the fit without one, or the reverse."""
    zone = zone_of(table, formula.by)
    if getattr(columns_of(table, [formula.by], what)[formula.by], "dtype", None) == np.int64:
        return  # integers, not times: looking them up in the fit raises an error of its own
    if (zone is None) != (formula.zone is None):
        has = lambda zone: "no time zone" if zone is None else f"the time zone {zone}"
        raise TypeError(
            f'column "{formula.by}" of {what} has {has(zone)}; in the fit it had {has(formula.zone)}. '
            "Add the zone that is missing, or convert both to UTC and drop it."
        )


def _arranged(layout: EffectLayout, groups: Groups) -> Groups:
    """Splits the common columns: those that were constant within groups become group columns."""
    rows = dict(groups.rows)
    X, group = rows.pop("X_all"), {}
    if layout.rest:
        rows["X"] = np.ascontiguousarray(X[:, list(layout.rest)])
    if layout.grouped:
        U = X[:, list(layout.grouped)]
        group["U"] = np.ascontiguousarray(U[groups.starts])
        apart = U - np.repeat(group["U"], groups.sizes, 0)
        # A column that is constant within the groups of the fit may vary in other groups.
        rows |= {"U_apart": apart} if apart.any() else {}
    return replace(groups, rows=rows, group=group)


def predictors(*formulas: FormulaText) -> list[str]:
    """The columns that the right-hand sides name."""
    sides = [(side, own.text) for own in formulas for side in (own.common, own.group) if side]
    return sorted({name for side, text in sides for name in variables(side, text)})


def labelled_groups(rows: dict[str, np.ndarray], table: Any, by: str) -> Groups:
    """The columns as groups, by the table's label column."""
    return Groups.from_table({**rows, **columns_of(table, [by])}, by=by, rows=[*rows])


def response_columns(parts: FormulaText) -> list[str]:
    """Names of the columns that the left side uses."""
    name, _ = _named(parts.response)
    if name is not None:
        return [name]
    check_by_row(_expression(parts), parts.text)
    return variables(_expression(parts), parts.text)


def _expression(parts: FormulaText) -> str:
    """A response that is not a column, as a part to code: I() makes its arithmetic plain arithmetic."""
    return f"0 + I({parts.response})"


def read_extra(parts: FormulaText, table: Any, n: int, what: str) -> dict[str, Numbers]:
    """Trials, weights and censoring of the rows, if the formula has them."""
    found = {}
    for role in ROLES:
        column = getattr(parts, role)
        if column is None:
            continue
        if column.isdigit():
            found[role] = np.full(n, float(column))
            continue
        values = np.asarray(read_frame(table, [column], what)[column])
        if values.dtype.kind not in "biuf":
            said = f"the {ROLES[role]}, holds text; expected numbers."
            raise TypeError(f'column "{column}" of {what}, {said}')
        found[role] = numbers = values.astype(np.float64)
        bad, kind = numbers < 0, "numbers of zero or more"
        if role == "trials":
            bad, kind = bad | (numbers % 1 != 0), f"whole {kind}"
        if role == "cens":
            bad = (numbers != 0) & (numbers != 1)
            kind = "1 (or true) where the response is right censored and 0 elsewhere"
        _check(f'column "{column}", the {ROLES[role]},', numbers, bad, f"expected {kind}")
    return found


def _check(what: str, values: np.ndarray, bad: Bool[np.ndarray, " n"], expected: str) -> None:
    if bad.any():
        raise ValueError(f"{what} is {values[bad][0]:g} in {rows_in_words(bad)}; {expected}.")


def read_response(
    parts: FormulaText,
    table: Any,
    support: str,
    likelihood: str,
    levels: Levels,
    trials: Numbers | None,
    what: str,
) -> tuple[Numbers, Levels]:
    """Outcomes as numbers, counts, 0 and 1 or positions in their levels, and these levels.

    `levels` are those of the fit; None before a fit, or if the response has none.
    """
    frame = read_frame(table, response_columns(parts), what)
    name, level = _named(parts.response)
    if name is None:
        values: Any = _evaluated(parts, frame)
    else:
        values = frame[name] if is_category(frame[name]) else np.asarray(frame[name])
    if support == "levels" and levels is None and name and is_sorted_text(table, name, what):
        warn_user(
            f"the levels of {name} are text, and taken in the order of the alphabet: "
            f"{' < '.join(map(str, values.cat.categories))}. Give an ordered categorical, or numbers, "
            "for another."
        )
    y, levels = _numbers(parts.response, values, support, likelihood, level, levels)
    if support == "trials" and trials is None:
        raise ValueError(
            f"likelihood={likelihood!r} needs the number of trials: write 'y | trials(n) ~ ...' or "
            "'p(y, n) ~ ...', or use likelihood='bernoulli' for outcomes of 0 and 1."
        )
    if support != "trials" and trials is not None:
        raise ValueError(
            f"trials are for likelihood='binomial' and 'beta_binomial'; this is {likelihood!r}."
        )
    bad, takes = unsupported(support, y, trials)
    _check(f"the response {parts.response}", y, bad, f"likelihood={likelihood!r} takes {takes}")
    return y, levels


def _evaluated(parts: FormulaText, frame: Any) -> Any:
    """The values of a response that is an expression, such as log(y) or after - before."""
    coding, matrix = code(_expression(parts), parts.text, frame)
    text = [name for name in frame.columns if is_category(frame[name])]
    if matrix.shape[1] != 1 or text:
        held = f'column "{text[0]}" holds text or categories' if text else "it has several values"
        raise error(
            parts.text, 0, f"the response {parts.response} is not one number for each row: {held}"
        )
    truth = components(coding.terms)[0].value.dtype == bool
    return matrix[:, 0].astype(bool) if truth else matrix[:, 0]


def _named(text: str) -> tuple[str | None, str | None]:
    """The column and the level of a response such as `y` or `y[yes]`; (None, None) for others."""
    match = re.fullmatch(r"([^\W\d]\w*|`[^`]+`)\s*(?:\[\s*([^\[\]]+?)\s*\])?", text)
    if match is None:
        return None, None
    return unquoted(match[1]), match[2].strip("'\"") if match[2] else None


def _numbers(
    name: str, values: Any, support: str, likelihood: str, level: str | None, levels: Levels
) -> tuple[Numbers, Levels]:
    if level is not None:
        if support != "binary":
            what = f"the response {name} is true or false"
            raise ValueError(f"{what}: use likelihood='bernoulli'; this is {likelihood!r}.")
        return _is_level(values, level).astype(np.float64), None
    if support in ("levels", "categories") or (hasattr(values, "cat") and support == "binary"):
        levels = _levels(name, values, likelihood) if levels is None else levels
        return _places(name, values, levels), levels
    if hasattr(values, "cat"):
        raise TypeError(
            f"the response {name} holds text or categories; likelihood={likelihood!r} takes numbers. "
            "For two categories use likelihood='bernoulli', for ordered ones 'ordered', for others "
            "'categorical'."
        )
    if np.asarray(values).dtype == bool and support not in ("binary", "trials"):
        raise TypeError(
            f"the response {name} is true or false: use likelihood='bernoulli'. For "
            f"likelihood={likelihood!r} convert it to the numbers 0 and 1."
        )
    return np.asarray(values, np.float64), None


def _is_level(values: Any, level: str) -> Bool[np.ndarray, " n"]:
    """Which values are the level that a formula writes; numbers are compared as such: 1.0 is 1."""
    numbers = not hasattr(values, "cat") and np.asarray(values).dtype.kind in "biuf"
    for number in (int, float) if numbers else ():
        with suppress(ValueError):
            return np.asarray(values) == number(level)
    return np.array([str(x) == level for x in values], bool)


def _levels(name: str, values: Any, likelihood: str) -> list[Any]:
    """The levels of a response, in order; the second of two counts as a success."""
    found = values.cat.categories.tolist() if hasattr(values, "cat") else np.unique(values)
    levels = [x.item() if isinstance(x, np.generic) else x for x in found]
    binary = likelihood == "bernoulli"
    if len(levels) != 2 if binary else len(levels) < 3:
        takes = f"likelihood={likelihood!r} takes {'two' if binary else 'three or more'}"
        hint = ": use likelihood='bernoulli'" if len(levels) == 2 else ""
        raise ValueError(f"the response {name} has {len(levels)} levels; {takes}{hint}.")
    if len(levels) > _MOST:
        many = f"{len(levels):,} different values, too many for levels"
        raise ValueError(f"the response {name} has {many}; round it, or use likelihood='gaussian'.")
    return levels


def _places(name: str, values: Any, levels: list[Any]) -> Numbers:
    """The position of each value in the levels."""
    place = {level: float(i) for i, level in enumerate(levels)}
    y = np.asarray([place.get(x, np.nan) for x in values.tolist()])
    if np.isnan(y).any():
        where, known = rows_in_words(np.isnan(y)), ", ".join(map(repr, levels))
        what = f"a level that the fit has not seen in {where}; it knows {known}."
        raise ValueError(f"the response {name} has {what}")
    return y


def unsupported(
    support: str, y: Numbers, trials: Numbers | None
) -> tuple[Bool[np.ndarray, " n"], str]:
    """Which outcomes a likelihood of this support does not allow, and in words what it allows."""
    no_count = (y < 0) | (y % 1 != 0) | (y > MOST)
    if support == "binary":
        return (y != 0) & (y != 1), "0 or 1, true or false, or two categories"
    if support == "count":
        return no_count, f"whole numbers from 0 to {MOST:,}"
    if support == "trials":
        bad = no_count if trials is None else no_count | (y > trials)
        return bad, "whole numbers between zero and the trials"
    if support == "positive":
        return ~(y > 0), "numbers above zero"
    if support == "unit":
        return ~((y > 0) & (y < 1)), "numbers between 0 and 1, without 0 and 1 themselves"
    return ~np.isfinite(y), "finite numbers"
