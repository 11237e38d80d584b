"""A data set larger than memory: Parquet files, sorted into a store, and a fit that streams it.

    python -m benchmarks store --rows 200000000 --groups 10000000 --folder /disk/large

Each part is a process of its own, whose peak memory the operating system reports: the files (drawn from
a logistic model with a level for each user, rows in random order), DuckDB alone (the same sort, into
Parquet), the store, the exact answer, the store's columns read from end to end, as a sweep does, and
nothing else, and fits of it, streamed and, if asked by --resident, resident. Parts that are done are not
done again. Files are dropped from the system's cache before they are read, where it lets one.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from ramify.engine.local import LocalEngine

FILE_ROWS = 5_000_000
MU, TAU = -0.5, 0.8
PARTS = ("files", "duckdb", "store", "exact", "disk", "fit", "resident")


def write_files(folder: Path, rows: int, groups: int) -> dict[str, float]:
    """Rows of users 0 to groups - 1, each in any of the files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    level = np.random.default_rng(0).normal(MU, TAU, groups).astype(np.float32)
    (folder / "files").mkdir(parents=True)
    for k, start in enumerate(range(0, rows, FILE_ROWS)):
        rng = np.random.default_rng([1, k])
        user = rng.integers(0, groups, min(FILE_ROWS, rows - start))
        y = rng.random(len(user), np.float32) < 1 / (1 + np.exp(-level[user]))
        columns = {"user": user, "x": rng.random(len(user), np.float32), "y": y.astype(np.int32)}
        pq.write_table(pa.table(columns), folder / "files" / f"{k:04}.parquet")
    return {"rows": rows, "groups": groups}


def sort_alone(folder: Path) -> dict[str, float]:
    """The same rows sorted by DuckDB from Parquet to Parquet, with as much memory."""
    import duckdb

    from ramify.data.sorting import MEMORY

    own = {"memory_limit": MEMORY, "temp_directory": str(folder / "spill")}
    with duckdb.connect(config=own) as connection:
        connection.execute(
            f"COPY (SELECT * FROM '{folder}/files/*.parquet' ORDER BY md5_number_lower(user::VARCHAR), "
            f"user) TO '{folder}/alone.parquet'"
        )
    (folder / "alone.parquet").unlink()
    return {}


def build(folder: Path) -> dict[str, float]:
    """The store."""
    import ramify as rf

    groups = rf.Groups.from_parquet(
        folder / "files", by="user", rows=["x", "y"], store=folder / "s"
    )
    size = sum(path.stat().st_size for path in (folder / "s").rglob("*") if path.is_file())
    return {"rows": groups.n_rows, "groups": len(groups), "GB": size / 1e9}


def uncached(folder: Path) -> list[Path]:
    """The row columns of the store, no longer in the system's cache."""
    columns = sorted((folder / "s").glob("*/row-*.npy"))
    for path in columns:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return columns


def disk(folder: Path, rows: int) -> dict[str, float]:
    """The bytes of a sweep, read in order: what the disk gives, and then what the cache gives."""
    columns, found = uncached(folder), {}
    for name in ("disk", "cache"):
        began = time.perf_counter()
        for path in columns:
            with path.open("rb", buffering=0) as file:
                while file.read(2**22):
                    pass
        seconds = time.perf_counter() - began
        found |= {f"GB / s, {name}": sum(path.stat().st_size for path in columns) / 1e9 / seconds}
        found |= {f"rows / s, {name}": rows / seconds}
    return found


class Counted:
    """An engine that counts the rows of all sweeps, and their seconds."""

    rows, seconds, sweeps = 0, 0.0, 0.0

    def __init__(self, engine: Any):
        """Another engine computes."""
        self._engine, self.fetch = engine, engine.fetch

    def sum(
        self, function: Any, source: Any, shared: Any, kept: Any, numbers: Any, *work: Any
    ) -> Any:
        """See `Engine.sum`."""
        began, members = time.perf_counter(), source.members[list(numbers)]
        total = self._engine.sum(function, source, shared, kept, numbers, *work)
        self.seconds += time.perf_counter() - began
        rows = int(source.sizes[members[members >= 0]].sum())
        self.rows, self.sweeps = self.rows + rows, self.sweeps + rows / source.sizes.sum()
        return total


def logistic() -> Any:
    """A level for each user, of whom the rows were drawn."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import ramify as rf

    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 2).log_prob(t["mu"]) - t["tau"],
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=z["b"] + 0 * jnp.sum(row["x"])).log_prob(
            row["y"]
        ),
    )


def exact(folder: Path) -> dict[str, float]:
    """The mode of the marginal posterior of mu and tau, without ramify, in float64.

    Groups with as many rows and as many ones are alike: some hundred kinds stand for all.
    """
    (build,) = (path.parent for path in (folder / "s").glob("*/sizes.npy"))
    sizes, y = np.load(build / "sizes.npy"), np.load(build / "row-1.npy", mmap_mode="r")
    ones = np.add.reduceat(y, np.cumsum(sizes) - sizes)
    kinds, count = np.unique(10_000 * sizes + ones, return_counts=True)
    n, k = kinds // 10_000, kinds % 10_000
    points, weights = np.polynomial.hermite_e.hermegauss(120)

    def value(at: np.ndarray) -> float:
        z = at[0] + np.exp(at[1]) * points[:, None]
        each = -k * np.logaddexp(0, -z) - (n - k) * np.logaddexp(0, z)
        each += np.log(weights / weights.sum())[:, None]
        prior = -(at[0] ** 2) / 8 - np.exp(at[1]) + at[1]
        return float(count @ np.logaddexp.reduce(each, 0)) + prior

    at, step = np.array([MU, np.log(TAU)]), 1e-3 * np.eye(2)
    slope = lambda at: np.array([value(at + d) - value(at - d) for d in step]) / 2e-3
    for _ in range(6):  # Newton's steps
        hessian = np.array([slope(at + d) - slope(at - d) for d in step]) / 2e-3
        at = at - np.linalg.solve(hessian, slope(at))
    found = {"mu": float(at[0]), "tau": float(np.exp(at[1]))}
    (folder / "exact.json").write_text(json.dumps(found), encoding="utf-8")
    return found


def fit(folder: Path, streamed: bool) -> dict[str, float]:
    """A fit of the store."""
    import ramify as rf

    uncached(folder)
    engine = Counted(LocalEngine())
    store = rf.Groups.from_store(folder / "s")
    posterior = rf.fit(logistic(), store, streamed=streamed, engine=engine)
    theta = posterior.summary().columns
    found = {f"{n} ({t})": float(m) for n, t, m in zip(("mu", "tau"), (MU, TAU), theta["mean"])}
    found |= {f"sd of {n}": float(sd) for n, sd in zip(("mu", "tau"), theta["sd"])}
    known = json.loads((folder / "exact.json").read_text(encoding="utf-8"))
    off = np.abs(theta["mean"] - np.array([known["mu"], known["tau"]])) / theta["sd"]
    found |= {"sds from the exact answer": float(off.max())}
    found |= {"sweeps": posterior.notes["sweeps"], "as many as whole ones": engine.sweeps}
    found |= {
        "seconds of sweeps": engine.seconds,
        "rows / s of sweeps": engine.rows / engine.seconds,
    }
    print(posterior)
    return found


def main(words: list[str]) -> int:
    """Runs the parts, each in a process of its own, and prints what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--part", choices=PARTS)
    own = parser.parse_args(words)
    if own.part:
        return _part(own)
    for part in PARTS if own.resident else PARTS[:-1]:
        done = {"files": own.folder / "files", "store": own.folder / "s" / "store.json"}.get(part)
        if done is not None and done.exists():
            continue
        command = [sys.executable, "-m", "benchmarks", "store", *words, "--part", part]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return 1
    shutil.rmtree(own.folder / "spill", ignore_errors=True)
    return 0


def _part(own: argparse.Namespace) -> int:
    calls = {
        "files": lambda: write_files(own.folder, own.rows, own.groups),
        "duckdb": lambda: sort_alone(own.folder),
        "store": lambda: build(own.folder),
        "exact": lambda: exact(own.folder),
        "disk": lambda: disk(own.folder, own.rows),
        "fit": lambda: fit(own.folder, True),
        "resident": lambda: fit(own.folder, False),
    }
    return measured(own.part, calls[own.part], own.rows)


def measured(part: str, call: Callable[[], dict[str, float]], rows: int = 0) -> int:
    """Runs a part and prints what it found, its seconds, CPU seconds and peak memory."""
    began = time.perf_counter()
    found = call()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found |= {"seconds": time.perf_counter() - began, "peak GiB": usage.ru_maxrss / 2**20}
    found["CPU seconds"] = usage.ru_utime + usage.ru_stime
    found |= {"rows / s": rows / found["seconds"]} if rows else {}
    print(part, json.dumps({name: round(value, 4) for name, value in found.items()}), flush=True)
    return 0
