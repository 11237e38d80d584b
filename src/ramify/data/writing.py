"""Writes the files of a store: a new build beside the old one, complete or not there."""

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ramify._version import __version__
from ramify.data.atomic import refuse_link, unwritten, write_file
from ramify.data.store import FORMAT, FORMAT_VERSION, STORE, read_store

RATE = 1e6  # rows a second that two cores read, sort and write, about
DESIGN = "design-"  # begins the name of a folder with a formula's columns, a store of its own


def check_folder(folder: Path) -> None:
    """Raises where a store can't be in this folder; makes the folder."""
    refuse_link(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; expected a folder for the store.")
    others = [p.name for p in folder.glob("*") if not (_is_build(p) or p.name == STORE)]
    if others and not (folder / STORE).exists():
        raise FileExistsError(
            f"{folder} has files in it ({others[0]}, ...) and is not a store: choose another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(folder, error) from error


def _is_build(path: Path) -> bool:
    return path.is_dir() and len(path.name) == 8 and not set(path.name) - set("0123456789abcdef")


def build(folder: Path, said: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> None:
    """Makes a store in a locked folder: `write` fills the folder of the new build.

    store.json holds `said` and the fields that `write` returns.
    """
    for left in filter(_is_build, folder.iterdir()):  # of a process that died
        if left.name != (read_store(folder) or {}).get("build"):
            shutil.rmtree(left, ignore_errors=True)
    own = folder / secrets.token_hex(4)
    try:
        own.mkdir()
        about = write(own)
        text = {"format": FORMAT, "format_version": FORMAT_VERSION, "ramify_version": __version__}
        text |= {**said, **about, "build": own.name}
        save = lambda new: new.write_text(json.dumps(text, indent=1), encoding="utf-8")
        write_file(folder / STORE, save)
    except BaseException as error:
        shutil.rmtree(own, ignore_errors=True)
        if isinstance(error, OSError) and error.errno:
            raise unwritten(folder, error) from error
        raise
    for old in folder.iterdir():  # another build, and what was made from it
        if old != own and (_is_build(old) or old.name.startswith(DESIGN)):
            shutil.rmtree(old, ignore_errors=True)


class ColumnFiles:
    """The growing columns of a build, each in a NumPy file, and a checksum of their contents."""

    def __init__(self, own: Path, count: int):
        """The columns will have so many rows."""
        self._own, self._count = own, count
        self._files: dict[str, Any] = {}
        self.checksum = hashlib.sha256()

    def add(self, name: str, values: np.ndarray) -> None:
        """The next rows of a column."""
        if name not in self._files:
            self._files[name] = (self._own / f"{name}.npy").open("wb")
            shape = (self._count, *values.shape[1:])
            about = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(self._files[name], about)
        plain = np.ascontiguousarray(values)
        self._files[name].write(plain.data)
        self.checksum.update(plain.reshape(-1).view(np.uint8).data)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


def sync(own: Path) -> None:
    """Waits until the files of a build are on the disk."""
    for path in own.glob("*.*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


class Told:
    """Says how much disk and time a build needs, and how far it is; only to a terminal."""

    def __init__(self, what: str, count: int, wanted: int | float, folder: Path):
        """`what`, such as "to sort the rows of x", takes so many bytes in a folder."""
        self._count, self._last, self._show = count, 0.0, sys.stderr.isatty()
        free = shutil.disk_usage(folder).free
        if wanted > free:
            raise OSError(
                f"{what} takes about {wanted / 1e9:,.1f} GB of disk; {folder} has {free / 1e9:,.1f} GB "
                "free. Put the store on a larger disk, or name fewer columns."
            )
        self._say(
            f"{what[:1].upper()}{what[1:]} takes up to {wanted / 1e9:,.1f} GB of disk in {folder} and "
            f"some {max(count / RATE, 1):,.0f} s.\n"
        )

    def at(self, what: str, rows: int) -> None:
        """Reports that so many rows were read or written."""
        if time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            self._say(f"\r{rows / self._count:4.0%} {what}  ")

    def end(self) -> None:
        """The store is complete."""
        self._say("\rThe store is complete.\n")

    def _say(self, text: str) -> None:
        if self._show:
            sys.stderr.write(text)
            sys.stderr.flush()
