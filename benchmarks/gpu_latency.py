"""How long a user of a GPU waits: large problems, call by call, in new processes.

    python -m benchmarks gpu_latency                          # the paper's largest problem
    python -m benchmarks gpu_latency --problem million        # a million groups, 40 million rows
    python -m benchmarks gpu_latency --runs empty --users 2000

`ratings` is `gpu`'s problem (160,000 users, 20 million ratings, M = 10, D = 65), `million` that of `cpu`
(M = 5, D = 20). The data are simulated and kept as NumPy files before any clock starts. Then the journey
runs in a process with an empty cache of compiled programs, and in another with the cache that this left.
The first call counts from the start of its process and holds import, reading the files and grouping the
rows; "fit again" is the same fit once more, with nothing left to compile. The columns are those of
`latency`; the sweeps of each fit and the seconds that its search took are printed below.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cpu, gpu, in_own_process, latency, show

SIZES = {"ratings": 160_000, "million": 1_000_000}
SOME = 1000  # groups that are sampled, predicted and judged


def main(argv: list[str]) -> int:
    """Simulates, runs the journeys and prints a table of each."""
    args = _parse(argv)
    if args.one:
        print(json.dumps(_journey(args)))
        return 0
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAMIFY_CACHE"] = str(Path(folder) / "cache")
        N = args.users or SIZES[args.problem]
        for name, column in (ratings(N) if args.problem == "ratings" else million(N)).items():
            np.save(Path(folder) / name, column)
        for run in args.runs:
            given = "--one", args.problem, "--data", folder, "--started", time.time()
            found = in_own_process("gpu_latency", *given)
            failed |= "calls" not in found
            show({"run": run, **row} for row in found.pop("calls", []))
            print(json.dumps(found), flush=True)
    return int(failed)


def ratings(users: int) -> dict[str, np.ndarray]:
    """The columns of `gpu`'s ratings."""
    groups = gpu.simulate(users, 0)
    user = np.repeat(np.arange(users, dtype=np.int32), groups.sizes)
    return {"group": user, **{name: np.asarray(groups.rows[name]) for name in ("x", "y")}}


def million(groups: int) -> dict[str, np.ndarray]:
    """The columns of `cpu`'s rows, as many again as it draws: about 40 a group."""
    data = cpu.simulate(groups)
    return {name: data[name] for name in ("group", "x", "y")}


def _journey(args: argparse.Namespace) -> dict[str, Any]:
    """Import, grouping, fit, and one question after the other."""
    meter = latency.Meter(args.started)
    import ramify as rf

    data = {name: np.load(args.data / f"{name}.npy") for name in ("group", "x", "y")}
    if args.one == "ratings":
        groups = rf.Groups.from_table(data, by="group", rows=["x", "y"])
        model = gpu.preferences()
    else:
        model, groups = cpu.logistic(data)
    meter.done("import, groups")
    fits = [rf.fit(model, groups)]
    meter.done("fit")
    for name, ask in questions(fits[0], groups).items():
        ask()
        meter.done(name)
    fits.append(rf.fit(model, groups))
    meter.done("fit again")
    again = questions(fits[1], groups)
    for name in ("elbo", "diagnose", "log_predictive"):
        again[name]()
        meter.done(f"{name} again")
    notes = [
        {k: fit.notes.get(k) for k in ("sweeps", "seconds", "bias_sds", "noise_sds")}
        for fit in fits
    ]
    return {"calls": meter.rows, "fits": notes, "said": str(fits[0])}


def questions(posterior: Any, groups: Any) -> dict[str, Callable]:
    """What is asked of a fit, in this order."""
    import ramify as rf

    some = groups.subset(positions=np.arange(min(SOME, len(groups))))
    train, test = some.split(0.1, seed=0)
    return {
        "summary": posterior.summary,
        "sample": lambda: posterior.sample(500, some),
        "elbo": lambda: posterior.elbo(draws=100),
        "diagnose": lambda: rf.diagnose(posterior),
        "log_predictive": lambda: posterior.log_predictive(train, test, 1000, "per_row"),
    }


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks gpu_latency", description=__doc__)
    parser.add_argument("--problem", choices=SIZES, default="ratings")
    parser.add_argument("--users", type=int, help="so many groups instead")
    parser.add_argument(
        "--runs", nargs="+", choices=("empty", "filled"), default=["empty", "filled"]
    )
    parser.add_argument("--one", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
