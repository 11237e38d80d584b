"""`python -m benchmarks NAME [options]`: `--help` has the names; by default `cost`."""

import sys
from importlib import import_module

NAMES = {
    "alarms": "how often default fits of data that follow their model are doubted",
    "baseball": "11.4 million plate appearances by batter and pitcher, from Parquet through a store",
    "cost": "step time and memory of branch and amortized against the number of groups",
    "coverage": "whether 50% and 90% intervals hold the truth, over simulated data; Laplace beside it",
    "cpu": "hierarchical logistic regression with 10,000 groups, compared with NumPyro and GPBoost",
    "gpu_latency": "large problems on a GPU, call by call: seconds, programs, compiling",
    "gpu": "the paper's largest problem: solved, and amortized with two recipes",
    "latency": "every call of a user's journey in a new process: seconds, programs, compiling",
    "levels": "several grouping factors: lme4's InstEval data beside lme4's published numbers",
    "likelihood_coverage": "whether intervals hold the truth, for each newer likelihood of formulas",
    "million": "`ramify fit` on 1,000,000 rows of 100,000 groups: wall time and peak memory",
    "numpyro_cost": "step time of NumPyro models compared with the same models as three densities",
    "predict": "a prediction for one new group, given its rows",
    "questions": "every question of an analyst, the first time: seconds, programs, compiling",
    "right": "default fits of many problems against long references, over several seeds",
    "slopes": "groups of 10 Bernoulli rows with 20 slopes: seeds, bias, noise and the simulated truth",
    "store": "rows larger than memory: sorted on disk, and a fit that streams them",
    "workers": "a fit on Dask workers: bytes that move in a sweep, and seconds",
    "same": "whether small models give the numbers that the first release gave",
}


def main() -> int:
    """Runs the benchmark named by the first word, with the rest of the command line."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        print("\n".join(f"  {name:14}{what}" for name, what in NAMES.items()))
        return 0
    name = words.pop(0) if words and not words[0].startswith("-") else "cost"
    if name not in NAMES:
        print(f"no benchmark is called {name!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    return import_module(f"benchmarks.{name}").main(words)


if __name__ == "__main__":
    sys.exit(main())
