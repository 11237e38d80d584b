"""From a table to the fields of a Groups: check names, read columns, sort once."""

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
from jaxtyping import Int, Int64, Shaped

from ramify.data.columns import constant, numeric
from ramify.data.labels import Factor, factorize, find, show
from ramify.data.parquet import open_parquet, read_columns
from ramify.data.tables import Raw, Table, columns_of, length

Names = str | Sequence[str]


def group_fields(
    table: Table, by: str, rows: Names, group: Names, group_table: Table | None
) -> dict[str, Any]:
    """Returns the fields of a Groups; the arguments are those of `Groups.from_table`."""
    row_names, group_names = _as_list(rows), _as_list(group)
    _check_names(by, row_names, group_names)
    inner = group_names if group_table is None else []
    raw = _same_length(columns_of(table, [by, *row_names, *inner]), "table")
    if group_table is None and not length(by, raw[by]):
        raise ValueError(
            "the table is empty: expected at least one row. (Groups without rows can be declared "
            "with group_table=.)"
        )
    factor = factorize(by, raw[by])
    if group_table is not None:
        labels, columns = _declared(group_table, by, group_names)
        factor = Factor(labels, _among(labels, factor, by))
    else:
        first = _first_rows(factor)
        columns = {
            name: constant(name, numeric(name, raw[name], factor), first, factor)
            for name in group_names
        }
    return _sorted(by, factor, {name: raw[name] for name in row_names}, columns)


def _sorted(
    by: str, factor: Factor, raw: dict[str, Raw], group: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Sorts the rows by group, keeping their order within a group."""
    count = len(factor.labels)
    order = _by_group(factor)
    return {
        "by": by,
        "labels": factor.labels,
        "sizes": np.bincount(factor.code, minlength=count).astype(np.int64),
        "rows": {name: numeric(name, column, factor)[order] for name, column in raw.items()},
        "group": group,
        "number": np.arange(count, dtype=np.int64),
        "row_order": order.astype(np.int64),
    }


def _by_group(factor: Factor) -> Int[np.ndarray, " n_rows"]:
    """Returns the order that brings the rows of each group together."""
    small = len(factor.labels) <= 2**16  # NumPy sorts 16-bit integers in linear time
    return np.argsort(factor.code.astype(np.uint16) if small else factor.code, kind="stable")


def _first_rows(factor: Factor) -> Int64[np.ndarray, " N"]:
    """Returns the first row of each group; every group has one."""
    first = np.full(len(factor.labels), len(factor.code), np.int64)
    np.minimum.at(first, factor.code, np.arange(len(factor.code)))
    return first


def _declared(
    group_table: Table, by: str, names: list[str]
) -> tuple[Shaped[np.ndarray, " N"], dict[str, np.ndarray]]:
    """Reads a table with one row per group: labels [N] and group columns, each [N, ...]."""
    raw = _same_length(columns_of(group_table, [by, *names], "group_table"), "group_table")
    if not length(by, raw[by]):
        raise ValueError("group_table is empty: expected a row for each group.")
    factor = factorize(by, raw[by])
    twice = np.flatnonzero(np.bincount(factor.code) > 1)
    if len(twice):
        where = np.flatnonzero(factor.code == twice[0])[:2]
        raise ValueError(
            f"group_table must have one row per group; group {show(factor.labels[twice[0]])} is in "
            f"rows {where[0]} and {where[1]} (in all {len(twice):,} groups occur more than once)."
        )
    order = np.argsort(factor.code, kind="stable")
    return factor.labels, {name: numeric(name, raw[name], factor)[order] for name in names}


def _among(
    labels: Shaped[np.ndarray, " N"], factor: Factor, by: str
) -> Int64[np.ndarray, " n_rows"]:
    """Returns the rows' codes among the declared labels."""
    place = find(labels, factor.labels, f'column "{by}" of table')
    missing = np.flatnonzero(place < 0)
    if len(missing):
        raise ValueError(
            f"{len(missing):,} of the {len(place):,} groups in table are not in group_table, the "
            f"first of them {show(factor.labels[missing[0]])}: add a row for each to group_table, "
            "or leave their rows out of table."
        )
    return place[factor.code]


def _as_list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_names(by: str, rows: list[str], group: list[str]) -> None:
    roles: dict[str, str] = {}
    named = [(by, "by"), *((name, "rows") for name in rows), *((name, "group") for name in group)]
    for name, role in named:
        if not isinstance(name, str):
            raise TypeError(f"{role}= names a column by {name!r}; expected a string.")
        if name in roles:
            there = f"twice in {role}=" if roles[name] == role else f"in {roles[name]}= and {role}="
            raise ValueError(
                f'column "{name}" is named {there}; a column has one role: name it once, or copy '
                "it under another name."
            )
        roles[name] = role


def _same_length(raw: dict[str, Raw], argument: str) -> dict[str, Raw]:
    lengths = {name: length(name, column) for name, column in raw.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f'"{name}" {size:,}' for name, size in lengths.items())
        raise ValueError(f"the columns of {argument} differ in length: {shown}; expected one.")
    return raw


def parquet(
    path: Any, by: str, rows: Names, group: Names, group_table: Table | None
) -> dict[str, Any]:
    """Returns the fields of a Groups; the arguments are those of `Groups.from_parquet`."""
    row_names, group_names = _as_list(rows), _as_list(group)
    _check_names(by, row_names, group_names)
    if isinstance(group_table, str | PathLike):
        group_table = _read_parquet(group_table, [by, *group_names])
    inner = group_names if group_table is None else []
    table = _read_parquet(path, [by, *row_names, *inner])
    return group_fields(table, by, row_names, group_names, group_table)


def _read_parquet(path: Any, names: list[str]) -> Table:
    """Reads these columns of a Parquet file or folder into an Arrow table."""
    source = [fspath(part) for part in path] if isinstance(path, list) else fspath(path)
    data = open_parquet(source)
    columns_of(data.schema.empty_table(), names, f"Parquet {source!r}")
    return read_columns(data, source, names)
