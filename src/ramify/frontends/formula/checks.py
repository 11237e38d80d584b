"""Checks of a design before the fit: errors, and warnings where the fit can go on."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ramify.data.tables import columns_of, n_rows
from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.likelihoods import Likelihood
from ramify.frontends.formula.text import FormulaText, error

Matrix = Float[np.ndarray, "n P"]

_FAR = 20.0  # sds from zero: beyond, a group-level column can't be told from a constant
# Columns of a model's groups.
_OWN = ("y", "X", "X_all", "W", "U", "U_apart", "offset", "trials", "weights")
_LEVELS = 100  # of a category, if they are also more than a tenth of the rows
_ROWS = 1000  # of a linear program that looks for separation, to begin with


def check_columns(parts: FormulaText, table: Any, used: list[str]) -> None:
    """Raises if the table lacks a column that the formula names, or has no rows."""
    for name in [*used, parts.by]:
        try:
            columns_of(table, [name])
        except ValueError as problem:
            raise error(parts.text, name, str(problem).rstrip(".")) from None
    if parts.by in _OWN:
        what = "has the name of a column that the model makes: rename it."
        raise ValueError(f'the grouping column "{parts.by}" {what}')
    if parts.by in used:
        what = f"the grouping column {parts.by!r} can't be a predictor or the response as well"
        raise error(parts.text, parts.by, what)
    if not n_rows(table, parts.by):
        raise ValueError("the table has no rows: expected one for each observation.")


def check_categories(frame: Any) -> None:
    """Raises if a category has so many levels that it was hardly meant as one."""
    for name in frame.columns:
        count = len(getattr(frame[name].dtype, "categories", ()))
        if count > _LEVELS and count > len(frame) / 10:
            raise ValueError(
                f'column "{name}" has {count:,} different categories in {len(frame):,} rows, and each '
                "would be an effect: convert it to numbers, merge categories, or let effects vary by "
                f"it, (1 | {name})."
            )


def check_design(
    parts: FormulaText,
    common: Coding,
    X: Matrix,
    group: Coding,
    W: Float[np.ndarray, "n M"],
    family: Likelihood,
) -> None:
    """Raises if no model can be made of these columns."""
    if not group.names:
        raise error(parts.text, parts.by, "nothing varies by group")
    if family.support == "levels" and "Intercept" not in common.names:
        what = "likelihood='ordered' has cutpoints in place of an intercept: leave the 0 out"
        raise error(parts.text, parts.text.find(parts.common), what)
    _check_constant(common, X)
    _check_constant(group, W)
    taken = {"sd", "cor", "effects", *family.parameters} & {*common.names}
    taken |= {"Intercept"} & {*common.kinds, *group.kinds}
    if taken:
        name = min(taken)
        raise ValueError(f'the predictor "{name}" has the name of a parameter: rename the column.')
    for name, column in zip(group.names, W.T, strict=True):
        if name != "Intercept" and abs(column.mean()) > _FAR * column.std() > 0:
            warnings.warn(
                f'"{name}" varies by group and is far from zero ({column.mean():.4g} on average, sd '
                f"{column.std():.2g}): its effect and the intercept can hardly be told apart; "
                f"write center({name}).",
                stacklevel=3,
            )


def _check_constant(coding: Coding, matrix: Matrix) -> None:
    message = '"{}" is constant ({} in every row), so {}: leave it out of the formula.'
    for component in coding.components():
        if component.kind == "categoric" and len(component.levels) == 1:
            level, what = repr(component.levels[0]), "it has no effect to estimate"
            raise ValueError(message.format(component.name, level, what))
    for name, column in zip(coding.names, matrix.T, strict=True):
        if name != "Intercept" and "Intercept" in coding.names and np.ptp(column) == 0:
            what = "its effect can't be told from the intercept"
            raise ValueError(message.format(name, f"{column[0]:g}", what))


def check_response(name: str, y: Float[np.ndarray, " n"]) -> None:
    """Raises if the response is constant."""
    if len(y) and np.ptp(y) == 0:
        what = f"is the same, {y[0]:g}, in every row: there is nothing to explain."
        hint = " Is the level misspelt?" if name.endswith("]") else ""
        raise ValueError(f"the response {name} {what}{hint}")


def warn_of_separation(names: list[str], X: Matrix, y: Float[np.ndarray, " n"]) -> None:
    """Warns if predictors separate a binary response perfectly: only the prior then limits effects."""
    yes = y == 1
    own = [k for k, name in enumerate(names) if name != "Intercept"]
    for k in own:
        one, zero = X[yes, k], X[~yes, k]
        if zero.max() <= one.min() or one.max() <= zero.min():
            who = f'"{names[k]}" separates the response perfectly'
            break
    else:
        if not own or not separable(X[:, own], yes):
            return
        who = "the predictors together separate the response perfectly"
    warnings.warn(
        f"{who}: the data set no limit to that effect, only its prior does. Leave it out, merge "
        "categories, or give it a prior of your own.",
        stacklevel=3,
    )


def separable(X: Matrix, yes: Bool[np.ndarray, " n"]) -> bool:
    """Whether some linear combination of columns is >= 0 for every yes and <= 0 for every no.

    A linear program on some of the rows. Rows that its solution gets wrong are added, until there are
    none (separable) or no solution is left (not separable).
    """
    from scipy.optimize import linprog

    sd = X.std(0)
    scaled = (X - X.mean(0)) / np.where(sd > 0, sd, 1.0)
    signed = np.where(yes, 1.0, -1.0)[:, None] * np.column_stack([np.ones(len(X)), scaled])
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    for _ in range(20):
        A = signed[rows]
        limits = np.concatenate([np.zeros(len(A)), np.ones(len(A))])
        found = linprog(-A.sum(0), np.concatenate([-A, A]), limits, bounds=(None, None))
        if found.status != 0 or -found.fun < 1e-6:
            return False
        wrong = np.flatnonzero(signed @ found.x < -1e-7)
        if not len(wrong):
            return True
        rows = np.union1d(rows, wrong[:_ROWS])
    return False
