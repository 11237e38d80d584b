"""Several grouping factors: lme4's InstEval data, linear and logistic, beside lme4's numbers.

    python -m benchmarks levels --data lme4_InstEval.csv [--only linear]

The data are a CSV file of `lme4::InstEval`, which is not part of this repository. Priors are so wide that
maximum likelihood and posterior modes agree. Seconds are from a new process, compiling included.
"""

import argparse
import os
import resource
import time
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pyarrow.csv as csv

import ramify as rf

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


def main(argv: list[str] | None = None) -> int:
    """Fits the models that the command line asks for and prints a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a CSV file of InstEval")
    parser.add_argument("--only", nargs="*", default=list(FORMULAS), choices=list(FORMULAS))
    args = parser.parse_args(argv)
    raw = csv.read_csv(args.data).to_pydict()
    table = {name: np.asarray(raw[name]) for name in ("s", "d", "dept", "service", "y")}
    table["high"] = table["y"] >= 4
    table["y"] = table["y"].astype(float)
    print(f"{len(table['y']):,} rows; {os.cpu_count()} cores")
    for name in args.only:
        report(name, table)
    return 0


def report(name: str, table: dict[str, Any]) -> None:
    """Fits one model and prints its estimates beside lme4's."""
    formula, likelihood = FORMULAS[name]
    wide = {
        "sd": dist.HalfNormal(100.0),
        "Intercept": dist.Normal(0, 100),
        "b": dist.Normal(0, 100),
    }
    began, cpu = time.perf_counter(), time.process_time()
    model, groups = rf.from_formula(formula, table, likelihood=likelihood, priors=wide)
    posterior = rf.fit(model, groups)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    theirs, estimates = LME4[name]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{formula} ({likelihood})")
    print(f"  {seconds:.1f} s, {used:.1f} s of CPU, {memory:.2f} GiB; lme4: {theirs:.0f} s")
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
