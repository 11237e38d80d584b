"""A user's columns as `formulae` needs them: a pandas frame of numbers and ordered categories."""

from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from jaxtyping import Bool, Shaped

from ramify.data.tables import Raw, as_series, columns_of, objects

_SHOWN = 5  # rows named in a message
_MANY = 20  # levels: with fewer they may be names, such as the grades 1 to 12 and "K"


def read_frame(table: Any, names: list[str], what: str = "table", n: int | None = None) -> Any:
    """Reads the named columns into a pandas DataFrame of numbers, booleans and ordered categories.

    `n` is its number of rows, needed if no columns are named.
    """
    import pandas as pd

    found = {name: _column(name, raw, what) for name, raw in columns_of(table, names, what).items()}
    return pd.DataFrame(found, index=None if n is None else range(n))


def is_sorted_text(table: Any, name: str, what: str = "table") -> bool:
    """Whether a column's levels are sorted as text because no order was declared."""
    series, declared = _as_pandas(name, columns_of(table, [name], what)[name])
    categories = getattr(series.dtype, "categories", None)
    kind = series.dtype if categories is None else categories.dtype
    return kind.kind not in "biuf" and (categories is None or not declared)


def is_category(series: Any) -> bool:
    """Whether a pandas Series is categorical."""
    return hasattr(series.dtype, "categories")


def rows_in_words(bad: Bool[np.ndarray, " n"]) -> str:
    """Which rows: `row 3`, `rows 1, 4 and 17`, `1,204 rows (1, 4, 17, 20, 21, ...)`."""
    where = np.flatnonzero(bad)
    if len(where) == 1:
        return f"row {where[0]}"
    if len(where) <= _SHOWN:
        return f"rows {', '.join(map(str, where[:-1]))} and {where[-1]}"
    return f"{len(where):,} rows ({', '.join(map(str, where[:_SHOWN]))}, ...)"


def _column(name: str, raw: Raw, what: str) -> Any:
    series, declared = _as_pandas(name, raw)
    title, missing = f'column "{name}" of {what}', np.asarray(series.isna())
    if missing.any():
        cure = (
            'or pass missing="drop" to leave such rows out'
            if what == "table"
            else "or leave it out"
        )
        said = f"{title} has no value in {rows_in_words(missing)}"
        raise ValueError(f"{said}: impute it, {cure}.")
    if is_category(series):
        _check_one_type(title, series.cat.categories)
        return _categories(series, declared)
    if series.dtype.kind in "biuf":
        values = np.asarray(series)
        if values.dtype.kind == "f" and np.isinf(values).any():
            where = rows_in_words(np.isinf(values))
            expected = "expected finite numbers: drop or replace them"
            raise ValueError(f"{title} is infinite in {where}; {expected}.")
        return values
    _check_one_type(title, series.iloc[:0] if series.dtype.kind in "mM" else series.unique())
    first = series.iloc[0] if len(series) else ""
    if series.dtype.kind in "mM" or not isinstance(first, str):
        raise TypeError(
            f"{title} holds {type(first).__name__} values; expected numbers, text or categories: "
            "convert it, for example dates to days since some day."
        )
    categories = series.astype("category")
    _check_meant_as_text(title, categories)
    return _categories(categories, False)


def _check_one_type(title: str, values: Any) -> None:
    """Raises if text is mixed with other values: they have no common order, and 1 is not "1"."""
    types = sorted({type(x).__name__ for x in values if x is not None})
    if "str" in types and len(types) > 1:
        raise TypeError(
            f"{title} mixes values of types {' and '.join(types)}; expected one type: convert them, "
            "for example all to text."
        )


def _check_meant_as_text(title: str, series: Any) -> None:
    """Raises if nearly all texts are numbers: one typing error turns such a column into text."""
    import pandas as pd

    levels = series.cat.categories
    numbers: Any = pd.to_numeric(pd.Series(levels), errors="coerce")
    wrong = np.isnan(np.asarray(numbers, np.float64))
    if len(levels) < _MANY or not 0 < wrong.mean() <= 0.1:
        return
    shown = ", ".join(map(repr, levels[wrong][:_SHOWN].tolist()))
    rows = rows_in_words(wrong[series.cat.codes.to_numpy()])
    raise ValueError(
        f"{title} is text: {len(levels):,} different values, and all are numbers but {shown} in "
        f"{rows}. Correct or drop those rows and convert it to numbers; if it is meant as "
        "categories, declare it so (pandas and polars: Categorical)."
    )


def _as_pandas(name: str, raw: Raw) -> tuple[Any, bool]:
    """Returns a column as a pandas Series, and whether the order of its categories was declared."""
    import pandas as pd

    column, declared = as_series(raw), False
    if column is None:
        values: Any = _from_numpy(name, raw)
    else:
        values = column.to_native()
        if hasattr(values, "to_pandas"):  # narwhals' own loses the categories of an Arrow column
            values = values.to_pandas()
        # Categories of pandas always have an order. Polars before 1.41 exports an Enum without it.
        declared = column.implementation.is_pandas_like() or isinstance(column.dtype, nw.Enum)
    series: Any = pd.Series(values).reset_index(drop=True)
    declared = declared or bool(getattr(series.dtype, "ordered", False))
    present = series[series.notna()] if series.dtype == object else series[:0]
    if len(present) and all(isinstance(x, Real | Decimal) for x in present):
        # pandas keeps Decimals, which databases return, and mixed Python numbers as objects.
        series = present.astype(np.float64).reindex(series.index)
    return series, declared


def _from_numpy(name: str, raw: Raw) -> Shaped[np.ndarray, " n"]:
    if isinstance(raw, list | tuple) and any(isinstance(x, str) for x in raw):
        raw = objects(raw)  # NumPy would turn [1, "a"] into strings
    try:
        values = raw if np.ma.isMA(raw) else np.asarray(raw)
    except ValueError:
        what = "lists of different lengths; a formula takes one value per row."
        raise ValueError(f'column "{name}" holds {what}') from None
    if values.ndim != 1:
        raise ValueError(
            f'column "{name}" has values of shape {list(values.shape[1:])}; a formula takes one '
            "value per row: give each its own column."
        )
    return np.ma.filled(values.astype(float), np.nan) if np.ma.isMA(values) else values


def _categories(series: Any, declared: bool) -> Any:
    """Returns ordered categories without unused ones: `formulae` takes the order from there.

    Intervals, periods and dates become text, which can be saved and matched to that of a CSV.
    """
    import pandas as pd

    series = series.cat.remove_unused_categories()
    levels = series.cat.categories
    ordered = list(levels) if declared else sorted(levels.tolist())
    series = series.cat.set_categories(ordered, ordered=True)
    if not all(isinstance(x, str | int | float | np.generic) for x in ordered):
        series = series.cat.rename_categories([str(x) for x in ordered])
    return pd.Series(series)
