"""Checkpoints: the state of a fit that is under way, each in one file that is whole or not there.

A folder holds the last two of each part of a fit, `search-7.safetensors` and `search-8.safetensors`. The
file's header has a JSON text with what fit it is of, numbers, and a checksum of everything.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from ramify.data.atomic import MARK, write_file
from ramify.io.saving import write_arrays

FORMAT_VERSION = 1
KEPT = 2  # of each part: the last one, and one more for the case that it gets damaged


class State(NamedTuple):
    """The saved state of a fit: arrays by name, and numbers and texts."""

    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]


def write_state(folder: Path, part: str, of: Mapping[str, str], state: State) -> None:
    """Writes the next checkpoint of a part of a fit; `of` says what fit it is of."""
    before = _files(folder, part)
    number = 1 + max(before, default=0)
    arrays = {name: np.asarray(array) for name, array in state.arrays.items()}
    said = {"format_version": FORMAT_VERSION, "of": dict(of), "numbers": state.numbers}
    text = json.dumps(said, default=lambda x: x.item())
    header = {"checkpoint": text, "checksum": _checksum(text, arrays)}
    path = folder / f"{part}-{number}.safetensors"
    write_file(path, lambda new: write_arrays(new, arrays, header))
    for old in sorted(before)[: -KEPT + 1 or None]:
        before[old].unlink(missing_ok=True)


def read_state(folder: Path, part: str, of: Mapping[str, str]) -> State | None:
    """The last checkpoint that is whole, if there is one; raises if it is of another fit."""
    files = _files(folder, part)
    for number in sorted(files, reverse=True):
        try:
            said, arrays = _read(files[number])
        except (ValueError, OSError) as error:
            warnings.warn(
                f"the checkpoint {files[number]} is skipped: {error}. The one before it is used, if "
                "there is one.",
                stacklevel=2,
            )
            continue
        _check_same(folder, said["of"], of)
        return State(arrays, said["numbers"])
    return None


def clear_unfinished(folder: Path) -> None:
    """Removes what a process that was killed had begun to write; call it only with the folder's lock."""
    for left in folder.glob(f".*{MARK}*"):
        with suppress(OSError):
            left.unlink()


def _files(folder: Path, part: str) -> dict[int, Path]:
    """The checkpoints of a part, by number."""
    named = ((re.fullmatch(rf"{part}-(\d+)\.safetensors", p.name), p) for p in folder.iterdir())
    return {int(match[1]): path for match, path in named if match}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with safe_open(path, "numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError("it is truncated or damaged") from error
    text = header.get("checkpoint", "")
    if header.get("checksum") != _checksum(text, arrays):
        raise ValueError("it is damaged")
    said = json.loads(text)
    if said["format_version"] != FORMAT_VERSION:
        raise ValueError(f"its format is {said['format_version']}, and not {FORMAT_VERSION}")
    return said, arrays


def _check_same(folder: Path, found: Mapping[str, str], of: Mapping[str, str]) -> None:
    other = [name for name in of if found.get(name) != of[name]]
    if other:
        raise ValueError(
            f"the checkpoint in {folder} is of another fit: its {' and '.join(other)} "
            f"{'is' if len(other) == 1 else 'are'} not this one's. Give this fit another folder, or "
            "remove that one."
        )


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
