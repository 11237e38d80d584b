"""One combination: fitted, measured, and written as two CSV files; a finished one is not run again.

`runs/<name>.csv` has one row: what was run, on what, how long, and its metrics. `traces/<name>.csv` has
the ELBO against steps and seconds, thinned: `elbo` is the mean of the steps since the line before,
`smooth` the exponential moving average of all steps, with the paper's 0.001.
"""

import argparse
import csv
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import ramify as rf
from experiments import paper, recipes
from experiments.problems import Problem

RESULTS = Path(__file__).parent / "results"
LINES = 400  # of a thinned trace

Row = dict[str, Any]


class Run(NamedTuple):
    """Which combination: the fields that name its files, and that every row begins with."""

    experiment: str
    data: str
    scale: str
    method: str
    covariance: str
    recipe: str
    seed: int
    steps_asked: int | None = None

    @property
    def name(self) -> str:
        """The files' name."""
        parts = [self.experiment, self.data, self.scale, self.method, self.covariance, self.recipe]
        if self.steps_asked is not None:
            parts.append(f"{self.steps_asked}steps")
        return "_".join([*filter(None, parts), f"seed{self.seed}"])


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """A command's parser, described by the first line of its module."""
    first = (text or "").split("\n")[0]
    return argparse.ArgumentParser(f"python -m experiments {name}", description=first)


def options(parser: argparse.ArgumentParser) -> None:
    """The options that both experiments share."""
    choices = ", ".join(recipes.RECIPES)
    parser.add_argument("--scale", nargs="+", choices=paper.SCALES, default=["small"])
    parser.add_argument("--methods", nargs="+", choices=recipes.METHODS, default=recipes.METHODS)
    parser.add_argument(
        "--covariances", nargs="+", choices=paper.COVARIANCES, default=paper.COVARIANCES
    )
    parser.add_argument(
        "--recipe",
        nargs="+",
        choices=recipes.RECIPES,
        default=["paper", "ours"],
        help=f"one or more of {choices} (paper ours)",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the fits (0)")
    parser.add_argument("--steps", type=int, help="steps, where the recipe's are too many")
    parser.add_argument("--seconds", type=float, help="most seconds of one fit")
    parser.add_argument(
        "--draws", type=int, default=paper.METRIC_DRAWS, help="draws for the metrics (10,000)"
    )
    parser.add_argument(
        "--beside", type=int, default=0,
        help="other jobs on the machine meanwhile: written down, since they take time (0)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="run what is there already")
    quick_options(parser)


def quick_options(parser: argparse.ArgumentParser) -> None:
    """Where results go, and the tiny form of a command."""
    parser.add_argument("--results", type=Path, help="folder of the results (experiments/results)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: does it run? (results/quick)"
    )


def folder(args: argparse.Namespace) -> Path:
    """Where results go: numbers of quick runs mean nothing and stay apart."""
    return args.results or (RESULTS / "quick" if args.quick else RESULTS)


def run_all(problem: Problem, args: argparse.Namespace) -> int:
    """Runs every combination asked for; one that fails does not stop the rest."""
    failed = 0
    chosen = recipes.combinations(
        problem.scale, args.methods, args.covariances, args.recipe, len(problem.train)
    )
    for seed in args.seeds:
        for method, covariance, recipe in chosen:
            first = problem.experiment, problem.data, problem.scale
            run = Run(*first, method, covariance, recipe, seed, args.steps)
            done = folder(args) / "runs" / f"{run.name}.csv"
            if done.exists() and not args.again:
                print(f"{run.name}: done before", flush=True)
                continue
            try:
                print(_words(run, measure(run, problem, args)), flush=True)
            except (rf.NonFiniteError, ValueError, RuntimeError, MemoryError) as error:
                print(f"{run.name}: failed: {type(error).__name__}: {error}", flush=True)
                failed += 1
    return int(failed > 0)


def measure(run: Run, problem: Problem, args: argparse.Namespace) -> Row:
    """Fits one combination, measures it and writes its files."""
    how = {"steps": run.steps_asked, "seconds": args.seconds}
    fit = lambda: recipes.fit(problem, run.method, run.covariance, run.recipe, run.seed, **how)
    posterior, seconds = timed(fit)
    row: Row = run._asdict() | about_data(problem) | about_fit(posterior) | {"seconds": seconds}
    if run.method == "solved" and not args.quick:
        # The first is mostly compiling: the second shows what the work takes, and gives the trace.
        posterior, row["warm_seconds"] = timed(fit)
    where = folder(args)
    write(where / "traces" / f"{run.name}.csv", trace(posterior.history))
    found, seconds = timed(lambda: metrics(posterior, problem, args.draws, run.seed))
    row |= found | {"metric_draws": args.draws, "metric_draws_each": few_draws(args.draws)}
    row |= {"metric_seconds": seconds}
    row |= {"seconds_asked": args.seconds, "beside": args.beside}
    row |= about_machine()
    write(where / "runs" / f"{run.name}.csv", [row])
    return row


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    """What it makes, and how many seconds it took."""
    started = time.perf_counter()
    return make(), time.perf_counter() - started


def metrics(posterior: rf.Posterior, problem: Problem, draws: int, seed: int) -> Row:
    """The paper's table of metrics, in nats, and what each could also mean.

    `train` is its train likelihood as defined, an importance-weighted evidence; `train_seen` what its
    printed values look like, the mean of p(y | z, theta). `test` is its test likelihood, all ratings
    together; `test_per_user` and `test_per_rating` average before they multiply, for which a tenth of
    the draws is plenty.
    """
    found: Row = {}
    ask: list[tuple[str, Callable[[], Any]]] = [
        ("elbo", lambda: posterior.elbo(draws=draws, seed=seed)),
        ("train", lambda: posterior.log_evidence(draws=draws, seed=seed)),
        (
            "train_seen",
            lambda: posterior.log_evidence(draws=draws, form="mean_likelihood", seed=seed),
        ),
    ]
    few, fewer = few_draws(draws), max(draws // 100, 2)
    if posterior.notes["method"] != "joint":  # has no q(z_i | theta) to draw from again and again
        evidence = lambda: posterior.log_evidence(draws=fewer, form="per_group", seed=seed)
        ask.append(("train_per_group", evidence))
    if problem.test is not None:
        held_out = lambda form, n: posterior.log_predictive(None, problem.test, n, form, seed=seed)
        ask.append(("test", lambda: held_out("joint", draws)))
        ask.append(("test_per_user", lambda: held_out("per_group", few)))
        ask.append(("test_per_rating", lambda: held_out("per_row", few)))
    for name, estimate in ask:
        value = estimate()
        found |= {name: float(value), f"{name}_se": value.se}
        if value.ess is not None:
            found[f"{name}_ess"] = value.ess
    return found


def few_draws(draws: int) -> int:
    """For averages over each user's or rating's own draws."""
    return max(draws // 10, 2)


def about_data(problem: Problem) -> Row:
    """Sizes, and what algebra knows."""
    test = 0 if problem.test is None else problem.test.n_rows
    sizes = {"groups": len(problem.train), "train_rows": problem.train.n_rows, "test_rows": test}
    best = problem.best or {}
    return sizes | {f"best_{covariance}": best.get(covariance) for covariance in paper.COVARIANCES}


def about_fit(posterior: rf.Posterior) -> Row:
    """Steps, seconds of one, K, and whether the fit ended by itself."""
    history = posterior.history
    steps = int(history["step"][-1])
    row: Row = {"steps": steps, "local_draws": posterior.local_draws}
    row["converged"] = posterior.notes.get("converged")
    if "rate" in history:
        row |= {
            "step_ms": 1e3 * step_seconds(history),
            "first_seconds": float(history["seconds"][0]),
        }
    return row


def step_seconds(history: Mapping[str, np.ndarray]) -> float:
    """Seconds of a step: a quarter of the chunks of steps that run together took less.

    The first chunk, which compiles, is left out; some later ones compile too, when minibatches of
    another size come, so that the median of a few chunks may be one of those.
    """
    ends = np.flatnonzero(np.diff(history["seconds"], append=np.inf))
    if len(ends) < 2:
        return float(history["seconds"][-1] / len(history["seconds"]))
    each = np.diff(history["seconds"][ends]) / np.diff(ends)
    return float(np.quantile(each, 0.25, method="lower"))


def about_machine() -> Row:
    """Versions, the machine and the date."""
    device = jax.local_devices()[0]
    return {
        "ramify": rf.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device.device_kind,
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def trace(history: Mapping[str, np.ndarray]) -> list[Row]:
    """A history of steps or sweeps, thinned; the steps between two lines are averaged."""
    step, seconds, elbo = history["step"], history["seconds"], np.asarray(history["elbo"], float)
    groups = history.get("groups")
    if groups is not None:  # sweeps: those over a part of the data are another bound
        whole = groups == groups.max()
        step, seconds, elbo = step[whole], seconds[whole], elbo[whole]
    ends = np.unique(np.geomspace(1, len(elbo), LINES).astype(int)) - 1
    smooth = elbo if groups is not None else smoothed(elbo)
    upto = np.concatenate([[0.0], np.cumsum(elbo)])
    before = np.concatenate([[-1], ends[:-1]])
    mean = (upto[ends + 1] - upto[before + 1]) / (ends - before)
    columns = (step[ends], seconds[ends], mean, smooth[ends])
    names = ("step", "seconds", "elbo", "smooth")
    return [dict(zip(names, line, strict=True)) for line in zip(*columns, strict=True)]


def smoothed(values: np.ndarray, weight: float = paper.SMOOTHING) -> np.ndarray:
    """Exponential moving average, divided by the weights so far so that it forgets its start.

    Example:
        >>> smoothed(np.array([2.0, 2.0, 5.0])).round(3).tolist()
        [2.0, 2.0, 3.001]
    """
    from scipy.signal import lfilter

    keep = 1 - weight
    total = np.asarray(lfilter([weight], [1, -keep], values))
    return total / (1 - keep ** np.arange(1, len(values) + 1))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes rows as CSV, all or nothing: a run that is killed leaves no half file."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    partial.replace(path)


def read(path: Path) -> list[Row]:
    """Rows of a CSV file: numbers as floats, empty cells as None."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def read_runs(where: Path, experiment: str) -> list[Row]:
    """The rows of all finished runs of an experiment, each with its file's `name`."""
    files = sorted((where / "runs").glob(f"{experiment}_*.csv"))
    return [row | {"name": file.stem} for file in files for row in read(file)]


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return f"{float(value):.10g}"
    return "" if value is None else value


def _value(text: str) -> Any:
    if text in ("", "None"):
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _words(run: Run, row: Row) -> str:
    text = f"{run.name}: ELBO {row['elbo']:.2f} ± {row['elbo_se']:.2f} in {row['seconds']:.1f} s"
    best = row.get(f"best_{run.covariance or 'dense'}")
    return text if best is None else f"{text}, {best - row['elbo']:.3f} below the best possible"
