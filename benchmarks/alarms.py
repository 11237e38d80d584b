"""False alarms: how often a default fit of simulated data that follow the model is doubted.

    python -m benchmarks alarms                     # 50 data sets, 10 of each kind
    python -m benchmarks alarms --seeds 2 --kinds zero_sd near_zero
    python -m benchmarks alarms --first 100         # 50 others, not those on which thresholds were tried

The sds of group effects are far from zero in some kinds, near zero or zero in others. Both `print` and
`diagnose` are asked. The exit status is 1 if more than one fit in twenty is doubted.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import ramify as rf
from benchmarks import show
from ramify.posterior.trust import findings, verdict_of

MOST = 0.05  # of the fits


class Kind(NamedTuple):
    """Simulated data: a likelihood, groups and rows of each, and the sds of intercept and slope."""

    likelihood: str
    groups: int
    rows: int
    sds: tuple[float, ...]

    @property
    def formula(self) -> str:
        """With slopes where they have an sd."""
        return "y ~ x + (1 + x | g)" if len(self.sds) > 1 else "y ~ x + (1 | g)"

    def table(self, seed: int) -> dict[str, np.ndarray]:
        """Rows of a data set."""
        rng = np.random.default_rng(seed)
        g = np.repeat(np.arange(self.groups), self.rows)
        x, own = rng.normal(size=g.size), rng.normal(size=(self.groups, 2))
        sds = np.resize([*self.sds, 0.0], 2)
        eta = 0.4 + 0.5 * x + np.sum((sds * own)[g] * np.stack([np.ones(g.size), x], 1), 1)
        return {"g": g, "x": x.round(3), "y": DRAWN[self.likelihood](rng, eta)}


DRAWN: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "bernoulli": lambda rng, eta: (rng.random(eta.size) < 1 / (1 + np.exp(-eta))).astype(int),
    "poisson": lambda rng, eta: rng.poisson(np.exp(eta)),
    "gaussian": lambda rng, eta: (eta + 0.7 * rng.normal(size=eta.size)).round(3),
}
KINDS = {
    "far_from_zero": Kind("bernoulli", 100, 10, (0.8,)),
    "zero_sd": Kind("bernoulli", 100, 10, (0.0,)),
    "near_zero": Kind("poisson", 80, 5, (0.05,)),
    "zero_slopes": Kind("gaussian", 60, 8, (0.5, 0.0)),
    "few_groups": Kind("gaussian", 12, 10, (0.3,)),
}


def main(argv: list[str]) -> int:
    """Fits, and prints each doubt and a table."""
    parser = argparse.ArgumentParser("python -m benchmarks alarms", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="data sets of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    asked = parser.parse_args(argv)
    seeds = range(asked.first, asked.first + asked.seeds)
    lines = [_line(name, KINDS[name], seeds) for name in asked.kinds]
    show(lines)
    alarms, fits = (sum(line[name] for line in lines) for name in ("doubted", "fits"))
    print(f"{alarms} of {fits} fits are doubted (at most {MOST:.0%} may be)")
    return int(alarms > MOST * fits)


def _line(name: str, kind: Kind, seeds: range) -> dict[str, str | int | float]:
    """The fits of a kind."""
    count = {"print": 0, "diagnose": 0, "doubted": 0}
    started = time.process_time()
    for seed in seeds:
        model, groups = rf.from_formula(kind.formula, kind.table(seed), likelihood=kind.likelihood)
        fit = rf.fit(model, groups, seed=seed)
        own = findings(fit.notes, len(groups))
        told = rf.diagnose(fit)
        doubts = {"print": verdict_of(own) != "trust", "diagnose": told.verdict != "trust"}
        count = {who: count[who] + doubts.get(who, any(doubts.values())) for who in count}
        if any(doubts.values()):
            said = "; ".join(finding.said for finding in own) or "nothing"
            print(f"{name} {seed}: print says: {said}\n  {told.reasons[0]}", flush=True)
    seconds = (time.process_time() - started) / len(seeds)
    return {"kind": name, "fits": len(seeds), **count, "CPU s a fit": seconds}
