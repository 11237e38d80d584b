"""The folder of a fit: its files, and whether they are those that were saved. Needs no JAX.

`fit.json` lists the checksum of every file and of itself, so that a file that was changed, cut short or
taken from another fit is refused. Fits of the first release have no checksums. Links are refused, since
a folder may come from somebody else.
"""

import glob
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify._version import __version__
from ramify.data.atomic import refuse_link

FORMAT = "ramify-fit"
FORMAT_VERSION = 1
ARRAYS, LABELS, FIT = FILES = ("arrays.safetensors", "labels.arrow", "fit.json")
CONFIG, ROWS = OF_FORMULAS = ("config.json", "rows.safetensors")
REPORT = "report.html"
FIELDS = "format_version theta z family local_draws by labels_dtype rows group notes".split()
NEXT = ".next"  # a subfolder with a new fit that is whole, and not yet moved to the old one's place
_MOST_JSON = 2**28  # bytes


@dataclass(frozen=True)
class SavedFit:
    """A fit's folder and its fit.json."""

    folder: Path
    fit: dict[str, Any]

    def file(self, name: str) -> Path | None:
        """A file of the fit, as it was saved; None if the fit has none of that name."""
        listed = self.fit.get("checksums")
        if listed is not None and name not in listed:
            return None
        path = file_of(self.folder, name)
        if not os.path.lexists(path):
            return None
        if not path.is_file():
            raise ValueError(f"{path} is damaged: it is not a file.")
        if listed is not None and checksum(path) != listed[name]:
            raise ValueError(
                f"{path} is damaged: it is not the file that was saved. Copy the folder again from "
                "where it came, or fit again."
            )
        return path

    def needed(self, name: str) -> Path:
        """The same for a file that every fit has; raises if it is not there."""
        path = self.file(name)
        if path is None:
            raise ValueError(f"the fit in {self.folder} is incomplete: {name} is missing.")
        return path


def read_fit(folder: Path) -> SavedFit:
    """Reads fit.json; raises if this version can't read it."""
    if not folder.exists():
        raise FileNotFoundError(f"there is no saved fit at {folder}.{_interrupted(folder)}")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected the folder of a saved fit.")
    path = file_of(folder, FIT)
    if not path.is_file():
        raise ValueError(f"{folder} is not a saved fit: it has no {FIT}.")
    fit = read_json(path)
    if fit.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by ramify: it does not say it is a {FORMAT}.")
    check_version(path, fit, FORMAT_VERSION, fit.get("ramify_version"))
    missing = [name for name in FIELDS if name not in fit]
    if missing:
        raise ValueError(f"{path} is damaged: it says nothing of {', '.join(missing)}.")
    _check_own(path, fit)
    return SavedFit(folder, fit)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    if path.stat().st_size > _MOST_JSON:
        raise ValueError(f"{path} is damaged: it has {path.stat().st_size:,} bytes.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{path} is damaged or not a fit: it is not JSON{at}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged or not a fit: it is not a JSON object.")
    return found


def check_version(path: Path, found: dict[str, Any], newest: int, by: Any) -> None:
    """Raises where a file is of a format that this version does not know."""
    version = found.get("format_version", newest)
    if type(version) is not int or version < 1:
        raise ValueError(f"{path} is damaged: format_version is {_shown(version)}.")
    if version > newest:
        raise ValueError(
            f"{path} was saved by ramify {_shown(by)} in format {version}; this is ramify "
            f"{__version__}, which reads formats up to {newest}. Upgrade ramify to read it."
        )


def seal(folder: Path, fit: dict[str, Any]) -> dict[str, Any]:
    """The contents of fit.json with the checksums of the files and of the contents themselves."""
    there = [name for name in (*FILES, *OF_FORMULAS) if name != FIT and (folder / name).is_file()]
    listed = {**fit, "checksums": {name: checksum(folder / name) for name in there}}
    return {**listed, "checksum": _own(listed)}


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_of(folder: Path, name: str) -> Path:
    """Where a file of the fit is: with the new fit if that is still being moved in."""
    refuse_link(folder / NEXT)
    new, old = folder / NEXT / name, folder / name
    path = new if os.path.lexists(new) else old
    refuse_link(path)
    return path


def _own(fit: dict[str, Any]) -> str:
    """The checksum of what fit.json says, whatever its layout."""
    rest = {name: value for name, value in fit.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _check_own(path: Path, fit: dict[str, Any]) -> None:
    listed, own = fit.get("checksums"), fit.get("checksum")
    if listed is None and own is None:  # a fit of the first release
        return
    names = isinstance(listed, dict) and all(isinstance(x, str) for x in listed.values())
    if not names or own != _own(fit):
        raise ValueError(
            f"{path} is damaged: it is not as it was saved. Copy the folder again from where it "
            "came, or fit again."
        )


def _shown(value: Any) -> str:
    """A value from a file, as a message shows it."""
    text = json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:57]}..."


def _interrupted(folder: Path) -> str:
    """Words on a fit whose save was interrupted just before the last step, if there is one."""
    beside = sorted(folder.absolute().parent.glob(f".{glob.escape(folder.name)}[.-]*"))
    found = [path for path in beside if (path / FIT).is_file()]
    return f" A save that was interrupted left one in {found[-1]}: rename it." if found else ""
