"""`python -m experiments COMMAND [options]`; `python -m experiments COMMAND --help` has the options."""

import sys
from importlib import import_module

NAMES = {
    "synthetic": "the conjugate regression, nine families and solved, beside the exact log evidence",
    "movielens": "the user-preference model on MovieLens 25M, MovieLens 1M or simulated ratings",
    "gaps": "how much each user's own optimum gains over the network's answer, against n_i",
    "step-time": "seconds of a step: branch beside amortized",
    "batch-size": "the paper's rule for the batch size, B / T^1.18, measured here",
    "conditionals": "amortized beside solved conditionals of a few users",
    "tables": "fills the tables of README.md from the results",
    "figures": "draws the figures from the results",
}


def main(words: list[str] | None = None) -> int:
    """Hands the rest of the command line to the command that its first word names."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        print("\n".join(f"  {name:14}{what}" for name, what in NAMES.items()))
        return 0
    name = words.pop(0)
    if name not in NAMES:
        print(f"no experiment is called {name!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    try:
        return import_module(f"experiments.{name.replace('-', '_')}").main(words)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
