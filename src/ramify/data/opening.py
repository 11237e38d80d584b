"""Groups from files: Parquet read into memory or into a store, and stores that were built before."""

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ramify.data.atomic import locked
from ramify.data.building import Plan, stored
from ramify.data.parquet import check_every_file, check_names, open_parquet, read_columns
from ramify.data.reading import Names, checked_names, fields_from_table
from ramify.data.store import open_store
from ramify.data.tables import Table


def fields_from_parquet(
    path: Any, names: tuple[str, Names, Names], group_table: Any, store: Any
) -> dict[str, Any]:
    """Returns the fields of a Groups; the arguments are those of `Groups.from_parquet`."""
    by, (rows, group) = names[0], checked_names(*names)
    if store is not None:
        if group_table is not None:
            raise ValueError(
                "store= does not go with group_table=: join the group columns to the rows first, and "
                "name them in group=."
            )
        source, data = _opened(path, [by, *rows, *group])
        return stored(Plan(data, source, by, rows, group), Path(store))
    if isinstance(group_table, str | PathLike):
        group_table = _read(group_table, [by, *group])
    table = _read(path, [by, *rows, *(group if group_table is None else [])])
    return fields_from_table(table, by, rows, group, group_table)


def fields_from_store(folder: str | PathLike[str]) -> dict[str, Any]:
    """Returns the fields of a Groups whose store was built before."""
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no store {path}.")
    with locked(path, shared=True):  # no other process may rebuild it meanwhile
        return open_store(path)


def _read(path: Any, names: list[str]) -> Table:
    """Reads these columns of a Parquet file or folder into an Arrow table."""
    source, data = _opened(path, names)
    return read_columns(data, source, names)


def _opened(path: Any, names: list[str]) -> tuple[Any, Any]:
    source = [fspath(part) for part in path] if isinstance(path, list) else fspath(path)
    data = open_parquet(source)
    check_names(f"Parquet {source!r}", names, data.schema.names)
    check_every_file(data, names)
    return source, data
