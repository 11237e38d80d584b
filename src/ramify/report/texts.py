"""The words and tables of a report: what the template fills in."""

from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.diagnostics.diagnosis import Diagnosis
from ramify.diagnostics.verdict import BAD
from ramify.families.build import covariance_of, method_of
from ramify.posterior.posterior import Posterior
from ramify.posterior.summary import Summary

LISTED = 200  # rows of a table
PICTURED = 40  # lines of a forest plot
STATISTICS = ("mean", "sd", "q5", "q50", "q95", "ess", "k_hat")


def lead_of(posterior: Posterior, groups: Groups) -> str:
    """One line below the title."""
    notes = posterior.notes
    data = f"{groups.n_rows:,} rows in {len(groups):,} groups by {posterior.by}"
    took = f" in {seconds(notes['seconds'])}" if "seconds" in notes else ""
    fitted = f"fitted by {method_of(posterior.family)}{took}"
    return " · ".join([*posterior.adapter.describe().lead, data, fitted])


def fitted_of(posterior: Posterior) -> list[tuple[str, str]]:
    """What was fitted and how, as names and values."""
    model, notes = posterior.model, posterior.notes
    covariance, why = covariance_of(posterior.family), notes.get("why", "as asked")
    method = method_of(posterior.family) + (f", {covariance} covariance" if covariance else "")
    method += "" if why == "as asked" else f" (because {why})"
    size = f"{model.theta.size} global, {model.z.size} for each group"
    draws = f"{posterior.local_draws:,} for each group and draw of the globals"
    found = [*posterior.adapter.describe().facts, ("Method", method)]
    found += [("Parameters", size), ("Local draws", draws)]
    spent = [f"{notes[unit]:,} {unit}" for unit in ("steps", "sweeps") if unit in notes]
    spent += [seconds(notes["seconds"])] if "seconds" in notes else []
    if spent:
        done = "not converged" if notes.get("converged") is False else "ended"
        found.append(("Fit", f"{done} after {', '.join(spent)}"))
    return found


def comparable(rows: np.ndarray, summary: Summary) -> np.ndarray:
    """The rows without the intercept, if it would flatten the others in a figure."""
    low, high = summary["q5"][rows], summary["q95"][rows]
    reach = np.maximum(np.abs(low), np.abs(high))
    rest = np.array([summary.names[i] != "Intercept" for i in rows])
    if rest.all() or not rest.any():
        return rows
    flat = reach[~rest][0] > 6 * max(reach[rest].max(), (high - low).max())
    return rows[rest] if flat else rows


def table_of(summary: Summary, rows: list[int]) -> dict[str, Any]:
    """Some rows of the summary, with digits according to their sds."""
    columns, found = [c for c in STATISTICS if c in summary.columns], []
    for i in rows[:LISTED]:
        digits = dict.fromkeys(columns, decimals(float(summary["sd"][i]))) | {"ess": 0, "k_hat": 2}
        cells = [f"{summary[c][i]:,.{digits[c]}f}".replace("-", "−") for c in columns]
        found.append({"name": summary.names[i], "cells": cells})
    headings = {"q5": "5%", "q50": "median", "q95": "95%", "k_hat": "k-hat"}
    return {"columns": [headings.get(c, c) for c in columns], "rows": found}


def decimals(sd: float) -> int:
    """Decimals that show two digits of the sd.

    Example:
        >>> decimals(0.054), decimals(12.0), decimals(0.0)
        (3, 0, 3)
    """
    return int(np.clip(1 - np.floor(np.log10(sd)), 0, 8)) if 0 < sd < np.inf else 3


def worst_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The table of worst groups: cells with their text and the value to sort by."""
    if not len(diagnosis.labels):
        return None
    table = diagnosis.worst(LISTED)
    columns = [
        {"name": diagnosis.by, "help": "label of the group"},
        {"name": "rows", "help": "rows of the group"},
        {"name": "k-hat", "help": "tail of the group's importance weights: good is below 0.5"},
        {"name": "effective", "help": "share of its draws that the weights leave"},
        {"name": "gap, nats", "help": "what a Gaussian loses for this group"},
    ]
    unsolved = not [*table.values()][-1].all()
    if unsolved:
        columns.append({"name": "solved", "help": "whether its own solution was found"})
    rows = []
    for label, n, k, share, gap, done in zip(*table.values(), strict=True):
        row = [
            cell(str(label), str(label)),
            cell(f"{n:,}", int(n)),
            cell(f"{k:.2f}".replace("-", "−"), round(float(min(k, 99)), 4), k > BAD),
            cell(f"{share:.0%}", round(float(share), 4)),
            cell(f"{max(gap, 0.0):.2f}", round(float(gap), 4), gap > 1),
            cell("yes" if done else "no", int(done), not done),
        ]
        rows.append(row if unsolved else row[:-1])
    said = _worst_said(diagnosis, len(rows))
    return {"columns": columns, "rows": rows, "by": diagnosis.by, "said": said}


def _worst_said(diagnosis: Diagnosis, shown: int) -> str:
    N, bad = len(diagnosis.labels), int((diagnosis.group_k_hat > BAD).sum())
    which = f"The {shown:,} worst of {N:,} groups" if shown < N else f"All {N:,} groups"
    above = {0: "none has", 1: "one of them has"}.get(bad, f"{bad:,} of them have")
    uneven = "by how uneven the importance weights of their draws are"
    return f"{which}, {uneven}; {above} a k-hat above {BAD}."


def cell(text: str, value: Any, bad: Any = False) -> dict[str, Any]:
    """A cell of a sortable table."""
    return {"text": text, "value": value, "bad": bool(bad)}


def seconds(value: int | float) -> str:
    """A duration for people.

    Example:
        >>> seconds(3.21), seconds(200)
        ('3.2 s', '3 min 20 s')
    """
    return f"{value:.2g} s" if value < 100 else f"{value // 60:.0f} min {value % 60:.0f} s"
