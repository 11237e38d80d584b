"""Raw columns, whoever made them: NumPy, a list, a pandas or polars Series, an Arrow array.

Only this file knows the libraries apart. The rest of the room sees NumPy arrays, and where the
missing values are. Nothing is imported until a column of that library turns up.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

Table = Any  # what a user calls a table: see `columns_of`
Raw = Any  # a column as the user gave it


class Column(NamedTuple):
    """One column in NumPy's hands.

    Attributes:
        values: [n, ...]; what stands at a null is of no meaning.
        null: which rows hold a null, or nothing when none does.
    """

    values: Shaped[np.ndarray, "n ..."]
    null: Bool[np.ndarray, " n"] | None


def made_by(thing: Any) -> str:
    """Returns the name of the library that a table or column comes from."""
    return type(thing).__module__.split(".")[0]


def columns_of(table: Table, wanted: list[str], argument: str = "table") -> dict[str, Raw]:
    """Returns the raw columns with these names.

    Args:
        table: a dict of arrays, a pandas or polars DataFrame, an Arrow Table or RecordBatch, or
            anything else that speaks the Arrow stream protocol.
        wanted: names of columns.
        argument: what the caller calls the table, for messages.
    """
    names, get = _open(table, argument)
    for name in wanted:
        if names.count(name) != 1:
            raise ValueError(_not_one(name, names, argument))
    return {name: get(name) for name in wanted}


def _open(table: Table, argument: str) -> tuple[list[Any], Any]:
    """Returns the names of all columns and a function from a name to its raw column."""
    if isinstance(table, Mapping):
        return list(table), table.__getitem__
    if made_by(table) == "pandas" and hasattr(table, "columns"):
        return list(table.columns), table.__getitem__
    if made_by(table) == "polars" and hasattr(table, "get_column"):
        return list(table.columns), table.get_column
    if made_by(table) == "pyarrow" and hasattr(table, "column_names"):
        return list(table.column_names), table.column
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        return _open(pa.table(table), argument)
    cure = "call .collect() on it first" if hasattr(table, "collect") else "convert it first"
    raise TypeError(
        f"{argument} is a {type(table).__module__}.{type(table).__name__}; expected a dict of "
        f"arrays, a pandas or polars DataFrame or an Arrow Table: {cure}."
    )


def _not_one(name: str, names: list[Any], argument: str) -> str:
    if name in names:
        return f'{argument} has {names.count(name)} columns named "{name}": rename all but one.'
    texts = [str(other) for other in names]
    near = get_close_matches(str(name), texts, n=3)
    hint = f" Did you mean {' or '.join(quoted(near))}?" if near else ""
    shown = ", ".join(quoted(texts[:12])) + (", ..." if len(texts) > 12 else "")
    return f'{argument} has no column "{name}"; its columns are {shown or "none"}.{hint}'


def quoted(names: list[str]) -> list[str]:
    """Returns each name in double quotes."""
    return [f'"{name}"' for name in names]


def length(name: str, raw: Raw) -> int:
    """Returns the number of rows of a raw column."""
    single = isinstance(raw, str | bytes) or getattr(raw, "ndim", 1) == 0
    if single or not hasattr(raw, "__len__"):
        raise ValueError(
            f'column "{name}" is a single value, {raw!r}; expected one value per row, as an array.'
        )
    return len(raw)


def n_rows(table: Table, by: str, argument: str = "table") -> int:
    """Returns the number of rows of a table, told from its column of labels."""
    return length(by, columns_of(table, [by], argument)[by])


def read(name: str, raw: Raw) -> Column:
    """Returns a raw column's values, with any trailing shape, and its nulls."""
    if made_by(raw) == "polars":
        raw = raw.to_arrow()
    if made_by(raw) == "pyarrow":
        return _read_arrow(name, raw)
    if made_by(raw) == "pandas":
        return _read_pandas(name, raw)
    return _read_numpy(name, raw)


def _read_numpy(name: str, raw: Raw) -> Column:
    if isinstance(raw, np.ma.MaskedArray):
        return Column(np.asarray(raw.data), any_in_row(np.ma.getmaskarray(raw)))
    try:
        values = np.asarray(raw)
    except ValueError:  # lists of several lengths
        values = objects(raw)
    return _stack(name, values) if values.dtype == object and values.ndim == 1 else _plain(values)


def _plain(values: Shaped[np.ndarray, "n ..."]) -> Column:
    return Column(values, None)


def _read_pandas(name: str, raw: Raw) -> Column:
    # pandas before 3 gives objects for its nullable numbers unless told otherwise.
    dtype = np.dtype(getattr(raw.dtype, "numpy_dtype", object))
    if dtype.kind == "f":
        return _plain(raw.to_numpy(dtype=dtype, na_value=np.nan))
    null = np.asarray(raw.isna())
    if null.any() and raw.dtype.kind != "f":
        return Column(np.zeros(len(raw)), null)
    values = np.asarray(raw.to_numpy(dtype=dtype) if dtype.kind in "biu" else raw.to_numpy())
    return _stack(name, values) if values.dtype == object else _plain(values)


def _read_arrow(name: str, raw: Raw) -> Column:
    import pyarrow as pa

    if isinstance(raw, pa.ChunkedArray):
        raw = raw.combine_chunks()
    kind = raw.type
    if raw.null_count and not pa.types.is_floating(kind):  # in floats, Arrow makes them NaN
        return Column(np.zeros(len(raw)), np.asarray(raw.is_null()))
    if isinstance(kind, pa.FixedShapeTensorType):
        return _plain(raw.to_numpy_ndarray())
    if pa.types.is_dictionary(kind):
        return _read_arrow(name, raw.cast(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return _read_lists(name, raw, kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _read_lists(name, raw, _list_length(name, raw))
    values = raw.to_numpy(zero_copy_only=False)
    return _stack(name, values) if values.dtype == object else _plain(values)


def _read_lists(name: str, raw: Raw, size: int) -> Column:
    """Reads a list column whose lists all have `size` entries; lists may nest."""
    inner = _read_arrow(name, raw.flatten())
    shape = (len(raw), size)
    null = None if inner.null is None else any_in_row(inner.null.reshape(shape))
    return Column(inner.values.reshape(shape + inner.values.shape[1:]), null)


def _list_length(name: str, raw: Raw) -> int:
    lengths = np.asarray(raw.value_lengths())
    _check_same(name, [(int(size),) for size in np.unique(lengths)], lambda s: lengths == s[0])
    return int(lengths[0]) if len(lengths) else 0


def objects(items: Any) -> Shaped[np.ndarray, " n"]:
    """Returns items as a one-dimensional array of Python objects, whatever they are."""
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
        return _plain(np.zeros(0))
    shapes = [np.shape(item) for item in items]
    _check_same(name, list(dict.fromkeys(shapes)), lambda s: np.array([t == s for t in shapes]))
    return _plain(np.array(items.tolist() if shapes[0] == () else list(items)))


def any_in_row(mask: Bool[np.ndarray, "n ..."]) -> Bool[np.ndarray, " n"]:
    """Returns the rows in which anything is true."""
    return np.asarray(mask.any(axis=tuple(range(1, mask.ndim))))


def _check_same(name: str, shapes: list[tuple[int, ...]], rows_with: Any) -> None:
    if len(shapes) > 1:
        first, other = (int(np.flatnonzero(rows_with(shape))[0]) for shape in shapes[:2])
        raise ValueError(
            f'the rows of column "{name}" differ in shape: row {first} has {shapes[0]}, '
            f"row {other} has {shapes[1]}; expected one shape for all rows. Pad or cut them to "
            "one length, or, if their elements are observations of their own, give each its row."
        )


def encode(raw: Raw) -> tuple[Int[np.ndarray, " n"], Shaped[np.ndarray, " U"]]:
    """Encodes a column of labels: a code per row (-1 for null) and what each code stands for.

    The values come in no particular order, and some may be unused or equal.
    """
    if made_by(raw) == "polars":
        raw = raw.to_arrow()
    if made_by(raw) == "pyarrow":
        return _encode_arrow(raw)
    if made_by(raw) == "pandas":
        code, values = raw.factorize()
        aware = getattr(values, "tz", None) is not None
        return code, np.asarray(values.tz_convert(None) if aware else values)
    # A list goes item by item: NumPy would make strings of [1, "a"].
    values = objects(raw) if isinstance(raw, list | tuple) else np.asarray(raw)
    code, values = _encode_objects(values) if values.dtype.kind in "OT" else _encode_numpy(values)
    return np.where(np.ma.getmaskarray(raw), -1, code) if np.ma.isMA(raw) else code, values


def _encode_arrow(raw: Raw) -> tuple[Int[np.ndarray, " n"], Shaped[np.ndarray, " U"]]:
    import pyarrow as pa

    chunked = raw if isinstance(raw, pa.ChunkedArray) else pa.chunked_array([raw])
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    chunks = chunked.dictionary_encode().unify_dictionaries().chunks
    codes = [np.asarray(chunk.indices.fill_null(-1)) for chunk in chunks]
    if not codes:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(codes), chunks[0].dictionary.to_numpy(zero_copy_only=False)


def _encode_objects(
    items: Shaped[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Shaped[np.ndarray, " U"]]:
    seen: dict[Any, int] = {}
    # Keyed by type as well: 1, True and 1.0 are equal, and which of them it was matters later.
    codes = (
        -1 if _is_null(item) else seen.setdefault((type(item), item), len(seen)) for item in items
    )
    code = np.fromiter(codes, np.int64, len(items))
    return code, objects([item for _, item in seen])


def _is_null(item: Any) -> bool:
    if isinstance(item, float | np.generic):
        return bool(item != item)
    return item is None or type(item).__name__ in ("NAType", "NaTType")


def _encode_numpy(
    values: Shaped[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Shaped[np.ndarray, " U"]]:
    """Encodes numbers, strings and times; by hashing where Arrow can, as sorting is far slower."""
    import pyarrow as pa

    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if values.dtype.kind in "iuU":
        return _encode_arrow(pa.array(values))
    if values.dtype.kind in "mM":
        code, ticks = _encode_arrow(pa.array(values.view(np.int64)))
        distinct = ticks.view(values.dtype)
        return np.where(np.isnat(distinct)[code], -1, code), distinct
    distinct, code = np.unique(values, return_inverse=True)
    if distinct.dtype.kind == "f":
        code = np.where(np.isnan(distinct)[code], -1, code)
    return code, distinct
