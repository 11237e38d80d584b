"""What the network says of a few users, beside what is solved for, and the exact answer where known.

    python -m experiments conditionals --synthetic
    python -m experiments conditionals --data movielens-1m --scale small

Means and sds of the first coordinates of z, of users from the fewest rows to the most: written as a
file that `python -m experiments figures` draws.
"""

import argparse

import numpy as np

import ramify as rf
from experiments import exact, paper, recipes, runs, sources

COORDINATES = 5


def main(argv: list[str]) -> int:
    """Fits amortized and solved, writes the moments of a few users' z."""
    args = _parse(argv)
    if args.quick:
        args.steps, args.draws = 20, 20
    problem = sources.problem(args)
    path = (
        runs.folder(args)
        / "conditionals"
        / f"{problem.experiment}_{problem.data}_{problem.scale}.csv"
    )
    if path.exists() and not args.again:
        print(f"{path.name}: done before", flush=True)
        return 0
    few = spread(problem.train, args.users)
    rows = []
    for method, recipe in (("amortized", "ours"), ("solved", "tight")):
        steps = args.steps if method == "amortized" else None
        posterior = recipes.fit(problem, method, "dense", recipe, args.seed, steps=steps)
        (name,) = problem.model.z.parameters
        z = posterior.sample(args.draws, few, seed=args.seed)[name]
        rows += moments(few, method, z.mean(0), z.std(0))
    if problem.best is not None:
        rows += moments(few, "exact", *exact_moments(problem.train, few))
    runs.write(path, rows)
    print(f"{path.name}: {len(few)} users", flush=True)
    return 0


def spread(groups: rf.Groups, count: int) -> rf.Groups:
    """Groups from the smallest to the largest, evenly by rank."""
    order = np.argsort(groups.sizes, kind="stable")
    places = np.unique(np.linspace(0, len(groups) - 1, min(count, len(groups))).astype(int))
    return groups.subset(positions=order[places])


def moments(groups: rf.Groups, method: str, mean: np.ndarray, sd: np.ndarray) -> list[runs.Row]:
    """A row for each group and coordinate; mean and sd are [N, M]."""
    return [
        {"user": i, "n": int(groups.sizes[i]), "coordinate": k, "method": method}
        | {"mean": float(mean[i, k]), "sd": float(sd[i, k])}
        for i in range(len(groups))
        for k in range(min(COORDINATES, mean.shape[1]))
    ]


def exact_moments(train: rf.Groups, few: rf.Groups) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of z_i in the regression, theta integrated out."""
    answer = exact.solve(train)
    cov, offset = answer.cov[few.number], answer.offset[few.number]
    spread = cov + cov @ answer.theta_cov @ cov
    return offset + cov @ answer.theta_mean, np.sqrt(np.diagonal(spread, axis1=1, axis2=2))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = runs.parser("conditionals", __doc__)
    sources.options(parser)
    parser.add_argument("--scale", choices=paper.SCALES, default="small")
    parser.add_argument("--users", type=int, default=6, help="how many (6)")
    parser.add_argument("--steps", type=int, help="of the network; by default until it converges")
    parser.add_argument("--draws", type=int, default=4_000, help="draws of z (4,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run what is there already")
    runs.quick_options(parser)
    return parser.parse_args(argv)
