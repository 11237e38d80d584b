"""Columns of Parquet files as numbers: text and categories as the numbers of their levels."""

import operator
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramify.data.building import ReadColumn
from ramify.data.labels import Factor
from ramify.frontends.formula.frame import is_sorted_text, read_frame


def complete(data: Any, names: list[str]) -> Any:
    """The rows of a dataset in which every column has a value."""
    return data.filter(reduce(operator.and_, (has_value(data, name) for name in names)))


def has_value(data: Any, name: str) -> Any:
    """An expression: whether a column has a value, neither null nor NaN."""
    field: Any = pc.field(name)
    number = pa.types.is_floating(data.schema.field(name).type)
    return field.is_valid() & ~field.is_nan() if number else field.is_valid()


def reader(data: Any, names: list[str], source: Any) -> tuple[ReadColumn, dict[str, Any]]:
    """How columns are read as numbers, and the levels of those that hold text or categories."""
    levels, text, sets = {}, [], {}
    for name in names:
        kind = data.schema.field(name).type
        if not (_is_text(kind) or pa.types.is_dictionary(kind)):
            continue
        seen = {name: _distinct(data, name)}
        what = f"the different values of {source}"
        frame = read_frame(seen, [name], what)
        levels[name] = [
            x.item() if isinstance(x, np.generic) else x for x in frame[name].cat.categories
        ]
        text += [name] if is_sorted_text(seen, name) else []
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        sets[name] = pa.array(levels[name], plain)

    def read(name: str, column: Any, factor: Factor) -> np.ndarray:
        if name not in levels:
            return np.asarray(read_frame({name: column}, [name])[name])
        plain = column.cast(sets[name].type) if pa.types.is_dictionary(column.type) else column
        found = pc.call_function("index_in", [plain], pc.SetLookupOptions(sets[name]))
        if found.null_count:  # says which rows
            read_frame({name: column}, [name])
        return np.asarray(found, np.int32)

    return read, {"levels": levels, "sorted_text": text}


def _is_text(kind: pa.DataType) -> bool:
    kinds = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(is_one(kind) for is_one in kinds)


def _distinct(data: Any, name: str) -> pa.ChunkedArray:
    """The different values of a column; a dictionary keeps its order."""
    found: pa.ChunkedArray | None = None
    for batch in data.to_batches(columns=[name]):
        new = batch.column(name).drop_null().unique()
        if not len(new):
            continue
        both = pa.chunked_array([*(found.chunks if found is not None else []), new])
        both = both.unify_dictionaries() if pa.types.is_dictionary(new.type) else both
        found = pa.chunked_array([both.combine_chunks().unique()])
    return pa.chunked_array([], data.schema.field(name).type) if found is None else found
