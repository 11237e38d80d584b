"""Where a fit may be written, and how it replaces the one that is there. Needs no JAX.

A new folder is written beside its place and renamed. In a folder with a fit, the new one is written into
a subfolder and renamed to `.next`: from then on it is the fit (`io.folder.file_of`). Then its files are
moved to their place one by one, `fit.json` last. A process that dies on the way leaves the old fit or the
new one, and the next save completes what was begun.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ramify.data.atomic import check_beside, locked, new_folder, reason, unwritten
from ramify.io.folder import FILES, FIT, NEXT, OF_FORMULAS, REPORT, file_of, read_fit


def place_for(path: Path) -> Path:
    """The absolute path of a fit's folder; raises if it can't be written."""
    try:
        place = path.resolve()
        if place == Path.cwd() or place in Path.cwd().parents:
            raise ValueError(
                f"{path} is the folder you are in, or above it: save to one inside it."
            )
        if os.path.ismount(place):
            raise ValueError(f"{path} is a mount point, which stays: save to a folder inside it.")
        _check_free(path)
        holds = _holds_a_fit(place)
    except (OSError, RuntimeError) as error:  # a name that is too long, or links in a circle
        if isinstance(error, FileExistsError):
            raise
        why = reason(error) if isinstance(error, OSError) else "its links lead in a circle"
        raise OSError(
            f"a fit can't be written to {path}: {why}. Save to another folder."
        ) from error
    check_beside(place / FIT if holds else place, "fit")
    return place


def write_folder(path: Path, write: Callable[[Path], None], *, overwrite: bool = True) -> None:
    """Writes a fit's folder completely or not at all; `write` fills an empty one."""
    place = place_for(path)
    while True:
        holds = _holds_a_fit(place)
        if holds and not overwrite:
            raise FileExistsError(f"{path} already holds a fit.")
        new = new_folder(place, place if holds else place.parent, write)
        try:
            _replace(new, place) if holds else new.rename(place)
            return
        except OSError as error:
            if holds or not _holds_a_fit(place):
                raise unwritten(path, error) from error
            # Another process has saved a fit there in the meantime.
        finally:
            shutil.rmtree(new, ignore_errors=True)


def free_name(path: Path) -> Path:
    """The first of `fit-2`, `fit-3`, ... where nothing is."""
    number = 2
    while os.path.lexists(path.with_name(f"{path.name}-{number}")):
        number += 1
    return path.with_name(f"{path.name}-{number}")


def _check_free(path: Path) -> None:
    """Raises if the folder holds something other than a fit."""
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; save a fit to a folder of its own.")
    if not path.is_dir() or not any(path.iterdir()):
        return
    try:
        read_fit(path)
    except ValueError as error:
        raise FileExistsError(
            f"{path} has files in it and is not a saved fit that could be replaced ({error}) Save "
            "to another folder."
        ) from error


def _replace(new: Path, place: Path) -> None:
    """Makes a new fit, which is whole, the fit of a folder; files that are not of a fit are kept."""
    with locked(place):
        _move_in(place)
        new.rename(place / NEXT)
        with suppress(OSError):  # it is the fit by now; the next save moves it in
            _move_in(place)


def _move_in(place: Path) -> None:
    """Moves the files of a new fit, if there is one, to their place; removes the rest of the old fit."""
    new = place / NEXT
    if not new.is_dir():
        return
    if (new / FIT).is_file():
        own = {*read_fit(place).fit.get("checksums", FILES), FIT}
        for name in (REPORT, *(name for name in (*FILES, *OF_FORMULAS) if name not in own)):
            (place / name).unlink(missing_ok=True)
        for name in (*OF_FORMULAS, *FILES):  # fit.json is the last
            if (new / name).is_file():
                file_of(place, name).replace(place / name)
    shutil.rmtree(new)


def _holds_a_fit(place: Path) -> bool:
    """Whether a folder that `_check_free` has passed is there and not empty."""
    return place.is_dir() and any(place.iterdir())
