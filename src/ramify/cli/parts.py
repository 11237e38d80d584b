"""Results in Parquet parts, computed here or on the workers of a Dask scheduler."""

from pathlib import Path
from typing import Any

import ramify as rf
from ramify.cli import show
from ramify.cli.files import SUFFIXES, check_readable, is_csv
from ramify.cli.workers import client_of


def asked(
    out: Path | None, scheduler: str | None, new: Path | None = None, given: Path | None = None
) -> bool:
    """Whether results go to a folder of parts; raises where that is not possible."""
    folder = out is not None and out.suffix.lower() not in SUFFIXES and not out.suffix
    if scheduler is not None and not folder:
        raise ValueError("--scheduler writes Parquet parts: expected a folder to write them to.")
    if folder and new is not None:
        check_readable(new)
        if is_csv(new) or given is not None:
            what = "--given does" if given is not None else f"{new} is a CSV file, which does"
            raise ValueError(f"{what} not go with a folder of parts: name a file, such as out.csv.")
    return folder


def predict(
    fit: Path, new: str, out: Path | None, scheduler: str | None, own: dict[str, Any]
) -> None:
    """Predictions for the rows of Parquet files."""
    with client_of(scheduler) as client:
        files = rf.predict_parts(fit, new, out or "", engine=client, **own)
    show.note(f"Predicted the rows of {new} in {len(files):,} parts: {out}")


def effects(fit: Path, out: Path | None, scheduler: str | None, quantiles: Any) -> None:
    """The effects of every group."""
    with client_of(scheduler) as client:
        files = rf.effects_parts(fit, out or "", engine=client, quantiles=quantiles)
    show.note(f"Effects of all groups in {len(files):,} parts: {out}")


def diagnosis(fit: Path, data: Path | None, scheduler: str, seed: int) -> Any:
    """The diagnosis of a fit, computed on a worker."""
    if data is not None:
        raise ValueError("--scheduler diagnoses a fit with its own rows: leave the data out.")
    with client_of(scheduler) as client:
        return rf.diagnose_on(client, fit, seed)
