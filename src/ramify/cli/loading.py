"""The start of a command: chooses the device, loads a saved fit and the rows of a file."""

from pathlib import Path
from typing import Any

import ramify as rf
from ramify.cli.csv_form import CsvForm
from ramify.cli.files import read_table
from ramify.io.folder import read_fit


def use_device(device: str | None) -> None:
    """Makes JAX compute on the CPU or a GPU; call it before the first computation."""
    if device is None:
        return
    import jax

    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return
    try:
        jax.devices("gpu")
    except RuntimeError:
        raise ValueError(
            '--device gpu: JAX finds no GPU here. Install "ramify[cuda]" and a driver, or use '
            "--device cpu."
        ) from None


def load(fit: Path, device: str | None) -> Any:
    """The posterior of a fit's folder."""
    read_fit(fit)  # fails at once if there is no fit
    use_device(device)
    return rf.load(fit)


def groups_of(posterior: Any, data: Path | None, form: CsvForm) -> Any:
    """The data to judge a fit with: from a file, or the fit's own."""
    if data is None:
        return posterior.groups
    if posterior.notes.get("method") == "levels":
        raise ValueError(
            f"a fit with several grouping factors is judged by its own rows: leave {data} out."
        )
    table = read_table(data, list(posterior.adapter.columns()), kinds_of(posterior), form)
    return posterior.adapter.read(with_rows(data, table), str(data), outcomes=True)


def effects_of(posterior: Any, factor: str | None, quantiles: Any) -> Any:
    """The table of groups' effects; of several factors those of the named one."""
    if posterior.notes.get("method") == "levels":
        return posterior.group_effects(factor, quantiles=quantiles)
    if factor not in (None, posterior.by):
        raise ValueError(f"there is no factor {factor!r} in this fit; it has {posterior.by}.")
    return posterior.group_effects(quantiles=quantiles)


def with_rows(path: Path, table: Any) -> Any:
    """The table of a file; raises if it has no rows."""
    if not table.num_rows:
        raise ValueError(f"{path} has no rows: expected one for each observation.")
    return table


def known_groups(posterior: Any, table: Any) -> str:
    """How many groups the rows have, and how many of those are in the fit."""
    if not table.num_rows or posterior.by not in table.column_names:
        return ""
    groups = rf.Groups.from_table(table, by=posterior.by, rows=[]).renumbered(posterior.labels)
    known = int((groups.number < len(posterior.labels)).sum())
    return f" of {len(groups):,} groups, {known:,} of them in the fit"


def kinds_of(posterior: Any) -> dict[str, str]:
    """The kind of each column of a fit, labels included: "number" or "category"."""
    label = {"U": "category", "i": "number", "u": "number"}.get(posterior.labels.dtype.kind)
    kinds = posterior.adapter.columns() | {posterior.by: label}
    return {name: kind for name, kind in kinds.items() if kind is not None}
