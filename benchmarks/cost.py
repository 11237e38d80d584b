"""Step time and memory against the number of groups, for branch and amortized.

    python -m benchmarks cost                                  # 10^3 to 10^6 groups
    python -m benchmarks cost --max-groups 100000 --out cost.csv

Every measurement runs in its own process, because peak memory cannot be reset. A step always uses
about 4,096 rows. `state` is the state of the fit between steps: the parameters, Adam's two moments of
each, and averages. For a branch family the state grows with N, and so does the time of a step, which
updates every parameter; for an amortized family neither does. `peak` is the peak memory of the whole
process, data included (`device peak` if the device reports it).
"""

import argparse
import csv
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax

import ramify as rf
from benchmarks import in_own_process, show
from ramify.data.resident import to_device
from ramify.inference.minibatches import Minibatches, Place
from ramify.inference.steps import Recipe, init, steps

METHODS = {"branch": rf.branch, "amortized": rf.amortized}
ROWS_PER_GROUP, ROWS_PER_STEP, DRAWS = 4, 4096, 10


def main(argv: list[str]) -> int:
    """Measures every size and family, prints a table and writes it where asked."""
    args = _parse(argv)
    if args.one:
        print(json.dumps(measure(args.one, args.groups, args.steps)))
        return 0
    sizes = [N for N in (10**3, 10**4, 10**5, 10**6) if N <= args.max_groups]
    rows = []
    for method in METHODS:
        for N in sizes:
            found = in_own_process("cost", "--one", method, "--groups", N, "--steps", args.steps)
            rows.append({"family": method, "N": N, **found})
            print(f"{method} with {N:,} groups: done", file=sys.stderr, flush=True)
    show(rows)
    if args.out:
        with args.out.open("w", newline="") as file:
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    return int(any("failed" in row for row in rows))


def measure(method: str, N: int, count: int) -> dict[str, Any]:
    """Time of a step and memory, after a first chunk that compiles."""
    model, groups = regression(N)
    data, family = to_device(groups), METHODS[method](model, groups)
    source = Minibatches(groups, 0, whole=False, rows=ROWS_PER_STEP, minibatch=None)
    optimizer = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))
    state = init(family, optimizer)
    seconds, place = [], Place()
    for _ in range(3):
        chunk, place = source.take(place, count)
        recipe = Recipe(optimizer, DRAWS, 1, "stl", chunk.rows)
        arrays = jnp.full(count, 1e-3), jnp.asarray(chunk.members), jnp.asarray(chunk.scales)
        started = time.perf_counter()
        state, values = steps((jax.random.key(0), model, data, recipe), state, *arrays)
        np.asarray(values)
        seconds.append(time.perf_counter() - started)
    learned = eqx.filter(state.family, eqx.is_inexact_array)
    stats = jax.local_devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return {
        "rows": groups.n_rows,
        "parameters": sum(x.size for x in jax.tree.leaves(learned)),
        "state MB": _megabytes(state),
        "data MB": _megabytes(data),
        "step ms": 1e3 * min(seconds[1:]) / count,
        "compile s": seconds[0] - min(seconds[1:]),
        "peak MB": _peak_rss() / 1e6,
        "device peak MB": None if peak is None else peak / 1e6,
    }


def regression(N: int) -> tuple[rf.Model, rf.Groups]:
    """Intercept and slope of each group, few rows in each: D = 4, M = 2."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(N), ROWS_PER_GROUP)
    beta = rng.normal([1.0, -0.5], [0.8, 0.4], (N, 2)).astype(np.float32)
    x = rng.standard_normal(group.size, np.float32)
    noise = rng.standard_normal(group.size, np.float32)
    y = beta[group, 0] + beta[group, 1] * x + noise
    model = rf.Model(
        theta={"mu": rf.real(2), "tau": rf.positive(2)},
        z={"beta": rf.real(2)},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"]).sum()
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], theta["tau"]).log_prob(z["beta"]).sum()
        ),
        log_lik=lambda theta, z, row: dist.Normal(
            z["beta"][0] + z["beta"][1] * row["x"], 1.0
        ).log_prob(row["y"]),
    )
    table = {"group": group, "x": x, "y": y}
    return model, rf.Groups.from_table(table, by="group", rows=["x", "y"])


def _megabytes(tree: Any) -> float:
    return sum(x.nbytes for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))) / 1e6


def _peak_rss() -> float:
    """Most bytes of memory this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks cost", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--max-groups", type=int, default=10**6, help="largest N (10^6)")
    parser.add_argument("--steps", type=int, default=30, help="steps that are timed, twice (30)")
    parser.add_argument("--out", type=Path, help="write the table to this CSV file as well")
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--groups", type=int, default=1000, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
