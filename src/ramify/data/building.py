"""Builds a store from Parquet files: reads and checks all rows, sorts them, and writes their columns."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramify.data.atomic import locked
from ramify.data.labels import Factor, canonical, show
from ramify.data.reading import read_numbers
from ramify.data.sorting import BATCH, sorted_rows
from ramify.data.store import open_store, read_store, write_labels
from ramify.data.tables import any_in_row
from ramify.data.writing import ColumnFiles, Told, build, check_folder, sync

ROOM = 2.2  # times the bytes of the rows: the store, and what the sort writes meanwhile

# Reads a column of a batch as numbers; the last argument is for messages.
ReadColumn = Callable[[str, Any, Factor], np.ndarray]


class Plan(NamedTuple):
    """The source of a store and how it is read."""

    data: Any  # an open Arrow dataset
    source: Any  # what the user calls it
    by: str
    rows: list[str]
    group: list[str]
    # Returns the reader of columns and fields for store.json; called only when a store is built.
    prepare: Callable[[], tuple[ReadColumn, dict[str, Any]]] = lambda: (read_numbers, {})
    read_by: str = "numbers"  # a name for it

    def said(self) -> dict[str, Any]:
        """A store is used again only if all of this is unchanged."""
        found = self.data.filesystem.get_file_info(self.data.files)
        files = [[info.path, info.size, info.mtime_ns] for info in found]
        kinds = [str(self.data.schema.field(name).type) for name in self.names]
        own = {"by": self.by, "rows": self.rows, "groups": self.group}
        own |= {"read_by": self.read_by}
        return {**own, "files": files, "types": kinds}

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [self.by, *self.rows, *self.group]


def stored(plan: Plan, folder: Path) -> dict[str, Any]:
    """The fields of a Groups from the store in a folder; builds the store if it is not there."""
    check_folder(folder)
    with locked(folder):  # waits for another process that builds the same store
        found, said = read_store(folder), plan.said()
        if found is None or any(found.get(name) != said[name] for name in said):
            _build(plan, said, folder)
        return open_store(folder)


def _build(plan: Plan, said: dict[str, Any], folder: Path) -> None:
    count = plan.data.count_rows()
    if not count:
        raise ValueError(f"{plan.source} has no rows: expected one for each observation.")
    row = sum(_width(plan.data.schema.field(name).type) for name in plan.names) + 16
    what = f"to sort the {count:,} rows of {plan.source} by {plan.by!r}"
    told = Told(what, count, ROOM * row * count, folder)

    def write(own: Path) -> dict[str, Any]:
        read, kept = plan.prepare()
        about = _write(plan, read, count, own, told)
        if plan.said() != said:
            raise ValueError(f"{plan.source} was changed while it was being read: build it again.")
        return {**kept, **about, "n_rows": count}

    build(folder, said, write)
    told.end()


def _write(plan: Plan, read: ReadColumn, count: int, own: Path, told: Told) -> dict[str, Any]:
    """Writes the files of a build; returns what store.json says of them."""
    shapes: dict[str, tuple[int, ...]] = {}  # of the elements of each column
    batches = _checked(plan, read, told, shapes)
    first = next(batches)
    (own / "sort").mkdir()

    def again() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    with closing(_Writer(plan, count, own, shapes)) as writer:
        for batch in sorted_rows(again, first.schema, own / "sort"):
            writer.add(batch)
            told.at("written", writer.written)
    shutil.rmtree(own / "sort")
    return writer.end(first.schema.field("label").type)


def _checked(
    plan: Plan, read: ReadColumn, told: Told, shapes: dict[str, tuple[int, ...]]
) -> Iterator[pa.RecordBatch]:
    """All rows in their order, checked and in the types that they are kept in."""
    start = 0
    for batch in plan.data.to_batches(columns=plan.names, batch_size=BATCH):
        if not batch.num_rows:
            continue
        labels = _labels(plan.by, batch.column(plan.by), start)
        factor: Any = Factor(labels, np.arange(len(labels)))  # for messages
        columns = {"label": labels, "row": np.arange(start, start + len(labels))}
        for k, name in enumerate(plan.names[1:]):
            try:
                values = read(name, batch.column(name), factor)
            except (ValueError, TypeError) as error:
                where = f"Row 0 here is row {start:,} of {plan.source}."
                raise type(error)(f"{error} {where}" if start else str(error)) from None
            if shapes.setdefault(name, values.shape[1:]) != values.shape[1:]:
                raise ValueError(
                    f'column "{name}" has elements of shape {list(shapes[name])} and, from row '
                    f"{start:,} on, of {list(values.shape[1:])}; expected one shape."
                )
            columns[f"c{k}"] = _flat(values)
        start += len(labels)
        told.at("read", start)
        yield pa.record_batch(columns)


def _labels(by: str, column: Any, start: int) -> pa.Array:
    """A column of labels in its plain type."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = start + int(np.argmax(np.asarray(column.is_null())))
        raise ValueError(
            f'column "{by}" says which group a row belongs to, and is null in row {row:,}: drop such '
            "rows or give them a label."
        )
    canonical(f'column "{by}"', column[:1].to_numpy(zero_copy_only=False))  # refuses some types
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC")).cast(
            pa.timestamp(column.type.unit)
        )
    return column


def _flat(values: np.ndarray) -> pa.Array:
    """Values [n, ...] as an Arrow column of n elements."""
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(values.reshape(-1)), int(np.prod(values.shape[1:]))
    )


class _Writer:
    """Takes rows sorted by group, and writes their columns and those of the groups."""

    def __init__(self, plan: Plan, count: int, own: Path, shapes: dict[str, tuple[int, ...]]):
        self._plan, self._count, self._own, self._shapes = plan, count, own, shapes
        self.written, self._files = 0, ColumnFiles(own, count)
        self._labels, self._starts = [], []
        self._group: dict[str, list[np.ndarray]] = {name: [] for name in plan.group}

    def add(self, batch: pa.RecordBatch) -> None:
        """The next rows."""
        labels = batch.column("label")
        before = self._labels[-1][-1:] if self._labels else labels[:0]
        both = pa.concat_arrays([before, labels])
        new = np.asarray(pc.call_function("not_equal", [both[1:], both[:-1]]))
        new = new if len(before) else np.concatenate([[True], new])
        starts = np.flatnonzero(new)
        self._files.add("row_order", np.asarray(batch.column("row")))
        for k, name in enumerate(self._plan.names[1:]):
            values = _values(batch.column(f"c{k}")).reshape(-1, *self._shapes[name])
            if name in self._plan.rows:
                self._files.add(f"row-{k}", values)
            else:
                self._group[name].append(self._first(name, values, new, labels))
        if len(starts):
            self._labels.append(labels.take(pa.array(starts)))
            self._starts.append(self.written + starts)
        self._files.checksum.update(np.ascontiguousarray(self.written + starts).data)
        self.written += len(labels)

    def _first(self, name: str, values: Any, new: np.ndarray, labels: pa.Array) -> np.ndarray:
        """The value of each group that begins here; raises where one varies within a group."""
        known = next((part[-1:] for part in reversed(self._group[name]) if len(part)), values[:0])
        each = np.concatenate([known, values[new]])
        differs = any_in_row(values != each[np.cumsum(new) - 1 + len(known)])
        if differs.any():
            row = int(differs.argmax())
            raise ValueError(
                f'group column "{name}" must have one value per group; in group '
                f"{show(labels[row].as_py())} it has {values[row]} and another one. If it varies from "
                "row to row, name it in rows= instead."
            )
        return values[new]

    def close(self) -> None:
        """Closes the files of rows."""
        self._files.close()

    def end(self, kind: pa.DataType) -> dict[str, Any]:
        """Writes sizes, group columns and labels; returns what store.json says of the files."""
        starts = np.concatenate(self._starts)
        np.save(self._own / "sizes.npy", np.diff(starts, append=self._count))
        for k, name in enumerate(self._plan.group):
            column = np.concatenate(self._group[name])
            np.save(self._own / f"group-{k}.npy", column)
            self._files.checksum.update(column.data)
        labels = pa.concat_arrays(self._labels)
        write_labels(self._own / "labels.arrow", labels)
        for part in labels.buffers():
            self._files.checksum.update(b"" if part is None else part)
        sync(self._own)
        source = self._plan.data.schema.field(self._plan.by).type
        times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        zoned = bool(getattr(source, "tz", None)) if times else None
        return {
            "zoned": zoned,
            "content": self._files.checksum.hexdigest(),
            "n_groups": len(starts),
        }


def _values(column: Any) -> np.ndarray:
    inner = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    return inner.to_numpy(zero_copy_only=False)


def _width(kind: pa.DataType) -> float:
    """Bytes of a value; a guess for text and lists."""
    try:
        return kind.bit_width / 8
    except ValueError:
        return 24.0
