"""Parquet files and folders of them, as Arrow tables.

Both the library and the command read here; JAX is not needed for it, so that a file that can't be
read is told of at once.
"""

import os
from typing import Any

_SUFFIXES = (".parquet", ".pq")


def open_parquet(source: str | list[str]) -> Any:
    """A Parquet file, a list of them, or all those in a folder, as an Arrow dataset.

    Folders inside a folder named `key=value` give its files a column `key`. A file is read as it is,
    wherever it lies. Where files differ in a column's type, the wider one is taken.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    filesystem, files, root = _files(source)
    if not files:
        raise ValueError(f"the folder {source} holds no Parquet file.")
    options = ds.FileSystemFactoryOptions()
    if root is not None:
        options = ds.FileSystemFactoryOptions(root, partitioning=ds.HivePartitioning.discover())
    factory = ds.FileSystemDatasetFactory(filesystem, files, ds.ParquetFileFormat(), options)
    try:
        return factory.finish(_common_schema(factory.finish()))
    except pa.ArrowException as error:
        raise ValueError(f"{source} can't be read as Parquet: {first_line(error)}") from error


def read_columns(data: Any, source: Any, columns: list[str] | None) -> Any:
    """These columns of an open dataset, by default all, as an Arrow table."""
    import pyarrow as pa

    try:
        return data.to_table(columns=columns)
    except (pa.ArrowException, OSError) as error:  # OSError: a file that ends too early
        raise ValueError(f"{source} can't be read as Parquet: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an Arrow error says, without its place in Arrow's source."""
    return str(error).splitlines()[0].rstrip(".") + "."


def _files(source: str | list[str]) -> tuple[Any, list[str], str | None]:
    """The file system, the files in it, and the folder they were found in, if it was one."""
    from pyarrow import fs

    if isinstance(source, list):
        return fs.LocalFileSystem(), [_local(file) for file in source], None
    remote = "://" in source
    filesystem, path = (
        fs.FileSystem.from_uri(source) if remote else (fs.LocalFileSystem(), _local(source))
    )
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
    """Whether a file in a folder is one of its tables: not notes, nor what a writer left behind."""
    parts = file.removeprefix(root).strip("/").split("/")
    return file.lower().endswith(_SUFFIXES) and not any(part[0] in "._" for part in parts)


def _common_schema(data: Any) -> Any:
    """Every file's columns, each with a type that can hold all of them."""
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
    except pa.ArrowTypeError:  # text as categories in one file only
        both = [_without_dictionaries(schema), _without_dictionaries(other)]
        return pa.unify_schemas(both, promote_options="permissive")


def _without_dictionaries(schema: Any) -> Any:
    import pyarrow as pa

    plain = lambda kind: kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.schema([field.with_type(plain(field.type)) for field in schema])
