"""Columns of a user's table as the coding library wants them: numbers, or categories in order."""

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from ramify.data.tables import Raw, columns_of, made_by

_SHOWN = 5  # rows named in a message
_MANY = 20  # levels: fewer may be names, such as the grades 1 to 12 and "K"


def kind_of_table(table: Any) -> str:
    """Who made a table: results come back as the same kind."""
    maker = made_by(table)
    return maker if maker in ("pandas", "polars", "pyarrow") else "dict"


def as_table(kind: str, columns: dict[str, Any]) -> Any:
    """Columns as a table of that kind."""
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(columns)
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    if kind == "pyarrow":
        import pyarrow as pa

        text = lambda c: isinstance(c, np.ndarray) and c.dtype.kind in "OU"
        return pa.table({n: c.tolist() if text(c) else c for n, c in columns.items()})
    return columns


def zone_of(table: Any, name: str) -> str | None:
    """The time zone of a column, as Arrow writes it, if it has one."""
    raw = columns_of(table, [name])[name]
    if made_by(raw) == "pandas" and getattr(raw.dtype, "tz", None) is not None:
        import pyarrow as pa

        return getattr(pa.array(raw[:0]).type, "tz", None)
    kind = getattr(raw, "type", None) if made_by(raw) == "pyarrow" else getattr(raw, "dtype", None)
    return getattr(kind, "tz", None) or getattr(kind, "time_zone", None)


def in_zone(kind: str, times: Shaped[np.ndarray, " n"], zone: str | None) -> Any:
    """Times for a table of that kind, in their zone again; NumPy, and so a dict, has them in UTC."""
    if zone is None or kind == "dict":
        return times
    import pyarrow as pa

    naive = pa.array(times)
    aware = naive.cast(pa.timestamp(naive.type.unit, zone))
    if kind == "polars":
        import polars as pl

        return pl.from_arrow(aware)
    return aware.to_pandas() if kind == "pandas" else aware


def read_frame(table: Any, names: list[str], what: str = "table") -> Any:
    """The named columns as a pandas DataFrame: numbers, booleans and ordered categories."""
    import pandas as pd

    raw = columns_of(table, names, what)
    columns = {name: _column(name, column, what) for name, column in raw.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f'"{name}" {size:,}' for name, size in lengths.items())
        raise ValueError(f"the columns of {what} differ in length: {shown}; expected one.")
    return pd.DataFrame(columns)


def is_sorted_text(table: Any, name: str, what: str = "table") -> bool:
    """Whether a column's levels are in the order of the alphabet for want of another."""
    import pandas as pd

    series, declared = _as_series(name, columns_of(table, [name], what)[name])
    if isinstance(series.dtype, pd.CategoricalDtype):
        return not declared and series.cat.categories.dtype.kind not in "biuf"
    return series.dtype.kind not in "biuf"


def rows_in_words(bad: Bool[np.ndarray, " n"]) -> str:
    """Which rows: `row 3`, `rows 1, 4 and 17`, `1,204 rows (1, 4, 17, 20, 21, ...)`."""
    where = np.flatnonzero(bad)
    if len(where) == 1:
        return f"row {where[0]}"
    if len(where) <= _SHOWN:
        return f"rows {', '.join(map(str, where[:-1]))} and {where[-1]}"
    return f"{len(where):,} rows ({', '.join(map(str, where[:_SHOWN]))}, ...)"


def _column(name: str, raw: Raw, what: str) -> Any:
    import pandas as pd

    series, declared = _as_series(name, raw)
    missing = np.asarray(series.isna())
    if missing.any():
        raise ValueError(
            f'column "{name}" of {what} has no value in {rows_in_words(missing)}: drop or impute '
            "them before the fit."
        )
    if isinstance(series.dtype, pd.CategoricalDtype):
        return _categories(series, declared)
    if series.dtype.kind in "biuf":
        return _numbers(name, np.asarray(series), what)
    if series.dtype.kind in "mM" or not isinstance(series.iloc[0] if len(series) else "", str):
        first = series.iloc[0] if len(series) else None
        raise TypeError(
            f'column "{name}" of {what} holds {type(first).__name__} values; expected numbers, text '
            "or categories: convert it, for example dates to days since some day."
        )
    categories = series.astype("category")
    _check_meant_as_text(name, categories, what)
    return _categories(categories, False)


def _check_meant_as_text(name: str, series: Any, what: str) -> None:
    """Raises where nearly all texts are numbers: one typing error makes text of a column."""
    import pandas as pd

    levels = series.cat.categories
    numbers: Any = pd.to_numeric(pd.Series(levels), errors="coerce")
    wrong = np.isnan(np.asarray(numbers, np.float64))
    if len(levels) < _MANY or not 0 < wrong.mean() <= 0.1:
        return
    shown = ", ".join(map(repr, levels[wrong][:_SHOWN].tolist()))
    rows = rows_in_words(wrong[series.cat.codes.to_numpy()])
    raise ValueError(
        f'column "{name}" of {what} is text: {len(levels):,} different values, and all are numbers '
        f"but {shown} in {rows}. Correct or drop those rows and convert it to numbers; if it is "
        "meant as categories, declare it so (pandas and polars: Categorical)."
    )


def _as_series(name: str, raw: Raw) -> tuple[Any, bool]:
    """The column as a pandas Series, and whether the order of its categories was declared."""
    series, declared = _made_series(name, raw)
    present = series[series.notna()] if series.dtype == object else series[:0]
    if len(present) and all(isinstance(x, Real | Decimal) for x in present):
        # Decimals, as databases give them, or Python's own numbers: pandas has them as objects.
        series = present.astype(np.float64).reindex(series.index)
    return series, declared


def _made_series(name: str, raw: Raw) -> tuple[Any, bool]:
    import pandas as pd

    maker = made_by(raw)
    if maker == "polars":
        return raw.to_pandas(), type(raw.dtype).__name__ == "Enum"
    if maker == "pyarrow":
        series = raw.to_pandas()
        declared = bool(getattr(raw.type, "ordered", False))  # of a dictionary type
        return series if isinstance(series, pd.Series) else pd.Series(series), declared
    if maker == "pandas":
        return pd.Series(raw).reset_index(drop=True), True
    values = raw if np.ma.isMA(raw) else np.asarray(raw)
    if values.ndim != 1:
        raise ValueError(
            f'column "{name}" has values of shape {list(values.shape[1:])}; a formula takes one '
            "value per row: give each its own column."
        )
    if np.ma.isMA(values):
        values = np.where(np.ma.getmaskarray(values), np.nan, values.astype(float))
    return pd.Series(values), False


def _numbers(name: str, values: Shaped[np.ndarray, " n"], what: str) -> np.ndarray:
    bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if bad.any():
        raise ValueError(
            f'column "{name}" of {what} is infinite in {rows_in_words(bad)}; expected finite '
            "numbers: drop or replace them."
        )
    return values


def _categories(series: Any, declared: bool) -> Any:
    """Ordered, since that is how the coding library is told the order; unused ones dropped.

    Intervals, periods and dates become their texts, which can be saved and matched to those of a CSV.
    """
    import pandas as pd

    series = series.cat.remove_unused_categories()
    levels = series.cat.categories
    ordered = list(levels) if declared else sorted(levels.tolist())
    series = series.cat.set_categories(ordered, ordered=True)
    if not all(isinstance(x, str | int | float | np.generic) for x in ordered):
        series = series.cat.rename_categories([str(x) for x in ordered])
    return pd.Series(series)
