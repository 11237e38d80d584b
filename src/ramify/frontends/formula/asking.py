"""The predictors of a formula as a user sees them: for contrasts, slopes and pictures."""

from typing import Any

import numpy as np

from ramify.frontends.formula.design import Coding, components
from ramify.frontends.formula.frame import is_category, read_frame
from ramify.frontends.formula.text import FormulaText


def variables(parts: FormulaText, names: list[str]) -> list[str]:
    """The columns that a prediction needs, without labels and weights; `names` are predictors."""
    trials = parts.trials
    return [*names, *([trials] if trials and not trials.isdigit() else [])]


def frame_of(table: Any, names: list[str], codings: list[Coding]) -> Any:
    """The predictors of a table as the formula takes them: categories have the levels of the fit."""
    import pandas as pd

    frame, levels = read_frame(table, names, "the table"), {}
    for component in components([term for coding in codings for term in coding.terms]):
        name = component.name
        if hasattr(component, "call") and component.call.callee in ("C", "S", "T"):
            name = getattr(component.call.args[0], "name", None)  # None of C(floor(x))
        if component.kind == "categoric" and name in frame.columns:
            levels[name] = component.levels
    return frame.assign(**{n: pd.Categorical(frame[n], own) for n, own in levels.items()})


def typical(
    parts: FormulaText, names: list[str], codings: list[Coding], table: dict[str, Any] | None
) -> dict[str, Any]:
    """One row: means of numbers, the most frequent of categories, one trial."""
    if table is None:
        raise ValueError(
            "this fit was loaded from a file or is of a store, and holds no table: pass table=."
        )
    row: dict[str, Any] = {}
    for name, column in frame_of(table, names, codings).items():
        several = is_category(column) or column.dtype == bool
        row[name] = np.array([column.mode()[0] if several else column.mean()])
    return row | {name: np.ones(1) for name in variables(parts, names) if name not in row}


def per_trial(parts: FormulaText, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
    """The columns of n rows with trials of one size, and that size."""
    if not parts.trials or parts.trials.isdigit():
        return columns, float(parts.trials or 1)
    return columns | {parts.trials: np.ones(n, np.int64)}, 1.0
