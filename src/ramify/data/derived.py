"""A store made from another one, group by group: the same groups and rows with other columns."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ramify.data.atomic import locked
from ramify.data.groups import Groups
from ramify.data.store import labels_file, read_store
from ramify.data.writing import ColumnFiles, Told, build, check_folder, sync

ROWS = 2**17  # of a part, about


def parts(groups: Groups, rows: int | None = None) -> Iterator[Groups]:
    """All groups in their order, in runs of about so many rows."""
    ends = np.cumsum(groups.sizes)
    start = 0
    while start < len(groups):
        before = ends[start - 1] if start else 0
        stop = max(int(ends.searchsorted(before + (rows or ROWS), "right")), start + 1)
        yield groups.subset(positions=np.arange(start, stop))
        start = stop


def derived(
    groups: Groups, folder: Path, said: dict[str, Any], change: Callable[[Groups], Groups]
) -> Groups:
    """A store of the same groups whose columns `change` computes, part by part.

    `said` lists what the columns depend on; a store with the same list is used again.
    """
    assert groups.store is not None
    said = {**said, "by": groups.by, "source": groups.store.content}
    check_folder(folder)
    with locked(folder):
        found = read_store(folder)
        if found is None or any(found.get(name) != said[name] for name in said):
            build(folder, said, lambda own: _write(groups, folder, own, change))
    return Groups.from_store(folder)


def _write(
    groups: Groups, folder: Path, own: Path, change: Callable[[Groups], Groups]
) -> dict[str, Any]:
    """Writes the files of a build; returns what store.json says of them."""
    assert groups.store is not None
    wide = change(next(parts(groups, 1)))
    row = sum(_bytes(column) for column in wide.rows.values()) + groups.row_order.itemsize
    group = sum(_bytes(column) for column in wide.group.values())
    what = f"to code the {groups.n_rows:,} rows of {groups.store.folder}"
    told = Told(what, groups.n_rows, row * groups.n_rows + group * len(groups), folder)
    names, written = (list(wide.rows), list(wide.group)), 0
    with (
        closing(ColumnFiles(own, groups.n_rows)) as rows,
        closing(ColumnFiles(own, len(groups))) as each,
    ):
        for part in parts(groups):
            new = change(part)
            _check_same(names, new)
            rows.add("row_order", new.row_order)
            for k, name in enumerate(names[0]):
                rows.add(f"row-{k}", new.rows[name])
            for k, name in enumerate(names[1]):
                each.add(f"group-{k}", new.group[name])
            written += new.n_rows
            told.at("coded", written)
        rows.checksum.update(each.checksum.digest() + groups.store.content.encode())
    np.save(own / "sizes.npy", groups.sizes)
    shutil.copyfile(labels_file(groups.store.folder), own / "labels.arrow")
    sync(own)
    told.end()
    about = {"rows": names[0], "groups": names[1], "zoned": groups.zoned}
    about |= {"n_rows": groups.n_rows, "n_groups": len(groups)}
    return {**about, "content": rows.checksum.hexdigest()}


def _bytes(column: np.ndarray) -> int:
    return column.itemsize * int(np.prod(column.shape[1:]))


def _check_same(names: tuple[list[str], list[str]], new: Groups) -> None:
    if names != (list(new.rows), list(new.group)):
        raise AssertionError(f"parts of a store have columns {names} and {[*new.rows, *new.group]}")
