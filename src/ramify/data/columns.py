"""Columns of numbers: which are accepted, and the dtype in which they are kept."""

import numpy as np
from jaxtyping import Bool, Shaped

from ramify.data.labels import Factor, kind_of, show
from ramify.data.tables import Raw, any_in_row, read

_INT32 = np.iinfo(np.int32)


def read_numbers(name: str, raw: Raw, factor: Factor) -> Shaped[np.ndarray, "n ..."]:
    """Reads a column of numbers; refuses nulls, NaN and infinity.

    Booleans stay booleans, integers become int32, float16 becomes float32, and float32 and float64
    stay as they are. The precision on the device is chosen when the data go there. `factor`, the
    labels of the rows, is for messages.
    """
    values, bad = read(name, raw)
    if bad is None:
        _check_kind(name, values, factor)
        floats = values.dtype.kind == "f"
        bad = any_in_row(~np.isfinite(values)) if floats else np.zeros(len(values), bool)
    if bad.any():
        raise ValueError(
            f'column "{name}" is NaN, infinite or null in {_some(bad, factor)}; expected finite '
            "numbers: drop or impute these rows. (In a NumPyro model an outcome may be missing: fill "
            "it with any possible value, and mask it by a boolean column and numpyro.handlers.mask.)"
        )
    return _narrowed(name, values, factor)


def _check_kind(name: str, values: Shaped[np.ndarray, "n ..."], factor: Factor) -> None:
    if values.dtype.kind in "biuf" or not len(values):
        return
    cures = {
        "O": "cast it to numbers",
        "M": "convert it to a number, such as days since some date",
        "m": "convert it to a number, such as seconds",
    }
    cure = cures.get(values.dtype.kind, "encode its categories as integers from 0, or leave it out")
    first = values.reshape(-1)[0] if values.size else "empty"
    raise TypeError(
        f'column "{name}" holds {kind_of(values)} ({values.dtype}; the first is {show(first)}, in '
        f"group {show(factor.labels[factor.code[0]])}); expected numbers or booleans: {cure}."
    )


def _narrowed(name: str, values: Shaped[np.ndarray, "n ..."], factor: Factor) -> np.ndarray:
    """Returns the values in the dtype they are kept in."""
    if values.dtype.kind == "b":
        return values
    if values.dtype.kind in "iu":
        _check_fits(name, values, factor)
        return values.astype(np.int32, copy=False)
    return values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64, copy=False)


def _check_fits(name: str, values: Shaped[np.ndarray, "n ..."], factor: Factor) -> None:
    if not values.size or (values.min() >= _INT32.min and values.max() <= _INT32.max):
        return
    outside = (values < _INT32.min) | (values > _INT32.max)
    raise ValueError(
        f'column "{name}" holds integers that do not fit 32 bits in '
        f"{_some(any_in_row(outside), factor)}: {values[outside][0]}. Number its values from 0 if "
        "they are identifiers, or cast the column to floating point if they are quantities."
    )


def value_per_group(
    name: str, values: Shaped[np.ndarray, "n ..."], factor: Factor
) -> Shaped[np.ndarray, "N ..."]:
    """Returns the value of a group column in each group; refuses a column that varies within one."""
    first = np.full(len(factor.labels), len(values))  # row of each group
    np.minimum.at(first, factor.code, np.arange(len(values)))
    each = values[first]  # [N, ...]
    differs = any_in_row(values != each[factor.code])
    if differs.any():
        group = int(factor.code[differs].min())
        row = int(np.flatnonzero(differs & (factor.code == group))[0])
        raise ValueError(
            f'group column "{name}" must have one value per group; in group '
            f"{show(factor.labels[group])} row {first[group]} has {values[first[group]]} and row "
            f"{row} has {values[row]}. If it varies from row to row, name it in rows= instead."
        )
    return each


def _some(bad: Bool[np.ndarray, " n"], factor: Factor) -> str:
    """Returns how many rows are bad, the first of them and its group, in words."""
    row = int(bad.argmax())
    group = show(factor.labels[factor.code[row]])
    return f"{bad.sum():,} of {len(bad):,} rows, the first of them row {row}, in group {group}"
