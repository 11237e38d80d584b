"""The folder of a fit: checks whether it can be written, before the fit and without JAX."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramify._version import __version__

FORMAT = "ramify-fit"
FORMAT_VERSION = 1
ARRAYS, LABELS, FIT = FILES = ("arrays.safetensors", "labels.arrow", "fit.json")
FIELDS = "format_version theta z family local_draws by labels_dtype rows group notes".split()
CONFIG, ROWS = OF_FORMULAS = ("config.json", "rows.safetensors")
_OUTDATED = (*FILES, *OF_FORMULAS, "report.html")  # removed when another fit is saved


def read_json(folder: Path) -> dict[str, Any]:
    """Reads fit.json; raises if this version can't read it."""
    path = folder / FIT
    if not folder.exists():
        raise FileNotFoundError(f"there is no saved fit at {folder}.")
    if not path.is_file():
        raise ValueError(f"{folder} is not a saved fit: it has no {path.name}.")
    try:
        fit = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or not a fit: {error}.") from error
    if not isinstance(fit, dict) or fit.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by ramify: it does not say it is a {FORMAT}.")
    if fit.get("format_version", 0) > FORMAT_VERSION:
        raise ValueError(
            f"{folder} was saved by ramify {fit.get('ramify_version')} in format "
            f"{fit['format_version']}; this is ramify {__version__}, which reads formats up to "
            f"{FORMAT_VERSION}. Upgrade ramify to read it."
        )
    missing = [name for name in FIELDS if name not in fit]
    if missing:
        raise ValueError(f"{path} is damaged: it says nothing of {', '.join(missing)}.")
    return fit


def place_for(path: Path) -> Path:
    """The absolute path of a fit's folder; raises if it can't be written."""
    place = path.resolve()
    if place == Path.cwd() or place in Path.cwd().parents:
        raise ValueError(f"{path} is the folder you are in, or above it: save to one inside it.")
    if os.path.ismount(place):
        raise ValueError(f"{path} is a mount point, which stays: save to a folder inside it.")
    _check_free(path)
    beside = place.parent
    while not beside.exists():
        beside = beside.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=f".{place.name}-", dir=beside))
    except OSError as error:
        raise OSError(
            f"a fit can't be written to {path}: {beside} takes no new folder "
            f"({error.strerror}). Save to another folder."
        ) from error
    return place


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Writes a fit's folder completely or not at all; `write` fills an empty one."""
    path = place_for(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        write(new)
        new.chmod(0o777 & ~_umask())
        for file in new.iterdir():  # safetensors keeps its files to their owner
            file.chmod(0o666 & ~_umask())
        _replace(new, path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _check_free(path: Path) -> None:
    """Raises if the folder holds something other than a fit."""
    if path.is_file():
        raise FileExistsError(f"{path} is a file; save a fit to a folder of its own.")
    if not path.is_dir() or not any(path.iterdir()):
        return
    try:
        read_json(path)
    except ValueError as error:
        raise FileExistsError(
            f"{path} has files in it and is not a saved fit that could be replaced ({error}) Save "
            "to another folder."
        ) from error


def _replace(new: Path, path: Path) -> None:
    """Replaces the old folder by the new one; files that are not of the old fit are kept."""
    if not path.exists():
        new.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    for other in old.iterdir():
        if other.name not in _OUTDATED:
            other.rename(path / other.name)
    shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
