"""From a user's table to the columns of a formula's model."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.data.tables import columns_of, n_rows
from ramify.frontends.formula.design import check_levels, variables
from ramify.frontends.formula.formula import EffectLayout, Formula
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.response import read_extra, read_response
from ramify.frontends.formula.text import FormulaText


def read_rows(formula: Formula, table: Any, what: str, *, outcomes: bool) -> Groups:
    """Reads a table as the model's groups.

    `what` is what the caller calls the table; `outcomes`: whether rows are data to condition on, else
    places to predict.
    """
    parts, layout, n = formula.parts, formula.layout, n_rows(table, formula.by)
    frame = read_frame(table, predictors(parts), what, n)
    for coding in (formula.common, formula.group):
        check_levels(coding, frame, what)
    own = [i for i, name in enumerate(formula.common.names) if name != "Intercept"]
    X, W = formula.common.matrix(frame)[:, own], formula.group.matrix(frame)
    rows = {"X_all": (X - np.asarray(layout.centre)) / np.asarray(layout.unit)}
    rows["W"] = W / np.asarray(layout.group_unit)
    offset = formula.common.offset(frame)
    if offset is not None:
        rows["offset"] = (offset - layout.offset_centre) / layout.scale
    extra = read_extra(parts if outcomes else parts._replace(weights=None), table, n, what)
    rows = {name: x.astype(jnp.zeros(()).dtype) for name, x in {**rows, **extra}.items()}
    if outcomes:
        own = formula.family.support, formula.likelihood, formula.levels, extra.get("trials")
        rows["y"] = read_response(parts, table, *own, what)[0] - formula.origin
    groups = labelled_groups(rows, table, formula.by)
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
    return sorted({*variables(parts.common, parts.text), *variables(parts.group, parts.text)})


def labelled_groups(rows: dict[str, np.ndarray], table: Any, by: str) -> Groups:
    """The columns as groups, by the table's label column."""
    return Groups.from_table({**rows, **columns_of(table, [by])}, by=by, rows=[*rows])
