"""From a user's table to the rows of a formula with several factors."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Int64

from ramify.data.groups import Groups
from ramify.data.levels import ABSENT, NEW
from ramify.data.tables import column_names, columns_of, n_rows
from ramify.frontends.formula import reading
from ramify.frontends.formula.design import check_levels, variables
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.levels_formula import LevelsFormula
from ramify.frontends.formula.text import FormulaText
from ramify.levels.design import Design, KeptTerm


def predictors(parts: FormulaText) -> list[str]:
    """The columns that the right-hand side names, without those of factors."""
    own = [parts.common, *(term.group for term in parts.terms)]
    return sorted({name for part in own for name in variables(part, parts.text)})


def read_columns(
    formula: LevelsFormula,
    table: Any,
    what: str,
    *,
    outcomes: bool,
    seen: list[dict[Any, int]] | None = None,
) -> dict[str, np.ndarray]:
    """The columns of the model, in the order of the table: X, W_<t>, level_<f>, offset, y, ...

    Levels that the fit has not seen get numbers after its own, which `seen` collects by factor.
    """
    parts, units, terms = formula.parts, formula.units, formula.terms
    names = column_names(table, what)
    n = n_rows(table, str(names[0]), what) if names else 0
    frame = read_frame(table, predictors(parts), what, n)
    for coding in (formula.common, *(term.coding for term in terms)):
        check_levels(coding, frame, what)
    own = [i for i, name in enumerate(formula.common.names) if name != "Intercept"]
    X = formula.common.matrix(frame, what)[:, own]
    X = (X - np.asarray(units.centre)) / np.asarray(units.unit)
    rows = {"X": np.column_stack([np.ones((n, int(units.intercept))), X])}
    for t, term in enumerate(terms):
        rows[f"W_{t}"] = term.coding.matrix(frame, what) / np.asarray(term.unit)
    offset = formula.common.offset(frame, what)
    if offset is not None:
        rows["offset"] = (offset - units.offset_centre) / units.scale
    extra = reading.read_extra(parts if outcomes else parts._replace(weights=None), table, n, what)
    rows |= extra
    there = [name for name in formula.columns if name in names]
    raw = columns_of(table, there, what)
    for f, factor in enumerate(formula.factors):
        rows[f"level_{f}"] = factor.codes(raw, n, what, None if seen is None else seen[f])
    if outcomes:
        of = formula.family.support, formula.likelihood, formula.levels, extra.get("trials")
        rows["y"] = reading.read_response(parts, table, *of, what)[0]
    return rows


def read_groups(formula: LevelsFormula, table: Any, what: str) -> Groups:
    """A table with outcomes as the groups of the integrated factor; all levels must be known."""
    rows = read_columns(formula, table, what, outcomes=True)
    for f, factor in enumerate(formula.factors):
        codes = rows[f"level_{f}"]
        for code, said in ((ABSENT, "no label"), (NEW, "a level that the fit has not seen")):
            if (codes == code).any():
                row = int(np.argmax(codes == code))
                raise ValueError(f'the factor "{factor.name}" has {said} in row {row} of {what}.')
    by, factor = formula.by, formula.factors[formula.integrated]
    code = rows.pop(f"level_{formula.integrated}")
    order = np.argsort(code, kind="stable")
    N = len(factor)
    return Groups(
        by=by,
        labels=factor.shown.copy(),
        sizes=np.bincount(code, minlength=N).astype(np.int64),
        rows={name: np.ascontiguousarray(column[order]) for name, column in rows.items()},
        group={},
        number=np.arange(N, dtype=np.int64),
        row_order=order.astype(np.int64),
    )


def design_of(formula: LevelsFormula, groups: Groups) -> Design:
    """The design of a fit's rows."""
    code = np.repeat(np.arange(len(groups)), groups.sizes)
    return design(formula, dict(groups.rows) | {f"level_{formula.integrated}": code}, len(groups))


def design(formula: LevelsFormula, rows: dict[str, np.ndarray], N: int) -> Design:
    """The design of these columns; a row whose level of a kept factor is unknown has no effect of it."""
    n, units = len(rows["X"]), formula.units
    W = np.column_stack([rows[f"W_{t}"] for t in formula.inside])
    blocks, kept, start = [], [], 0
    for t in formula.kept:
        term = formula.terms[t]
        levels, effects = len(formula.factors[term.factor]), len(term.effects)
        blocks.append(_placed(rows[f"W_{t}"], rows[f"level_{term.factor}"], levels))
        kept.append(KeptTerm(start, levels, effects))
        start += levels * effects
    K = sp.csr_array(sp.hstack(blocks)) if blocks else sp.csr_array((n, 0))
    K.sort_indices()
    offset = rows.get("offset", np.zeros(n)) + (0.0 if formula.link == "identity" else units.base)
    columns = {
        name: rows[name].astype(np.float64) for name in ("trials", "weights") if name in rows
    }
    if "y" in rows:
        y = rows["y"].astype(np.float64)
        if formula.family.of_log:
            y = columns["log_y"] = np.log(y)
        columns["y"] = (y - units.base) / units.scale if formula.link == "identity" else y
    code = np.asarray(rows[f"level_{formula.integrated}"], np.int64)
    return Design(code, N, W, rows["X"], K, offset.astype(np.float64), columns, tuple(kept))


def _placed(
    columns: Float64[np.ndarray, "n m"], codes: Int64[np.ndarray, " n"], levels: int
) -> Any:
    """The columns of each row in the places of its level's effects, sparse [n, levels m]."""
    n, m = columns.shape
    known = np.flatnonzero(codes >= 0)
    place = codes[known, None] * m + np.arange(m)
    index = np.repeat(known, m), place.ravel()
    return sp.csr_array((columns[known].ravel(), index), (n, levels * m))
