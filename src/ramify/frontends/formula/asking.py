"""The predictors of a formula as a user sees them: for contrasts, slopes and pictures."""

from typing import Any

import numpy as np

from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.frame import is_category, read_frame
from ramify.frontends.formula.reading import predictors


def variables(formula: Formula) -> list[str]:
    """The columns that a prediction needs, without labels and weights."""
    trials = formula.parts.trials
    return [*predictors(*formula.every), *([trials] if trials and not trials.isdigit() else [])]


def frame(formula: Formula, table: Any) -> Any:
    """The predictors of a table as a pandas frame of numbers and categories."""
    return read_frame(table, predictors(*formula.every), "table")


def typical(formula: Formula, table: dict[str, Any] | None) -> dict[str, Any]:
    """One row: means of numbers, the most frequent of categories, one trial."""
    if table is None:
        raise ValueError(
            "this fit was loaded from a file or is of a store, and holds no table: pass table=."
        )
    row: dict[str, Any] = {}
    for name, column in frame(formula, table).items():
        several = is_category(column) or column.dtype == bool
        row[name] = np.array([column.mode()[0] if several else column.mean()])
    return row | {name: np.ones(1) for name in variables(formula) if name not in row}
