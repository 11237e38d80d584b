"""Questions about effects: contrasts, slopes and predictions, as averages of expected outcomes.

A question is a set of scenarios: the rows of a table, with some columns set to given values. Expected
outcomes of the rows are averaged in each scenario, draw by draw, and scenarios are compared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float64

from ramify.data.tables import columns_of, missing_in, n_rows, rows_at
from ramify.posterior import matching, prediction
from ramify.posterior.answer import Answer
from ramify.posterior.averages import Cells, Who, cell_means, no_groups
from ramify.posterior.fitted import Fitted
from ramify.posterior.matching import Part
from ramify.posterior.prediction import Kind, Task, quantile_names
from ramify.posterior.summary import doubts_of

Compare = Literal["difference", "ratio", "odds_ratio"]
Means = Float64[np.ndarray, "S scenarios cells *categories"]

CONTRASTS: dict[str, Callable[[Means, Means], Means]] = {
    "difference": lambda low, high: high - low,
    "ratio": lambda low, high: high / low,
    "odds_ratio": lambda low, high: high / (1 - high) / (low / (1 - low)),
}
_STEP = 0.01  # of a slope, in sds of the column
_WORK = 2**28  # most expected outcomes for one question, about: seconds
LEAST = 100  # rows of each cell in a sample of the rows, if it has so many


class Settings(NamedTuple):
    """The arguments of all questions: which rows, whose groups, how many draws."""

    table: Any  # rows; None for those of the fit, "typical" for one row with typical values
    at: Mapping[str, Any]  # columns that are set to given values
    by: Sequence[str]  # columns by whose values to average
    average: bool  # False for an answer for each row
    kind: Kind
    groups: Who
    draws: int
    quantiles: Sequence[float]
    seed: int


class Scenario(NamedTuple):
    """Columns that are set, and their values in the answer."""

    set: dict[str, Any]
    about: dict[str, Any]


def check(fit: Any, asked: Settings) -> None:
    """Raises where a question does not fit the model."""
    known = fit.adapter.variables()
    _check_at(asked.at)
    if asked.groups not in get_args(Who):
        all_ = ", ".join(f'"{name}"' for name in get_args(Who))
        raise ValueError(f"groups must be one of {all_}; got {asked.groups!r}.")
    if asked.kind == "response":
        raise ValueError(
            'kind must be "mean", "link" or "probability": expected outcomes are compared.'
        )
    check_names((*asked.at, *asked.by), ("mean", "sd", *quantile_names(asked.quantiles)))
    for name in asked.at:
        if name not in known and (name not in fit._label_columns or asked.groups != "own"):
            names = ", ".join(f'"{column}"' for column in known)
            raise ValueError(f'at= sets "{name}", which is no predictor; there are {names}.')
    if asked.groups != "own" and not fit._normal_groups:
        raise ValueError(f'groups="{asked.groups}" needs groups with a normal distribution.')


def _check_at(at: Any) -> None:
    if not isinstance(at, Mapping):
        raise TypeError(
            f'at is {at!r}; expected a dict of columns and their values, as {{"x": [0, 1]}}.'
        )
    for name, values in at.items():
        if np.ndim(values) > 1 or not len(_many(values)):
            raise ValueError(
                f'at sets "{name}" to {values!r}; expected a value, or a list of some.'
            )


def columns_named(by: Any) -> tuple[str, ...]:
    """The columns that `by=` names: one or several."""
    several = (by,) if isinstance(by, str) or not isinstance(by, Iterable) else tuple(by)
    if not all(isinstance(name, str) for name in several):
        raise TypeError(f"by is {by!r}; expected the name of a column, or a list of names.")
    return several


def check_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raises where an answer would have two columns of one name."""
    for name in names:
        if name in taken:
            raise ValueError(
                f'the answer would have two columns "{name}", yours and one of its own: rename yours.'
            )


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
    own = frame if fit.adapter.table is None else _frame(fit, asked._replace(table=None))
    pairs = []
    for name, _ in _chosen(frame, variables, numbers=True):
        _check_number(frame, name)
        column = np.asarray(frame[name], np.float64)
        step = _STEP * float(np.std(np.asarray(own[name], np.float64))) or _STEP
        about = {"term": name, "contrast": "slope"}
        low, high = ({name: column + sign * step / 2} for sign in (-1, 1))
        pairs.append((low, high, about, step))
    by_step = lambda low, high: high - low
    return _contrasted(fit, asked, pairs, by_step)


def _contrasted(
    fit: Any, asked: Settings, pairs: list[Any], contrast: Callable[[Means, Means], Means]
) -> Answer:
    """Compares the second scenario of each pair with the first, at each point of the grid."""
    check_names((*asked.at, *asked.by), ("term", "contrast"))
    both = [name for name in asked.at if any(name in low for low, *_ in pairs)]
    if both:
        raise ValueError(f'at= sets "{both[0]}", which is what changes: leave it out of one.')
    grid, scenarios, about = _grid(asked.at), [], []
    for low, high, said, _ in pairs:
        for point in grid:
            own = dict(point)
            scenarios += [Scenario({**own, **low}, {}), Scenario({**own, **high}, {})]
            about.append({**said, **own})
    cells = _Evaluated(fit, asked, scenarios)
    units = np.repeat([pair[3] for pair in pairs], len(grid))
    shape = (1, len(units), *[1] * (cells.values.ndim - 2))
    found = contrast(cells.values[:, 0::2], cells.values[:, 1::2]) / units.reshape(shape)
    return cells.answer(about, found)


class _Evaluated:
    """Averages of the rows in all scenarios, [S, scenarios, cells, ...]."""

    def __init__(self, fit: Any, asked: Settings, scenarios: list[Scenario]):
        self.fit, self.asked, self.said = fit, asked, ()
        self.categories = prediction.categories_of(fit.adapter, asked.kind)
        table = _table(fit, asked)
        n = n_rows(table, next(iter(table)))
        if not n:
            raise ValueError("table has no rows: there is nothing to average over.")
        n, table, sets = self._sampled(n, table, [s.set for s in scenarios])
        if asked.average:
            self.cells, own = cells_of(table, asked.by, n)
        else:  # each row is a cell, with its own values
            self.cells = {name: _row_values(table, name) for name in asked.by}
            own = np.arange(n)
        count = len(next(iter(self.cells.values()))) if self.cells else 1
        cells = Cells(own, n if not asked.average else count, len(scenarios))
        self.values = fit._cell_means(asked, _stacked(table, sets, n), cells)

    def _sampled(
        self, n: int, table: dict[str, Any], sets: list[dict[str, Any]]
    ) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        """A random sample of the rows, and of columns that are set, if all would take too long."""
        most = max(_WORK // (self.asked.draws * len(sets)), 1000)
        if n <= most or not self.asked.average:
            return n, table, sets
        some = _sample(self.asked.seed, cells_of(table, self.asked.by, n)[1], most)
        self.said = (f"averaged over a random sample of {len(some):,} of {n:,} rows",)
        part = lambda raw: rows_at(raw, some) if np.ndim(raw) else raw
        found = {name: rows_at(raw, some) for name, raw in table.items()}
        return len(some), found, [{name: part(raw) for name, raw in one.items()} for one in sets]

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
    return list(product(*([(name, value) for value in _many(own)] for name, own in at.items())))


def _many(values: Any) -> list[Any]:
    """The values of a column: one or several."""
    return list(values) if np.ndim(values) or isinstance(values, list | tuple) else [values]


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
    """(low, high, words, 1) of each contrast of a column; `sign` is between its values."""
    column = frame[name]
    if values is None and not _is_category(column):
        own = np.asarray(column, np.float64)
        about = {"term": name, "contrast": "+1"}
        return [({name: own}, {name: own + 1}, about, 1.0)]
    if values is None:
        values = [x.item() if isinstance(x, np.generic) else x for x in _levels(column)]
    if np.ndim(values) != 1 or len(values) < 2:
        raise ValueError(f'"{name}" is to be compared at {values!r}; expected two or more values.')
    first, *others = values
    word = lambda x: f"{x:g}" if isinstance(x, int | float) and not isinstance(x, bool) else str(x)
    said = lambda x: {"term": name, "contrast": f"{word(x)} {sign} {word(first)}"}
    return [({name: first}, {name: x}, said(x), 1.0) for x in others]


def _is_category(column: Any) -> bool:
    return hasattr(column.dtype, "categories") or column.dtype == bool


def _levels(column: Any) -> list[Any]:
    return [False, True] if column.dtype == bool else list(column.cat.categories)


def _check_number(frame: Any, name: str) -> None:
    if _is_category(frame[name]):
        raise ValueError(f'"{name}" has categories and so no slope: use comparisons("{name}").')
