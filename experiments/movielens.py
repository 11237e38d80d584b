"""The paper's user-preference model on MovieLens: its tables of results, and its figure of traces.

    python -m experiments movielens --data ml-25m --scale small moderate large           # tier 1
    python -m experiments movielens --data movielens-1m --scale small --seeds 0 1 2      # tier 2
    python -m experiments movielens --simulate --scale large                             # tier 3: a GPU

A folder is MovieLens 25M (ratings.csv, genome-scores.csv) or MovieLens 1M (ratings.parquet,
features10_tags_genres.parquet); neither comes with this project. See `ratings.py` for what is done
to them.
"""

import argparse
from pathlib import Path

import numpy as np

from experiments import paper, ratings, runs
from experiments.problems import Problem, preferences


def main(argv: list[str]) -> int:
    """Runs the combinations asked for, at each scale asked for."""
    parser = runs.parser("movielens", __doc__)
    runs.options(parser)
    data_options(parser)
    args = parser.parse_args(argv)
    if args.quick:
        args.steps, args.draws = args.steps or 20, min(args.draws, 20)
    failed = 0
    for scale in args.scale:
        failed |= runs.run_all(problem(args, scale), args)
    return failed


def data_options(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Which ratings: a folder's, or simulated ones; a command may add another source."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder of MovieLens 25M or 1M")
    source.add_argument("--simulate", action="store_true", help="ratings drawn from the model")
    parser.add_argument(
        "--missing", choices=("drop", "zero"), default="drop",
        help="ratings of movies without features: dropped, or kept with zeros (drop)",
    )  # fmt: skip
    parser.add_argument(
        "--whiten", action="store_true", help="principal components of unit variance"
    )
    parser.add_argument("--data-seed", type=int, default=0, help="of users and split (0)")
    return source


def problem(args: argparse.Namespace, scale: str) -> Problem:
    """The model with the training and test ratings of one scale; says how many there are."""
    found = _ratings(args, scale)
    train, test = ratings.split(found, scale, args.data_seed)
    if args.quick:
        train, test = _few(train, 6), _few(test, 6)
    counts = ratings.counts(train, test, scale)
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"movielens {scale} ({found.source}): {told}", flush=True)
    if found.source == "ml-25m" and not args.quick and (off := ratings.check_counts(counts)):
        print(f"  not the counts that the paper's tables imply: {off}", flush=True)
    dim = found.features.shape[1]
    return Problem("movielens", found.source, scale, preferences(dim), train, test)


def _ratings(args: argparse.Namespace, scale: str) -> ratings.Ratings:
    if not args.simulate:
        return ratings.read(args.data, missing=args.missing, whiten=args.whiten)
    count = paper.TRAIN[scale] + paper.TEST[scale]
    return ratings.simulate(1_000 if args.quick else count, args.data_seed, 3 if args.quick else 10)


def _few(groups, most: int):
    """The first groups, for a quick run."""
    return groups.subset(positions=np.arange(min(most, len(groups))))
