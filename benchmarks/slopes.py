"""Many slopes a group: 10 Bernoulli rows, an intercept and 20 independent slopes (M = 21, D = 42).

    python -m benchmarks slopes --groups 3000 --seeds 2          # on two CPU cores
    python -m benchmarks slopes --groups 100000 --seeds 2        # on a GPU

Default fits of simulated data. For each seed: seconds, verdict, the estimated bias and noise, z-scores of
the simulated globals; then how far the seeds' means are apart, in posterior sds, and their sds.
"""

import argparse
import time

import numpy as np

import ramify as rf
from benchmarks import show
from ramify.posterior.trust import findings, verdict_of

ROWS, SLOPES = 10, 20


def simulated(N: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A table, and the globals that made it in the order of a summary."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(N), ROWS)
    x = rng.normal(size=(N * ROWS, SLOPES)).round(3)
    common, sd = rng.normal(0, 0.5, SLOPES + 1), rng.uniform(0.2, 1.0, SLOPES + 1)
    own = (common + sd * rng.normal(size=(N, SLOPES + 1)))[g]
    eta = own[:, 0] + np.sum(own[:, 1:] * x, -1)
    y = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(int)
    table = {"g": g, "y": y} | {f"x{k + 1}": x[:, k] for k in range(SLOPES)}
    return table, np.concatenate([common, sd])


def main(argv: list[str]) -> int:
    """Fits, and prints what it found."""
    parser = argparse.ArgumentParser("python -m benchmarks slopes", description=__doc__)
    parser.add_argument("--groups", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args(argv)
    table, truth = simulated(asked.groups)
    right = " + ".join(f"x{k + 1}" for k in range(SLOPES))
    formula = f"y ~ 1 + {right} + (1 + {right} || g)"
    model, groups = rf.from_formula(formula, table, likelihood="bernoulli")
    lines, means, sds = [], [], []
    for seed in range(asked.seeds):
        started = time.perf_counter()
        posterior = rf.fit(model, groups, seed=seed)
        seconds, summary = time.perf_counter() - started, posterior.summary()
        means.append(np.asarray(summary["mean"], float))
        sds.append(np.asarray(summary["sd"], float))
        scores, notes = (means[-1] - truth) / sds[-1], posterior.notes
        verdict = verdict_of(findings(notes, asked.groups))
        line = {"seed": seed, "seconds": seconds, "verdict": verdict}
        line |= {name: notes.get(name) for name in ("converged", "bias_sds", "noise_sds")}
        lines.append(line | {"rms z-score": float(np.sqrt(np.mean(scores**2)))})
        print(posterior, flush=True)
    show(lines)
    apart = np.ptp(means, 0) / np.mean(sds, 0)
    print(f"means are up to {apart.max():.3f} sds apart, sds up to a factor of", end=" ")
    print(f"{np.max(np.max(sds, 0) / np.min(sds, 0)):.3f}")
    return 0
