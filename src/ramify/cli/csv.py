"""CSV files as Arrow tables. Column types are inferred from the values, or known from a fit.

The commands import this file when they read or write: it imports Arrow, for which help need not wait.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ramify.data.parquet import first_line

_BLOCK = 2**26  # bytes at the start of a CSV from which the types of its columns are inferred
_PADDED = r"^0\d+$"  # 007 is a name, and not the same as 7


def read_csv(
    path: Path,
    columns: list[str] | None,
    kinds: Mapping[str, str],
    check: Callable[[list[str]], None],
) -> Any:
    """Reads these columns of a CSV file, by default all; `kinds` are those that a fit knows."""
    # `check` is called with the names in the header, before the rest is read.
    _check_looks_like_csv(path)
    try:
        with csv.open_csv(path, **_options()) as reader:
            names = reader.schema.names
        check(names)
        text = [name for name in columns or names if kinds.get(name) == "category"]
        table = _read(path, columns, text)
        padded = _padded(path, table, kinds)
        for name in padded if columns else []:
            said = f'column "{name}" of {path} has leading zeros, and is read as text.'
            warnings.warn(said, UserWarning, stacklevel=3)
        return _read(path, columns, text + padded) if padded else table
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} can't be read as CSV: {_reason(error)}") from error


def _reason(error: pa.ArrowInvalid) -> str:
    said = first_line(error).removeprefix("CSV parse error: ")
    if said.startswith("Empty CSV"):
        return "it has no line of names with lines of values below it."
    if re.search(r"Expected \d+ columns, got", said):
        return f"{said} Each line needs a value for each name in the first line."
    return said


_BEGIN = {  # first bytes of files that are no CSV
    b"\x1f\x8b": "a gzip file: unpack it",
    b"PK\x03\x04": "a zip or Excel file: unpack or export it",
    b"PAR1": "a Parquet file: name it .parquet",
    b"#": "a file with comment lines: remove them",
    b"<": "HTML or XML: save its table as CSV",
    b"{": "JSON: save it as a table",
    b"[": "JSON: save it as a table",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}


def _check_looks_like_csv(path: Path) -> None:
    """Raises if the beginning of a file is not that of a CSV with commas in UTF-8."""
    with path.open("rb") as file:
        start = file.read(4096)
    line, *more = start.split(b"\n")
    table = b"," in line and line.count(b",") == b"".join(more[:1]).count(b",")  # as in "#,x,y"
    looks = next((what for begin, what in _BEGIN.items() if start.startswith(begin)), None)
    looks = None if table and start[:1] in (b"#", b"<", b"{", b"[") else looks
    if looks is None and b"\0" in start:
        half = 0.3 < start.count(0) / len(start) < 0.6
        looks = "UTF-16 text: save it as UTF-8" if half else "binary data, not text"
    for mark, name in ((b";", "semicolons"), (b"\t", "tabs")):
        if looks is None and mark in line and b"," not in line:
            looks = f"a table with {name} between columns: save it with commas"
    if looks:
        raise ValueError(f"{path} looks like {looks}. Expected a CSV with commas, in UTF-8.")


def check_as_csv(table: Any) -> None:
    """Raises if a column can't be written as CSV."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            csv.write_csv(pa.table({name: column.slice(0, 0)}), pa.BufferOutputStream())
            if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
                column.cast(pa.string())
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            text = "bytes that are not UTF-8 text" if "UTF8" in str(error) else str(column.type)
            raise ValueError(
                f'column "{name}" holds {text}, which a CSV can\'t: drop it, or write a Parquet file '
                "with --out."
            ) from error


def _read(path: Path, columns: list[str] | None, text: list[str]) -> Any:
    """Reads columns; those named in `text` as text, even if they hold numbers."""
    blocks = csv.ReadOptions(block_size=_BLOCK)
    table = csv.read_csv(path, read_options=blocks, **_options(columns, text))
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise ValueError(
                f'column "{field.name}" of {path} has text that is not UTF-8: save the file as UTF-8.'
            )
    return table


def _options(columns: list[str] | None = None, text: list[str] | None = None) -> dict[str, Any]:
    convert = csv.ConvertOptions(
        # An empty field is missing in a text column too; "NA" in quotes is text.
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=columns or [],
        column_types=dict.fromkeys(text or [], pa.string()),
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    return {"parse_options": parse, "convert_options": convert}


def _padded(path: Path, table: Any, kinds: Mapping[str, str]) -> list[str]:
    """Columns that were read as numbers but have leading zeros, unless a fit knows them."""
    number = lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind)
    once = lambda name: table.column_names.count(name) == 1 and name not in kinds
    asked = [f.name for f in table.schema if number(f.type) and once(f.name)]
    found: set[str] = set()
    pattern = pc.MatchSubstringOptions(_PADDED)
    if asked:
        with csv.open_csv(path, **_options(asked, asked)) as reader:
            for batch in reader:
                for name in set(asked) - found:
                    padded = pc.call_function("match_substring_regex", [batch[name]], pattern)
                    if pc.call_function("any", [padded]).as_py():
                        found.add(name)
    return [name for name in asked if name in found]
