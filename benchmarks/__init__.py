"""Measurements of what steps, sweeps and whole fits cost: `python -m benchmarks --help`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Row = Mapping[str, Any]


def show(rows: Iterable[Row]) -> None:
    """Prints rows as a text table; columns in the order in which they first appear."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    wide = [max(len(line[c]) for line in lines) for c in range(len(names))]
    for line in lines:
        print("  ".join(cell.rjust(w) for cell, w in zip(line, wide, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def in_own_process(name: str, *arguments: Any, python: str = sys.executable) -> dict[str, Any]:
    """Runs `python -m benchmarks <name> <arguments>` and reads the JSON it prints last."""
    path = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [python, "-m", "benchmarks", name, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        return {"failed": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])
