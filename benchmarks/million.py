"""`ramify fit` on 1,000,000 rows of 100,000 groups in Parquet: wall time and peak memory.

    python -m benchmarks million [--rows 1000000] [--groups 100000] [--likelihood bernoulli]

The script first writes the table: 10 columns, four of them used by the formula. The command then runs in
its own process, and the operating system reports its peak resident memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT, show

FORMULA = "y ~ 1 + x1 + x2 + (1 + x1 | user)"
TRUTH = {"Intercept": -0.5, "x1": 0.8, "x2": -0.4}
SDS = (0.9, 0.6)  # of intercepts and slopes, whose correlation is 0.3


def make(path: Path, rows: int, groups: int, likelihood: str, seed: int = 0) -> None:
    """Writes a table drawn from the model: sizes of groups are heavy-tailed, rows in random order."""
    rng = np.random.default_rng(seed)
    share = rng.lognormal(0, 1, groups)
    user = np.concatenate(
        [np.arange(groups), rng.choice(groups, rows - groups, p=share / share.sum())]
    )
    user = rng.permutation(user)
    x1, x2 = rng.normal(size=(2, rows))
    u = rng.normal(size=(groups, 2)) @ np.linalg.cholesky([[1, 0.3], [0.3, 1]]).T * SDS
    eta = TRUTH["Intercept"] + u[user, 0] + (TRUTH["x1"] + u[user, 1]) * x1 + TRUTH["x2"] * x2
    y = rng.random(rows) < 1 / (1 + np.exp(-eta))
    y = y.astype(np.int8) if likelihood == "bernoulli" else eta + rng.normal(size=rows)
    other = {f"unused{i}": rng.normal(size=rows) for i in range(6)}
    pq.write_table(pa.table({"user": user, "x1": x1, "x2": x2, "y": y, **other}), path)


def fitted(data: Path, out: Path, likelihood: str) -> dict[str, float]:
    """Runs `ramify fit` and measures it."""
    command = [sys.executable, "-m", "ramify", "fit", data, FORMULA]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    started = time.perf_counter()
    subprocess.run(
        [*map(str, command), "--likelihood", likelihood, "--out", str(out), "--overwrite"],
        env=os.environ | {"PYTHONPATH": path},
        check=True,
    )
    seconds = time.perf_counter() - started
    # The largest of all children; this process has started no other. Kilobytes on Linux.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"seconds": seconds, "peak_gib": peak / 2**30}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks million", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--likelihood", default="bernoulli", choices=["bernoulli", "gaussian"])
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.parquet"
        make(data, asked.rows, asked.groups, asked.likelihood)
        size = {"rows": asked.rows, "groups": asked.groups, "file_mb": data.stat().st_size / 1e6}
        row = size | fitted(data, Path(folder) / "fit", asked.likelihood)
        took = json.loads((Path(folder) / "fit" / "fit.json").read_text())["notes"]["seconds"]
    show([row | {"fit_seconds": took}])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
