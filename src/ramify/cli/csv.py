"""CSV files as Arrow tables. Column types are inferred from the values, or known from a fit.

The commands import this file only when they read or write, since importing Arrow would slow down help.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ramify.cli.csv_form import CsvForm
from ramify.data.parquet import check_fits, first_line

_BLOCK = 2**26  # bytes at the start of a CSV from which the types of its columns are inferred
_PADDED = r"^0\d+$"  # 007 is a name, and not the same as 7


def read_csv(
    path: Path,
    columns: list[str] | None,
    kinds: Mapping[str, str],
    check: Callable[[list[str]], None],
    form: CsvForm,
) -> Any:
    """Reads these columns of a CSV file, by default all; `kinds` are those that a fit knows."""
    # `check` is called with the names in the header, before the rest is read.
    _check_looks_like_csv(path, form)
    try:
        with csv.open_csv(_opened(path, form), **_options(form)) as reader:
            names = reader.schema.names
        check(names)
        text = [name for name in columns or names if kinds.get(name) == "category"]
        _check_size(path, form, columns, text)
        table = _read(path, form, columns, text)
        padded = _padded(path, form, table, kinds)
        for name in padded if columns else []:
            said = f'column "{name}" of {path} has leading zeros, and is read as text.'
            warnings.warn(said, UserWarning, stacklevel=3)
        _warn_of_decimal_commas(path, form, table)
        return _read(path, form, columns, text + padded) if padded else table
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise ValueError(f"{path} can't be read as CSV: {_reason(error)}") from error


def _opened(path: Path, form: CsvForm) -> Any:
    """The file for Arrow to read: itself, or a stream without its comment lines, in UTF-8."""
    return io.BufferedReader(_WithoutComments(path, form)) if form.comment else path


class _WithoutComments(io.RawIOBase):
    """The lines of a text file that do not begin with the mark of comments, as UTF-8 bytes."""

    # Arrow's reader has no option for comments.
    def __init__(self, path: Path, form: CsvForm):
        self.source = pa.input_stream(path)  # unpacks .csv.gz
        encoding = "utf-8-sig" if form.encoding == "utf8" else form.encoding
        self.lines = io.TextIOWrapper(self.source, encoding, newline="")
        self.mark, self.quoted, self.left = form.comment, False, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.left:
            line = self.lines.readline()
            if not line:
                return 0
            if self.quoted or not line.startswith(self.mark):
                # A line inside a quoted value is part of the value, even if it begins with the mark.
                self.quoted ^= line.count('"') % 2 == 1
                self.left = line.encode()
        count = min(len(buffer), len(self.left))
        buffer[:count], self.left = self.left[:count], self.left[count:]
        return count


def _check_size(path: Path, form: CsvForm, columns: list[str] | None, text: list[str]) -> None:
    """Raises where the table would not fit into memory, judged by the first megabyte of the file."""
    size, options = path.stat().st_size, _options(form, columns, text)
    with csv.open_csv(_opened(path, form), **options) as reader:
        batch = next(iter(reader), None)
    if batch is None:
        return
    share = size / min(size, options["read_options"].block_size)
    rows = float(f"{batch.num_rows * share:.2g}")
    check_fits(batch.nbytes * share, f"the about {rows:,.0f} rows of {path}")


def _warn_of_decimal_commas(path: Path, form: CsvForm, table: Any) -> None:
    if form.delimiter == ",":
        return
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        comma = _matching(r"^\s*[-+]?\d+,\d+\s*$", column)
        whole = _matching(r"^\s*[-+]?\d+\s*$", column)  # 0 may stand beside 1,5
        if len(comma) and len(comma) + len(whole) == len(column) - column.null_count:
            said = f'is read as text: pass --decimal "," if {comma[0]} is a number.'
            warnings.warn(f'column "{name}" of {path} {said}', UserWarning, stacklevel=4)


def _matching(pattern: str, column: Any) -> Any:
    """The values of a column of text that match a pattern."""
    options = pc.MatchSubstringOptions(pattern)
    return column.filter(pc.call_function("match_substring_regex", [column], options))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return f"its text is not in the --encoding given ({error})."
    said = first_line(error).removeprefix("CSV parse error: ")
    if said.startswith("Empty CSV"):
        return "it has no line of names with lines of values below it."
    if re.search(r"Expected \d+ columns, got", said):
        more = (
            ' Pass --comment "#" if these are comments.' if " #" in said or said[:1] == "#" else ""
        )
        return f"{said} Each line needs a value for each name in the first line.{more}"
    return said


_UTF16 = "UTF-16 text: pass --encoding utf-16"
_BEGIN = {  # first bytes of files that are no CSV
    b"\x1f\x8b": "a gzip file: name it .csv.gz",
    b"PK\x03\x04": "a zip or Excel file: unpack or export it",
    b"PAR1": "a Parquet file: name it .parquet",
    b"#": 'a file with comment lines: pass --comment "#"',
    b"<": "HTML or XML: save its table as CSV",
    b"{": "JSON: save it as a table",
    b"[": "JSON: save it as a table",
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
}
_DELIMITERS = {",": ("commas", '","'), ";": ("semicolons", '";"'), "\t": ("tabs", "tab")}


def _check_looks_like_csv(path: Path, form: CsvForm) -> None:
    """Raises if the beginning of a file is not that of a CSV of this form."""
    try:
        with pa.input_stream(path) as file:  # unpacks .csv.gz
            start = file.read(4096) if not form.comment else _opened(path, form).read(4096)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {first_line(error)}") from error
    if form.encoding != "utf8" and not form.comment:
        start = start.decode(form.encoding, "ignore").encode()
    looks = _not_a_table(start, form.delimiter.encode()) or _otherwise_delimited(start, form)
    if looks:
        expected = _DELIMITERS.get(form.delimiter, (repr(form.delimiter),))[0]
        coded = "UTF-8" if form.encoding == "utf8" else form.encoding
        raise ValueError(f"{path} looks like {looks}. Expected a CSV with {expected}, in {coded}.")


def _not_a_table(start: bytes, mark: bytes) -> str | None:
    """What the beginning of a file shows it to be, if it is not a table."""
    line, *more = start.split(b"\n")
    table = mark in line and line.count(mark) == b"".join(more[:1]).count(mark)  # as in "#,x,y"
    looks = next((what for begin, what in _BEGIN.items() if start.startswith(begin)), None)
    if looks is None and b"\0" in start:
        return _UTF16 if 0.3 < start.count(0) / len(start) < 0.6 else "binary data, not text"
    return None if table and start[:1] in (b"#", b"<", b"{", b"[") else looks


def _otherwise_delimited(start: bytes, form: CsvForm) -> str | None:
    """A hint if the table seems to have another delimiter, or decimal commas."""
    line, *more = start.decode(errors="ignore").split("\n")
    for mark, (name, option) in _DELIMITERS.items():
        if mark in line and form.delimiter not in line:
            decimal = mark != "," and bool(re.search(r"\d,\d", "".join(more)))
            option += ' --decimal ","' if decimal and form.decimal == "." else ""
            return f"a table with {name} between columns: pass --delimiter {option}"
    return None


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


def _read(path: Path, form: CsvForm, columns: list[str] | None, text: list[str]) -> Any:
    """Reads columns; those named in `text` as text, even if they hold numbers."""
    table = csv.read_csv(_opened(path, form), **_options(form, columns, text, _BLOCK))
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise ValueError(
                f'column "{field.name}" of {path} has text that is not UTF-8: pass --encoding, such '
                "as latin-1, or save the file as UTF-8."
            )
    return table


def _options(
    form: CsvForm,
    columns: list[str] | None = None,
    text: list[str] | None = None,
    block: int = 2**20,
) -> dict[str, Any]:
    convert = csv.ConvertOptions(
        # An empty field is missing in a text column too; "NA" in quotes is text.
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=columns or [],
        column_types=dict.fromkeys(text or [], pa.string()),
        decimal_point=form.decimal,
    )
    return {
        "read_options": csv.ReadOptions(
            block_size=block, encoding="utf8" if form.comment else form.encoding
        ),
        "parse_options": csv.ParseOptions(newlines_in_values=True, delimiter=form.delimiter),
        "convert_options": convert,
    }


def _padded(path: Path, form: CsvForm, table: Any, kinds: Mapping[str, str]) -> list[str]:
    """Columns that were read as numbers but have leading zeros, unless a fit knows them."""
    number = lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind)
    once = lambda name: table.column_names.count(name) == 1 and name not in kinds
    asked = [f.name for f in table.schema if number(f.type) and once(f.name)]
    found: set[str] = set()
    pattern = pc.MatchSubstringOptions(_PADDED)
    if asked:
        with csv.open_csv(_opened(path, form), **_options(form, asked, asked)) as reader:
            for batch in reader:
                for name in set(asked) - found:
                    padded = pc.call_function("match_substring_regex", [batch[name]], pattern)
                    if pc.call_function("any", [padded]).as_py():
                        found.add(name)
    return [name for name in asked if name in found]
