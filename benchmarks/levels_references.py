"""Reference posteriors of the problems in `tests/levels_problems.py`, by long NUTS runs of NumPyro.

python -m benchmarks.levels_references [--only crossed_bernoulli] [--chains 4] [--draws 2000]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import ramify as rf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # tests is no package

from levels_problems import PROBLEMS, REFERENCES, LevelsProblem  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Makes the references that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=700)
    parser.add_argument("--draws", type=int, default=2000)
    args = parser.parse_args(argv)
    for name in args.only:
        found = reference(PROBLEMS[name], args.chains, args.warmup, args.draws)
        np.savez_compressed(REFERENCES / f"levels_{name}.npz", **found)
        print(name, "smallest ESS", found["ess"], "largest R-hat", found["r_hat"], flush=True)
    return 0


def reference(problem: LevelsProblem, chains: int, warmup: int, draws: int) -> dict[str, Any]:
    """Means and sds of parameters, by the names of a summary, and of both factors' levels."""
    model, _ = rf.from_formula(problem.formula, problem.table, likelihood=problem.likelihood)
    priors = dict(model.priors)
    codes = {name: _codes(problem.table, name) for name in problem.factors}
    x, y = problem.table["x"], problem.table["y"]

    def density() -> None:
        centred = numpyro.sample("centred", priors["Intercept"])  # at the mean of x
        slope = numpyro.sample("x", priors["x"])
        numpyro.deterministic("Intercept", centred - slope * x.mean())
        eta = centred + slope * (x - x.mean())
        for name, code in codes.items():
            title = f"sd(Intercept | {name})"
            sd = numpyro.sample(title, priors[title])
            raw = numpyro.sample(f"raw {name}", dist.Normal().expand([code.max() + 1]).to_event(1))
            eta = eta + numpyro.deterministic(f"effects({name})", sd * raw)[code]
        with numpyro.plate("rows", len(y)):
            if problem.likelihood == "poisson":
                numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y)
            else:
                numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    mcmc = MCMC(
        NUTS(density, target_accept_prob=0.85),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    found = mcmc.get_samples(group_by_chain=True)
    wanted = ["Intercept", "x", *(f"sd(Intercept | {name})" for name in codes)]
    wanted += [f"effects({name})" for name in codes]
    own = {name: np.asarray(found[name], np.float64) for name in wanted}
    ess = min(float(np.min(effective_sample_size(draws))) for draws in own.values())
    worst = max(float(np.max(split_gelman_rubin(draws))) for draws in own.values())
    arrays: dict[str, Any] = {"checksum": problem.checksum, "ess": ess, "r_hat": worst}
    for name, values in own.items():
        arrays[f"{name} mean"] = values.mean((0, 1)).astype(np.float32)
        arrays[f"{name} sd"] = values.std((0, 1)).astype(np.float32)
    return arrays


def _codes(table: dict[str, np.ndarray], factor: str) -> np.ndarray:
    """The level of each row, in the order of the labels."""
    columns = np.stack([table[name] for name in factor.split(":")], 1)
    return np.unique(columns, axis=0, return_inverse=True)[1].ravel()


if __name__ == "__main__":
    sys.exit(main())
