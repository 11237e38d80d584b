"""The cost of writing a model in NumPyro: step times compared with the same model as three densities.

    python -m benchmarks numpyro_cost                     # a few minutes on two CPU cores
    python -m benchmarks numpyro_cost --rows 65536 --out numpyro_cost.csv

Both models take the same steps on the same blocks, in turns, so that a busy machine slows both; the
fastest chunk of each counts. For `solved` a step is a sweep over the groups. `ratio` is NumPyro's
time divided by that of the densities; the aim is below 1.1. `make s` is the time that `from_numpyro`
takes to analyse and check the function, once.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import ramify as rf
from benchmarks import show
from ramify.data.partition import block_shape, partition
from ramify.data.resident import to_device
from ramify.data.sources import on_device
from ramify.engine.local import LocalEngine
from ramify.inference.marginal import Marginal
from ramify.inference.minibatches import Minibatches, Place
from ramify.inference.steps import Recipe, State, init, steps
from ramify.inference.sweep import Problem
from ramify.numerics.precision import computing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import problems  # noqa: E402

METHODS = {"branch": rf.branch, "amortized": rf.amortized, "solved": rf.solved}
Pair = tuple[rf.Model, Callable[..., Any], rf.Groups]


def main(argv: list[str]) -> int:
    """Measures every problem and method, prints a table and writes it where asked."""
    args = _parse(argv)
    rows = []
    for name in args.problems:
        densities, function, groups = PAIRS[name](args.rows)
        started = time.perf_counter()
        models = [densities, rf.from_numpyro(function, groups)]
        made = time.perf_counter() - started
        for method in args.methods:
            ours, theirs = compare(models, groups, method, args.rows, args.rounds)
            row = {"problem": name, "method": method, "densities ms": 1e3 * ours}
            rows.append(row | {"NumPyro ms": 1e3 * theirs, "ratio": theirs / ours, "make s": made})
            print(f"{name}, {method}: ratio {theirs / ours:.3f}", file=sys.stderr, flush=True)
    show(rows)
    if args.out:
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


@computing
def compare(
    models: list[rf.Model], groups: rf.Groups, method: str, rows: int, rounds: int
) -> tuple[float, float]:
    """Seconds a step takes with each of two models, in turns; the first chunk of each compiles."""
    if method == "solved":
        return _compare_sweeps(models, groups, rows, rounds)
    data, optimizer = to_device(groups), optax.adam(1e-3)
    source = Minibatches(groups, 0, whole=False, rows=rows, minibatch=None)
    states = [init(METHODS[method](model, groups), optimizer) for model in models]
    count, place = 20, Place()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(1 + rounds):
        chunk, place = source.take(place, count)
        recipe = Recipe(optimizer, 4, 1, "stl", chunk.rows)
        for i, model in enumerate(models):
            arrays = jnp.ones(count), jnp.asarray(chunk.members), jnp.asarray(chunk.scales)
            states[i], spent = _timed(model, data, recipe, states[i], arrays)
            seconds[i].append(spent / count)
    return min(seconds[0][1:]), min(seconds[1][1:])


def _compare_sweeps(
    models: list[rf.Model], groups: rf.Groups, rows: int, rounds: int
) -> tuple[float, float]:
    """The same for `solved`, whose step is a sweep over the groups: gradients at four thetas."""
    R, B = block_shape(groups.sizes, rows)
    members = partition(np.random.default_rng(0), groups.sizes, R, B)
    thetas = 0.1 * np.random.default_rng(1).normal(size=(4, models[0].theta.size))
    seconds: tuple[list[float], list[float]] = ([], [])
    sweeps = []
    for model in models:
        problem = Problem(model, rf.solved(model, groups).local, 32)
        own = on_device(groups, members, R), LocalEngine(), jax.random.key(0), 4
        sweeps.append(Marginal(problem, *own, report=lambda row: None))
    for _ in range(1 + rounds):
        for i, sweep in enumerate(sweeps):
            started = time.perf_counter()
            sweep.values(thetas)
            seconds[i].append(time.perf_counter() - started)
    return min(seconds[0][1:]), min(seconds[1][1:])


def _timed(
    model: rf.Model, data: Any, recipe: Recipe, state: State, arrays: tuple[Any, ...]
) -> tuple[State, float]:
    started = time.perf_counter()
    state, values = steps((jax.random.key(0), model, data, recipe), state, *arrays)
    np.asarray(values)
    return state, time.perf_counter() - started


def preferences(rows: int) -> Pair:
    """Ratings of movies by ten features: the design's own example."""
    N, M = max(rows // 40, 20), 10
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(N), rng.integers(5, 75, N))
    x = rng.standard_normal((group.size, M), np.float32)
    y = (rng.random(group.size) < 0.5).astype(np.int32)

    def function(x, y=None, *, group, n_group):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([M]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1).expand([M]).to_event(1))
        with numpyro.plate("users", n_group):
            beta = numpyro.sample("beta", dist.Normal(mu, tau).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=(x * beta[group]).sum(-1)), obs=y)

    model = rf.Model(
        theta={"mu": rf.real(M), "tau": rf.positive(M)},
        z={"beta": rf.real(M)},
        log_prior=lambda t: (
            dist.Normal(0, 1).log_prob(t["mu"]).sum() + dist.HalfNormal(1).log_prob(t["tau"]).sum()
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["beta"]).sum(),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=(row["x"] * z["beta"]).sum()).log_prob(
            row["y"]
        ),
    )
    table = {"group": group, "x": x, "y": y}
    return model, function, rf.Groups.from_table(table, by="group", rows=["x", "y"])


def _problem(name: str, rows_per_group: int) -> Callable[[int], Pair]:
    def make(rows: int) -> Pair:
        problem = problems.make(name, N=max(rows // rows_per_group, 20))
        model, groups = problems.for_ramify(problem)
        return model, problem.model, groups

    return make


PAIRS: dict[str, Callable[[int], Pair]] = {
    "preferences": preferences,
    "poisson": _problem("poisson", 10),
    "student_t": _problem("student_t", 10),
    "radon": _problem("radon", 10),
}


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks numpyro_cost", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=16_384, help="rows in a block (16384)")
    parser.add_argument("--rounds", type=int, default=15, help="chunks timed of each model (15)")
    parser.add_argument("--problems", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--out", type=Path, help="write the table to this CSV file as well")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
