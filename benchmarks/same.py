"""Whether the present code gives the numbers that an earlier one gave.

    python -m benchmarks same compare [FILE.npz]      with `benchmarks/same_first_release.npz` by default
    python -m benchmarks same write FILE.npz

Ten small models are fitted by every family, with the public names alone, and their numbers are kept:
q(theta), notes, history, summary, draws, predictions and estimates. `write` keeps those of the code that
`import ramify` finds; `compare` fits again and prints a line for each fit and quantity. `difference` is
the largest, in the unit that stands beside it: sds of the posterior, standard errors of a Monte Carlo
estimate, or itself where it has neither. `jumped` is the share of draws that moved by more than the
tolerance: which of several weighted draws is taken, or which whole number, can turn on the last bit.
The verdict is "same" (every bit), "rounding" (within the tolerance of `RULES`) or "DIFFERENT", and the
exit code is 1 if there is one that is different. With `--other-draws`, for code that takes its random
numbers in another way on purpose, what is computed from draws may also be "other draws": within its Monte
Carlo error. To write the numbers of another checkout:

    PYTHONPATH=/path/to/checkout/src:. python -m benchmarks same write FILE.npz
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ramify as rf
from benchmarks import show
from benchmarks.same_problems import PROBLEMS, Named, Problem

REFERENCE = Path(__file__).parent / "same_first_release.npz"
HURRY = "--xla_backend_optimization_level"  # most of the time goes to compiling
DRAWS = 50
MOST_JUMPS = 0.2  # share of the draws of theta; more of them are other draws
STEPS = 150  # of a fit by steps: far from its end, and enough for a change to show


def fitted(problem: Problem, name: str) -> tuple[rf.Posterior, rf.Groups]:
    """The fit of most of the rows, and the rest of them."""
    method, *covariance = name.split()
    train, test = problem.groups.split(0.15, seed=0)
    family = getattr(rf, method)(problem.model, train, *covariance)
    options = ({} if method == "solved" else {"max_steps": STEPS}) | problem.fits[name]
    posterior = rf.fit(problem.model, train, family=family, seed=0, progress=False, **options)
    return posterior, test


def numbers(problem: Problem, posterior: rf.Posterior, test: rf.Groups) -> Named:
    """Everything that is kept, by name; the first word of a name says how it is compared."""
    q, summary = posterior.family.theta, posterior.summary()
    notes = {k: v for k, v in posterior.notes.items() if k != "seconds"}
    plain = {f"note {k}": v for k, v in notes.items() if isinstance(v, int | float)}
    columns = {f"summary {name}": column for name, column in summary.columns.items()}
    kept = {"mean of q": q.mean, "covariance of q": q.covariance, **plain}
    kept |= {"history elbo": posterior.history["elbo"], "names": summary.names, **columns}
    theta = posterior.sample_theta(DRAWS)
    for name, draws in posterior.sample(DRAWS).items():
        kept[f"theta {name}" if name in theta else f"draws of {name}"] = draws
    kept |= predictions(problem, posterior)
    kept |= estimates(problem, posterior, test)
    return {name: np.asarray(value) for name, value in kept.items()}


def predictions(problem: Problem, posterior: rf.Posterior) -> Named:
    """Draws and summaries of outcomes: of known groups, a new one with rows, a new one without."""
    asked = {"known": (problem.known, None), "new": (problem.new, problem.given)}
    asked["unseen"] = problem.new, None
    kept: Named = {}
    for name, (at, given) in asked.items():
        how = {"draws": DRAWS, "kind": problem.kind}
        draws = allowed(lambda: posterior.predict(at, given, summary=False, **how))
        kept[f"draws predicted {name}"] = draws
        if draws.dtype.kind != "U":
            found = posterior.predict(at, given, **how)
            columns = [found[c] for c in found if c not in at]
            kept[f"predicted {name}"] = np.stack(columns)
    return kept


def estimates(problem: Problem, posterior: rf.Posterior, test: rf.Groups) -> Named:
    """Value and standard error of the bound, the evidence and the log density of held-out rows."""
    calls = {"elbo": lambda: posterior.elbo(draws=DRAWS)}
    if not problem.brief:
        calls["log_evidence"] = lambda: posterior.log_evidence(
            draws=DRAWS, form="per_group", local_draws=8
        )
        calls["log_predictive"] = lambda: posterior.log_predictive(
            None, test, draws=DRAWS, form="per_row"
        )
    both = lambda found: (float(found), found.se)
    return {f"estimate {name}": allowed(lambda: both(call())) for name, call in calls.items()}


def allowed(call: Callable[[], Any]) -> np.ndarray:
    """What a call returns, or that the family refuses it."""
    try:
        return np.asarray(call())
    except ValueError:
        return np.asarray("refused")


class Rule(NamedTuple):
    """When a difference is rounding, and when it is that of other draws."""

    unit: str
    size: Callable[[Named, np.ndarray], Any]  # (all numbers of the reference, this one) -> unit
    tolerance: float
    jumps: float | None = None  # share of the draws that may be past the tolerance
    others: float | None = None  # the tolerance for other draws: of the mean and sd of draws


def sds(kept: Named, _: np.ndarray) -> np.ndarray:
    """Posterior sds of the coordinates of theta."""
    return np.sqrt(np.diagonal(kept["covariance of q"]))


def summary_sds(kept: Named, _: np.ndarray) -> np.ndarray:
    """Posterior sds, or a thousandth of the mean where it is a constant: float32 has seven digits."""
    return np.hypot(kept["summary sd"], 1e-3 * kept["summary mean"])


def spread(_: Named, draws: np.ndarray) -> np.ndarray:
    """The sd of draws [S, ...], or a thousandth of their mean."""
    return np.hypot(draws.std(0), 1e-3 * draws.mean(0))


def errors(_: Named, columns: np.ndarray) -> np.ndarray:
    """Standard errors of predicted means; there are five columns, the sd second, of each category."""
    each = columns.reshape(-1, 5, columns.shape[-1])
    return np.repeat(each[:, 1], 5, 0) / np.sqrt(DRAWS)


RULES = {
    "mean": Rule("sd", sds, 1e-3),
    "covariance": Rule(
        "sd^2", lambda kept, value: np.outer(sds(kept, value), sds(kept, value)), 1e-3
    ),
    "summary": Rule("sd", summary_sds, 1e-3, others=0.1),
    "summary ess": Rule("of it", lambda kept, value: np.abs(value), 1e-2),
    "summary k_hat": Rule("", lambda kept, value: 1.0, 1e-2),
    "note": Rule("of it", lambda kept, value: np.maximum(np.abs(value), 1.0), 1e-3),
    # A float32 near -1e4 nats is known to 1e-3 of them, and a sum of as many to less.
    "history": Rule("nats", lambda kept, value: np.maximum(1e-3 * np.abs(value), 1.0), 1e-2),
    "theta": Rule("sd", spread, 1e-3, jumps=MOST_JUMPS, others=1.2),
    "draws": Rule("sd", spread, 1e-3, jumps=0.02, others=1.2),  # jumps: where theta is the same
    "predicted": Rule("se", errors, 0.05, others=12),
    # An exact conditional has estimates without noise: what is left is float32's.
    "estimate": Rule("se", lambda kept, value: np.hypot(value[1], 1e-4 * value[0]), 0.05, others=9),
}


def rule_of(name: str) -> Rule:
    """By the whole name, else by its first word."""
    return RULES.get(name) or RULES[name.split()[0]]


def comparable(old: np.ndarray | None, now: np.ndarray | None) -> bool:
    """Whether both are numbers of the same shape."""
    there = old is not None and now is not None
    return there and old.shape == now.shape and "U" not in (old.dtype.kind, now.dtype.kind)


def apart(name: str, kept: Named, now: np.ndarray) -> np.ndarray:
    """Absolute differences from what was kept, in units of the rule."""
    old = np.asarray(kept[name], np.float64)
    size = np.asarray(rule_of(name).size(kept, old), np.float64)
    with np.errstate(invalid="ignore"):  # infinities are compared as such
        away = np.abs(now - old) / np.where(size > 0, size, 1.0)
    return np.where((now == old) | (np.isnan(now) & np.isnan(old)), 0.0, away)


def moved(kept: Named, now: Named, *words: str) -> list[np.ndarray]:
    """Which numbers are past the tolerance, of quantities whose names begin with one of the words."""
    names = [n for n in kept if n.split()[0] in words and comparable(kept[n], now.get(n))]
    return [~(apart(n, kept, now[n]) <= rule_of(n).tolerance) for n in names]


def judged(name: str, kept: Named, now: Named) -> dict[str, Any]:
    """The line of one quantity: how far it is from what was kept, and what to call that."""
    if not comparable(kept.get(name), now.get(name)):
        same = name in kept and name in now and np.array_equal(kept[name], now[name])
        return {"verdict": "same" if same else "DIFFERENT"}
    away, rule = apart(name, kept, now[name]), rule_of(name)
    line = {"difference": float(np.max(away, initial=0.0)), "unit": rule.unit}
    if rule.jumps is not None:
        line["jumped"] = float(np.mean(~(away <= rule.tolerance)))
    if np.array_equal(kept[name], now[name], equal_nan=True):
        return line | {"verdict": "same"}
    good = few_jumps(name, kept, now) if rule.jumps else near(away, rule, kept, now)
    return line | {"verdict": "rounding" if good else "DIFFERENT"}


def few_jumps(name: str, kept: Named, now: Named) -> bool:
    """Whether draws are the same but for a few; others than theta's where theta is the same."""
    rule = rule_of(name)
    far = ~(apart(name, kept, now[name]) <= rule.tolerance)
    if not name.startswith("theta"):
        other = [f.reshape(DRAWS, -1).any(1) for f in moved(kept, now, "theta")]
        far = far[~np.any(other, 0)]
    return bool(far.size > 0 and far.mean() <= (rule.jumps or 0.0))


def near(away: np.ndarray, rule: Rule, kept: Named, now: Named) -> bool:
    """Whether differences are within the tolerance, that of averages wider where draws jumped.

    Where a share f of the draws was replaced, an average moves by about sqrt(2 f) of its se, and a
    quantile by twice that: four times this is allowed.
    """
    share = max(f.mean() for f in moved(kept, now, "theta", "draws")) if rule.unit == "se" else 0.0
    wider = 8 * np.sqrt(2 * share) if share <= MOST_JUMPS else 0.0
    return bool(np.all(away <= rule.tolerance + wider))


def other_draws(name: str, kept: Named, now: Named) -> bool:
    """Whether a difference is no larger than Monte Carlo error: about six of its standard errors."""
    rule = rule_of(name)
    exact = name.startswith("summary") and "summary ess" in kept  # of weighted draws that are kept
    if rule.others is None or exact or not comparable(kept.get(name), now.get(name)):
        return False
    away = apart(name, kept, now[name])
    if rule.jumps is not None:
        old, new = np.asarray(kept[name], np.float64), np.asarray(now[name], np.float64)
        size = np.hypot(spread(kept, old), spread(now, new)) / np.sqrt(2)
        away = np.abs([new.mean(0) - old.mean(0), new.std(0) - old.std(0)])
        away = away / np.where(size > 0, size, 1.0)
    return bool(np.all(away <= rule.others))


def compared(
    kept: dict[str, Named], now: dict[str, Named], others: bool
) -> Iterator[dict[str, Any]]:
    """The lines of all fits."""
    for fit, new in now.items():
        old = kept.get(fit, {})
        for name in dict.fromkeys([*old, *new]):
            line = {"fit": fit, "quantity": name} | judged(name, old, new)
            if others and line["verdict"] == "DIFFERENT" and other_draws(name, old, new):
                line["verdict"] = "other draws"
            yield line


def fits(problem: str) -> Iterator[tuple[str, Named]]:
    """The name and the numbers of each fit of a problem."""
    found = PROBLEMS[problem]()
    for name in found.fits:
        started = time.perf_counter()
        yield f"{problem} {name}", numbers(found, *fitted(found, name))
        print(f"{problem} {name}: {time.perf_counter() - started:.1f} s", flush=True)


def every_fit(problems: list[str], workers: int) -> dict[str, Named]:
    """The numbers of all fits; each problem in a process of its own, some at a time.

    Most of it is compiling, one program after the other; thousands in one process bring XLA down.
    """
    if len(problems) == 1:
        return dict(fits(problems[0]))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        paths = {name: Path(folder) / f"{name}.npz" for name in problems}
        command = [sys.executable, "-m", "benchmarks", "same", "write"]
        run = lambda name: subprocess.run([*command, paths[name], "--only", name], check=True)
        list(pool.map(run, problems))
        return {fit: found for path in paths.values() for fit, found in read(path).items()}


def write(path: Path, found: dict[str, Named]) -> None:
    """Keeps the numbers of all fits in a file."""
    np.savez_compressed(
        path, **{f"{fit}/{n}": v for fit, named in found.items() for n, v in named.items()}
    )


def read(path: Path) -> dict[str, Named]:
    """The numbers of each fit, as `write` kept them."""
    kept: dict[str, Named] = {}
    with np.load(path) as file:
        for key in file.files:
            fit, name = key.split("/", 1)
            kept.setdefault(fit, {})[name] = file[key]
    return kept


def told(lines: list[dict[str, Any]]) -> int:
    """Prints the table and how many there are of each verdict; 1 if anything is different."""
    show(lines)
    verdicts = [line["verdict"] for line in lines]
    names = ("same", "rounding", "other draws", "DIFFERENT")
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in names))
    return int("DIFFERENT" in verdicts)


def options(argv: list[str]) -> argparse.Namespace:
    """What was asked for."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks same", description=__doc__, formatter_class=how
    )
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*PROBLEMS], default=[*PROBLEMS])
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--other-draws", action="store_true", help="random numbers may be others")
    asked = parser.parse_args(argv)
    if asked.what == "write" and asked.file is None:
        parser.error("write needs a file")
    return asked


def main(argv: list[str]) -> int:
    """Writes or compares."""
    asked = options(argv)
    if HURRY not in os.environ.get("XLA_FLAGS", ""):  # which XLA reads when it first computes
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {HURRY}=0".strip()
    print(f"ramify {rf.__version__} of {Path(rf.__file__ or '').parent}", flush=True)
    found = every_fit(asked.only, asked.workers)
    if asked.what == "compare":
        return told(list(compared(read(asked.file or REFERENCE), found, asked.other_draws)))
    write(asked.file, found)
    return 0
