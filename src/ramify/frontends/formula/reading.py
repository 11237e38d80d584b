"""From a user's table to the columns of a formula's model."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.data.tables import columns_of, n_rows
from ramify.frontends.formula.design import check_levels, variables
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.layout import EffectLayout, columns
from ramify.frontends.formula.response import read_extra, read_response
from ramify.frontends.formula.text import FormulaText


def read_rows(formula: Formula, table: Any, what: str, *, outcomes: bool) -> Groups:
    """Reads a table as the model's groups.

    Args:
        formula: the formula of the fit.
        table: with the columns that the formula names.
        what: what the caller calls the table, for messages.
        outcomes: whether rows are data to condition on; else places to predict.
    """
    layout, kind = formula.layout, jnp.zeros(()).dtype
    frame = read_frame(table, predictors(formula.parts), what)
    n = n_rows(table, formula.by)
    frame = frame if len(frame.columns) else no_predictors(np.zeros(n))
    for coding in (formula.common, formula.group):
        check_levels(coding, frame, what)
    own = [i for i, name in enumerate(formula.common.names) if name != "Intercept"]
    X, W = formula.common.matrix(frame)[:, own], formula.group.matrix(frame)
    rows = columns(layout, X, W, kind)
    offset = formula.common.offset(frame)
    if offset is not None:
        rows["offset"] = ((offset - layout.offset_centre) / layout.scale).astype(kind)
    parts = formula.parts if outcomes else formula.parts._replace(weights=None)
    extra = read_extra(parts, table, n, what)
    rows |= {name: value.astype(kind) for name, value in extra.items()}
    if outcomes:
        arguments = formula.family.support, formula.likelihood, formula.levels
        rows["y"] = read_response(formula.parts, table, *arguments, what).y - formula.origin
    groups = Groups.from_table(with_labels(rows, table, formula.by), by=formula.by, rows=[*rows])
    return _arranged(layout, groups) if outcomes else groups


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


def predictors(parts: FormulaText) -> list[str]:
    """The columns that the right-hand side names."""
    found = {*variables(parts.common, parts.text), *variables(parts.group, parts.text)}
    return sorted(found)


def no_predictors(y: np.ndarray) -> Any:
    """A frame of that many rows, for formulas without predictors."""
    import pandas as pd

    return pd.DataFrame({"(none)": np.zeros(len(y))})


def with_labels(rows: dict[str, np.ndarray], table: Any, by: str) -> dict[str, Any]:
    """The columns and the table's label column."""
    return {**rows, **columns_of(table, [by])}
