"""The paper's rule for the batch size: the B that maximizes B / T^1.18, T being a step's seconds.

    python -m experiments batch-size --simulate --scale large

Why 1.18: doubling B then pays as long as it makes a step less than 2^(1/1.18) = 1.8 times as long. The
paper found 200 at its moderate scale and 400 at its large one, on an RTX 2080 Ti.
"""

import argparse

import numpy as np

from experiments import movielens, paper, recipes, runs

POWER = 1.18


def main(argv: list[str]) -> int:
    """Times branch with one batch size after the other, writes a file after each, prints the choice."""
    args = _parse(argv)
    if args.quick:
        args.steps, args.sizes = 20, [2, 4]
    problem = movielens.problem(args, args.scale)
    name = f"{problem.data}_{problem.scale}_{args.covariance}"
    path = runs.folder(args) / "batch-size" / f"{name}.csv"
    rows = runs.read(path) if path.exists() and not args.again else []
    about = {"data": problem.data, "scale": problem.scale, "covariance": args.covariance}
    for size in args.sizes:
        if size > len(problem.train) or any(row["minibatch"] == size for row in rows):
            continue
        posterior = recipes.fit(
            problem, "branch", args.covariance, "paper", 0, steps=args.steps, minibatch=size
        )
        time = 1e3 * runs.step_seconds(posterior.history)
        print(f"B = {size}: {time:.3f} ms a step", flush=True)
        rows = ranked([*rows, about | {"minibatch": size, "step_ms": time} | runs.about_machine()])
        runs.write(path, rows)
    for row in rows:
        if str(row["chosen"]) == "True":
            theirs = paper.MINIBATCH[args.scale]
            print(f"the rule chooses B = {row['minibatch']:.0f}; the paper had {theirs}")
    return 0


def ranked(rows: list[runs.Row]) -> list[runs.Row]:
    """The rows with the rule's score, and which it chooses."""
    sizes, times = (np.array([row[name] for row in rows]) for name in ("minibatch", "step_ms"))
    scores = score(sizes, times)
    return [
        row | {"score": value, "chosen": value == scores.max()}
        for row, value in zip(rows, scores, strict=True)
    ]


def score(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """B / T^1.18, as shares of the largest.

    Example:
        >>> score(np.array([1, 2, 4]), np.array([1.0, 1.7, 3.4])).round(3).tolist()
        [0.935, 1.0, 0.883]
    """
    value = sizes / seconds**POWER
    return value / value.max()


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = runs.parser("batch-size", __doc__)
    movielens.data_options(parser)
    parser.add_argument("--scale", choices=paper.SCALES, default="moderate")
    parser.add_argument("--covariance", choices=paper.COVARIANCES, default="dense")
    sizes = [25, 50, 100, 200, 400, 800, 1_600, 3_200]
    parser.add_argument("--sizes", nargs="+", type=int, default=sizes, help="batch sizes to time")
    parser.add_argument("--steps", type=int, default=1_000, help="to time, of each (1,000)")
    parser.add_argument("--again", action="store_true", help="run what is there already")
    runs.quick_options(parser)
    return parser.parse_args(argv)
