"""The table of a formula: in memory, or on disk and read in parts, group by group."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from ramify.data.building import Plan, stored
from ramify.data.derived import derived, parts
from ramify.data.groups import Groups
from ramify.data.parquet import check_every_file, check_names, open_parquet, read_columns
from ramify.data.store import read_rows, read_store
from ramify.data.tables import columns_of, kind_of_table, missing_in, n_rows, rows_of, zone_of
from ramify.data.writing import DESIGN
from ramify.frontends.formula.encoding import complete, has_value, reader
from ramify.frontends.formula.text import FormulaText, error
from ramify.numerics.user_warning import warn_user

T = TypeVar("T")
Missing = Literal["error", "drop"]

FIRST = 20_000  # rows of the sample: enough to try the parts of a formula on
MOST = 10_000  # most different values of a column for which the sample has each value


@dataclass(frozen=True)
class Whole:
    """A table in memory."""

    table: Any
    by: str
    what: str = "table"
    whole = True

    @property
    def n_rows(self) -> int:
        """Its number of rows."""
        return n_rows(self.table, self.by)

    @property
    def kind(self) -> str:
        """The kind of table that results come back as."""
        return kind_of_table(self.table)

    @property
    def zone(self) -> str | None:
        """The time zone of the labels, if they are times with one."""
        return zone_of(self.table, self.by)

    def sampled(self, function: Callable[[Any], T]) -> T:
        """Applies the function to the whole table."""
        return function(self.table)

    def map(self, function: Callable[[Any], T]) -> Iterator[T]:
        """Applies the function to the whole table."""
        yield function(self.table)


@dataclass(frozen=True)
class Stored:
    """A table in a store: text and categories as numbers of their levels, rows sorted by group."""

    groups: Groups
    levels: dict[str, list[Any]]  # of text and categories, in order
    sorted_text: list[str]  # columns whose levels are in the order of the alphabet
    what: str
    zone: str | None
    kind: str = "pyarrow"
    whole = False

    @property
    def by(self) -> str:
        """The grouping column."""
        return self.groups.by

    @property
    def n_rows(self) -> int:
        """Its number of rows."""
        return self.groups.n_rows

    def sampled(self, function: Callable[[Any], T]) -> T:
        """Applies the function to a table of some rows.

        These are the first rows, and one for each value of every column with few different values.
        """
        columns, group = self.groups.rows, self.groups.group
        rows = [np.arange(min(FIRST, self.n_rows))]
        rows += [_with_each_value(c, len(self.levels.get(n, ()))) for n, c in columns.items()]
        chosen = np.unique(np.concatenate(rows))
        number = np.cumsum(self.groups.sizes).searchsorted(chosen, "right")
        found = {name: self._decoded(name, c[chosen], True) for name, c in columns.items()}
        found |= {name: self._decoded(name, c[number], True) for name, c in group.items()}
        with rows_of_source(self.groups.row_order[chosen], self.what):
            return function({**found, self.by: number})

    def map(self, function: Callable[[Any], T]) -> Iterator[T]:
        """Applies the function to tables of some groups each, which together have all rows."""
        for part in parts(self.groups):
            with rows_of_source(part.row_order, self.what):
                found = function(self.table(part))
            yield found

    def table(self, part: Groups) -> dict[str, Any]:
        """The rows of some groups as a table; labels are the numbers of the groups."""
        own = {name: self._decoded(name, c) for name, c in part.rows.items()}
        own |= {
            name: self._decoded(name, np.repeat(c, part.sizes, 0)) for name, c in part.group.items()
        }
        return {**own, self.by: np.repeat(part.number, part.sizes)}

    def _decoded(self, name: str, values: np.ndarray, as_text: bool = False) -> Any:
        import pandas as pd

        if name not in self.levels:
            return np.asarray(values)
        if as_text and name in self.sorted_text:
            return np.array(self.levels[name], object)[values]
        return pd.Categorical.from_codes(values, self.levels[name], ordered=True)


def _with_each_value(column: np.ndarray, count: int) -> Int[np.ndarray, " k"]:
    """The first row with each value of a column; `count` is the number of values, 0 if unknown."""
    import pandas as pd

    seen, rows = set(), []
    for start in range(0, len(column), 2**20):
        values = read_rows(column, slice(start, start + 2**20))
        new = [x for x in pd.unique(values).tolist() if x not in seen]
        if len(seen) + len(new) > MOST:
            break
        seen.update(new)
        rows += [start + int(np.argmax(values == x)) for x in new]
        if len(seen) == (2 if column.dtype == bool else count):
            break
    return np.array(rows, np.int64)


@contextmanager
def rows_of_source(numbers: Int[np.ndarray, " n"], what: str) -> Iterator[None]:
    """A context in which errors that name rows of a part name them by their numbers in the source.

    Example:
        >>> with rows_of_source(np.array([70, 80, 90]), "x.parquet"):
        ...     raise ValueError("y is 3 in rows 0 and 2 of table.")
        Traceback (most recent call last):
        ValueError: y is 3 in rows 70 and 90 of x.parquet. (There may be more such rows.)
    """
    try:
        yield
    except (ValueError, TypeError) as problem:
        own = lambda text: re.sub(r"\d+", lambda n: str(numbers[int(n[0])]), text)
        several = r"\brows? \d++(?:(?:, | and )\d++)*+"
        text = re.sub(several, lambda found: own(found[0]), str(problem))
        text = re.sub(r"(?<=\brows )\((\d[\d, .]*)\)", lambda found: own(found[0]), text)
        text = re.sub(r"\bof table\b", f"of {what}", text)
        raise type(problem)(f"{text} (There may be more such rows.)") from problem


def refuse_groups(table: Any) -> None:
    """Raises if the data of a formula are Groups in memory, which have no columns of the user's."""
    if isinstance(table, Groups) and table.store is None:
        raise TypeError(
            "the data of a formula are rf.Groups in memory; expected a table (pandas, polars, Arrow, a "
            "dict of arrays), the path of Parquet files, or Groups of a store."
        )


def opened(
    text: FormulaText, table: Any, used: list[str], missing: str, store: Any
) -> Whole | Stored:
    """The table of a formula, read into memory or, if a folder is given, sorted into a store there.

    `used` are the columns that the formula names in addition to the grouping column.
    """
    if missing not in get_args(Missing):
        raise ValueError(f'missing must be "error" or "drop"; got {missing!r}.')
    named = [*dict.fromkeys([*used, text.by])]
    if isinstance(table, Groups):
        return _of_groups(text, table, used)
    if not is_path(table):
        if store is not None:
            raise ValueError("store= goes with Parquet files: give their path, folder or pattern.")
        check_columns(text, table, used)
        return Whole(without_missing(table, named, missing), text.by)
    source = _source(table)
    data = open_parquet(source)
    check_columns(text, data.schema.empty_table(), used)
    if missing == "error":
        check_every_file(data, named)
    if store is None:
        return Whole(without_missing(read_columns(data, source, named), named, missing), text.by)
    return _sorted(data, source, text.by, [n for n in named if n != text.by], missing, Path(store))


def read_whole(table: Any, store: Any) -> Any:
    """The table of a formula with several grouping factors, which is always in memory."""
    if store is not None or isinstance(table, Groups):
        raise ValueError(
            "stores are for formulas with one grouping factor; one with several is fitted in memory: "
            "give it a table, or the path of Parquet files without store=."
        )
    if not is_path(table):
        return table
    source = _source(table)
    data = open_parquet(source)
    return read_columns(data, source, None)


def is_path(table: Any) -> bool:
    """Whether a table is given by where it is: a path, a pattern, or a list of files."""
    one = lambda x: isinstance(x, str | os.PathLike)
    return one(table) or (isinstance(table, list) and bool(table) and all(map(one, table)))


def _source(table: Any) -> str | list[str]:
    """The path of Parquet files, or several, as text."""
    paths = [os.fspath(path) for path in (table if isinstance(table, list) else [table])]
    for path in paths:
        if path.lower().endswith((".csv", ".csv.gz")):
            raise TypeError(
                f"table is {path}, a CSV file; expected a dict of arrays, a pandas or polars DataFrame, "
                "an Arrow Table, or the path of Parquet files: read it first, as by pandas.read_csv."
            )
    return paths if isinstance(table, list) else paths[0]


def check_columns(text: FormulaText, table: Any, names: list[str]) -> None:
    """Raises if a table lacks a column that the formula names, or has two of that name."""
    for name in [*names, *([] if text.several else [text.by])]:
        try:
            columns_of(table, [name])
        except ValueError as problem:
            raise error(text.text, name, str(problem).rstrip(".")) from None


def without_missing(table: Any, named: list[str], missing: str) -> Any:
    """The table, or with missing="drop" the named columns of the rows without missing values."""
    if missing == "error":
        return table
    lacking = {name: missing_in(raw) for name, raw in columns_of(table, named).items()}
    gone = np.any([*lacking.values()], axis=0)
    if not gone.any():
        return table
    where = ", ".join(f'"{name}" in {mask.sum():,}' for name, mask in lacking.items() if mask.any())
    _warn_of_dropped(int(gone.sum()), len(gone), where)
    return rows_of(table, named, ~gone)


def _warn_of_dropped(gone: int, n: int, where: str) -> None:
    said = f"dropped {gone:,} of {n:,} rows, in which a value is missing: {where}."
    warn_user(f"{said} Rows are numbered without them.")


def _of_groups(text: FormulaText, groups: Groups, used: list[str]) -> Stored:
    """A store that was built before, of columns of numbers."""
    assert groups.store is not None
    if groups.by != text.by:
        raise ValueError(
            f'the store is sorted by "{groups.by}"; the formula groups by "{text.by}".'
        )
    check_names(groups.store.folder, used, [*groups.rows, *groups.group])
    zone = "UTC" if groups.zoned else None
    return Stored(groups, {}, [], str(groups.store.folder), zone)


def _sorted(
    data: Any, source: Any, by: str, names: list[str], missing: str, folder: Path
) -> Stored:
    """The rows of Parquet files, sorted into a store unless it is there."""
    every = data
    data = complete(data, [by, *names]) if missing == "drop" else data
    read_by = f"a formula, missing={missing}"
    plan = Plan(data, source, by, names, [], lambda: reader(data, names, source), read_by)
    groups = Groups(**stored(plan, folder))
    total = every.count_rows()
    if groups.n_rows < total:
        lacking = {name: every.count_rows(filter=~has_value(every, name)) for name in [*names, by]}
        where = ", ".join(f'"{name}" in {count:,}' for name, count in lacking.items() if count)
        _warn_of_dropped(total - groups.n_rows, total, where)
    said = read_store(folder) or {}
    zone = getattr(data.schema.field(by).type, "tz", None)
    return Stored(groups, said["levels"], said["sorted_text"], str(source), zone)


def designed(source: Stored, config: dict[str, Any], change: Callable[[Any], Groups]) -> Groups:
    """The columns of a formula's model, in a store inside the store of its source.

    `change` makes them from a table, and `config` has all that they depend on.
    """
    assert source.groups.store is not None
    own = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    folder = source.groups.store.folder / f"{DESIGN}{own[:8]}"
    kind = jnp.result_type(float)

    def coded(part: Groups) -> Groups:
        with rows_of_source(part.row_order, source.what):
            new = change(source.table(part))
        rows = {name: column.astype(kind, copy=False) for name, column in new.rows.items()}
        return replace(new, rows=rows, row_order=part.row_order)

    return derived(source.groups, folder, {"design": own, "type": str(kind)}, coded)
