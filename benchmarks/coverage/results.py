"""Stored ranks of the coverage benchmark as a table and a picture."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import show
from benchmarks.coverage.cases import CASES, FEW, PUBLISHED, Case
from ramify.diagnostics.calibration import Calibration

LEVELS = (0.5, 0.9)
FAR = 3  # standard errors
COLOURS = {"ramify": "#1f77b4", "laplace": "#d62728"}
NAMES = {"mu": "mu", "tau": "tau", "z: z": "z"}


def read(folder: Path) -> dict[Case, Calibration]:
    """All parts of each case together."""
    parts: dict[Case, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        own = json.loads(file.read_text())
        parts.setdefault(Case(**own["case"]), []).append(own)
    order = {case: k for k, case in enumerate(CASES)}
    return {c: _together(parts[c]) for c in sorted(parts, key=lambda c: order.get(c, len(order)))}


def _together(parts: list[dict[str, Any]]) -> Calibration:
    join = lambda kind: {n: np.concatenate([p[kind][n] for p in parts]) for n in parts[0][kind]}
    verdicts = sum((Counter(p["verdicts"]) for p in parts), Counter())
    z, failures = join("z"), tuple(said for p in parts for said in p["failures"])
    labels = np.arange(next(iter(z.values())).shape[1])
    return Calibration(parts[0]["draws"], join("theta"), z, labels, verdicts, failures)


def table(folder: Path) -> int:
    """Prints the coverage of all cases; 1 if one of Ramify's is too far off."""
    rows, far = [], 0
    for case, found in read(folder).items():
        covered = [found.coverage(level) for level in LEVELS]
        for name, p in found.p_values.items():
            row: dict[str, Any] = {**case._asdict(), "of": NAMES[name]}
            for level, own in zip(LEVELS, covered, strict=True):
                share, se = own[name]
                row |= {f"{level:.0%}": share, f"se {level:.0%}": se}
                wrong = abs(share - level) > FAR * se
                row[f"off {level:.0%}"] = "OFF" if wrong else ""
                far += wrong and case.method == "ramify"
            doubts = found.verdicts.get("check", 0), found.verdicts.get("do not trust", 0)
            rows.append(row | {"p": p, "fits": len(found.theta_ranks["mu"])})
            rows[-1] |= {"check": doubts[0], "no trust": doubts[1], "failed": len(found.failures)}
    show(rows)
    print(f"{far} of Ramify's shares are off by more than {FAR} standard errors")
    return int(far > 0)


def picture(folder: Path, to: Path) -> None:
    """Coverage against the number of groups, and against rows per group, as PNG or SVG."""
    from matplotlib.figure import Figure

    found = read(folder)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots(2, 4, sharey=True)
    for row, (likelihood, n) in zip(axes, PUBLISHED.items(), strict=True):
        own = {case: x for case, x in found.items() if case.likelihood == likelihood}
        by_groups = {case: x for case, x in own.items() if case.rows == n}
        _groups(row[0], {c: x for c, x in by_groups.items() if c.method == "ramify"})
        row[0].set(title=f"Ramify, {n} rows a group", xlabel="groups")
        row[0].set_ylabel(f"{likelihood}: share of intervals\nthat hold the truth")
        by_rows = {case: x for case, x in own.items() if case.groups == FEW}
        for axis, (name, shown) in zip(row[1:], NAMES.items(), strict=True):
            _rows(axis, by_rows, name)
            axis.set(title=f"{shown}, {FEW:,} groups", xlabel="rows a group")
    axes[0, 1].legend(loc="lower right")
    figure.savefig(to, dpi=110)
    print(f"wrote {to}")


def _groups(axis: Any, found: dict[Case, Calibration]) -> None:
    for k, (name, shown) in enumerate(NAMES.items()):
        x = [case.groups * 1.2 ** (k - 1) for case in found]
        _errors(axis, x, list(found.values()), name, f"C{k + 2}", shown)
    axis.legend(loc="lower right")


def _rows(axis: Any, found: dict[Case, Calibration], name: str) -> None:
    for method, colour in COLOURS.items():
        own = {c.rows: x for c, x in sorted(found.items()) if c.method == method}
        _errors(axis, list(own), list(own.values()), name, colour, method)


def _errors(
    axis: Any, x: list[float], found: list[Calibration], name: str, colour: str, label: str
) -> None:
    """Shares with one standard error either way, and lines where they should be."""
    for level in LEVELS:
        axis.axhline(level, color="grey", linewidth=0.8, linestyle="--")
        if found:
            share, se = np.transpose([own.coverage(level)[name] for own in found])
            once = label if level == LEVELS[0] else None
            axis.errorbar(x, share, se, fmt="o-", ms=3, color=colour, label=once, linewidth=1)
    axis.set(xscale="log", ylim=(0, 1))
