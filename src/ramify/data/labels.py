"""Group labels of any dtype: distinct labels sorted, a code per row, and looking labels up."""

import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int, Shaped

from ramify.data.tables import Raw, as_series, objects

_KINDS = {
    "b": "booleans",
    "i": "integers",
    "u": "integers",
    "f": "floating-point numbers",
    "c": "complex numbers",
    "U": "strings",
    "S": "bytes",
    "M": "timestamps",
    "m": "durations",
    "O": "Python objects",
}

Codes = Int[np.ndarray, " n"]  # of each row; -1 for null
Distinct = Shaped[np.ndarray, " U"]  # the label of each code, in no particular order
Labels = Shaped[np.ndarray, " N"]  # of the groups


class Factor(NamedTuple):
    """A column of labels, encoded."""

    labels: Labels  # distinct and sorted
    code: Int[np.ndarray, " n"]  # the position in `labels` of each row's label


def kind_of(values: np.ndarray) -> str:
    """Returns what an array holds, in words."""
    return _KINDS.get(values.dtype.kind, str(values.dtype))


def show(label: Any) -> str:
    """Returns a label as an error message writes it: strings quoted, the rest plain."""
    return f'"{label}"' if isinstance(label, str | bytes) else str(label)


def factorize(name: str, raw: Raw) -> Factor:
    """Encodes a column of labels; only the distinct ones are sorted. Times become UTC."""
    if getattr(raw, "ndim", 1) > 1:
        raise ValueError(f'column "{name}" has shape {raw.shape}; expected one label per row.')
    try:
        code, values = _encode(raw)
    except (TypeError, NotImplementedError) as error:
        raise TypeError(
            f'column "{name}" cannot hold labels: {error}. Expected strings, integers, '
            "timestamps or booleans."
        ) from error
    _check_nulls(name, code)
    used = np.bincount(code, minlength=len(values)) > 0
    values = canonical(f'column "{name}"', values[used])
    try:
        labels, rank = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f'the labels in column "{name}" cannot be put in order: {error}. Convert them to '
            "strings, integers or timestamps."
        ) from error
    place = rank.astype(np.int64)[np.cumsum(used) - 1]
    same = np.array_equal(place, np.arange(len(place)))  # the usual case of rows sorted by integers
    return Factor(labels, code.astype(np.int64, copy=False) if same else place[code])


def _encode(raw: Raw) -> tuple[Codes, Distinct]:
    """Returns a code for each row, and the label of each; some may be unused, or equal to others."""
    series = as_series(raw)
    if series is not None and series.implementation.is_pandas_like():
        native = series.to_native()
        if native.dtype == object and any(_is_aware(item) for item in native):
            return _encode_objects(native.to_numpy())
        code, values = native.factorize()  # Arrow has no type for periods, or tuples
        aware = getattr(values, "tz", None) is not None
        return code, np.asarray(values.tz_convert(None) if aware else values)
    if series is not None:
        return _encode_arrow(series.to_arrow() if series.implementation.is_polars() else raw)
    # Lists are encoded item by item: NumPy would turn [1, "a"] into strings.
    values = objects(raw) if isinstance(raw, list | tuple) else np.asarray(raw)
    code, values = _encode_objects(values) if values.dtype.kind in "OT" else _encode_numpy(values)
    return np.where(np.ma.getmaskarray(raw), -1, code) if np.ma.isMA(raw) else code, values


def _encode_arrow(raw: Raw) -> tuple[Codes, Distinct]:
    chunked = raw if isinstance(raw, pa.ChunkedArray) else pa.chunked_array([raw])
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    chunks = chunked.dictionary_encode().unify_dictionaries().chunks
    codes = [np.asarray(chunk.indices.fill_null(-1)) for chunk in chunks]
    if not codes:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(codes), chunks[0].dictionary.to_numpy(zero_copy_only=False)


def _encode_objects(items: Shaped[np.ndarray, " n"]) -> tuple[Codes, Distinct]:
    seen: dict[Any, int] = {}
    # The key includes the type, since 1, True and 1.0 are equal but not the same label. Python compares
    # times of one zone by their clock, which shows two hours of a year twice.
    own = lambda item: item.astimezone(datetime.UTC) if _is_aware(item) else item
    new = lambda item: seen.setdefault((type(item), own(item)), len(seen))
    code = np.array([-1 if _is_null(item) else new(item) for item in items], np.int64)
    return code, objects([item for _, item in seen])


def _is_aware(item: Any) -> bool:
    return isinstance(item, datetime.datetime) and item.tzinfo is not None


def _is_null(item: Any) -> bool:
    if isinstance(item, float | np.generic):
        return bool(item != item)
    return item is None or type(item).__name__ in ("NAType", "NaTType")


def _encode_numpy(values: Shaped[np.ndarray, " n"]) -> tuple[Codes, Distinct]:
    """Encodes numbers, strings and times; where Arrow can hash them, since sorting is far slower."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    if values.dtype.kind in "iu" and len(values) and (values[1:] >= values[:-1]).all():
        first = np.append(True, values[1:] != values[:-1])  # rows in the order of their groups
        return np.cumsum(first) - 1, values[first]
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


def _check_nulls(name: str, code: Codes) -> None:
    rows = np.flatnonzero(code < 0)
    if len(rows):
        first = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise ValueError(
            f'column "{name}" says which group a row belongs to, and is null in {len(rows):,} of '
            f"{len(code):,} rows (rows {first}): drop these rows or give them a label."
        )


def canonical(where: str, values: Distinct) -> Distinct:
    """Returns labels in the dtype that labels of their kind have; `where` is for messages."""
    if values.dtype.kind in "OT":
        values = _from_objects(where, values)
    if values.dtype.kind in "iu" and len(values):
        fits = values.dtype.kind == "i" or values.max() <= np.iinfo(np.int64).max
        return values.astype(np.int64) if fits else values
    if values.dtype.kind in "fcV" and len(values):
        raise TypeError(
            f"{where} holds {kind_of(values)} ({values.dtype}, the first {values[0]}), which do "
            "not make good labels: cast them to integers or strings. (Integers with missing values "
            "often arrive as floating-point numbers: drop those rows first.)"
        )
    return values


def _from_objects(where: str, values: Distinct) -> Distinct:
    types = {type(value) for value in values}
    for family, dtype in ((str, np.str_), ((bool, np.bool_), np.bool_), ((int, np.integer), None)):
        if all(issubclass(kind, family) for kind in types) and types:
            if dtype is np.str_:
                _check_last_character(where, values)
            # Left to itself, NumPy makes float64 of integers on both sides of 2 ** 63.
            large = dtype is None and min(values) >= 0 and 2**63 <= max(values) < 2**64
            found = np.array(values.tolist(), dtype=np.uint64 if large else dtype)
            if found.dtype == object:  # integers of more than 64 bits
                _check_savable(where, values)
            return found
    zones = [getattr(value, "tzinfo", None) is not None for value in values]
    naive = not any(zones)
    if types == {datetime.datetime} and not naive:
        if not all(zones):
            both = "has times with and without a time zone"
            raise TypeError(f"{where} {both}: give all of them a zone, or none.")
        utc = [value.astimezone(datetime.UTC).replace(tzinfo=None) for value in values]
        return np.array(utc, dtype="datetime64[us]")
    if types in ({datetime.date}, {datetime.datetime}, {np.datetime64}) and naive:
        return np.array(values.tolist(), dtype="datetime64")
    if len(types) > 1:
        raise TypeError(
            f"{where} mixes labels of types {' and '.join(sorted(t.__name__ for t in types))}; "
            "expected one type: convert them, for example all to strings."
        )
    if types == {float}:
        return np.array(values.tolist())
    _check_savable(where, values)
    return values


def _check_savable(where: str, values: Distinct) -> None:
    """Raises if labels would not be the same after a fit was saved and loaded."""
    try:
        same = pa.array(values.tolist()).to_pylist() == values.tolist()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        same = False
    if not same:
        raise TypeError(
            f"{where} holds labels of type {type(values[0]).__name__} (the first {show(values[0])}), "
            "which can't be saved with a fit: convert them to strings, integers or timestamps."
        )


def _check_last_character(where: str, values: Distinct) -> None:
    """Raises if a text ends in a zero character, which NumPy drops: two labels would become one."""
    ends = [value for value in values if value.endswith("\0")]
    if ends:
        raise ValueError(
            f"{where} has labels that end in a zero character, the first {ends[0]!r}: strip it, or "
            "write it otherwise."
        )


def find(labels: Labels, wanted: Any, where: str = "labels") -> Int[np.ndarray, " W"]:
    """Returns the position of each wanted label, -1 if it is not there; `where` is for messages."""
    asked = _as_labels(labels, wanted, where)
    if not len(labels) or not len(asked):
        return np.full(len(asked), -1)
    if labels.dtype == object:
        place = {label: i for i, label in enumerate(labels)}
        return np.array([place.get(label, -1) for label in asked], dtype=np.int64)
    # NumPy compares int64 with uint64 as float64, which rounds large ids.
    both_integers = labels.dtype.kind in "iu" and asked.dtype.kind in "iu"
    same = asked.astype(labels.dtype) if both_integers else asked
    inside = (same < 0) == (asked < 0) if both_integers else True  # not wrapped around
    order = np.argsort(labels, kind="stable")
    at = np.searchsorted(labels, same, sorter=order)
    place = order[np.minimum(at, len(labels) - 1)]
    return np.where((labels[place] == same) & inside, place, -1)


def _as_labels(labels: Labels, wanted: Any, where: str) -> Shaped[np.ndarray, " W"]:
    """Returns the wanted labels in the kind of dtype that `labels` have."""
    if isinstance(wanted, str | bytes) or not hasattr(wanted, "__len__"):
        raise TypeError(f"{where} is {wanted!r}; expected a list of labels.")
    asked = wanted if isinstance(wanted, np.ndarray) else objects(list(wanted))
    if labels.dtype.kind == "M" and asked.dtype.kind in "OU":
        # In the unit of the labels or a finer one, so that no time is rounded to a label.
        unit = np.promote_types(labels.dtype, "datetime64[us]")
        return np.array(list(asked), dtype=unit)
    asked = canonical(where, asked)
    if len(asked) and len(labels) and kind_of(asked) != kind_of(labels):
        raise TypeError(
            f"{where} holds {kind_of(asked)} and the data's labels are {kind_of(labels)} (the "
            f"first {show(labels[0])}): convert one to the other."
        )
    return asked
