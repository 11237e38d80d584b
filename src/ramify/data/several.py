"""From a table to the fields of a Groups with several grouping factors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from ramify.data.labels import Factor
from ramify.data.levels import Levels, check_factors, integrated_factor, levels_of
from ramify.data.reading import Names, checked_names, read_numbers, value_per_group
from ramify.data.tables import Table, column_names, columns_of, zone_of

ANOTHER = '"{}:{}" in by='  # how to write a factor of combinations


def level_name(factor: int) -> str:
    """The row column with the rows' levels of a factor that is not the integrated one."""
    return f"level_{factor}"


def fields_from_factors(
    table: Table, by: Sequence[str], rows: Names, group: Any, integrate: str | None = None
) -> dict[str, Any]:
    """Returns the fields of a Groups; `by` has several factors, "a:b" for combinations of columns."""
    there = column_names(table, "table")
    columns = [(name,) if name in there else tuple(str(name).split(":")) for name in by]
    group = _by_factor(by, group)
    flat = list(dict.fromkeys(name for own in columns for name in own))
    checked_names(by[0], rows, ())
    names = [rows] if isinstance(rows, str) else list(rows)
    more = list(dict.fromkeys(name for own in group.values() for name in own))
    raw = columns_of(table, list(dict.fromkeys([*flat, *names, *more])))
    if not len(raw[flat[0]]):
        raise ValueError("the table is empty: expected at least one row.")
    zones = [zone_of(table, own[0]) if len(own) == 1 else None for own in columns]
    factors = tuple(levels_of(own, raw, zone) for own, zone in zip(columns, zones, strict=True))
    codes = [factor.codes(raw, len(raw[flat[0]]), "table") for factor in factors]
    notes = check_factors(factors, codes, False, ANOTHER)
    first = Factor(factors[0].shown, codes[0])
    read = {name: read_numbers(name, raw[name], first) for name in names}
    level_columns = []
    for factor, code in zip(factors, codes, strict=True):
        own = Factor(factor.shown, code)
        told = group.get(factor.name, [])
        read_own = {name: read_numbers(name, raw[name], own) for name in told}
        level_columns.append({n: value_per_group(n, c, own) for n, c in read_own.items()})
    place = integrated_factor(factors, integrate, "table")
    fields = arranged(factors, codes, read, place, np.arange(len(codes[0])))
    return {**fields, "level_columns": tuple(level_columns), "notes": tuple(notes)}


def arranged(
    factors: tuple[Levels, ...],
    codes: list[Int64[np.ndarray, " n"]],
    rows: Mapping[str, np.ndarray],
    place: int,
    row_order: Int64[np.ndarray, " n"],
) -> dict[str, Any]:
    """The fields of a Groups whose rows are sorted by one of the factors, the integrated one."""
    factor, code = factors[place], codes[place]
    order = np.argsort(code, kind="stable")
    levels = {level_name(f): own for f, own in enumerate(codes) if f != place}
    return {
        "by": factor.name,
        "labels": factor.shown.copy(),
        "sizes": np.bincount(code, minlength=len(factor)).astype(np.int64),
        "rows": {n: np.ascontiguousarray(c[order]) for n, c in {**rows, **levels}.items()},
        "group": {},
        "number": np.arange(len(factor), dtype=np.int64),
        "row_order": row_order[order].astype(np.int64),
        "factors": factors,
    }


def _by_factor(by: Sequence[str], group: Any) -> dict[str, list[str]]:
    """The group columns of each factor."""
    if not isinstance(group, Mapping):
        if len(group):
            raise TypeError(
                "with several factors group= says whose columns they are, such as "
                f'group={{"{by[0]}": [...]}}; got {group!r}.'
            )
        return {}
    for name in group:
        if name not in by:
            raise ValueError(f"group= names {name!r}, which is no factor of by=: {', '.join(by)}.")
    return {name: [own] if isinstance(own, str) else list(own) for name, own in group.items()}
