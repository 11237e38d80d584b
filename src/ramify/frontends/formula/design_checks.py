"""Checks of a formula's columns and response before a fit, from facts about all rows."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ramify.frontends.formula.design import Coding, components
from ramify.frontends.formula.facts import Piece, Pieces
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.moments import Facts, Moments
from ramify.frontends.formula.text import FormulaText, error
from ramify.numerics.user_warning import warn_user

Matrix = Float[np.ndarray, "n P"]

_FAR = 20.0  # sds from zero: beyond, a group-level column can't be distinguished from a constant
_SCALES = 1e-18, 1e18  # smallest and largest range of a column: float32 holds its square
_ROWS = 1000  # of a linear program that looks for separation, to begin with


def check_scale(title: str, low: float, high: float) -> None:
    """Raises if single precision can't compute with values of this range."""
    range_ = high / 2 - low / 2  # which does not overflow
    if range_ and not _SCALES[0] <= range_ <= _SCALES[1]:
        raise ValueError(
            f"{title} has values of very {'small' if range_ < 1 else 'large'} scale, from {low:.3g} to "
            f"{high:.3g}: choose units in which they are of the order of one."
        )


def check_design(
    parts: FormulaText, common: Coding, X: Moments, group: Coding, W: Moments, family: Likelihood
) -> None:
    """Raises if no model can be made of these columns."""
    if not group.names:
        raise error(parts.text, parts.by, "nothing varies by group")
    if family.support == "levels" and "Intercept" not in common.names:
        what = "likelihood='ordered' has cutpoints in place of an intercept: leave the 0 out"
        raise error(parts.text, parts.text.find(parts.common), what)
    check_each(common, X)
    check_each(group, W)
    own = {"intercept", "sd", "cor", "effects", "cutpoints", *family.parameters}
    taken = own & {*common.names}
    taken |= {"Intercept"} & {*common.kinds, *group.kinds}
    if taken:
        name = min(taken)
        raise ValueError(f'the predictor "{name}" has the name of a parameter: rename the column.')
    for name, mean, sd in zip(group.names, W.mean, W.sd, strict=True):
        if name != "Intercept" and abs(mean) > _FAR * sd > 0:
            warn_user(
                f'"{name}" varies by group and is far from zero ({mean:.4g} on average, sd '
                f"{sd:.2g}): its effect and the intercept can hardly be told apart; "
                f"write center({name})."
            )


def check_each(coding: Coding, columns: Moments) -> None:
    """Raises if a column is constant, or of a scale that single precision can't compute with."""
    message = '"{}" is constant ({} in every row), so {}: leave it out of the formula.'
    for component in components(coding.terms):
        if component.kind == "categoric" and len(component.levels) == 1:
            level, what = repr(component.levels[0]), "it has no effect to estimate"
            raise ValueError(message.format(component.name, level, what))
    each = [*zip(coding.names, columns.low, columns.high, strict=True)]
    for name, low, high in each:
        if name != "Intercept" and "Intercept" in coding.names and low == high:
            what = "its effect can't be told from the intercept"
            raise ValueError(message.format(name, f"{low:g}", what))
    for name, low, high in each:
        check_scale(f'"{name}"', low, high)


def check_response(name: str, y: Moments) -> None:
    """Raises if the response is constant, or too large or small to compute with."""
    check_scale(f"the response {name}", float(y.low), float(y.high))
    if y.low == y.high:
        what = f"is the same, {y.low:g}, in every row: there is nothing to explain."
        hint = " Is the level misspelt?" if name.endswith("]") else ""
        raise ValueError(f"the response {name} {what}{hint}")


def check_censoring(parts: FormulaText, likelihood: str, all_censored: bool) -> None:
    """Raises if this likelihood allows no censoring, or if all responses are censored."""
    if parts.cens is None:
        return
    takes = [name for name, own in LIKELIHOODS.items() if own.log_survival is not None]
    if likelihood not in takes:
        what = f"cens({parts.cens}) is for likelihood={', '.join(map(repr, takes))}"
        raise error(parts.text, parts.cens or 0, f"{what}; this is {likelihood!r}")
    if all_censored:
        what = "says that all responses are censored: there is nothing to learn their size from."
        raise ValueError(f'column "{parts.cens}" {what}')


def warn_of_separation(names: list[str], facts: Facts, pieces: Callable[[], Pieces]) -> None:
    """Warns if predictors separate a binary response perfectly: only the prior then limits effects."""
    zero, one = facts.by_outcome
    varies = facts.X.low < facts.X.high  # the intercept does not, by whatever column it is written
    own = [k for k, name in enumerate(names) if name != "Intercept" and varies[k]]
    for k in own:
        if zero.high[k] <= one.low[k] or one.high[k] <= zero.low[k]:
            who = f'"{names[k]}" separates the response perfectly'
            break
    else:
        if not own or not _separable(own, facts.X, pieces):
            return
        who = "the predictors together separate the response perfectly"
    warn_user(
        f"{who}: the data set no limit to that effect, only its prior does. Leave it out, merge "
        "categories, or give it a prior of your own."
    )


def _separable(own: list[int], X: Moments, pieces: Callable[[], Pieces]) -> bool:
    """Whether some linear combination of columns is >= 0 for every yes and <= 0 for every no.

    Solves a linear program on some of the rows and adds the rows that its solution gets wrong, until
    there are none (separable) or it has no solution (not separable).
    """
    from scipy.optimize import linprog

    mean, sd = X.mean[own], X.sd[own]

    def signed(piece: Piece) -> Matrix:
        scaled = (piece.X[:, own] - mean) / np.where(sd > 0, sd, 1.0)
        sign = np.where(piece.y == 1, 1.0, -1.0)[:, None]
        return sign * np.column_stack([np.ones(len(scaled)), scaled])

    first = signed(next(pieces()))
    A = first[np.random.default_rng(0).permutation(len(first))[:_ROWS]]
    for _ in range(20):
        limits = np.concatenate([np.zeros(len(A)), np.ones(len(A))])
        found = linprog(-A.sum(0), np.concatenate([-A, A]), limits, bounds=(None, None))
        if found.status != 0 or -found.fun < 1e-6:
            return False
        wrong = np.zeros((0, A.shape[1]))
        for rows in map(signed, pieces()):
            wrong = np.concatenate([wrong, rows[rows @ found.x < -1e-7][: _ROWS - len(wrong)]])
            if len(wrong) == _ROWS:
                break
        if not len(wrong):
            return True
        A = np.concatenate([A, wrong])
    return False
