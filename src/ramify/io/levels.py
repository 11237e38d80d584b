"""A fit with several factors on disk: the same files as of any fit, with draws as its arrays."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from ramify._version import __version__
from ramify.io.folder import ARRAYS, FIT, FORMAT, FORMAT_VERSION, LABELS, SavedFit, seal
from ramify.io.replacing import write_folder
from ramify.io.saving import as_plain, part_of, read_arrays, write_arrays, write_labels

KIND = "levels"  # what fit.json calls the family
POOL = ("theta", "beta", "u")


class LevelsRecord(NamedTuple):
    """The saved parts of a fit, except its model and its rows."""

    pool: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    labels: Shaped[np.ndarray, " N"]  # of the integrated factor
    by: str  # its name
    notes: dict[str, Any]


def is_levels(saved: SavedFit) -> bool:
    """Whether a saved fit is one with several factors."""
    family = saved.fit.get("family")
    return isinstance(family, dict) and family.get("is") == KIND


def save_levels(
    path: Path, record: LevelsRecord, more: Callable[[Path], None], *, overwrite: bool
) -> None:
    """Writes a fit to a folder and calls `more` with it; replaces nothing there but a fit."""
    write_folder(path, lambda folder: _write(record, folder, more), overwrite=overwrite)


def _write(record: LevelsRecord, folder: Path, more: Callable[[Path], None]) -> None:
    arrays = {f"pool/{name}": own for name, own in record.pool.items()}
    arrays |= {f"history/{name}": own for name, own in record.history.items()}
    write_arrays(folder / ARRAYS, arrays)
    write_labels(record.labels, folder / LABELS)
    more(folder)
    fit = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "ramify_version": __version__,
        "method": KIND,
        "family": {"is": KIND},
        "N": len(record.labels),
        "labels_dtype": record.labels.dtype.str,
        "by": record.by,
        "theta": [],
        "z": [],
        "rows": {},
        "group": {},
        "local_draws": 1,
        "notes": record.notes,
    }
    plain = json.loads(json.dumps(fit, default=as_plain))
    (folder / "partial").write_text(json.dumps(seal(folder, plain), indent=1), encoding="utf-8")
    (folder / "partial").rename(folder / FIT)  # last: if it is there, the others are complete


def read_levels(saved: SavedFit, sizes: Mapping[str, int]) -> LevelsRecord:
    """Reads what `save_levels` wrote; `sizes` are the numbers of columns of the pool's arrays."""
    path = saved.needed(ARRAYS)
    arrays = read_arrays(path)
    pool = part_of(arrays, "pool/")
    shapes = {name: array.shape for name, array in pool.items()}
    draws = {shape[0] for shape in shapes.values() if shape}
    expected = {name: (draws.copy().pop() if draws else 0, size) for name, size in sizes.items()}
    numbers = all(array.dtype.kind == "f" and np.isfinite(array).all() for array in pool.values())
    if len(draws) != 1 or shapes != expected or not numbers or not min(draws):
        raise ValueError(f"{path} is damaged: its draws are not those of its formula's parameters.")
    history, notes = part_of(arrays, "history/"), saved.fit["notes"]
    if not isinstance(notes, dict):
        raise ValueError(f"{saved.folder / FIT} is damaged: its notes are none.")
    return LevelsRecord(pool, history, np.zeros(0), str(saved.fit["by"]), notes)
