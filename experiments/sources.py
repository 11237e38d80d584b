"""Which data a command is about: ratings of a folder, simulated ones, or the synthetic problem."""

import argparse

from experiments import movielens, paper, synthetic
from experiments.problems import Problem


def options(parser: argparse.ArgumentParser) -> None:
    """One of --data, --simulate and --synthetic, and what they can be told."""
    source = movielens.data_options(parser)
    source.add_argument("--synthetic", action="store_true", help="the conjugate regression")


def problem(args: argparse.Namespace) -> Problem:
    """The model with its data, at the scale asked for."""
    if not args.synthetic:
        return movielens.problem(args, args.scale)
    if args.quick:
        return synthetic.problem(args.scale, args.data_seed, N=4, rows=8, dim=3)
    return synthetic.problem(args.scale, args.data_seed, paper.GROUPS[args.scale])
