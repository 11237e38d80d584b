"""Seconds of one step, branch beside amortized: the paper found branch twice as fast on average.

    python -m experiments step-time --simulate --scale large

By the paper's recipe, with its batch sizes, or by ours. Fits that shared their machine are read as if
their steps had taken this long (`timing.py`). A step of branch writes Adam's moments for every group,
also for those that are not in the minibatch, as an ordinary optimizer does; a step of amortized does
not depend on N.
"""

import argparse

from experiments import paper, recipes, runs, sources

METHODS = ("branch", "amortized")


def main(argv: list[str]) -> int:
    """Times every method and covariance, writes a file after each, prints the ratios."""
    args = _parse(argv)
    if args.quick:
        args.steps, args.covariances = 20, args.covariances[:1]
    problem = sources.problem(args)
    path = runs.folder(args) / "step-time" / f"{problem.data}_{problem.scale}_{args.recipe}.csv"
    rows = runs.read(path) if path.exists() and not args.again else []
    for covariance in args.covariances:
        if any(row["covariance"] == covariance for row in rows):
            print(f"{path.name}, {covariance}: done before", flush=True)
            continue
        times = {}
        for method in METHODS:
            posterior = recipes.fit(problem, method, covariance, args.recipe, 0, steps=args.steps)
            times[method] = 1e3 * runs.step_seconds(posterior.history)
        ratio = times["amortized"] / times["branch"]
        row = {"data": problem.data, "scale": problem.scale, "covariance": covariance}
        theirs = recipes.groups_per_step(problem, "branch") or len(problem.train)
        row |= {"recipe": args.recipe, "minibatch": theirs if args.recipe == "paper" else None}
        row |= {"groups": len(problem.train), "steps": args.steps}
        row |= {f"{method}_ms": times[method] for method in METHODS} | {"ratio": ratio}
        rows.append(row | runs.about_machine())
        said = f"branch {times['branch']:.3f} ms, amortized {times['amortized']:.3f} ms"
        print(f"{covariance}: {said}, {ratio:.2f} times as long", flush=True)
        runs.write(path, rows)
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = runs.parser("step-time", __doc__)
    sources.options(parser)
    parser.add_argument("--scale", choices=paper.SCALES, default="moderate")
    parser.add_argument(
        "--covariances", nargs="+", choices=paper.COVARIANCES, default=paper.COVARIANCES
    )
    parser.add_argument("--recipe", choices=("paper", "ours"), default="paper")
    parser.add_argument("--steps", type=int, default=2_000, help="to time, of each (2,000)")
    parser.add_argument("--again", action="store_true", help="run what is there already")
    runs.quick_options(parser)
    return parser.parse_args(argv)
