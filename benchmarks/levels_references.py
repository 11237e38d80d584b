"""Reference posteriors of the problems in `tests/levels_problems.py`, by long NUTS runs of NumPyro.

python -m benchmarks.levels_references [--only crossed_bernoulli] [--chains 4] [--draws 2000]
python -m benchmarks.levels_references --only verbagg --data FOLDER   # with lme4/lme4_VerbAgg.csv
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

from levels_problems import PROBLEMS, REFERENCES, LevelsProblem, verbagg  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Makes the references that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*PROBLEMS, "verbagg"]
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=names)
    parser.add_argument("--data", type=Path, help="a folder with lme4/lme4_VerbAgg.csv")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=700)
    parser.add_argument("--draws", type=int, default=2000)
    args = parser.parse_args(argv)
    for name in args.only:
        problem = verbagg(args.data) if name == "verbagg" else PROBLEMS[name]
        found = reference(problem, args.chains, args.warmup, args.draws)
        np.savez_compressed(REFERENCES / f"levels_{name}.npz", **found)
        print(name, "smallest ESS", found["ess"], "largest R-hat", found["r_hat"], flush=True)
    return 0


def reference(problem: LevelsProblem, chains: int, warmup: int, draws: int) -> dict[str, Any]:
    """Means and sds of parameters, by the names of a summary, and of both factors' levels."""
    model, _ = rf.from_formula(problem.formula, problem.table, likelihood=problem.likelihood)
    density, wanted = _density(problem, dict(model.priors))
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
    own = {name: np.asarray(found[name], np.float64) for name in wanted}
    ess = min(float(np.min(effective_sample_size(draws))) for draws in own.values())
    worst = max(float(np.max(split_gelman_rubin(draws))) for draws in own.values())
    arrays: dict[str, Any] = {"checksum": problem.checksum, "ess": ess, "r_hat": worst}
    for name, values in own.items():
        arrays[f"{name} mean"] = values.mean((0, 1)).astype(np.float32)
        arrays[f"{name} sd"] = values.std((0, 1)).astype(np.float32)
    return arrays


def _density(problem: LevelsProblem, priors: dict[str, Any]) -> tuple[Any, list[str]]:
    """The model as a function of NumPyro, and the sites that are kept."""
    table, y = problem.table, problem.table["y"]
    means = {name: table[name].mean() for name in problem.common}
    wanted = ["Intercept", *problem.common]
    terms = list(zip(problem.factors, problem.slopes, strict=True))
    for factor, slopes in terms:
        effects = ("Intercept", *slopes)
        wanted += [f"sd({effect} | {factor})" for effect in effects]
        wanted += [f"cor(Intercept, {slope} | {factor})" for slope in slopes]
        wanted += [f"effects({factor})", *(f"effects({factor}) {slope}" for slope in slopes)]

    def density() -> None:
        centred = numpyro.sample("centred", priors["Intercept"])  # at the means of the columns
        common = {name: numpyro.sample(name, priors[name]) for name in problem.common}
        shift = sum(common[name] * means[name] for name in common)
        eta = numpyro.deterministic("Intercept", centred - shift)
        eta = eta + sum(common[name] * table[name] for name in common)
        for factor, slopes in terms:
            eta = eta + _effects(factor, slopes, table, priors)
        with numpyro.plate("rows", len(y)):
            if problem.likelihood == "poisson":
                numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y)
            else:
                numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    return density, wanted


def _effects(factor: str, slopes: tuple[str, ...], table: Any, priors: dict[str, Any]) -> Any:
    """What a factor with an intercept and at most one slope adds to the linear predictor."""
    code, effects = _codes(table, factor), ("Intercept", *slopes)
    titles = [f"sd({effect} | {factor})" for effect in effects]
    root = jnp.diag(jnp.stack([numpyro.sample(title, priors[title]) for title in titles]))
    for slope in slopes:
        cor = numpyro.sample(f"cor({factor})", priors[f"cor({factor})"])
        numpyro.deterministic(f"cor(Intercept, {slope} | {factor})", cor[1, 0])
        root = root @ cor
    size, m = int(code.max()) + 1, len(effects)
    if len(code) > 100 * size:  # levels with many rows: their effects are nearly known
        normal = dist.MultivariateNormal(scale_tril=root).expand([size]).to_event(1)
        own = numpyro.sample(f"own {factor}", normal)
    else:
        raw = numpyro.sample(f"raw {factor}", dist.Normal().expand([size, m]).to_event(2))
        own = raw @ root.T
    columns = [np.ones(len(code)), *(table[slope] for slope in slopes)]
    for k, effect in enumerate(effects):
        name = f"effects({factor})" + (f" {effect}" if k else "")
        numpyro.deterministic(name, own[:, k])
    return sum(own[code, k] * column for k, column in enumerate(columns))


def _codes(table: dict[str, np.ndarray], factor: str) -> np.ndarray:
    """The level of each row, in the order of the labels."""
    columns = np.stack([table[name] for name in factor.split(":")], 1)
    return np.unique(columns, axis=0, return_inverse=True)[1].ravel()


if __name__ == "__main__":
    sys.exit(main())
