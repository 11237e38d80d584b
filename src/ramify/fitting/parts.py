"""Predictions and group effects of a saved fit as a folder of Parquet parts, here or on Dask workers.

A part is the answer for one row group of the new rows, or for one run of groups. It is a file that
one task writes as a whole; the task loads the fit itself. The division into parts does not depend
on who computes them, and existing parts are not computed again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ramify.data.atomic import write_file
from ramify.data.parquet import open_parquet
from ramify.diagnostics.diagnosis import Diagnosis, diagnose
from ramify.fitting.loading import load
from ramify.io.folder import FIT, file_of, read_fit
from ramify.posterior.posterior import Posterior
from ramify.posterior.prediction import Kind

PLAN = "_parts.json"  # says what the parts are of; readers of Parquet ignore its name
GROUPS = 100_000  # groups of a part

Where = str | PathLike[str]


class SavedFit(NamedTuple):
    """A saved fit, for a task."""

    folder: str
    content: str  # a checksum of its fit.json: the folder may come to hold another fit


class Part(NamedTuple):
    """The input of a task for one part: rows of a file, or a run of groups."""

    file: str
    source: str | list[str] | None
    fragment: int  # of the source; for groups, the first group
    row_group: int  # of the fragment; for groups, the end (exclusive)


def predict_parts(
    fit: Where,
    new: Any,
    out: Where,
    *,
    engine: Any = None,
    kind: Kind = "response",
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    draws: int = 1000,
    seed: int = 0,
) -> list[Path]:
    """Predicts for the rows of Parquet files, into a folder of Parquet parts.

    `posterior.predict` for more rows than memory holds: each row group is one part, with the
    columns of its rows and of their predictions. Existing parts of the same call are kept, so a
    call that was stopped goes on.

    Args:
        fit: the folder of a saved fit of a formula.
        new: the rows: a file, a folder, a pattern, a URL or a list of files.
        out: the folder for the parts.
        engine: a `dask.distributed.Client`, whose workers see all three under the same paths; by
            default this process computes.
        kind: as in `posterior.predict`.
        quantiles: of the outcome.
        draws: S.
        seed: predictions are a function of it.

    Returns:
        The files of the parts.
    """
    source = [fspath(p) for p in new] if isinstance(new, list) else fspath(new)
    parts, data = [], open_parquet(source)
    for i, fragment in enumerate(data.get_fragments()):
        for j in range(fragment.num_row_groups):
            parts.append(Part(f"part-{len(parts):06}.parquet", source, i, j))
    own = {"kind": kind, "quantiles": [*quantiles], "draws": draws, "seed": seed}
    own["files"] = _files(data)
    return _written(fit, Path(out), parts, {"predict": source, **own}, engine)


def effects_parts(
    fit: Where,
    out: Where,
    *,
    engine: Any = None,
    totals: bool = False,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    draws: int = 500,
    seed: int = 0,
) -> list[Path]:
    """`posterior.group_effects` of all groups of a saved fit, into a folder of Parquet parts.

    The arguments are those of `predict_parts` and of `posterior.group_effects`.
    """
    N = len(load(fit).labels)
    starts = range(0, N, GROUPS)
    runs = [(start, min(start + GROUPS, N)) for start in starts]
    parts = [Part(f"part-{k:06}.parquet", None, *run) for k, run in enumerate(runs)]
    own = {"totals": totals, "quantiles": [*quantiles], "draws": draws, "seed": seed}
    return _written(fit, Path(out), parts, {"group_effects": N, **own}, engine)


def diagnose_on(engine: Any, fit: Where, seed: int = 0) -> Diagnosis:
    """`diagnose` of a saved fit with its own rows, by one of the workers of a client."""
    return engine.submit(_diagnosed, _saved(fit), seed, pure=False).result()


def _written(
    fit: Where, out: Path, parts: list[Part], asked: dict[str, Any], engine: Any
) -> list[Path]:
    """Computes the parts that are not there yet."""
    saved = _saved(fit)
    _check_plan(out, {"fit": saved.content, "parts": len(parts), **asked})
    left = [part for part in parts if not (out / part.file).exists()]
    folder = str(out.absolute())
    if engine is None:
        for part in left:
            _write_part(saved, part, asked, folder)
    else:
        tasks = [
            engine.submit(_write_part, saved, part, asked, folder, pure=False) for part in left
        ]
        engine.gather(tasks)
    return [out / part.file for part in parts]


def _check_plan(out: Path, plan: dict[str, Any]) -> None:
    """Raises if a folder holds anything but parts of this call; otherwise writes the plan."""
    text, path = json.dumps(plan, indent=1), out / PLAN
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; expected a folder for the parts.")
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(
            f"{out} holds other files, or parts of another fit, source or options: choose another "
            "folder, or remove it."
        )
    write_file(path, lambda new: new.write_text(text, encoding="utf-8"))


def _files(data: Any) -> str:
    """A checksum of the names, sizes and times of files, which may come to hold other rows."""
    found = data.filesystem.get_file_info(data.files)
    files = json.dumps([[info.path, info.size, info.mtime_ns] for info in found])
    return hashlib.sha256(files.encode()).hexdigest()


def _saved(fit: Where) -> SavedFit:
    folder = Path(fit).absolute()
    read_fit(folder)  # raises if there is none
    return SavedFit(str(folder), _content(folder))


def _content(folder: Path) -> str:
    return hashlib.sha256(file_of(folder, FIT).read_bytes()).hexdigest()


# What runs on a worker.


@lru_cache(maxsize=1)
def _loaded(fit: SavedFit) -> Posterior:
    if _content(Path(fit.folder)) != fit.content:
        raise ValueError(f"{fit.folder} is not the fit any more that it was: begin again.")
    return load(fit.folder)


@lru_cache(maxsize=4)
def _fragments(source: Any, files: str) -> tuple[Any, list[Any]]:
    data = open_parquet(list(source) if isinstance(source, tuple) else source)
    if _files(data) != files:
        raise ValueError(
            f"the files of {source} were changed meanwhile, or are others on this machine: begin "
            "again, with files that all workers share."
        )
    return data.schema, list(data.get_fragments())


def _write_part(fit: SavedFit, part: Part, asked: dict[str, Any], out: str) -> int:
    """Writes one part; returns its number of rows."""
    import pyarrow.parquet as pq  # slow to import

    own: Callable[..., pa.Table] = _predicted if part.source is not None else _effects
    table = own(_loaded(fit), part, asked)
    write_file(Path(out, part.file), lambda new: pq.write_table(table, new, compression="zstd"))
    return table.num_rows


def _predicted(posterior: Posterior, part: Part, asked: dict[str, Any]) -> pa.Table:
    source = tuple(part.source) if isinstance(part.source, list) else part.source
    schema, fragments = _fragments(source, asked["files"])
    fragment = fragments[part.fragment]
    rows = fragment.subset(row_group_ids=[part.row_group]).to_table(schema=schema)
    own = {"kind": asked["kind"], "quantiles": asked["quantiles"]}
    try:
        return posterior.predict(rows, None, asked["draws"], asked["seed"], **own)
    except (ValueError, TypeError) as error:
        where = f"Rows are counted in row group {part.row_group} of {fragment.path}."
        raise type(error)(f"{error} {where}") from error


def _effects(posterior: Posterior, part: Part, asked: dict[str, Any]) -> pa.Table:
    if posterior.groups is None:
        raise ValueError("the rows of this fit are not there, which its group effects need.")
    groups = posterior.groups.subset(positions=np.arange(part.fragment, part.row_group))
    own = asked["totals"], asked["draws"], asked["seed"]
    table = posterior.group_effects(groups, *own, quantiles=asked["quantiles"])
    return table if isinstance(table, pa.Table) else pa.table(table)


def _diagnosed(fit: SavedFit, seed: int) -> Diagnosis:
    posterior = _loaded(fit)
    return diagnose(posterior, posterior.groups, seed=seed)
