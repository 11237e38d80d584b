"""Coverage of 50% and 90% intervals for each likelihood of formulas, over data drawn from its prior.

    python -m benchmarks likelihood_coverage --jobs 16
    python -m benchmarks likelihood_coverage --jobs 2 --only gamma --simulations 20

Each data set has 30 groups of 6 rows. Fits are `rf.fit`'s default. A process, on one core, does some of
a case's simulations. Exit status 1: a share is off by more than 3.5 standard errors, or ranks are not
uniform.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np

GROUPS, ROWS = 30, 6
ERRORS = 3.5  # standard errors by which a share may be off

# By likelihood and formulas of its parameters: their priors, as text, and the left side of the formula.
CASES: dict[str, tuple[dict[str, str], str]] = {
    "lognormal": ({"sigma": "Gamma(8, 10)"}, "y | cens(late)"),
    "skew_normal": ({"sigma": "Gamma(8, 10)", "alpha": "Normal(0, 3)"}, "y"),
    "gamma": ({"shape": "Gamma(6, 2)"}, "y"),
    "exponential": ({}, "y | cens(late)"),
    "weibull": ({"shape": "Gamma(12, 8)"}, "y | cens(late)"),
    "beta": ({"phi": "Gamma(6, 1)"}, "y"),
    "beta_binomial": ({"phi": "Gamma(6, 1)"}, "y | trials(10)"),
    "zero_inflated_poisson": ({"zi": "Beta(2, 4)"}, "y"),
    "zero_inflated_negative_binomial": ({"zi": "Beta(2, 4)", "shape": "Gamma(6, 2)"}, "y"),
    "hurdle_poisson": ({"hu": "Beta(2, 4)"}, "y"),
    "hurdle_negative_binomial": ({"hu": "Beta(2, 4)", "shape": "Gamma(6, 2)"}, "y"),
    "gaussian; sigma ~ x + (1 | g)": (
        {"sigma_Intercept": "Normal(-0.3, 0.4)", "sigma_x": "Normal(0, 0.3)"}
        | {"sigma_sd": "HalfNormal(0.4)"},
        "y",
    ),
    "categorical": (
        {f"mu{level}_Intercept": "Normal(0.3, 0.5)" for level in (1, 2)}
        | {"b": "Normal(0, 0.5)", "sd": "HalfNormal(0.5)"},
        "y",
    ),
    "zero_inflated_poisson; zi ~ x": (
        {"zi_Intercept": "Normal(-0.5, 0.7)", "zi_x": "Normal(0, 0.5)"},
        "y",
    ),
}
POSITIVE = ("lognormal", "gamma", "exponential", "weibull")


def problem(case: str) -> tuple[Any, Any]:
    """The model, with priors that give data like real ones, and groups whose outcomes do not matter."""
    import ramify as rf

    likelihood, _, formula = case.partition(";")
    (own, left), rng = CASES[case], np.random.default_rng(7)
    group = np.repeat(np.arange(GROUPS), ROWS)
    y = rng.integers(0, 4, len(group)) * 1.0
    y = rng.uniform(0.1, 0.9, len(group)) if likelihood in (*POSITIVE, "beta") else y
    priors = dict(own)
    if likelihood == "categorical":
        y = np.minimum(y, 2.0)
    else:
        priors |= {"Intercept": "Normal(0.5, 0.5)", "x": "Normal(0, 0.5)"}
        priors |= {"sd(Intercept | g)": "HalfNormal(0.5)"}
    late = np.arange(len(group)) % 5 == 0
    table = {"g": group, "x": rng.normal(0.0, 1, len(group)), "y": y, "late": late}
    text = f"{left} ~ x + (1 | g)" + (f";{formula}" if formula else "")
    return rf.from_formula(text, table, likelihood=likelihood, priors=priors)


def wrong(found: Any) -> list[str]:
    """What speaks against the intervals of a calibration, in words."""
    said = [] if found.p_value > 0.01 else [f"ranks are not uniform (p = {found.p_value:.2g})"]
    for level in (0.5, 0.9):
        for name, (share, se) in found.coverage(level).items():
            if abs(share - level) > ERRORS * se:
                said.append(f"{share:.2f} of {level:.0%} intervals hold {name}")
    return said


def part(case: str, simulations: int, seed: int) -> Any:
    """Some simulations of a case."""
    import ramify as rf

    return rf.calibrate(*problem(case), simulations, draws=99, seed=seed)


def together(parts: list[Any]) -> Any:
    """Calibrations of the same model as one."""
    joined = lambda ranks: {n: np.concatenate([own[n] for own in ranks]) for n in ranks[0]}
    verdicts = sum((Counter(own.verdicts) for own in parts), Counter())
    failures = sum((own.failures for own in parts), ())
    theta, z = ([getattr(own, which) for own in parts] for which in ("theta_ranks", "z_ranks"))
    first = parts[0]
    return type(first)(first.draws, joined(theta), joined(z), first.labels, verdicts, failures)


def _on_one_core(cores: Any) -> None:
    os.sched_setaffinity(0, {cores.get()})  # before JAX makes its threads


def _in_processes(asked: argparse.Namespace) -> Iterable[tuple[str, Any]]:
    """Runs all parts; yields each case when its last part is done."""
    context = get_context("spawn")
    cores, own = context.Queue(), sorted(os.sched_getaffinity(0))
    for i in range(asked.jobs):
        cores.put(own[i % len(own)])
    sizes = [len(some) for some in np.array_split(np.arange(asked.simulations), asked.parts)]
    pool = ProcessPoolExecutor(asked.jobs, context, _on_one_core, (cores,))
    with pool:
        todo = {
            pool.submit(part, case, sizes[i], i): case
            # The slowest are at the end of the table: first here, so that none is left for the end.
            for case, i in product(asked.only or reversed(CASES), range(asked.parts))
        }
        done: dict[str, list[Any]] = {}
        for future in as_completed(todo):
            case = todo[future]
            done.setdefault(case, []).append(future)
            if len(done[case]) < asked.parts:
                continue
            failed = [own.exception() for own in done[case] if own.exception() is not None]
            yield case, failed[0] if failed else together([own.result() for own in done[case]])


def main(argv: list[str] | None = None, show: Callable[[str], None] = print) -> int:
    """Runs what the command line asks for."""
    how = argparse.RawDescriptionHelpFormatter
    name = "python -m benchmarks likelihood_coverage"
    parser = argparse.ArgumentParser(name, None, __doc__, formatter_class=how)
    parser.add_argument("--only", nargs="+", choices=[*CASES], metavar="CASE")
    parser.add_argument("--simulations", type=int, default=100, help="of each case")
    parser.add_argument("--parts", type=int, default=4, help="of a case's simulations")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    asked, started, bad = parser.parse_args(argv), time.perf_counter(), 0
    for case, found in _in_processes(asked):
        said = ["failed"] if isinstance(found, BaseException) else wrong(found)
        bad += bool(said)
        took = time.perf_counter() - started
        words = "; ".join(said) or "as often as they say"
        show(f"\n## {case}: {words} ({took:.0f} s)\n{found}")
        sys.stdout.flush()
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
