"""Facts about all rows of a table that a formula needs before it can read any of them.

One pass over the response and one over the predictors, of a table in memory or part by part on disk, find
the moments of columns, which columns are constant within groups, and the state of the coding.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.data.tables import n_rows
from ramify.frontends.formula import reading
from ramify.frontends.formula.coding_state import with_state
from ramify.frontends.formula.design import Coding, code
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from ramify.frontends.formula.moments import Facts, Moments, moments
from ramify.frontends.formula.parameter_formulas import NOTHING
from ramify.frontends.formula.tables import Stored, Whole
from ramify.frontends.formula.text import FormulaText

Source = Whole | Stored


class Outcomes(NamedTuple):
    """Facts about the responses of all rows."""

    levels: list[Any] | None  # if the response has levels
    y: Moments  # of the responses
    used: Moments  # of their logs, if the likelihood is of the logarithm
    trials: float | None  # the total
    weighted: bool  # whether a row has a weight above zero
    censored: bool  # whether every row is censored

    def and_of(self, other: "Outcomes") -> "Outcomes":
        """The facts about the rows of both."""
        return Outcomes(
            self.levels,
            self.y.and_of(other.y),
            self.used.and_of(other.used),
            None if self.trials is None or other.trials is None else self.trials + other.trials,
            self.weighted or other.weighted,
            self.censored and other.censored,
        )


def outcomes_of(parts: FormulaText, source: Source, likelihood: str) -> Outcomes:
    """Reads and checks the responses of all rows."""
    first = source.sampled(lambda table: _outcomes(parts, table, likelihood, None))
    if source.whole:
        return first
    known = lambda table: _outcomes(parts, table, likelihood, first.levels)
    return reduce(Outcomes.and_of, source.map(known))


def _outcomes(
    parts: FormulaText, table: Any, likelihood: str, levels: list[Any] | None
) -> Outcomes:
    family = LIKELIHOODS[likelihood]
    extra = reading.read_extra(parts, table, n_rows(table, parts.by), "table")
    trials, weights, cens = (extra.get(role) for role in reading.ROLES)
    own = family.support, likelihood, levels, trials, "table"
    y, levels = reading.read_response(parts, table, *own)
    plain = moments(y)
    return Outcomes(
        levels,
        plain,
        moments(np.log(y)) if family.of_log else plain,
        None if trials is None else float(np.sum(trials)),
        weights is None or bool(weights.any()),
        cens is not None and bool(cens.all()),
    )


class Piece(NamedTuple):
    """The predictors of some rows; of all rows if the table is in memory."""

    X: Float64[np.ndarray, "n P"]  # common
    W: Float64[np.ndarray, "n M"]  # varying by group
    offset: Float64[np.ndarray, " n"] | None
    y: Float64[np.ndarray, " n"] | None  # if it is true or false
    groups: Groups  # with X, whose rows are sorted by group


Pieces = Iterator[Piece]


def facts_of(names: tuple[list[str], list[str]], pieces: Pieces) -> Facts:
    """The facts about all rows, from pieces of them; `names` are the names of the columns of X and W."""
    return reduce(Facts.and_of, (_facts(names, piece) for piece in pieces))


def _facts(names: tuple[list[str], list[str]], piece: Piece) -> Facts:
    X, W, (left, right) = piece.X, piece.W, names
    one_of_w = lambda k: np.array_equal(X[:, k], W[:, right.index(left[k])])
    same = [name in right and one_of_w(k) for k, name in enumerate(left)]
    return Facts(
        moments(X),
        moments(W),
        None if piece.offset is None else moments(piece.offset),
        () if piece.y is None else (moments(X[piece.y == 0]), moments(X[piece.y == 1])),
        np.array(same, bool),
        np.array([_constant_within(piece.groups, k) for k in range(X.shape[1])], bool),
    )


def _constant_within(groups: Groups, column: int) -> bool:
    """Whether a column of X has one value in all rows of each group."""
    x = groups.rows["X"][:, column]
    return np.array_equal(x, np.repeat(x[groups.starts], groups.sizes))


def coded(
    parts: FormulaText, source: Source, likelihood: str, levels: list[Any] | None
) -> tuple[Coding, Coding, Callable[[], Pieces]]:
    """Codes both sides of the grouping term; also returns a function that yields all rows in pieces."""
    binary = LIKELIHOODS[likelihood].support == "binary"
    own = "binary", likelihood, levels, None, "table"

    def piece(table: Any, frame: Any, X: Any, W: Any) -> Piece:
        y = reading.read_response(parts, table, *own)[0] if binary else None
        rows = reading.labelled_groups({"X": X}, table, parts.by)
        return Piece(X, W, common.offset(frame), y, rows)

    (common, X), (group, W) = code_parts(parts, source)
    if isinstance(source, Whole):
        whole = piece(source.table, frame_of(parts, source.table), X, W)
        return common, group, lambda: iter([whole])

    def new(table: Any) -> Piece:
        frame = frame_of(parts, table)
        return piece(table, frame, common.matrix(frame), group.matrix(frame))

    return common, group, lambda: source.map(new)


def code_parts(parts: FormulaText, source: Source) -> list[tuple[Coding, Any]]:
    """The coding of both sides of the grouping term, and their matrices for a sample of the rows."""
    n, texts = source.n_rows, (parts.common, parts.group)

    def first(table: Any) -> list[tuple[Coding, Any]]:
        frame = frame_of(parts, table)
        nothing = NOTHING, np.zeros((len(frame), 0))
        return [code(text, parts.text, frame, n) if text else nothing for text in texts]

    found = source.sampled(first)
    if isinstance(source, Whole):
        return found
    frames = lambda: source.map(lambda table: frame_of(parts, table))
    return [(with_state(coding, frames, n), matrix) for coding, matrix in found]


def coded_moments(parts: FormulaText, source: Source) -> list[tuple[Coding, Moments]]:
    """The coding of both sides of the grouping term, and the moments of their columns."""
    found = code_parts(parts, source)
    if isinstance(source, Whole):
        return [(coding, moments(matrix)) for coding, matrix in found]

    def of(table: Any) -> list[Moments]:
        frame = frame_of(parts, table)
        return [moments(coding.matrix(frame)) for coding, _ in found]

    both = reduce(lambda a, b: [*map(Moments.and_of, a, b)], source.map(of))
    return [(coding, own) for (coding, _), own in zip(found, both, strict=True)]


def frame_of(parts: FormulaText, table: Any) -> Any:
    """The predictors of a table as numbers and categories."""
    return read_frame(table, reading.predictors(parts), "table", n_rows(table, parts.by))
