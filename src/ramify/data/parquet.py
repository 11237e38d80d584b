"""Parquet files and folders of them, as Arrow tables.

The library and the command both read Parquet here. JAX is not imported, so that the command
reports an unreadable file at once.
"""

import glob
import os
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from ramify.numerics.memory import check_memory

_SUFFIXES = (".parquet", ".pq")
_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive calls the folder of rows whose key is null


def open_parquet(source: str | list[str]) -> Any:
    """Opens a Parquet file, a list of them, or all those in a folder, as an Arrow dataset."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    filesystem, files, root = _files(source)
    if not files:
        raise ValueError(f"the folder {source} holds no Parquet file.")
    try:
        options = ds.FileSystemFactoryOptions()
        if root is not None:
            inside = ds.ParquetFileFormat().inspect(files[0], filesystem).names
            options = ds.FileSystemFactoryOptions(root, _partitioning(files, root, inside))
        factory = ds.FileSystemDatasetFactory(filesystem, files, ds.ParquetFileFormat(), options)
        return factory.finish(_common_schema(factory.finish()))
    except pa.ArrowException as error:
        raise ValueError(f"{source} can't be read as Parquet: {first_line(error)}") from error


def _partitioning(files: list[str], root: str, inside: list[str]) -> Any:
    """Files under a subfolder `key=value` get a column `key`, unless they have it inside.

    Its values are integers if all are written as integers are: 01 is not 1, and both are text.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    found: dict[str, set[str]] = {}
    for folder in {os.path.dirname(file.removeprefix(root)) for file in files}:
        for part in folder.split("/"):
            key, equals, value = map(unquote, part.partition("="))
            if equals and key not in inside:
                found.setdefault(key, set()).add(value)
    kind = lambda values: pa.int64() if all(map(_is_integer, values - {_NULL})) else pa.string()
    return ds.partitioning(
        pa.schema([(key, kind(own)) for key, own in found.items()]), flavor="hive"
    )


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and str(int(text)) == text and len(text) < 19


def read_columns(data: Any, source: Any, columns: list[str] | None) -> Any:
    """Reads these columns of an open dataset, by default all, into an Arrow table."""
    import pyarrow as pa

    try:
        _check_size(data, source, columns)
        return data.to_table(columns=columns)
    except (pa.ArrowException, OSError) as error:  # OSError: a file that ends too early
        raise ValueError(f"{source} can't be read as Parquet: {first_line(error)}") from error


def _check_size(data: Any, source: Any, columns: list[str] | None) -> None:
    """Raises where the columns of numbers alone do not fit into memory."""
    widths = []
    for name in columns or data.schema.names:
        try:
            widths.append(data.schema.field(name).type.bit_width / 8)
        except ValueError:  # text, and other types whose values differ in size
            continue
    rows = data.count_rows()
    check_fits(rows * sum(widths), f"the {rows:,} rows of {source}")


def check_fits(wanted: float, what: str) -> None:
    """Raises where rows that take so many bytes do not fit into memory."""
    cure = "Use fewer rows, a machine with more memory, or Groups.from_parquet(..., store=folder)"
    check_memory(int(wanted), None, what, cure)


def check_names(where: Any, wanted: list[str], there: list[Any]) -> None:
    """Raises if a column is missing, and suggests similar names, or if it is there twice."""
    for name in wanted:
        if there.count(name) == 1:
            continue
        if name in there:
            many = f'{where} has {there.count(name)} columns named "{name}"'
            raise ValueError(f"{many}: rename all but one.")
        names = [str(other) for other in there]
        same_letters = [other for other in names if other.lower() == str(name).lower()]
        near = [f'"{other}"' for other in get_close_matches(str(name), names, n=3) or same_letters]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        shown = ", ".join(f'"{other}"' for other in names[:12]) + (", ..." * (len(names) > 12))
        raise ValueError(
            f'{where} has no column "{name}"; its columns are {shown or "none"}.{hint}'
        )


def check_every_file(data: Any, names: list[str]) -> None:
    """Raises if some of the files have a column and others do not."""
    import pyarrow.dataset as ds

    for fragment in data.get_fragments():
        folders = ds.get_partition_keys(fragment.partition_expression)
        there = {*fragment.physical_schema.names, *folders}
        for name in set(names) & set(data.schema.names) - there:
            raise ValueError(
                f'{fragment.path} has no column "{name}", which other files have: write it into all '
                "files, or leave this one out."
            )


def first_line(error: Exception) -> str:
    """The first line of an Arrow error; the others point into Arrow's source."""
    return str(error).splitlines()[0].rstrip(".") + "."


def _files(source: str | list[str]) -> tuple[Any, list[str], str | None]:
    """The file system, the files, and the folder in which they were found, if it was a folder."""
    from pyarrow import fs

    if isinstance(source, list):
        files = [_local(file) for file in source]
        if twice := [file for k, file in enumerate(files) if file in files[:k]]:
            raise ValueError(f"{twice[0]} is in the list twice: its rows would count twice.")
        return fs.LocalFileSystem(), files, None
    if glob.has_magic(source) and not os.path.lexists(source) and "://" not in source:
        files = sorted(glob.glob(os.path.expanduser(source), recursive=True))
        if not files:
            raise FileNotFoundError(f"no file matches {source}.")
        return fs.LocalFileSystem(), [_local(file) for file in files], None
    filesystem, path = fs.LocalFileSystem(), _local(source)
    if "://" in source:
        filesystem, path = fs.FileSystem.from_uri(source)
    kind = filesystem.get_file_info(path).type
    if kind == fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no file or folder {source}.")
    if kind != fs.FileType.Directory:
        return filesystem, [path], None
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    files = [info.path for info in found if info.type == fs.FileType.File]
    return filesystem, sorted(file for file in files if _is_data(file, path)), path


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _is_data(file: str, root: str) -> bool:
    """Whether a file in a folder holds data: a Parquet suffix, and no part of its path hidden."""
    parts = file.removeprefix(root).strip("/").split("/")
    return file.lower().endswith(_SUFFIXES) and not any(part[0] in "._" for part in parts)


def _common_schema(data: Any) -> Any:
    """The columns of all files, each with a type that holds the values of every file."""
    import pyarrow as pa

    schema = data.schema
    for fragment in data.get_fragments():
        try:
            schema = _wider(schema, fragment.physical_schema)
        except pa.ArrowTypeError as error:
            raise ValueError(
                f"{fragment.path} does not go with the files before it: {first_line(error)} Write "
                "the column with one type in all files."
            ) from error
    return schema


def _wider(schema: Any, other: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowTypeError:  # text is dictionary-encoded in some files only
        both = [_without_dictionaries(schema), _without_dictionaries(other)]
        return pa.unify_schemas(both, promote_options="permissive")


def _without_dictionaries(schema: Any) -> Any:
    import pyarrow as pa

    plain = lambda kind: kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.schema([field.with_type(plain(field.type)) for field in schema])
