"""How long a user waits: each call of a journey from import to a saved fit, in new processes.

    python -m benchmarks latency                              # README's example: 200 shops
    python -m benchmarks latency --model negbin               # or numpyro, densities
    python -m benchmarks latency --groups 10000               # `cpu`'s problem, beside GPBoost
    python -m benchmarks latency --peers --peer-python PATH   # beside lme4, Bambi and GPBoost

The journey runs three times: with an empty cache of compiled programs (`empty`), in a new process
with the cache that this left (`filled`), and in another with data of another size and other values
(`other data`; with `--groups` only if `--runs` asks for it). The first call counts from the start of
its process. Of each call:

- `cpu` are the CPU seconds of all its threads, the number to compare on a machine that others use too;
- `programs` were compiled; `from disk` were found in the cache instead;
- `tracing` are the seconds in which Python becomes XLA's input, `compiling` those of XLA, reading
  from the cache included. Work within other work, or on several threads at a time, counts once,
  as compiling if it is both. `running` is the rest: computing, reading, importing.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT, cpu, in_own_process, show
from benchmarks import latency_peers as peers

SHOPS, RUNS = 200, {"empty": 1.0, "filled": 1.0, "other data": 1.6}  # so many times the groups
COLUMNS = {"poisson": ["discount"], "negative_binomial": ["discount", "price", "rain", "weekend"]}
MEAN = np.array([1.0, 0.8, -0.4, 0.3, 0.2])  # of the shops' levels and slopes
SD = np.array([0.6, 0.3, 0.3, 0.2, 0.2])
SHAPE, TEST_ROWS = 3.0, 3  # of the negative binomial; rows of each shop that are held out

Row = dict[str, Any]
Table = dict[str, np.ndarray]


def main(argv: list[str]) -> int:
    """Runs the journeys and the peers, each in its own process, and prints tables."""
    args = _parse(argv)
    if args.one:
        print(json.dumps({"calls": _calls(args)}))
        return 0
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # a cache of the user's own would be used
    # An installed package has its bytecode: compiling its source takes a fifth of the import.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(ROOT / "src", quiet=1)
    print(json.dumps(_machine()), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAMIFY_CACHE"] = str(Path(folder) / "cache")
        for run, found in _runs(args, Path(folder)):
            for row in _rows(run, found):
                print(json.dumps(row), flush=True)
                rows.append(row)
    calls = [row for row in rows if "missing" not in row]
    show(calls)
    if args.runs:
        print()
        show(_side_by_side(calls))
    for row in rows:
        if "missing" in row:
            print(f"{row['run']} is not installed here ({row['missing']}).")
    return int(any("failed" in row for row in rows))


def _runs(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Row]]:
    """What each process found, Ramify's and then the peers', as they end."""
    own = ("--groups", args.groups) if args.groups else ("--model", args.model)
    files = {run: folder / f"{RUNS[run]}.npz" for run in ["empty", *args.runs]}
    for run, file in files.items():
        N = round((args.groups or SHOPS) * RUNS[run])
        if not file.exists():
            np.savez(file, **(cpu.simulate(N) if args.groups else simulate(args.model, N)))
    for run in args.runs:
        given = ("--one", "ramify", "--data", files[run], *own, "--started", time.time())
        yield run, in_own_process("latency", *given)
    data, python = files["empty"], args.peer_python
    if args.groups:
        yield "GPBoost", peers.gpboost_many(data, python)
    elif args.peers:
        yield "lme4", peers.lme4(_table(data), formula_of(args.model), likelihood_of(args.model))
        for name in peers.PYTHON:
            yield name, peers.in_python(name, python, "--data", data, *own)


def _calls(args: argparse.Namespace) -> list[Row]:
    """In a process of its own: the calls of Ramify's journey, or of a peer."""
    if args.one == "ramify":
        return _journey(args)
    clock = peers.Clock(args.started)
    question = _table(args.data), formula_of(args.model), likelihood_of(args.model)
    peers.PYTHON[args.one](clock, *question)
    return clock.rows


def _journey(args: argparse.Namespace) -> list[Row]:
    """Import, model, fit and then one question after the other."""
    meter = Meter(args.started)
    import ramify as rf

    table, test = _table(args.data), _table(args.data, "test_")
    model, groups = cpu.logistic(table) if args.groups else MODELS[args.model](table, args.model)
    meter.done("import, model")
    posterior = rf.fit(model, groups)
    meter.done("fit")
    with tempfile.TemporaryDirectory() as folder:
        asked = questions(posterior, test, args.model, Path(folder))
        for name in ["summary"] if args.groups else asked:
            asked[name]()
            meter.done(name)
    return meter.rows


def questions(posterior: Any, test: Table, model: str, folder: Path) -> dict[str, Callable]:
    """What a user asks of a fit, in this order."""
    import ramify as rf

    formula, columns = model in FORMULAS, COLUMNS[likelihood_of(model)]
    new = {"shop": [900] * 3, "sold": [9, 7, 14]} | {name: [0.0, 0.2, 0.5] for name in columns}
    at = {"shop": [900]} | {name: [0.8] for name in columns}
    effects = {"group_effects": posterior.group_effects}
    drawn = {"sample": lambda: posterior.sample(500)}  # what group_effects is made from
    return {
        "summary": posterior.summary,
        **(effects if formula else drawn),
        "predict": lambda: posterior.predict(at, given=new),
        "diagnose": lambda: rf.diagnose(posterior),
        "to_arviz": posterior.to_arviz,
        "elbo": lambda: posterior.elbo(draws=100),
        "log_evidence": lambda: posterior.log_evidence(form="per_group"),
        "log_predictive": lambda: posterior.log_predictive(None, test, form="per_row"),
        "write_report": lambda: rf.write_report(posterior, path=folder / "report.html"),
        "save": lambda: posterior.save(folder / "fit"),
        "load": lambda: rf.load(folder / "fit", None if formula else posterior.model),
    }


class Meter:
    """Seconds and programs from one call to the next, by what JAX reports of its work."""

    def __init__(self, started: float):
        import jax

        self.rows: list[Row] = []
        self._from, self._cpu, self._disk = started, 0.0, 0
        self._tracing, self._compiling = [], []  # (start, end) of each piece of work
        jax.monitoring.register_event_duration_secs_listener(self._spent)
        jax.monitoring.register_event_listener(self._happened)

    def _spent(self, event: str, seconds: float, **_: Any) -> None:
        now, name = time.time(), event.removeprefix("/jax/core/compile/")
        if name in ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration"):
            self._tracing.append((now - seconds, now))
        elif name == "backend_compile_duration":  # reported for programs from disk as well
            self._compiling.append((now - seconds, now))

    def _happened(self, event: str, **_: Any) -> None:
        self._disk += event == "/jax/compilation_cache/cache_hits"

    def done(self, call: str) -> None:
        """Adds a row for all that happened since the last one."""
        seconds, compiling = time.time() - self._from, _covered(self._compiling)
        cpu = time.process_time()
        busy = _covered(self._tracing + self._compiling)
        parts = {"tracing": busy - compiling, "compiling": compiling, "running": seconds - busy}
        row = {"call": call, "seconds": round(seconds, 4), "cpu": round(cpu - self._cpu, 4)}
        row |= {"programs": len(self._compiling) - self._disk, "from disk": self._disk}
        self.rows.append(row | {name: round(part, 4) for name, part in parts.items()})
        self._tracing, self._compiling, self._disk = [], [], 0
        self._from, self._cpu = time.time(), time.process_time()


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


def likelihood_of(model: str) -> str:
    return "negative_binomial" if model == "negbin" else "poisson"


def formula_of(model: str) -> str:
    terms = " + ".join(["1", *COLUMNS[likelihood_of(model)]])
    return f"sold ~ {terms} + ({terms} | shop)"


def simulate(model: str, shops: int) -> Table:
    """README's table if there are 200 shops, and others; rows held out have names `test_*`."""
    rng, columns = np.random.default_rng(shops - SHOPS), COLUMNS[likelihood_of(model)]
    shop, M = np.repeat(np.arange(shops), rng.integers(5, 41, shops)), 1 + len(columns)
    x = rng.uniform(0, 1, (shop.size, M - 1))
    own = rng.normal(MEAN[:M], SD[:M], (shops, M))
    more = np.repeat(np.arange(shops), TEST_ROWS)

    def rows(shop: np.ndarray, x: np.ndarray) -> Table:
        mean = np.exp(own[shop, 0] + np.sum(own[shop, 1:] * x, -1))
        if model == "negbin":
            mean = rng.gamma(SHAPE, mean / SHAPE)
        return {"shop": shop, **dict(zip(columns, x.T)), "sold": rng.poisson(mean)}

    train = rows(shop, x)
    test = rows(more, rng.uniform(0, 1, (more.size, M - 1)))
    return train | {f"test_{name}": column for name, column in test.items()}


def by_formula(table: Table, model: str) -> tuple[Any, Any]:
    import ramify as rf

    return rf.from_formula(formula_of(model), table, likelihood=likelihood_of(model))


def by_numpyro(table: Table, model: str) -> tuple[Any, Any]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import ramify as rf

    def sales(discount, sold=None, *, shop, n_shop):
        mean = numpyro.sample("mean", dist.Normal(0, 2.5).expand([2]).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
        L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("shops", n_shop):
            own = numpyro.sample("own", dist.MultivariateNormal(mean, scale_tril=sd[:, None] * L))
        with numpyro.plate("rows", discount.shape[0]):
            rate = jnp.exp(own[shop, 0] + own[shop, 1] * discount)
            numpyro.sample("sold", dist.Poisson(rate), obs=sold)

    groups = rf.Groups.from_table(table, by="shop", rows=["discount", "sold"])
    return rf.from_numpyro(sales, groups), groups


def by_densities(table: Table, model: str) -> tuple[Any, Any]:
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import ramify as rf

    def sold(z, row):
        return dist.Poisson(jnp.exp(z["own"][0] + z["own"][1] * row["discount"]))

    groups = rf.Groups.from_table(table, by="shop", rows=["discount", "sold"])
    densities = rf.Model(
        theta={"mean": rf.real(2), "sd": rf.positive(2), "L": rf.correlation_cholesky(2)},
        z={"own": rf.real(2)},
        log_prior=lambda theta: (
            dist.Normal(0, 2.5).log_prob(theta["mean"]).sum()
            + dist.HalfNormal(1).log_prob(theta["sd"]).sum()
            + dist.LKJCholesky(2, 2.0).log_prob(theta["L"])
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mean"], scale_tril=theta["sd"][:, None] * theta["L"]
        ).log_prob(z["own"]),
        log_lik=lambda theta, z, row: sold(z, row).log_prob(row["sold"]),
        simulate=lambda key, theta, z, row: sold(z, row).sample(key),
    )
    return densities, groups


FORMULAS = ("formula", "negbin")
MODELS: dict[str, Callable[[Table, str], tuple[Any, Any]]] = {
    "formula": by_formula,
    "numpyro": by_numpyro,
    "densities": by_densities,
    "negbin": by_formula,
}


def _table(path: Path, prefix: str = "") -> Table:
    """Columns of the file whose names start so, the prefix taken off; without one, the fit's own."""
    with np.load(path) as file:
        if not prefix:
            return {name: file[name] for name in file if not name.startswith("test_")}
        names = [name for name in file if name.startswith(prefix)]
        return {name.removeprefix(prefix): file[name] for name in names}


def _rows(run: str, found: Row) -> Iterator[Row]:
    """Rows of a table: the calls of a run, and their total."""
    calls = found.pop("calls", [])
    yield from ({"run": run, **call} for call in calls)
    if len(calls) > 1:
        names = [name for name in calls[0] if name != "call"]
        total = {name: round(sum(call[name] for call in calls), 4) for name in names}
        yield {"run": run, "call": "all", **total}
    if found:
        yield {"run": run, **found}


def _side_by_side(rows: list[Row]) -> list[Row]:
    """Seconds of the same call in each run of Ramify."""
    table: dict[str, Row] = {}
    for row in rows:
        if row["run"] in RUNS and "call" in row:
            table.setdefault(row["call"], {"call": row["call"]})[row["run"]] = row["seconds"]
    return list(table.values())


def _machine() -> Row:
    """Where the numbers come from; the load is that of the minute before."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    machine = {"cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    return {"commit": commit, "jax": version("jax"), **machine}


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks latency", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", choices=MODELS, default="formula", help="how it is written")
    parser.add_argument("--groups", type=int, help="`cpu`'s problem with so many groups instead")
    parser.add_argument("--runs", nargs="*", choices=RUNS, help="some only")
    parser.add_argument("--peers", action="store_true", help="lme4, Bambi and GPBoost as well")
    parser.add_argument("--peer-python", default=sys.executable, help="has Bambi and GPBoost")
    parser.add_argument("--one", choices=["ramify", *peers.PYTHON], help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.runs is None:
        args.runs = list(RUNS)[: 2 if args.groups else None]
    return args
