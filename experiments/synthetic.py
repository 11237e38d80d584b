"""The paper's synthetic problem at N = 10, 1,000 and 100,000: its figure of ELBO traces, in numbers.

    python -m experiments synthetic --scale small
    python -m experiments synthetic --scale moderate large --recipe paper ours tight     # on a GPU

Each fit's ELBO stands beside the highest that its covariance allows, in closed form at every scale; for
dense families and `solved` that is the log evidence itself.
"""

import argparse

import numpy as np

import ramify as rf
from experiments import exact, paper, runs
from experiments.problems import Problem, regression

TINY = {"small": 4, "moderate": 6, "large": 8}


def main(argv: list[str]) -> int:
    """Runs the combinations asked for, at each scale asked for."""
    args = parse(argv)
    if args.quick:
        args.steps, args.draws = args.steps or 20, min(args.draws, 20)
    failed = 0
    for scale in args.scale:
        if args.quick:
            found = problem(scale, args.data_seed, TINY[scale], rows=8, dim=3)
        else:
            found = problem(scale, args.data_seed, paper.GROUPS[scale])
        best = ", ".join(f"{name} {value:.3f}" for name, value in (found.best or {}).items())
        print(f"synthetic {scale}: {len(found.train):,} groups; highest ELBO: {best}", flush=True)
        failed |= runs.run_all(found, args)
    return failed


def problem(
    scale: str, seed: int, N: int, rows: int = paper.ROWS_PER_GROUP, dim: int = paper.DIM
) -> Problem:
    """Data drawn from the model, in the float32 that fits see, with the exact answers to them."""
    groups = rf.Groups.from_table(simulate(seed, N, rows, dim), by="group", rows=["x", "y"])
    best = exact.solve(groups).best
    return Problem("synthetic", "model", scale, regression(dim), groups, best=best)


def simulate(seed: int, N: int, rows: int, dim: int) -> dict[str, np.ndarray]:
    """A long table {"group" [n], "x" [n, dim], "y" [n]} of N groups with as many rows each.

    The paper does not say how x is drawn: here from N(0, I).
    """
    rng = np.random.default_rng([seed, N])
    z = rng.standard_normal(dim) + rng.standard_normal((N, dim))
    group = np.repeat(np.arange(N, dtype=np.int32), rows)
    x = rng.standard_normal((N * rows, dim), np.float32)
    mean = np.einsum("rd,rd->r", x, z.astype(np.float32)[group])
    return {"group": group, "x": x, "y": mean + rng.standard_normal(N * rows, np.float32)}


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = runs.parser("synthetic", __doc__)
    runs.options(parser)
    parser.add_argument("--data-seed", type=int, default=0, help="of the simulated data (0)")
    return parser.parse_args(argv)
