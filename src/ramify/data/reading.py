"""From a table to the fields of a Groups: check names, read and check columns, sort once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from ramify.data.labels import Factor, Labels, factorize, find, kind_of, show
from ramify.data.tables import Raw, Table, any_in_row, columns_of, read, zone_of

Names = str | Sequence[str]
Values = Shaped[np.ndarray, "n ..."]  # of a column

_INT32 = np.iinfo(np.int32)


def fields_from_table(
    table: Table, by: str, rows: Names, group: Names, group_table: Table | None
) -> dict[str, Any]:
    """Returns the fields of a Groups; the arguments are those of `Groups.from_table`."""
    row_names, group_names = checked_names(by, rows, group)
    raw = columns_of(table, [by, *row_names, *(group_names if group_table is None else [])])
    if group_table is not None:
        labels, columns = _read_group_table(group_table, by, group_names)
        factor = _in_group_table(by, factorize(by, raw[by]), labels)
    elif len(raw[by]):
        factor = factorize(by, raw[by])
        columns = {
            name: value_per_group(name, read_numbers(name, raw[name], factor), factor)
            for name in group_names
        }
    else:
        raise ValueError(
            "the table is empty: expected at least one row. (Groups without rows can be declared "
            "with group_table=.)"
        )
    times = factor.labels.dtype.kind == "M"
    zoned = zone_of(table, by) is not None if times and len(raw[by]) else None
    own = _sort_by_group(by, factor, {name: raw[name] for name in row_names}, columns)
    return {**own, "zoned": zoned}


def _sort_by_group(
    by: str, factor: Factor, raw: dict[str, Raw], group: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the fields of a Groups; rows keep their order within a group."""
    count = len(factor.labels)
    # NumPy sorts 16-bit integers in linear time.
    small = factor.code.astype(np.uint16) if count <= 2**16 else factor.code
    sorted_ = not len(small) or bool((small[1:] >= small[:-1]).all())
    order = np.arange(len(small)) if sorted_ else np.argsort(small, kind="stable")
    # Copying rows that are already in order is faster than gathering them.
    ordered = lambda values: values.copy() if sorted_ else values[order]
    return {
        "by": by,
        "labels": factor.labels,
        "sizes": np.bincount(factor.code, minlength=count).astype(np.int64),
        "rows": {n: ordered(read_numbers(n, column, factor)) for n, column in raw.items()},
        "group": group,
        "number": np.arange(count, dtype=np.int64),
        "row_order": order.astype(np.int64),
    }


def _read_group_table(
    group_table: Table, by: str, names: list[str]
) -> tuple[Labels, dict[str, np.ndarray]]:
    """Reads a table with one row per group: labels [N] and group columns, each [N, ...]."""
    raw = columns_of(group_table, [by, *names], "group_table")
    if not len(raw[by]):
        raise ValueError("group_table is empty: expected a row for each group.")
    factor = factorize(by, raw[by])
    repeated = np.flatnonzero(np.bincount(factor.code) > 1)
    if len(repeated):
        rows = np.flatnonzero(factor.code == repeated[0])
        raise ValueError(
            f"group_table must have one row per group; group {show(factor.labels[repeated[0]])} is "
            f"in rows {rows[0]} and {rows[1]} (in all {len(repeated):,} groups occur more than once)."
        )
    order = np.argsort(factor.code, kind="stable")
    return factor.labels, {name: read_numbers(name, raw[name], factor)[order] for name in names}


def _in_group_table(by: str, factor: Factor, labels: Labels) -> Factor:
    """Returns the rows' codes among the labels of group_table, all of which are groups."""
    place: Int64[np.ndarray, " U"] = find(labels, factor.labels, f'column "{by}" of table')
    missing = np.flatnonzero(place < 0)
    if len(missing):
        raise ValueError(
            f"{len(missing):,} of the {len(place):,} groups in table are not in group_table, the "
            f"first of them {show(factor.labels[missing[0]])}: add a row for each to group_table, "
            "or leave their rows out of table."
        )
    return Factor(labels, place[factor.code])


def checked_names(by: str, rows: Names, group: Names) -> tuple[list[str], list[str]]:
    """Returns the names of row and group columns as lists; raises if one has two roles."""
    named, roles = {"by": [by], "rows": rows, "group": group}, {}
    for role, own in named.items():
        if not isinstance(own, str | Sequence):
            raise TypeError(
                f"{role}= is {own!r}; expected the name of a column, or a list of names."
            )
    named = {role: [own] if isinstance(own, str) else list(own) for role, own in named.items()}
    for role, name in ((role, name) for role, names in named.items() for name in names):
        if not isinstance(name, str):
            raise TypeError(f"{role}= names a column by {name!r}; expected a string.")
        if name in roles:
            there = f"twice in {role}=" if roles[name] == role else f"in {roles[name]}= and {role}="
            raise ValueError(
                f'column "{name}" is named {there}; a column has one role: name it once, or copy '
                "it under another name."
            )
        roles[name] = role
    return named["rows"], named["group"]


def read_numbers(name: str, raw: Raw, factor: Factor) -> Values:
    """Reads a column of numbers; refuses nulls, NaN and infinity. `factor` is for messages."""
    values, bad = read(name, raw)
    if bad is None:
        _check_kind(name, values, factor)
        # A sum takes one fast pass, and is not finite if a value is not.
        with np.errstate(all="ignore"):
            fine = values.dtype.kind != "f" or np.isfinite(values.sum())
        bad = np.zeros(len(values), bool) if fine else any_in_row(~np.isfinite(values))
    if bad.any():
        raise ValueError(
            f'column "{name}" is NaN, infinite or null in {_some(bad, factor)}; expected finite '
            "numbers: drop or impute these rows. (In a NumPyro model an outcome may be missing: fill "
            "it with any possible value, and mask it by a boolean column and numpyro.handlers.mask.)"
        )
    return _narrowed(name, values, factor)


def _check_kind(name: str, values: Values, factor: Factor) -> None:
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


def _narrowed(name: str, values: Values, factor: Factor) -> Values:
    """Returns the values in the dtype they are kept in."""
    if values.dtype.kind == "b":
        return values
    if values.dtype.kind in "iu":
        outside = (values < _INT32.min) | (values > _INT32.max)
        if outside.any():
            raise ValueError(
                f'column "{name}" holds integers that do not fit 32 bits in '
                f"{_some(any_in_row(outside), factor)}: {values[outside][0]}. Number its values from "
                "0 if they are identifiers, or cast the column to floating point if they are quantities."
            )
        return values.astype(np.int32, copy=False)
    return values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64, copy=False)


def value_per_group(name: str, values: Values, factor: Factor) -> Shaped[np.ndarray, "N ..."]:
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
