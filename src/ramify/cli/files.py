"""Reads and writes tables: CSV and Parquet by suffix, folders of Parquet, only the columns needed."""

import glob
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from ramify.cli.csv_form import USUAL, CsvForm
from ramify.data.atomic import check_file, write_file
from ramify.data.parquet import check_names, open_parquet, read_columns

SUFFIXES = (".csv", ".parquet", ".pq")
CSV = (".csv", ".csv.gz")  # that are read


def read_table(
    path: Path,
    columns: list[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    form: CsvForm = USUAL,
) -> Any:
    """Reads a CSV or Parquet file, or a folder of Parquet files, as an Arrow table."""
    # `columns` are all by default; `kinds` ("number" or "category", of a fit) set the types of a CSV.
    check_readable(path)
    if is_csv(path):
        from ramify.cli.csv import read_csv

        check = partial(check_names, path, columns or [])
        return read_csv(path, columns, kinds or {}, check, form)
    data = open_parquet(parquet_source(path))
    check_names(path, columns or [], data.schema.names)
    return read_columns(data, path, columns)


def is_csv(path: Path) -> bool:
    """Whether a path is that of a CSV file."""
    return path.name.lower().endswith(CSV) and path.is_file()


def parquet_source(path: Path) -> str:
    """A path, pattern or URL as text; `Path` makes s3:/ of s3://.

    Example:
        >>> parquet_source(Path("s3://bucket/rows")), parquet_source(Path("rows/*.parquet"))
        ('s3://bucket/rows', 'rows/*.parquet')
    """
    return re.sub(r"^([a-z][a-z0-9]+):/(?!/)", r"\1://", str(path))


def write_table(table: Any, path: Path) -> None:
    """Writes an Arrow table to a CSV or Parquet file, by its suffix, in full or not at all."""
    check_writable(path)
    if path.suffix.lower() == ".csv":
        from ramify.cli.csv import check_as_csv, csv

        check_as_csv(table)
        write_file(path, lambda new: csv.write_csv(table, new))
    else:
        import pyarrow.parquet as pq

        write_file(path, lambda new: pq.write_table(table, new, compression="zstd"))


def check_writable(path: Path) -> None:
    """Raises if no table can be written to this path; called before the work starts."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in .csv or .parquet.")
    check_file(path)


def check_readable(path: Path) -> None:
    """Raises if the file does not exist or is neither CSV nor Parquet."""
    if "://" in parquet_source(path) or (glob.has_magic(str(path)) and glob.glob(str(path))):
        return  # left to Arrow, which reports what it can't read
    if not path.exists():
        near = path.parent.iterdir() if path.parent.is_dir() else ()
        beside = [p.name for p in near if p.exists()]
        near = get_close_matches(path.name, beside, n=1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise FileNotFoundError(f"there is no file {path}.{hint}")
    if path.is_file() and not path.name.lower().endswith((*SUFFIXES, *CSV)):
        raise ValueError(
            f"{path}: expected a file that ends in .csv or .parquet, or a folder of Parquet files."
        )
