"""Several grouping factors: lme4's InstEval data beside lme4, growth with rows and levels, MovieLens.

    python -m benchmarks levels --data lme4_InstEval.csv [--only linear] [--lme4]
    python -m benchmarks levels --growth [--rows 10000 100000] [--likelihood bernoulli]
    python -m benchmarks levels --switch [--rows 10000 100000]      # one evaluation by each algebra
    python -m benchmarks levels --movielens movielens-1m [--rows 100000] [--gpboost PYTHON]
    python -m benchmarks levels --appearances plate_appearances.parquet [--seasons 1990 1999]
    python -m benchmarks levels --survey cces.csv --cells cells.csv [--rows 5000]

The data are a CSV file of `lme4::InstEval`, a folder of MovieLens 1M, and a survey with its census cells:
columns state, eth, male, age, educ, abortion and n, as Lopez-Martin, Phillips and Gelman made them of the
2018 CCES and ACS (Multilevel Regression and Poststratification Case Studies). None is in this repository.
Priors of InstEval are so wide that maximum likelihood and posterior modes agree. Seconds have compiling
in them (`RAMIFY_CACHE=off`: all of it) but no imports, as lme4's have none. `--lme4` runs lme4 on the
same file, where R has it (Debian: r-cran-lme4); without it its published numbers are shown. On cores that
others use, too, set OPENBLAS_NUM_THREADS=1: threads that wait for each other are counted as CPU time.
"""

import argparse
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pyarrow.csv as csv

from benchmarks.levels_growth import fitted, growth, switch
from benchmarks.levels_large import movielens, plate_appearances

# By lme4 2.0 on two cores: seconds, then estimates; sds by maximum likelihood.
LME4: dict[str, tuple[float, dict[str, float]]] = {
    "linear": (
        22.0,
        {
            "sd(Intercept | s)": 0.3247,
            "sd(Intercept | d)": 0.5124,
            "sd(Intercept | dept:service)": 0.1046,
            "sigma": 1.1768,
        },
    ),
    "logistic": (
        83.0,
        {"sd(Intercept | s)": 0.476, "sd(Intercept | d)": 0.796, "service": -0.136},
    ),
}
FORMULAS = {
    "linear": ("y ~ service + (1 | s) + (1 | d) + (1 | dept:service)", "gaussian"),
    "logistic": ("high ~ service + (1 | s) + (1 | d)", "bernoulli"),
}
CALLS = {
    "linear": "lmer({formula}, t, REML = FALSE)",
    "logistic": "glmer({formula}, t, family = binomial)",
}
WIDE: dict[str, Any] = {
    "sd": dist.HalfNormal(100.0),
    "Intercept": dist.Normal(0, 100),
    "b": dist.Normal(0, 100),
}


def main(argv: list[str] | None = None) -> int:
    """Fits the models that the command line asks for and prints a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a CSV file of InstEval")
    parser.add_argument("--only", nargs="*", default=list(FORMULAS), choices=list(FORMULAS))
    parser.add_argument("--lme4", action="store_true", help="run lme4 in the same run")
    parser.add_argument("--growth", action="store_true", help="time against rows and levels")
    parser.add_argument("--switch", action="store_true", help="time of each kind of algebra")
    parser.add_argument("--rows", type=int, nargs="*", help="rows of --growth, or of MovieLens")
    parser.add_argument("--likelihood", default="gaussian", choices=["gaussian", "bernoulli"])
    parser.add_argument("--movielens", help="a folder of MovieLens 1M")
    parser.add_argument("--appearances", help="a Parquet file of Retrosheet's plate appearances")
    parser.add_argument("--seasons", type=int, nargs=2, default=[1950, 2024])
    parser.add_argument("--gpboost", help="a Python with GPBoost, to run beside --movielens")
    parser.add_argument("--survey", help="a CSV file of respondents")
    parser.add_argument("--cells", help="a CSV file of census cells")
    args = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores")
    if args.growth:
        growth(args.rows or [3_000, 10_000, 30_000, 100_000], args.likelihood)
    if args.switch:
        switch(args.rows or [3_000, 10_000, 30_000, 100_000], args.likelihood)
    if args.movielens:
        movielens(Path(args.movielens), args.rows[0] if args.rows else None, args.gpboost)
    if args.appearances:
        rows = args.rows[0] if args.rows else None
        plate_appearances(Path(args.appearances), tuple(args.seasons), rows, args.gpboost)
    if args.survey:
        survey(args.survey, args.cells, args.rows[0] if args.rows else 5000)
    if args.data:
        table = insteval(args.data)
        print(f"{len(table['y']):,} rows")
        for name in args.only:
            beside = lme4(name, args.data) if args.lme4 else LME4[name]
            report(name, table, beside, "s of CPU" if args.lme4 else "s, published")
    return 0


def insteval(path: str) -> dict[str, Any]:
    """The columns of InstEval."""
    raw = csv.read_csv(path).to_pydict()
    table = {name: np.asarray(raw[name]) for name in ("s", "d", "dept", "service", "y")}
    table["high"] = table["y"] >= 4
    table["y"] = table["y"].astype(float)
    return table


def lme4(name: str, path: str) -> tuple[float, dict[str, float]]:
    """CPU seconds and estimates of lme4 on the same file."""
    call = CALLS[name].format(formula=FORMULAS[name][0])
    script = f"""suppressMessages(library(lme4)); t <- read.csv("{path}"); t$high <- t$y >= 4
    took <- system.time(m <- {call}); v <- as.data.frame(VarCorr(m))
    cat("cpu", sum(took[1:2]), "\\n"); cat("service", fixef(m)[["service"]], "\\n")
    for (i in seq_len(nrow(v))) cat(v$grp[i], v$sdcor[i], "\\n")"""
    out = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in out.stdout.splitlines() if len(line.split()) == 2]
    found = {key: float(value) for key, value in pairs}
    seconds = found.pop("cpu")
    title = lambda key: {"Residual": "sigma", "service": "service"}.get(
        key, f"sd(Intercept | {key})"
    )
    return seconds, {title(key): value for key, value in found.items()}


def report(
    name: str, table: dict[str, Any], beside: tuple[float, dict[str, float]], unit: str
) -> None:
    """Fits one model and prints its estimates beside lme4's."""
    formula, likelihood = FORMULAS[name]
    posterior, seconds, used = fitted(formula, table, likelihood, WIDE)
    theirs, estimates = beside
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{formula} ({likelihood})")
    print(f"  {seconds:.1f} s, {used:.1f} s of CPU, {memory:.2f} GiB; lme4: {theirs:.1f} {unit}")
    notes = posterior.notes
    print(f"  {notes['evaluations']} evaluations of G, {notes['factorizations']} factorizations")
    summary = posterior.summary(quantiles=(0.025, 0.975))
    print(f"  {'':30}{'mean':>9}{'sd':>8}{'2.5%':>9}{'97.5%':>9}{'lme4':>9}")
    for row in summary.names:
        own = summary[row]
        lme4 = f"{estimates[row]:9.4f}" if row in estimates else ""
        numbers = f"{own['mean']:9.4f}{own['sd']:8.4f}{own['q2.5']:9.4f}{own['q97.5']:9.4f}"
        print(f"  {row:30}{numbers}{lme4}")
    print("\n".join(f"  {line}" for line in repr(posterior).splitlines()[2:]))


def survey(path: str, cells: str, rows: int) -> None:
    """State estimates from a small survey, beside those of all respondents, by poststratification."""
    people, census = (csv.read_csv(own).to_pydict() for own in (path, cells))
    names = ("state", "eth", "male", "age", "educ", "abortion")
    table = {name: np.asarray(people[name]) for name in names}
    some = np.random.default_rng(0).permutation(len(table["state"]))[:rows]
    formula = "abortion ~ male + (1 | state) + (1 | eth) + (1 | age) + (1 | educ)"
    found = {}
    for name, who in (("survey", some), ("all", slice(None))):
        own = {column: values[who] for column, values in table.items()}
        posterior, _, used = fitted(formula, own, "bernoulli")
        print(
            f"{name}: {len(own['state']):,} respondents in {posterior.notes['rows']:,} cells, "
            f"{used:.1f} s of CPU"
        )
        print(posterior.summary())
        found[name] = posterior.poststratify(census, by="state")
        everyone = posterior.poststratify(census)
        print(f"  all states: {everyone['mean'][0]:.4f} +- {everyone['sd'][0]:.4f}")
    states, code = np.unique(table["state"][some], return_inverse=True)
    raw = np.bincount(code, table["abortion"][some]) / np.bincount(code)
    truth = dict(zip(found["all"]["state"], found["all"]["mean"], strict=True))
    off = lambda who, values: np.mean(np.abs([values[i] - truth[s] for i, s in enumerate(who)]))
    own = found["survey"]
    within = [
        low < truth[s] < high
        for s, low, high in zip(own["state"], own["q5"], own["q95"], strict=True)
    ]
    print(
        f"mean error of states: {off(own['state'], own['mean']):.3f}; of plain means "
        f"{off(states, raw):.3f}"
    )
    print(f"states whose 90% interval has the estimate from all respondents: {np.mean(within):.0%}")
