"""Coverage of posterior intervals over data sets simulated from the prior, by Ramify and by Laplace.

    python -m benchmarks coverage --jobs 16                    # all but 100,000 groups, on CPUs
    python -m benchmarks coverage --platform gpu               # 100,000 groups
    python -m benchmarks coverage --table --picture docs/calibration.png      # from stored results
    python -m benchmarks coverage --names ramify-poisson-10-20 --simulations 20 --out small

Theta is drawn from its prior, z and outcomes from the model, 200 times for each case: a method, a
likelihood, rows per group, groups. A process does some of a case's simulations and writes their ranks to
a file; files that are there are kept. The table has the share of 50% and 90% intervals that hold the
truth, with standard errors. It is wrong (exit status 1) if one of Ramify's is off by more than three.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import ROOT
from benchmarks.right.reference import environment


def main(argv: list[str]) -> int:
    """Runs what is missing, or one part of it, or shows what is there."""
    asked = _options(argv)
    if asked.one:
        from benchmarks.coverage import cases

        cases.run_part(cases.named(asked.one), asked.part, asked.size, asked.out)
        return 0
    failed = 0 if asked.table or asked.picture else _run(asked)
    from benchmarks.coverage import results

    if asked.picture:
        results.picture(asked.out, asked.picture)
    return max(results.table(asked.out), min(failed, 1))


def _run(asked: argparse.Namespace) -> int:
    """Runs the parts of all cases, some at a time; how many failed."""
    from benchmarks.coverage import cases

    usual = [case for case in cases.CASES if case.on_gpu == (asked.platform == "gpu")]
    chosen = [cases.named(name) for name in asked.names] if asked.names else usual
    parts = -(-asked.simulations // asked.size)
    # The largest first, so that no long one is left for the end.
    chosen.sort(key=lambda case: -case.rows * case.groups * (case.method == "ramify"))
    todo = [
        (case.name, part)
        for case in chosen
        for part in range(parts)
        if not cases.path_of(asked.out, case, part).is_file()
    ]
    with ThreadPoolExecutor(asked.jobs) as pool:
        done = pool.map(partial(_in_process, asked), todo)
        return sum(code != 0 for code in done)


def _in_process(asked: argparse.Namespace, part: tuple[str, int]) -> int:
    words = ["--one", part[0], "--part", part[1], "--size", asked.size, "--out", asked.out]
    command = [sys.executable, "-m", "benchmarks", "coverage", *map(str, words)]
    env = environment(asked.platform, x64=False, one_thread=asked.jobs > 1)
    return subprocess.run(command, cwd=ROOT, env=env).returncode


def _options(argv: list[str]) -> argparse.Namespace:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks coverage", None, __doc__, formatter_class=how
    )
    add = parser.add_argument
    add("--names", nargs="+", help="cases, such as laplace-bernoulli-2-1000; by default all")
    add("--simulations", type=int, default=200, help="of each case")
    add("--size", type=int, default=25, help="simulations of one process and one file")
    add("--jobs", type=int, default=1, help="processes at a time")
    add("--platform", choices=["cpu", "gpu"], default="cpu")
    folder = ROOT / "benchmarks" / "coverage" / "results"
    add("--out", type=lambda text: Path(text).resolve(), default=folder, help="folder of results")
    add("--table", action="store_true", help="run nothing, show what is there")
    add("--picture", type=Path, help="run nothing, draw what is there to this file (PNG or SVG)")
    add("--one", help=argparse.SUPPRESS)  # what a process of its own computes
    add("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
