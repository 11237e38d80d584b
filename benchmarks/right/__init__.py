"""Whether default fits are right: many problems against long references, over several seeds.

    python -m benchmarks right                                # the table, all problems with a reference
    python -m benchmarks right --names mothers pairs --seeds 5 --jobs 2
    python -m benchmarks right --data FOLDER                  # with those of real data (`real.py`)
    python -m benchmarks right --jobs 16 --limit 570 --out FILE      # in parts: fits go to a file, and
    python -m benchmarks right --jobs 16 --limit 570 --out FILE      # the same again does those left
    python -m benchmarks right --table --out FILE                    # the table of what is there
    python -m benchmarks right --reference --data FOLDER --jobs 14        # references that are missing
    python -m benchmarks right --reference --platform gpu     # the two that take a GPU

References are long runs of NUTS, or of a Gibbs sampler, written by hand without Ramify, mostly with z
integrated out. Each is a file in `benchmarks/right/references/`, written as soon as it is done. Files
that are there are kept unless `--again` is given.
"""

import argparse
import sys
from collections.abc import Collection
from pathlib import Path


def main(argv: list[str]) -> int:
    """References or the table."""
    asked = _options(argv)
    if asked.one:
        return _one(asked)
    if asked.reference is not None:
        return _references(asked)
    from benchmarks.right import table

    return table.main(asked)


def _references(asked: argparse.Namespace) -> int:
    from benchmarks.right import problems, reference

    on_gpu = asked.platform == "gpu"
    usual = [name for name in problems.PROBLEMS if (name in problems.ON_GPU) == on_gpu]
    names = _known(asked.reference or usual, problems.PROBLEMS)
    missing = [name for name in names if asked.again or not reference.path_of(name).is_file()]
    missing.sort(key=lambda name: name not in problems.FIRST)
    options = ["--warmup", asked.warmup, "--enough", asked.enough, "--seconds", asked.seconds]
    options += ["--data", asked.data] if asked.data else []
    return reference.run_all(missing, asked.jobs, asked.platform, [str(word) for word in options])


def _one(asked: argparse.Namespace) -> int:
    from benchmarks.right import problems, reference

    problem = problems.make(asked.one, asked.data)
    if problem is None:
        print(f"{asked.one}: skipped, its data are not there: name their folder with --data")
        return 0
    reference.run_one(asked.one, problem, asked.seconds, asked.warmup, asked.enough)
    return 0


def _known(names: list[str], there: Collection[str]) -> list[str]:
    wrong = [name for name in names if name not in there]
    if wrong:
        sys.exit(f"no problem is called {', '.join(wrong)}; there are {', '.join(there)}")
    return names


def _options(argv: list[str]) -> argparse.Namespace:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks right", None, __doc__, formatter_class=how
    )
    add = parser.add_argument
    add("--names", nargs="+", default=None, help="problems of the table; by default all")
    add("--seeds", type=int, default=5, help="fits of each problem")
    add("--jobs", type=int, default=1, help="processes at a time")
    add("--data", type=Path, help="folder with the real data")
    add("--platform", choices=["cpu", "gpu"], default="cpu")
    add(
        "--out", type=Path, help="file that fits are added to; those that it has are not made again"
    )
    add("--table", action="store_true", help="only the table of the fits that are there")
    add("--limit", type=float, default=1e9, help="seconds after which no fit begins or goes on")
    add("--reference", nargs="*", default=None, help="compute references instead, all by default")
    add("--again", action="store_true", help="also those that are there")
    add("--seconds", type=float, default=240, help="of sampling for each reference, about")
    add("--warmup", type=int, default=1000, help="steps of each chain before draws are kept")
    add("--enough", type=int, default=5000, help="effective draws at which a reference stops")
    add("--one", help=argparse.SUPPRESS)  # what a process of its own computes
    add("--fits", help=argparse.SUPPRESS)
    add("--of-seeds", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(argv)
