"""Tables and columns of any kind: NumPy arrays in a dict, pandas, polars, Arrow.

Only this module distinguishes the libraries, mostly by narwhals. The rest sees NumPy arrays and
a mask of nulls. pandas and polars are imported only when one of their tables or columns comes in.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int, Shaped

from ramify.data.parquet import check_names

Table = Any  # a dict of arrays, or a data frame: see `columns_of`
Raw = Any  # a column as the user gave it

_LIBRARIES = ("pandas", "polars", "pyarrow", "modin", "cudf")  # whose tables narwhals can make


class Column(NamedTuple):
    """A column as a NumPy array."""

    values: Shaped[np.ndarray, "n ..."]  # [n, ...]; where a row is null its value means nothing
    null: Bool[np.ndarray, " n"] | None  # which rows are null; None if no row is


def library_of(thing: Any) -> str:
    """Returns the name of the library that a table or column comes from."""
    return type(thing).__module__.split(".")[0]


def kind_of_table(table: Table) -> str:
    """Returns the library of a table, or "dict": results come back as the same kind."""
    return library if (library := library_of(table)) in _LIBRARIES else "dict"


def column_names(table: Table, argument: str = "table") -> list[Any]:
    """Returns the names of a table's columns; the arguments are those of `columns_of`."""
    return _names(_opened(table, argument))


def columns_of(table: Table, wanted: list[str], argument: str = "table") -> dict[str, Raw]:
    """Returns the columns with these names, as they are in the table, all of one length."""
    # `argument` is what the caller calls the table, for messages; for what may be one see `_opened`.
    opened = _opened(table, argument)
    indexed = [n for n in getattr(getattr(opened, "index", None), "names", []) if n in wanted]
    if indexed and indexed[0] not in _names(opened):
        what = f'{argument} has "{indexed[0]}" in its index and not as a column'
        raise ValueError(f"{what}: call .reset_index() on it first.")
    check_names(argument, wanted, _names(opened))
    columns = {name: opened[name] for name in wanted}
    lengths = {name: _length(name, column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f'"{name}" {size:,}' for name, size in lengths.items())
        raise ValueError(f"the columns of {argument} differ in length: {shown}; expected one.")
    return columns


def n_rows(table: Table, by: str, argument: str = "table") -> int:
    """Returns the number of rows of a table, from its column of labels."""
    return len(columns_of(table, [by], argument)[by])


def _opened(table: Table, argument: str) -> Any:
    """Returns a table that gives a column by `table[name]`."""
    if isinstance(table, Mapping) or nw.dependencies.is_into_dataframe(table):
        return table
    if hasattr(table, "__arrow_c_stream__") and not nw.dependencies.is_into_series(table):
        return pa.table(table)
    cure = "call .collect() on it first" if hasattr(table, "collect") else "convert it first"
    raise TypeError(
        f"{argument} is a {type(table).__module__}.{type(table).__name__}; expected a dict of "
        f"arrays, a pandas or polars DataFrame or an Arrow Table: {cure}."
    )


def _names(opened: Any) -> list[Any]:
    # Not by narwhals: it refuses tables with two columns of one name, even if neither is wanted.
    if isinstance(opened, Mapping):
        return list(opened)
    return list(opened.column_names if library_of(opened) == "pyarrow" else opened.columns)


def _length(name: str, raw: Raw) -> int:
    single = isinstance(raw, str | bytes) or getattr(raw, "ndim", 1) == 0
    if single or not hasattr(raw, "__len__"):
        raise ValueError(
            f'column "{name}" is a single value, {raw!r}; expected one value per row, as an array.'
        )
    return len(raw)


def as_table(kind: str, columns: dict[str, Any]) -> Table:
    """Makes a table of a kind that `kind_of_table` returned."""
    backend: Any = kind
    return columns if kind == "dict" else nw.from_dict(columns, backend=backend).to_native()


def append_columns(table: Table, columns: dict[str, np.ndarray]) -> Table:
    """Returns the table with columns [n, ...] appended, as the same kind of table."""
    # Each library's own method does it: narwhals refuses tables with two columns of one name, has no
    # RecordBatch, and makes no Arrow column of an array of two or more dimensions.
    if isinstance(table, Mapping):
        return {**table, **columns}
    if hasattr(table, "assign"):  # pandas and libraries that imitate it
        return table.assign(**{n: c if c.ndim == 1 else list(c) for n, c in columns.items()})
    if library_of(table) == "polars":
        return table.hstack(as_table("polars", columns))
    if not isinstance(table, pa.RecordBatch):
        table = pa.table(table)
    for name, column in columns.items():
        values = pa.array(np.ascontiguousarray(column).reshape(-1))
        for size in reversed(column.shape[1:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        table = table.append_column(name, values)
    return table


def missing_in(raw: Raw) -> Bool[np.ndarray, " n"]:
    """Returns which rows of a column have no value: null, None or NaN.

    Example:
        >>> missing_in(["a", None]).tolist(), missing_in(np.array([np.nan, 1.0])).tolist()
        ([False, True], [True, False])
    """
    series = as_series(raw)
    if series is not None:
        null = series.is_null()
        return np.asarray((null | series.is_nan() if series.dtype.is_float() else null).to_numpy())
    if isinstance(raw, np.ma.MaskedArray):
        return any_in_row(np.ma.getmaskarray(raw))
    values = np.asarray(raw) if not isinstance(raw, list | tuple) else objects(raw)
    if values.dtype == object:
        return np.fromiter((x is None or x != x for x in values), bool, len(values))
    return any_in_row(np.isnan(values)) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def rows_of(table: Table, names: list[str], keep: Bool[np.ndarray, " n"]) -> Table:
    """Returns some rows of the named columns, as the same kind of table."""
    opened = _opened(table, "table")
    if isinstance(opened, Mapping):
        columns = columns_of(table, names)
        return {name: _taken(raw, keep) for name, raw in columns.items()}
    if library_of(opened) == "pyarrow":
        return opened.select(names).filter(pa.array(keep))
    return nw.from_native(opened[names]).filter(keep.tolist()).to_native()


def rows_at(raw: Raw, places: Int[np.ndarray, " m"]) -> Raw:
    """Returns the values of a column at these places, as the same kind of column."""
    series = as_series(raw)
    if series is not None:
        return series[places.tolist()].to_native()
    return [raw[i] for i in places] if isinstance(raw, list | tuple) else raw[places]


def _taken(raw: Raw, keep: Bool[np.ndarray, " n"]) -> Raw:
    series = as_series(raw)
    if series is not None:
        return series.filter(keep.tolist()).to_native()
    if isinstance(raw, list | tuple):
        return [x for x, kept in zip(raw, keep, strict=True) if kept]
    return raw[keep]


def zone_of(table: Table, name: str) -> str | None:
    """Returns the time zone of a column, as Arrow writes it; None if it has no zone."""
    raw = columns_of(table, [name])[name]
    series = as_series(raw)
    if series is None:
        zone = getattr(raw[0], "tzinfo", None) if len(raw) else None
        return None if zone is None else str(zone)
    # Not by narwhals: it does not know pandas' zones with an underscore, such as America/New_York.
    return getattr(series.head(0).to_arrow().type, "tz", None)


def in_zone(kind: str, times: Shaped[np.ndarray, " n"], zone: str | None) -> Any:
    """Returns times in UTC as a column in their zone, for a table of that kind; in a dict as they are."""
    if zone is None or kind == "dict":
        return times
    backend: Any = kind
    utc = nw.new_series("", times, backend=backend).dt.replace_time_zone("UTC")
    return utc.dt.convert_time_zone(zone).to_native()


def as_series(raw: Raw) -> "nw.Series[Any] | None":
    """Returns a column of a data frame library as a narwhals Series; None for NumPy's and lists."""
    if library_of(raw) == "pyarrow":
        raw = _distinct_entries(
            raw if isinstance(raw, pa.ChunkedArray) else pa.chunked_array([raw])
        )
    elif library_of(raw) == "pandas":
        import pandas as pd

        raw = pd.Series(raw)  # it may be an Index, a Categorical or another array of pandas
    series = nw.from_native(raw, series_only=True, pass_through=True)
    return series if isinstance(series, nw.Series) else None


def _distinct_entries(raw: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose dictionary, if it has one, has distinct entries and no nulls, as pandas wants.

    Arrow allows repeated and null entries; it counts a row that refers to a null entry as not null.
    """
    if not pa.types.is_dictionary(raw.type):
        return raw
    entries = [chunk.dictionary for chunk in raw.chunks]
    kept = [own.drop_null().unique() for own in entries]
    if [*map(len, kept)] == [*map(len, entries)]:
        return raw
    look_up = lambda own, new: pc.call_function("index_in", [own], pc.SetLookupOptions(new))
    chunks = [
        pa.DictionaryArray.from_arrays(
            look_up(own, new).take(chunk.indices), new, ordered=raw.type.ordered
        )
        for chunk, own, new in zip(raw.chunks, entries, kept, strict=True)
    ]
    kind = pa.dictionary(pa.int32(), raw.type.value_type, raw.type.ordered)
    return pa.chunked_array(chunks, kind)


def read(name: str, raw: Raw) -> Column:
    """Returns the values of a column, [n, ...], and its nulls."""
    series = as_series(raw)
    if series is None:
        return _read_numpy(name, raw)
    if series.null_count() and not series.dtype.is_float():  # nulls among floats become NaN
        return Column(np.zeros(len(series)), series.is_null().to_numpy())
    unknown = isinstance(series.dtype, nw.Unknown) and series.implementation.is_pyarrow()
    if series.dtype.is_nested() or unknown:
        return _read_nested(name, series.to_arrow())
    return _from_array(name, series.to_numpy())


def _read_nested(name: str, raw: Raw) -> Column:
    """Reads Arrow lists of one length, which may nest, and tensors; narwhals gives objects for them."""
    raw = raw.combine_chunks() if isinstance(raw, pa.ChunkedArray) else raw
    if isinstance(raw.type, pa.FixedShapeTensorType):
        return Column(raw.to_numpy_ndarray(), None)
    fixed = pa.types.is_fixed_size_list(raw.type)
    if not (fixed or pa.types.is_list(raw.type) or pa.types.is_large_list(raw.type)):
        return _from_array(name, raw.to_numpy(zero_copy_only=False))
    shape = len(raw), raw.type.list_size if fixed else _list_length(name, raw)
    inner = read(name, raw.flatten())
    null = None if inner.null is None else any_in_row(inner.null.reshape(shape))
    return Column(inner.values.reshape(shape + inner.values.shape[1:]), null)


def _read_numpy(name: str, raw: Raw) -> Column:
    if isinstance(raw, np.ma.MaskedArray):
        return Column(np.asarray(raw.data), any_in_row(np.ma.getmaskarray(raw)))
    try:
        values = np.asarray(raw)
    except ValueError:  # lists of different lengths
        values = objects(raw)
    return _from_array(name, values)


def _from_array(name: str, values: Shaped[np.ndarray, "n ..."]) -> Column:
    is_objects = values.dtype == object and values.ndim == 1
    return _stack(name, values) if is_objects else Column(values, None)


def _list_length(name: str, raw: Raw) -> int:
    lengths = np.asarray(raw.value_lengths())
    _check_same(name, [(int(size),) for size in np.unique(lengths)], lambda s: lengths == s[0])
    return int(lengths[0]) if len(lengths) else 0


def objects(items: Any) -> Shaped[np.ndarray, " n"]:
    """Returns items as a one-dimensional array of Python objects, even if they are sequences."""
    out = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        out[i] = item
    return out


def _stack(name: str, items: Shaped[np.ndarray, " n"]) -> Column:
    """Turns Python objects (numbers, lists, arrays) into one array."""
    null = np.fromiter((item is None for item in items), bool, len(items))
    if null.any():
        return Column(np.zeros(len(items)), null)
    if len(items) == 0:
        return Column(np.zeros(0), None)
    shapes = [np.shape(item) for item in items]
    _check_same(name, list(dict.fromkeys(shapes)), lambda s: np.array([t == s for t in shapes]))
    return Column(np.array(items.tolist() if shapes[0] == () else list(items)), None)


def any_in_row(mask: Bool[np.ndarray, "n ..."]) -> Bool[np.ndarray, " n"]:
    """Returns which rows have a true entry."""
    return np.asarray(mask.any(axis=tuple(range(1, mask.ndim))))


def _check_same(name: str, shapes: list[tuple[int, ...]], rows_with: Any) -> None:
    if len(shapes) > 1:
        first, other = (int(np.flatnonzero(rows_with(shape))[0]) for shape in shapes[:2])
        raise ValueError(
            f'the rows of column "{name}" differ in shape: row {first} has {shapes[0]}, '
            f"row {other} has {shapes[1]}; expected one shape for all rows. Pad or cut them to "
            "one length, or, if their elements are observations of their own, give each its row."
        )
