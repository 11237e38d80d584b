"""Every recorded plate appearance, 1950 to 2024, by batter and pitcher, from Parquet through a store.

    python -m benchmarks baseball --data plate_appearances.parquet --folder /disk/baseball

The model is on_base ~ advantage + home + (1 | pair), logistic, with a level for each of two million pairs
of a batter and a pitcher. `advantage` says that the batter's hand is not the pitcher's, `home` that his
team plays at home. Phases are processes of their own, whose peak memory the operating system reports:
the pairs (DuckDB joins two columns into one), the sort and the columns of the model, and the fit, which
streams them. The information used here was obtained free of charge from and is copyrighted by Retrosheet.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.store import measured

FORMULA = "on_base ~ advantage + home + (1 | pair)"
PARTS = ("pairs", "sort", "fit")


def write_pairs(data: Path, folder: Path) -> dict[str, float]:
    """The columns of the model, and beside them the raw shares of plate appearances on base."""
    import duckdb

    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"memory_limit": "1GB"}) as connection:
        connection.execute(
            "COPY (SELECT batter::VARCHAR || ' ' || pitcher::VARCHAR AS pair, "
            "(outcome BETWEEN 1 AND 6)::TINYINT AS on_base, home_batting AS home, "
            "(bat_hand <> pit_hand)::TINYINT AS advantage "
            f"FROM '{data}') TO '{folder}/pairs.parquet'"
        )
        shares = "SELECT {0}, avg(on_base) FROM '{1}/pairs.parquet' GROUP BY 1 ORDER BY 1"
        own = lambda name: connection.execute(shares.format(name, folder)).fetchall()
        found = {f"on base, {n} {k}": share for n in ("advantage", "home") for k, share in own(n)}
    return found


def _model(folder: Path) -> Any:
    import ramify as rf

    source, store = folder / "pairs.parquet", folder / "s"
    return rf.from_formula(FORMULA, source, likelihood="bernoulli", store=store)


def sort(folder: Path) -> dict[str, float]:
    """The store and the columns of the model."""
    _, groups = _model(folder)
    return {"rows": groups.n_rows, "groups": len(groups)}


def fit(folder: Path) -> dict[str, float]:
    """The streamed fit."""
    import ramify as rf

    posterior = rf.fit(*_model(folder), streamed=True)
    print(posterior)
    print(posterior.summary())
    return {
        "sweeps": posterior.notes["sweeps"],
        "seconds of the search": posterior.notes["seconds"],
    }


def main(words: list[str]) -> int:
    """Runs the phases, each in a process of its own, and prints what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--part", choices=PARTS)
    own = parser.parse_args(words)
    if own.part:
        calls = {
            "pairs": lambda: write_pairs(own.data, own.folder),
            "sort": lambda: sort(own.folder),
            "fit": lambda: fit(own.folder),
        }
        return measured(own.part, calls[own.part])
    for part in PARTS:
        command = [sys.executable, "-m", "benchmarks", "baseball", *words, "--part", part]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 1
    return 0
