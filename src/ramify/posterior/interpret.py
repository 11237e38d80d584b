"""Questions about effects: contrasts, slopes and predictions, as averages of expected outcomes.

A question is a set of scenarios: the rows of a table, with some columns set to given values. Expected
outcomes of the rows are averaged in each scenario, draw by draw, and scenarios are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float64

from ramify.data.tables import columns_of, missing_in, n_rows, rows_at
from ramify.posterior import matching, prediction
from ramify.posterior.answer import Answer
from ramify.posterior.averages import Cells, cell_means, no_groups
from ramify.posterior.fitted import Fitted
from ramify.posterior.matching import Part
from ramify.posterior.prediction import Task
from ramify.posterior.settings import Settings, check_names, many
from ramify.posterior.summary import doubts_of

Compare = Literal["difference", "ratio", "odds_ratio"]
Means = Float64[np.ndarray, "S scenarios cells *categories"]

CONTRASTS: dict[str, Callable[[Means, Means], Means]] = {
    "difference": lambda low, high: high - low,
    "ratio": lambda low, high: high / low,
    "odds_ratio": lambda low, high: high / (1 - high) / (low / (1 - low)),
}
_STEP = 0.01  # of a slope, in sds of the columns of the design
_WORK = 2**28  # most expected outcomes for one question, about: seconds
LEAST = 100  # rows of each cell in a sample of the rows, if it has so many


class Scenario(NamedTuple):
    """Columns that are set, and their values in the answer."""

    set: dict[str, Any]
    about: dict[str, Any]
    weight: Any = None  # by which the rows' values are multiplied: a number for each


def predictions(fit: Any, asked: Settings) -> Answer:
    """The expected outcome of the rows in each scenario."""
    scenarios = [Scenario(dict(point), dict(point)) for point in _grid(asked.at)]
    cells = _Evaluated(fit, asked, scenarios)
    return cells.answer([s.about for s in scenarios], cells.values)


def comparisons(fit: Any, asked: Settings, variables: Any, compare: Compare) -> Answer:
    """By how much the expected outcome changes from one value of a column to another."""
    if compare not in get_args(Compare):
        known = ", ".join(f'"{name}"' for name in get_args(Compare))
        raise ValueError(f"compare must be one of {known}; got {compare!r}.")
    if compare == "odds_ratio" and not fit.adapter.has_odds(asked.kind):
        raise ValueError(
            'compare="odds_ratio" is for expected outcomes that are probabilities or shares, which these '
            'are not: use compare="ratio".'
        )
    frame = _frame(fit, asked)
    sign = "-" if compare == "difference" else "/"
    pairs = [
        pair
        for name, values in _chosen(frame, variables)
        for pair in _pairs(frame, name, values, sign)
    ]
    return _contrasted(fit, asked, pairs, CONTRASTS[compare])


def slopes(fit: Any, asked: Settings, variables: Any) -> Answer:
    """The derivative of the expected outcome in a column, by central differences."""
    frame = _frame(fit, asked)
    pairs = []
    for name, _ in _chosen(frame, variables, numbers=True):
        _check_number(frame, name)
        column, step = np.asarray(frame[name], np.float64), _steps(fit, asked, frame, name)
        about = {"term": name, "contrast": "slope"}
        low, high = ({name: column + sign * step / 2} for sign in (-1, 1))
        pairs.append((low, high, about, 1 / (high[name] - low[name])))
    return _contrasted(fit, asked, pairs, CONTRASTS["difference"])


def _steps(fit: Any, asked: Settings, frame: Any, name: str) -> Float64[np.ndarray, " n"]:
    """The step of each row, at most a part of the column's sd in the fit, where that is known."""
    step = fit.adapter.steps(frame, name, _STEP)
    if fit.adapter.table is None:
        return step
    own = _frame(fit, asked._replace(table=None))
    return np.minimum(step, _STEP * float(np.std(np.asarray(own[name], np.float64))) or np.inf)


def _contrasted(
    fit: Any, asked: Settings, pairs: list[Any], contrast: Callable[[Means, Means], Means]
) -> Answer:
    """Compares the second scenario of each pair with the first, at each point of the grid."""
    check_names((*asked.at, *asked.by), ("term", "contrast"))
    both = [name for name in asked.at if any(name in low for low, *_ in pairs)]
    if both:
        raise ValueError(f'at= sets "{both[0]}", which is what changes: leave it out of one.')
    grid, scenarios, about = _grid(asked.at), [], []
    for low, high, said, weight in pairs:
        for point in grid:
            own = dict(point)
            scenarios += [Scenario({**own, **end}, {}, weight) for end in (low, high)]
            about.append({**said, **own})
    cells = _Evaluated(fit, asked, scenarios)
    return cells.answer(about, contrast(cells.values[:, 0::2], cells.values[:, 1::2]))


class _Evaluated:
    """Averages of the rows in all scenarios, [S, scenarios, cells, ...]."""

    def __init__(self, fit: Any, asked: Settings, scenarios: list[Scenario]):
        self.fit, self.asked, self.said = fit, asked, ()
        self.categories = prediction.categories_of(fit.adapter, asked.kind)
        table = _table(fit, asked)
        n = n_rows(table, next(iter(table)))
        if not n:
            raise ValueError("table has no rows: there is nothing to average over.")
        n, table, scenarios = self._sampled(n, table, scenarios)
        if asked.average:
            self.cells, own = cells_of(table, asked.by, n)
        else:  # each row is a cell, with its own values
            self.cells = {name: _row_values(table, name) for name in asked.by}
            own = np.arange(n)
        count = len(next(iter(self.cells.values()))) if self.cells else 1
        weight = [s.weight for s in scenarios if s.weight is not None]
        number = n if not asked.average else count
        cells = Cells(own, number, len(scenarios), np.stack(weight) if weight else None)
        self.values = fit._cell_means(asked, _stacked(table, [s.set for s in scenarios], n), cells)

    def _sampled(
        self, n: int, table: dict[str, Any], scenarios: list[Scenario]
    ) -> tuple[int, dict[str, Any], list[Scenario]]:
        """A random sample of the rows, and of columns that are set, if all would take too long."""
        most = max(_WORK // (self.asked.draws * len(scenarios)), 1000)
        if n <= most or not self.asked.average:
            return n, table, scenarios
        some = _sample(self.asked.seed, cells_of(table, self.asked.by, n)[1], most)
        self.said = (f"averaged over a random sample of {len(some):,} of {n:,} rows",)
        part = lambda raw: rows_at(raw, some) if np.ndim(raw) else raw
        each = lambda own: {name: part(raw) for name, raw in own.items()}
        return (
            len(some),
            each(table),
            [Scenario(each(s.set), s.about, part(s.weight)) for s in scenarios],
        )

    def answer(self, about: list[dict[str, Any]], values: Any) -> Answer:
        """The table of values [S, scenarios, cells, ...]."""
        asked, categories = self.asked, self.categories or [None]
        S, _, count = values.shape[:3]
        rows = []
        for own in about:
            for c in range(count):
                cell = {name: column[c] for name, column in self.cells.items()}
                row = {} if asked.average else {"row": c}
                many = [{"category": k} if k is not None else {} for k in categories]
                rows += [{**own, **row, **cell, **k} for k in many]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        found = Answer.of(
            columns, values.reshape(S, -1), asked.quantiles, self.fit.adapter.table_kind
        )
        doubts = doubts_of(self.fit._judged, len(self.fit.labels))
        return replace(found, said=self.said, doubts=doubts)


def _sample(seed: int, cell: np.ndarray, most: int) -> np.ndarray:
    """About `most` rows at random: of each cell its share, and no less than a hundred if they fit."""
    count, n = np.bincount(cell), len(cell)
    least = max(min(LEAST, most // len(count)), 1)
    take = np.minimum(count, np.maximum(most * count // n, least))
    order = np.random.default_rng(seed).permutation(n)
    order = order[np.argsort(cell[order], kind="stable")]
    place = np.arange(n) - np.repeat(np.cumsum(count) - count, count)  # within its cell
    return np.sort(order[place < np.repeat(take, count)])


def means_of(fit: Fitted, asked: Settings, table: dict[str, Any], cells: Cells) -> Means:
    """Expected outcomes of the rows of all scenarios, averaged by cell, for one grouping factor."""
    n = len(cells.own)
    if asked.groups != "own":
        table = table | {fit.by: no_groups(n, cells.scenarios)}
    where = fit.adapter.read(table, "the table", outcomes=False)
    assert where is not None
    K = fit._local_draws(None)
    if asked.groups == "own":
        parts = fit._parts(where, None, K)
    else:
        at = fit.adapter.beside(where, None)
        parts = [Part(matching.without_rows(fit._schema, at), at, fit.family)]
    own = fit.adapter, fit._schema, parts[0], asked.kind, fit._outcomes
    how = prediction.outcome_of(*own), asked.kind, asked.draws, K, asked.seed
    task = Task(fit.adapter, fit.family, parts, n * cells.scenarios, *how)
    return cell_means(task, asked.groups, cells)


def _table(fit: Any, asked: Settings) -> dict[str, Any]:
    """The columns of the rows that the question is about."""
    names = fit.adapter.variables()
    wanted = [*names, *(fit._label_columns if asked.groups == "own" else [])]
    if isinstance(asked.table, str):
        if asked.table != "typical":
            raise ValueError(f'table must be a table or "typical"; got {asked.table!r}.')
        if asked.groups == "own":
            raise ValueError(
                'table="typical" is one row of no group of the fit: add groups="average", "new" or '
                '"population".'
            )
        return fit.adapter.typical()
    if asked.table is None and fit.adapter.table is None:
        raise ValueError("this fit was loaded from a file, which holds no table: pass table=.")
    table = fit.adapter.table if asked.table is None else asked.table
    wanted += [name for name in asked.by if name not in wanted]
    apart = [] if asked.table is not None else [name for name in wanted if name not in table]
    if apart:
        raise ValueError(
            f'by="{apart[0]}" is no column of the formula, and others are not kept: pass table=, a table '
            "that has it."
        )
    left = [name for name in wanted if name not in asked.at or name in fit._label_columns]
    return dict(columns_of(table, left or wanted))


def _frame(fit: Any, asked: Settings) -> Any:
    """The predictors as a pandas frame of numbers and categories."""
    return fit.adapter.frame(_table(fit, asked._replace(at={}, by=())))


def cells_of(
    table: dict[str, Any], by: Sequence[str], n: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The values of `by` in each cell, and the cell of each row."""
    if not by:
        return {}, np.zeros(n, np.int64)
    codes = [_cells_by(columns_of(table, [name])[name]) for name in by]
    sizes = [len(values) for values, _ in codes]
    flat = np.ravel_multi_index([code for _, code in codes], sizes)
    used, own = np.unique(flat, return_inverse=True)
    places = np.unravel_index(used, sizes)
    named = zip(by, codes, places, strict=True)
    return {name: values[place] for name, (values, _), place in named}, own


def _row_values(table: dict[str, Any], name: str) -> np.ndarray:
    """A column's value in each row; None where it is missing."""
    values, own = _cells_by(columns_of(table, [name])[name])
    return values[own]


def _cells_by(raw: Any) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of a column, sorted, missing ones last, and the place of each row's value."""
    lacking, column = missing_in(raw), np.asarray(raw)
    if column.dtype != object or not lacking.any():
        return np.unique(column, return_inverse=True)
    values, places = np.unique(column[~lacking], return_inverse=True)
    own = np.full(len(column), len(values))
    own[~lacking] = places
    return np.array([*values, None], object), own


def _grid(at: Mapping[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of the given values."""
    return list(product(*([(name, value) for value in many(own)] for name, own in at.items())))


def _stacked(table: dict[str, Any], set_: list[dict[str, Any]], n: int) -> dict[str, Any]:
    """The rows once for each scenario, with the columns that it sets."""
    again = np.tile(np.arange(n), len(set_))
    names = dict.fromkeys([*table, *(name for one in set_ for name in one)])
    out: dict[str, Any] = {}
    for name in names:
        if all(name not in one for one in set_):
            out[name] = rows_at(table[name], again)
            continue
        parts = [_values(one[name], n) if name in one else np.asarray(table[name]) for one in set_]
        out[name] = np.concatenate(parts)
    return out


def _values(given: Any, n: int) -> np.ndarray:
    return np.asarray(given) if np.ndim(given) else np.repeat(np.asarray([given]), n)


def _chosen(frame: Any, variables: Any, numbers: bool = False) -> list[tuple[str, Any]]:
    """The columns asked for, each with the values that were given for it."""
    if variables is None:
        every = [name for name in frame.columns if not (numbers and _is_category(frame[name]))]
        return [(name, None) for name in every]
    if isinstance(variables, Mapping):
        found = list(variables.items())
    else:
        found = [
            (name, None) for name in ([variables] if isinstance(variables, str) else variables)
        ]
    for name, _ in found:
        if name not in frame.columns:
            known = ", ".join(f'"{column}"' for column in frame.columns)
            raise ValueError(f'"{name}" is no predictor of this formula; it has {known}.')
    return found


def _pairs(frame: Any, name: str, values: Any, sign: str) -> list[Any]:
    """(low, high, words, no weight) of each contrast of a column; `sign` is between its values."""
    column = frame[name]
    if values is None and not _is_category(column):
        own = np.asarray(column, np.float64)
        about = {"term": name, "contrast": "+1"}
        return [({name: own}, {name: own + 1}, about, None)]
    if values is None:
        values = [x.item() if isinstance(x, np.generic) else x for x in _levels(column)]
    if np.ndim(values) != 1 or len(values) < 2:
        raise ValueError(f'"{name}" is to be compared at {values!r}; expected two or more values.')
    first, *others = values
    word = lambda x: f"{x:g}" if isinstance(x, int | float) and not isinstance(x, bool) else str(x)
    said = lambda x: {"term": name, "contrast": f"{word(x)} {sign} {word(first)}"}
    return [({name: first}, {name: x}, said(x), None) for x in others]


def _is_category(column: Any) -> bool:
    return hasattr(column.dtype, "categories") or column.dtype == bool


def _levels(column: Any) -> list[Any]:
    return [False, True] if column.dtype == bool else list(column.cat.categories)


def _check_number(frame: Any, name: str) -> None:
    if _is_category(frame[name]):
        raise ValueError(f'"{name}" has categories and so no slope: use comparisons("{name}").')
