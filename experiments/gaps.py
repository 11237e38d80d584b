"""The amortization gap of each user: what its own optimum gains over the network's answer, in nats.

    python -m experiments gaps --data movielens-1m --scale moderate --steps 2000 10000 40000

The paper's claim is that a capable network loses nothing. `refine` checks it: q(theta) is held, and each
user's own parameters are optimised from the network's answer inside the same family. `structure` is
what the solved conditional gains beyond that. One fit for each number of steps: the gap against training
time, and against n_i.
"""

import argparse

import numpy as np

import ramify as rf
from experiments import movielens, paper, recipes, runs
from experiments.problems import Problem


def main(argv: list[str]) -> int:
    """Fits by every recipe for every number of steps, refines, writes a file of users for each."""
    args = _parse(argv)
    if args.quick:
        args.steps, args.users = [20], 4
    problem = movielens.problem(args, args.scale)
    for recipe in args.recipe:
        for steps in args.steps:
            name = f"{problem.data}_{problem.scale}_{args.covariance}_{recipe}_{steps}steps"
            path = runs.folder(args) / "gaps" / f"{name}_seed{args.seed}.csv"
            if path.exists() and not args.again:
                print(f"{name}: done before", flush=True)
                continue
            rows = measure(problem, args, recipe, steps)
            runs.write(path, rows)
            gap = np.array([row["amortization"] for row in rows])
            print(
                f"{name}: median {np.median(gap):.3f}, mean {gap.mean():.3f} nats a user",
                flush=True,
            )
    return 0


def measure(problem: Problem, args: argparse.Namespace, recipe: str, steps: int) -> list[runs.Row]:
    """One fit's gaps, a row for each of some users."""
    posterior = recipes.fit(problem, "amortized", args.covariance, recipe, args.seed, steps=steps)
    chosen = some_users(problem.train, args.users, args.seed)
    _, gaps = posterior.refine(chosen)
    structure = np.full(len(chosen), np.nan) if gaps.structure is None else gaps.structure
    fit = {
        "data": problem.data,
        "scale": problem.scale,
        "covariance": args.covariance,
        "recipe": recipe,
        "steps": int(posterior.history["step"][-1]),
        "seconds": float(posterior.history["seconds"][-1]),
    }
    users = zip(chosen.sizes.tolist(), gaps.amortization, structure, strict=True)
    return [
        fit | {"n": n, "amortization": float(own), "structure": float(beyond)}
        for n, own, beyond in users
    ]


def some_users(groups: rf.Groups, count: int, seed: int) -> rf.Groups:
    """So many users at random, in their order."""
    rng = np.random.default_rng(seed)
    few = rng.choice(len(groups), min(count, len(groups)), replace=False)
    return groups.subset(positions=np.sort(few))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = runs.parser("gaps", __doc__)
    movielens.data_options(parser)
    parser.add_argument("--scale", choices=paper.SCALES, default="moderate")
    parser.add_argument("--covariance", choices=paper.COVARIANCES, default="block")
    parser.add_argument("--recipe", nargs="+", choices=recipes.RECIPES, default=["paper", "ours"])
    parser.add_argument("--steps", nargs="+", type=int, default=[2_000, 10_000, 40_000])
    parser.add_argument("--users", type=int, default=1_200, help="how many to refine (1,200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run what is there already")
    runs.quick_options(parser)
    return parser.parse_args(argv)
