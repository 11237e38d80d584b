"""A store: a data set on disk, sorted by group once, whose columns are mapped into memory.

    store/
      store.json           what it was made of, and what its files hold
      3f9c0a12/            the files of one build; a new build has a folder of its own
        row-0.npy ...      row columns, each [n_rows, ...]
        group-0.npy ...    group columns, each [N, ...]
        sizes.npy          rows of each group, [N]
        row_order.npy      position of each row in the source, [n_rows]
        labels.arrow       the label of each group, an Arrow file with one column, `label`

Groups are in the order of a hash of their labels, so that any run of them is a random sample. The store
is complete when store.json names its folder; a build that was interrupted is removed by the next one.
"""

import hashlib
import json
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ramify._version import __version__
from ramify.data.atomic import reason
from ramify.data.labels import canonical

FORMAT, FORMAT_VERSION, STORE, LABELS = "ramify-store", 1, "store.json", "labels.arrow"


class Stamp(NamedTuple):
    """The state of a file, to see whether it has changed."""

    name: str
    number: int  # inode
    time: int  # of the last change, in nanoseconds
    size: int


class Store(NamedTuple):
    """Where the columns of a data set are mapped from."""

    folder: Path
    content: str  # a checksum of its columns
    build: Path  # the folder of its files
    stamps: tuple[Stamp, ...]  # of the files, when they were opened

    def check(self) -> None:
        """Raises if a file has changed since it was opened; call it after every read."""
        for stamp in self.stamps:
            path = self.build / stamp.name
            if _stamp(path) != stamp:
                raise OSError(
                    f"{path} was changed after it had been opened, and what was read may be of both: "
                    "build the store again, or put the old files back, and fit again."
                )

    def digest(self) -> str:
        """A checksum of its files as they are now, read whole; `content` is that of their build."""
        found = hashlib.sha256()
        for name in [*(stamp.name for stamp in self.stamps), LABELS]:
            with (self.build / name).open("rb") as file:
                found.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
        self.check()
        return found.hexdigest()


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return Stamp(path.name, found.st_ino, found.st_mtime_ns, found.st_size)


def unreadable(path: Any, error: OSError) -> OSError:
    """The error to raise if a file of a store is gone."""
    return OSError(f"{path} can't be read any more: {reason(error)}.")


def read_store(folder: Path) -> dict[str, Any] | None:
    """The contents of store.json; None if there is none. Raises if this version can't read it."""
    path = folder / STORE
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        version = said["format_version"] if said["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or not of a store: remove the folder.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{folder} is a store of format {version}, by ramify {said.get('ramify_version')}; this is "
            f"ramify {__version__}, which reads format {FORMAT_VERSION}. Choose another folder, or "
            "remove this one to have it built again."
        )
    return said


def open_store(folder: Path) -> dict[str, Any]:
    """The fields of a Groups, its columns mapped from the files of a store."""
    said = read_store(folder)
    if said is None:
        raise FileNotFoundError(f"there is no store in {folder}: it has no {STORE}.")
    own = folder / said["build"]
    try:
        stamps = tuple(_stamp(path) for path in sorted(own.glob("*.npy")))
        labels = _read_labels(own / LABELS, said["by"])
        array = lambda name: np.load(own / f"{name}.npy", mmap_mode="r")
        columns = lambda role: {
            name: array(f"{role}-{k}") for k, name in enumerate(said[f"{role}s"])
        }
        rows, group = columns("row"), columns("group")
        sizes, order = np.load(own / "sizes.npy"), array("row_order")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"the store {folder} is damaged: {error}. Remove it.") from error
    lengths = {len(order), int(sizes.sum()), *map(len, rows.values())}
    if lengths != {said["n_rows"]} or len(labels) != len(sizes):
        raise ValueError(f"the store {folder} is damaged: its files do not go together. Remove it.")
    return {
        "by": said["by"],
        "labels": labels,
        "sizes": sizes,
        "rows": rows,
        "group": group,
        "number": np.arange(len(labels), dtype=np.int64),
        "row_order": order,
        "zoned": said["zoned"],
        "store": Store(folder, said["content"], own, stamps),
    }


def labels_file(folder: Path) -> Path:
    """The labels of the groups of a store, in their order."""
    return folder / (read_store(folder) or {"build": ""})["build"] / LABELS


def write_labels(path: Path, labels: pa.Array) -> None:
    """Writes the labels of a store."""
    table = pa.table({"label": labels})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read_labels(path: Path, by: str) -> np.ndarray:
    with pa.memory_map(str(path)) as file:
        column = pa.ipc.open_file(file).read_all().column("label").combine_chunks()
        return np.array(canonical(f'column "{by}"', column.to_numpy(zero_copy_only=False)))


def read_rows(column: np.ndarray, take: Any) -> np.ndarray:
    """Some rows of a column. Neighbours in a file are read from it: mapped pages would stay in memory."""
    if not (isinstance(column, np.memmap) and isinstance(take, slice)):
        return column[take]
    assert isinstance(column.base, mmap) and column.filename  # a whole file
    start, stop, _ = take.indices(len(column))
    width, each = column.dtype.itemsize, int(np.prod(column.shape[1:]))
    count, at = each * (stop - start), column.offset + each * width * start
    try:
        values = np.fromfile(column.filename, column.dtype, count, "", at)
    except OSError as error:
        raise unreadable(column.filename, error) from error
    if len(values) != count:
        raise OSError(f"{column.filename} was cut short while it was read: build the store again.")
    return values.reshape(-1, *column.shape[1:])
