"""Groups: a data set in long format, sorted once by group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from os import PathLike
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Int, Int64, Shaped

from ramify.data.labels import canonical, find, show
from ramify.data.levels import Levels, integrated_factor
from ramify.data.opening import fields_from_parquet, fields_from_store
from ramify.data.reading import fields_from_table
from ramify.data.several import arranged, fields_from_factors, level_name
from ramify.data.splitting import held_out
from ramify.data.store import Store, read_rows
from ramify.data.tables import Table, objects
from ramify.numerics.memory import check_memory


@final
@dataclass(frozen=True, eq=False, repr=False)
class Groups:
    """A data set in long format, one row per observation, sorted once by group.

    Groups are numbered 0..N-1 in the order of their sorted labels, and a group's rows keep the
    order they had. Make one with [`Groups.from_table`][] or [`Groups.from_parquet`][]. Its arrays
    are read-only.

    Attributes:
        by: name of the column of group labels.
        labels: the label of each group, [N].
        sizes: rows of each group, n_i >= 0, [N].
        rows: row columns, each [n_rows, ...], all rows of a group together.
        group: group columns, each [N, ...].
        number: the number of each group in the original data set, [N]. It selects the group's
            row in a fitted table, and its noise. 0..N-1 unless made by `subset` or `renumbered`.
        row_order: position of each row in the table it was read from, [n_rows].
        zoned: whether the labels were times with a time zone, which are kept in UTC; None if they
            are no times, or it is not known.
        store: where the columns are mapped from, if they are on disk; groups are then in the order
            of a hash of their labels.
        factors: the levels of each factor, where there are several; `by` is then the one that a fit
            integrates out, and a row column `level_<f>` has the rows' levels of another.
        level_columns: group columns of the levels of each of these factors.
        notes: how these factors relate to each other.

    Example:
        >>> table = {"user": ["bo", "al", "bo"], "y": [1.0, 2.0, 3.0], "age": [30, 41, 30]}
        >>> groups = Groups.from_table(table, by="user", rows=["y"], group=["age"])
        >>> groups.labels.tolist(), groups.sizes.tolist(), groups.rows["y"].tolist()
        (['al', 'bo'], [1, 2], [2.0, 1.0, 3.0])
        >>> print(groups)
        Groups by "user": 2 groups, 3 rows (1 / 1.5 / 2 per group: min / median / max)
          rows   y    [] float64
          group  age  [] int32
    """

    by: str
    labels: Shaped[np.ndarray, " N"]
    sizes: Int64[np.ndarray, " N"]
    rows: dict[str, np.ndarray]
    group: dict[str, np.ndarray]
    number: Int64[np.ndarray, " N"]
    row_order: Int64[np.ndarray, " n_rows"]
    zoned: bool | None = None
    store: Store | None = None
    factors: tuple[Levels, ...] = ()
    level_columns: tuple[dict[str, np.ndarray], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        own = (self.labels, self.sizes, self.number, self.row_order)
        for array in (*own, *self.rows.values(), *self.group.values()):
            array.flags.writeable = False

    @classmethod
    def from_table(
        cls,
        table: Table,
        *,
        by: str | Sequence[str],
        rows: str | Sequence[str],
        group: str | Sequence[str] | Mapping[str, Any] = (),
        group_table: Table | None = None,
    ) -> "Groups":
        """Reads a table in long format, one row per observation.

        Columns hold finite numbers. Booleans stay booleans, integers become int32, and
        floating-point numbers keep their precision (on the device they are float32, or float64 if
        JAX has x64 turned on). An element may itself be an array, of one shape for the whole
        column: an array [n, ...] in a dict, a list or array column in polars and Arrow, a column
        of arrays in pandas.

        Args:
            table: a dict of arrays, a pandas or polars DataFrame, an Arrow Table or RecordBatch.
            by: the column with the group labels: strings, integers, timestamps, booleans or
                categories. Floating-point numbers are refused. A list of several columns makes
                several grouping factors, crossed or nested; "a:b" is the factor of the
                combinations of two columns.
            rows: row columns: x_ij and y_ij.
            group: group columns, u_i: the same in all rows of a group. With several factors they
                are given by factor, `group={"movie": ["year"]}`.
            group_table: a table with one row per group, from which the group columns are read
                instead of from `table`; it has the column `by` too. Its groups are the groups of
                the data set, including those without rows in `table`. A label that is not in it
                is an error.

        Raises:
            ValueError: if columns are missing, of different lengths, empty or named twice; if
                there is a null, a NaN or an infinity; if a group column varies within a group.
            TypeError: if a column holds something other than numbers, or labels are unusable.

        Example:
            >>> import numpy as np
            >>> table = {"day": np.array(["2024-01-02", "2024-01-01"], "M8[D]"), "x": np.eye(2)}
            >>> Groups.from_table(table, by="day", rows="x")
            Groups by "day": 2 groups, 2 rows (1 / 1 / 1 per group: min / median / max)
              rows   x  [2] float64
        """
        if not isinstance(by, str) and isinstance(by, Sequence) and len(by) > 1:
            if group_table is not None:
                raise ValueError("group_table= is for one grouping factor: leave it out.")
            return cls(**fields_from_factors(table, by, rows, group))
        one: Any = by[0] if not isinstance(by, str) and isinstance(by, Sequence) and by else by
        own: Any = group
        return cls(**fields_from_table(table, one, rows, own, group_table))

    @classmethod
    def from_parquet(
        cls,
        path: Any,
        *,
        by: str,
        rows: str | Sequence[str],
        group: str | Sequence[str] = (),
        group_table: Table | None = None,
        store: str | PathLike[str] | None = None,
    ) -> "Groups":
        """Reads a Parquet file, or a folder of them, into memory or into a store on disk.

        Only the named columns are read, with all their rows. While they are sorted there are two
        copies of them: the host's memory must hold the data twice. With `store=` they are sorted
        on disk by DuckDB, once, and mapped into memory: for data that are larger than that.

        Args:
            path: a file, a folder (searched recursively; `key=value` folders become columns), a
                pattern such as "ratings/*.parquet", a URL of a file system that Arrow knows, or a
                list of files.
            by: the column with the group labels.
            rows: row columns.
            group: group columns.
            group_table: as in [`Groups.from_table`][]; also a path to Parquet. Not with a store.
            store: a folder for the store. It is built if it is not there or the files have changed
                since (by their names, sizes and times), and takes about as much disk as the data,
                twice that while it is built.
        """
        return cls(**fields_from_parquet(path, (by, rows, group), group_table, store))

    @classmethod
    def from_store(cls, folder: str | PathLike[str]) -> "Groups":
        """Opens a store that `from_parquet(..., store=folder)` built, without its source."""
        return cls(**fields_from_store(folder))

    def integrating(self, factor: str | None) -> "Groups":
        """The same data sorted by another of its factors, which a fit then integrates out."""
        place = integrated_factor(self.factors, factor or self.by, "data set")
        if place == self.integrated:
            return self
        rows = {n: c for n, c in self.rows.items() if not n.startswith("level_")}
        codes = [self.levels(f) for f in range(len(self.factors))]
        return replace(self, **arranged(self.factors, codes, rows, place, self.row_order))

    @property
    def integrated(self) -> int:
        """The position of the factor `by` among several."""
        return [factor.name for factor in self.factors].index(self.by)

    def levels(self, factor: int) -> Int64[np.ndarray, " n_rows"]:
        """The level of each row of one of several factors."""
        if factor == self.integrated:
            return np.repeat(self.number, self.sizes)
        return self.rows[level_name(factor)]

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, dict[str, np.ndarray]]]:
        """Yields each group's label and its columns: rows [n_i, ...] and group columns [...]."""
        for i, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            rows = {name: column[start : start + size] for name, column in self.rows.items()}
            yield self.labels[i], rows | {name: column[i] for name, column in self.group.items()}

    @property
    def n_rows(self) -> int:
        """Total number of rows."""
        return len(self.row_order)

    @property
    def n_bytes(self) -> int:
        """Bytes of the row columns."""
        return sum(column.nbytes for column in self.rows.values())

    @cached_property
    def starts(self) -> Int64[np.ndarray, " N"]:
        """Position of each group's first row."""
        return np.cumsum(self.sizes) - self.sizes

    def split(self, test_fraction: float = 0.1, seed: int = 0) -> tuple["Groups", "Groups"]:
        """Splits the rows of every group at random into a training and a test part.

        Both parts keep all N groups with their numbers; in either part a group may have no rows.
        Of the n_i rows of group i, `m_i = min(n_i test_fraction, n_i - 1)` on average go to the
        test part: m_i is rounded up or down at random, and the total is the sum of the m_i, rounded.
        So every group that has rows keeps at least one to train on.

        Args:
            test_fraction: share of the rows for the test part, between 0 and 1.
            seed: seed of the random choice.

        Returns:
            The training part and the test part.

        Example:
            >>> table = {"g": ["a"] * 20 + ["b"] * 10, "y": list(range(30))}
            >>> train, test = Groups.from_table(table, by="g", rows="y").split(0.1)
            >>> train.sizes.tolist(), test.sizes.tolist()
            ([18, 9], [2, 1])
        """
        if not (isinstance(test_fraction, Real) and 0.0 < test_fraction < 1.0):
            raise ValueError(f"test_fraction={test_fraction!r}; expected a number between 0 and 1.")
        test = held_out(self.sizes, test_fraction, np.random.default_rng(seed))
        return self._rows_where(~test), self._rows_where(test)

    def in_memory(self) -> "Groups":
        """The same groups, in the same order, with all columns in memory; raises if they do not fit."""
        if self.store is None:
            return self
        self._check_fits()
        copies = lambda columns: {name: np.array(column) for name, column in columns.items()}
        rows, group, order = copies(self.rows), copies(self.group), np.array(self.row_order)
        return self._read_as(rows=rows, group=group, row_order=order)

    def _check_fits(self) -> None:
        if self.store is not None:
            cure = "Use fewer rows, or a machine with more memory"
            check_memory(self.n_bytes, None, f"the rows of {self.store.folder}", cure)

    def _rows_where(self, kept: Bool[np.ndarray, " n_rows"]) -> "Groups":
        self._check_fits()
        owner = np.repeat(np.arange(len(self)), self.sizes)[kept]
        return self._read_as(
            sizes=np.bincount(owner, minlength=len(self)).astype(np.int64),
            rows={name: column[kept] for name, column in self.rows.items()},
            row_order=self.row_order[kept],
        )

    def _read_as(self, **fields: Any) -> "Groups":
        """The same with other fields, in memory; raises if the store changed while it was read."""
        if self.store is not None:
            self.store.check()
        return replace(self, **fields, store=None)

    def subset(self, *, labels: Any = None, positions: Any = None) -> "Groups":
        """Returns some of the groups, in the given order; they keep their `number`.

        Args:
            labels: labels of the groups to keep.
            positions: instead of labels, positions between 0 and N-1, or a boolean array [N].

        Example:
            >>> groups = Groups.from_table({"g": [7, 8, 9], "y": [1, 2, 3]}, by="g", rows="y")
            >>> part = groups.subset(labels=[9, 7])
            >>> part.labels.tolist(), part.number.tolist(), part.rows["y"].tolist()
            ([9, 7], [2, 0], [3, 1])
        """
        if (labels is None) == (positions is None):
            raise ValueError("subset needs either labels= or positions=, and not both.")
        chosen = self._at_positions(positions) if labels is None else self._at_labels(labels)
        if not len(chosen):
            raise ValueError(f"subset chose none of the {len(self):,} groups; choose at least one.")
        if len(np.unique(chosen)) < len(chosen):
            again = self.labels[np.flatnonzero(np.bincount(chosen) > 1)[0]]
            raise ValueError(f"subset names group {show(again)} more than once; name it once.")
        return self._take(chosen)

    def _at_labels(self, labels: Any) -> Int64[np.ndarray, " W"]:
        chosen = find(self.labels, labels)
        missing = np.flatnonzero(chosen < 0)
        if len(missing):
            raise ValueError(
                f"{len(missing):,} of the {len(chosen):,} labels asked for are not among the "
                f"{len(self):,} groups, the first of them {show(list(labels)[missing[0]])}."
            )
        return chosen

    def _at_positions(self, positions: Any) -> Int64[np.ndarray, " W"]:
        chosen = np.asarray(positions)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(
                    f"positions is a boolean array of shape {chosen.shape}; expected one entry for "
                    f"each of the {len(self):,} groups."
                )
            return np.flatnonzero(chosen)
        if chosen.size and (chosen.ndim != 1 or chosen.dtype.kind not in "iu"):
            raise TypeError("positions must be integers or a boolean array; for labels use labels=")
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise ValueError(
                f"positions run from {chosen.min()} to {chosen.max()}; there are {len(self):,} "
                f"groups: expected 0 to {len(self) - 1}. For labels use labels=."
            )
        return chosen.astype(np.int64)

    def _rows_of(self, positions: Int[np.ndarray, " W"]) -> Any:
        """Where the rows of these groups are: a slice if they are neighbours, else an index."""
        first, sizes = self.starts[positions], self.sizes[positions]
        if len(positions) and np.all(np.diff(positions) == 1):
            return slice(int(first[0]), int(first[-1] + sizes[-1]))
        return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())

    def _take(self, chosen: Int64[np.ndarray, " W"]) -> "Groups":
        rows = self._rows_of(chosen)
        return self._read_as(
            labels=self.labels[chosen],
            sizes=self.sizes[chosen],
            rows={name: read_rows(column, rows) for name, column in self.rows.items()},
            group={name: column[chosen] for name, column in self.group.items()},
            number=self.number[chosen],
            row_order=read_rows(self.row_order, rows),
        )

    def renumbered(self, labels: Any) -> "Groups":
        """Returns the same groups, numbered by their position among another data set's labels.

        A family that was fitted to the other data set finds its groups by these numbers. Labels
        that are not there get the numbers len(labels), len(labels) + 1, ...

        Args:
            labels: the other data set's labels.

        Example:
            >>> groups = Groups.from_table({"g": ["b", "n"], "y": [1, 2]}, by="g", rows="y")
            >>> groups.renumbered(["a", "b", "c"]).number.tolist()
            [1, 3]
        """
        if labels is self.labels:
            return replace(self, number=np.arange(len(self)))
        given = labels if isinstance(labels, np.ndarray) else objects(list(labels))
        there = canonical("labels", given)
        number = find(there, self.labels, f'column "{self.by}"')
        unseen = number < 0
        number = np.where(unseen, len(there) - 1 + np.cumsum(unseen), number)
        return replace(self, number=number)

    def __repr__(self) -> str:
        low, middle, high = np.quantile(self.sizes, [0, 0.5, 1])
        empty = int((self.sizes == 0).sum())
        head = (
            f'Groups by "{self.by}": {len(self):,} groups, {self.n_rows:,} rows '
            f"({low:,.0f} / {middle:,g} / {high:,.0f} per group: min / median / max"
            + (f"; {empty:,} without rows)" if empty else ")")
            + (f", in the store {self.store.folder}" if self.store else "")
        )
        if self.factors:
            return "\n".join([self._head_of_several(), *_lines("rows", self._own_rows())])
        return "\n".join([head, *_lines("rows", self.rows), *_lines("group", self.group)])

    def _own_rows(self) -> dict[str, np.ndarray]:
        """The row columns without those of levels."""
        return {
            n: c for n, c in self.rows.items() if not n.startswith("level_") or not self.factors
        }

    def _head_of_several(self) -> str:
        levels = ", ".join(f"{len(factor):,} {factor.name}" for factor in self.factors)
        notes = "".join(f"\n  note: {line}" for line in self.notes)
        return f"Groups by several factors: {levels}; {self.n_rows:,} rows{notes}"


def _lines(title: str, columns: dict[str, np.ndarray]) -> list[str]:
    """Returns a line for each column: its name, the shape of an element and its dtype."""
    wide = max((len(name) for name in columns), default=0)
    return [
        f"  {'' if i else title:<5}  {name:<{wide}}  {list(column.shape[1:])} {column.dtype}"
        for i, (name, column) in enumerate(columns.items())
    ]
