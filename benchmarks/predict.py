"""Milliseconds of `posterior.predict` for one new group, given its rows, once compiled.

    python -m benchmarks predict

A logistic model with a varying slope, written as three densities and as a formula, is fitted to 1,000
groups. Each call conditions another new group on 20 rows of its own and predicts two more, with mean, sd
and quantiles of the draws. The times are medians of 50 calls. With a formula, each call also builds the
design columns.
"""

import argparse
import time
from typing import Any

import numpy as np
import numpyro.distributions as dist

import ramify as rf
from benchmarks import show

N, ROWS, CALLS = 1000, 20, 50
FACTOR = np.array([[0.8, 0.0], [0.2, 0.5]])  # of the covariance of intercepts and slopes


def main(argv: list[str]) -> int:
    """Fits both, times both, prints a table."""
    argparse.ArgumentParser("python -m benchmarks predict", description=__doc__).parse_args(argv)
    rng = np.random.default_rng(0)
    table = simulate(rng, np.repeat(np.arange(N), ROWS))
    own, formula = densities(), "y ~ x + (x | g)"
    groups = rf.Groups.from_table(table, by="g", rows=["x", "y"])
    fits = {
        "three densities": rf.fit(own, groups),
        "formula": rf.fit(*rf.from_formula(formula, table, likelihood="bernoulli")),
    }
    show(
        {"model": name, "draws": draws} | timed(posterior, draws, rng)
        for name, posterior in fits.items()
        for draws in (1000, 200)
    )
    return 0


def simulate(rng: np.random.Generator, group: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the groups with these numbers, 0 to the largest."""
    effects = rng.normal(size=(group.max() + 1, 2)) @ FACTOR.T + [0.3, 0.5]
    x = rng.normal(size=group.size).astype(np.float32)
    logits = effects[group, 0] + effects[group, 1] * x
    y = (rng.random(group.size) < 1 / (1 + np.exp(-logits))).astype(np.int32)
    return {"g": group, "x": x, "y": y}


def densities() -> rf.Model:
    """The model, with intercept and slope as z."""
    eta = lambda z, row: z["b"][0] + z["b"][1] * row["x"]
    return rf.Model(
        theta={"mu": rf.real(2), "scale": rf.positive(2)},
        z={"b": rf.real(2)},
        log_prior=lambda t: (
            dist.Normal(0, 2.5).log_prob(t["mu"]).sum()
            + dist.HalfNormal(2.5).log_prob(t["scale"]).sum()
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["scale"]).log_prob(z["b"]).sum(),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=eta(z, row)).log_prob(row["y"]),
        simulate=lambda key, t, z, row: dist.Bernoulli(logits=eta(z, row)).sample(key),
    )


def timed(posterior: rf.Posterior, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """The first call, which compiles, and the median of those after it."""
    took = []
    for call in range(1 + CALLS):
        given = simulate(rng, np.zeros(ROWS, int)) | {"g": np.full(ROWS, N + call)}
        at = {"g": np.full(2, N + call), "x": np.array([0.0, 1.0], np.float32)}
        started = time.perf_counter()
        posterior.predict(at, given, draws)
        took.append(1e3 * (time.perf_counter() - started))
    return {"first ms": took[0], "median ms": float(np.median(took[1:])), "least ms": min(took)}
