"""Reference posteriors of formulas on real data: NUTS on the same models, written by hand.

    python -m benchmarks.formula_references --data DATA --out tests/references
    python -m benchmarks.formula_references --data DATA --out try --only sleepstudy --draws 50

DATA is a folder with `lme4/lme4_sleepstudy.csv`, `lme4/lme4_VerbAgg.csv`, `lme4/lme4_InstEval.csv` (as
R's lme4 has them) and `radon/radon.csv`. The design matrices, the priors and the models are written
out here without Ramify, as an independent check. `tests/test_formula_references.py` compares.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS


class Problem(NamedTuple):
    """Columns by hand: X [n, P] with the intercept first, W [n, M], a response and group numbers."""

    formula: str
    likelihood: str
    effects: list[str]
    varying: list[str]
    by: str
    X: np.ndarray
    W: np.ndarray
    y: np.ndarray
    group: np.ndarray


def sleepstudy(data: Path) -> Problem:
    """Reaction times over ten days without sleep: slopes of 18 subjects."""
    table = pd.read_csv(data / "lme4/lme4_sleepstudy.csv")
    X = np.column_stack([np.ones(len(table)), table.Days])
    formula = "Reaction ~ 1 + Days + (1 + Days | Subject)"
    names, y = ["Intercept", "Days"], table.Reaction.to_numpy()
    return Problem(formula, "gaussian", names, names, "Subject", X, X, y, _codes(table.Subject))


def verbagg(data: Path) -> Problem:
    """Verbal aggression: yes or no to 24 items by 316 persons."""
    table = pd.read_csv(data / "lme4/lme4_VerbAgg.csv")
    columns = {
        "Intercept": np.ones(len(table)),
        "Anger": table.Anger,
        "Gender[M]": table.Gender == "M",
        "btype[scold]": table.btype == "scold",
        "btype[shout]": table.btype == "shout",
        "situ[self]": table.situ == "self",
        "mode[want]": table["mode"] == "want",
    }
    X = np.column_stack(list(columns.values())).astype(float)
    formula = "r2 ~ Anger + Gender + btype + situ + mode + (1 + mode | id)"
    W, y = X[:, [0, 6]], (table.r2 == "Y").to_numpy(float)
    varying = ["Intercept", "mode[want]"]
    return Problem(formula, "bernoulli", [*columns], varying, "id", X, W, y, _codes(table.id))


def radon(data: Path, varying: int = 1) -> Problem:
    """Radon in 919 houses of 85 counties, with the county's uranium."""
    table = pd.read_csv(data / "radon/radon.csv")
    X = np.column_stack([np.ones(len(table)), table.floor, np.log(table.Uppm)])
    group = "1" if varying == 1 else "1 + floor"
    formula = f"log_radon ~ floor + log(Uppm) + ({group} | county)"
    names, y, W = ["Intercept", "floor", "log(Uppm)"], table.log_radon.to_numpy(), X[:, :varying]
    own = names, names[:varying], "county", X, W, y, _codes(table.county)
    return Problem(formula, "gaussian", *own)


def insteval(data: Path) -> Problem:
    """73,421 ratings of lectures by 2,972 students."""
    table = pd.read_csv(data / "lme4/lme4_InstEval.csv")
    X = np.column_stack([np.ones(len(table)), table.service, table.lectage, table.studage])
    formula = "y ~ service + lectage + studage + (1 | s)"
    names, y = ["Intercept", "service", "lectage", "studage"], table.y.to_numpy(float)
    return Problem(formula, "gaussian", names, names[:1], "s", X, X[:, :1], y, _codes(table.s))


PROBLEMS: dict[str, Callable[[Path], Problem]] = {
    "sleepstudy": sleepstudy,
    "radon": radon,
    "radon_slopes": partial(radon, varying=2),
    "verbagg": verbagg,
    "insteval": insteval,
}


def _codes(labels: pd.Series) -> np.ndarray:
    return np.unique(labels.to_numpy(), return_inverse=True)[1]


def model(problem: Problem) -> None:
    """The documented priors, and effects by group that are not centred (what NUTS likes best)."""
    X, W, y = problem.X, problem.W, problem.y
    gaussian = problem.likelihood == "gaussian"
    middle, unit = (y.mean(), y.std()) if gaussian else (0.0, 1.0)
    sds = X[:, 1:].std(0)
    at_means = numpyro.sample("at_means", dist.Normal(middle, 2.5 * unit))
    slopes = numpyro.sample("slopes", dist.Normal(0, 2.5 * unit / sds).to_event(1))
    intercept = at_means - X[:, 1:].mean(0) @ slopes
    numpyro.deterministic("effects", jnp.concatenate([intercept[None], slopes]))
    scales = np.array([1.0 if np.ptp(w) == 0 else w.std() for w in W.T])
    sd = numpyro.sample("sd", dist.HalfNormal(2.5 * unit / scales).to_event(1))
    factor = jnp.eye(W.shape[1])
    if W.shape[1] > 1:
        factor = numpyro.sample("factor", dist.LKJCholesky(W.shape[1], 1.0))
    numpyro.deterministic("cor", factor @ factor.T)
    sigma = numpyro.sample("sigma", dist.Exponential(1 / unit)) if gaussian else None
    mean = intercept + X[:, 1:] @ slopes
    if gaussian and W.shape[1] == 1:
        numpyro.factor("y", _marginal(problem, y - mean, sd[0], sigma))
        return
    groups = problem.group.max() + 1
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([groups, W.shape[1]]).to_event(2))
    deviations = (noise @ factor.T * sd)[problem.group]
    eta = mean + jnp.sum(W * deviations, -1)
    likelihood = dist.Normal(eta, sigma) if gaussian else dist.Bernoulli(logits=eta)
    numpyro.sample("y", likelihood, obs=y)


def _marginal(problem: Problem, error: jax.Array, sd: jax.Array, sigma: jax.Array) -> jax.Array:
    """Log density of errors with a common normal part in each group, that part integrated out."""
    sizes = np.bincount(problem.group)
    sums = jnp.zeros(len(sizes)).at[problem.group].add(error)
    inflated = sigma**2 + sizes * sd**2
    quadratic = jnp.sum(error**2) / sigma**2 - jnp.sum(sums**2 * sd**2 / (sigma**2 * inflated))
    log_det = jnp.sum(jnp.log(inflated) + (sizes - 1) * jnp.log(sigma**2))
    return -0.5 * (quadratic + log_det + len(error) * jnp.log(2 * jnp.pi))


def sample(problem: Problem, chains: int, warmup: int, draws: int) -> dict[str, np.ndarray]:
    """Draws [chains, draws] of every parameter, by the names of the library's summary."""
    kernel = NUTS(model, target_accept_prob=0.9)
    options = {"num_chains": chains, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, **options)
    mcmc.run(jax.random.key(0), problem)
    found = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    named = {name: found["effects"][..., k] for k, name in enumerate(problem.effects)}
    for m, name in enumerate(problem.varying):
        named[f"sd({name} | {problem.by})"] = found["sd"][..., m]
    for i, second in enumerate(problem.varying):
        for j, first in enumerate(problem.varying[:i]):
            named[f"cor({first}, {second} | {problem.by})"] = found["cor"][..., i, j]
    return named | ({"sigma": found["sigma"]} if "sigma" in found else {})


def save(path: Path, problem: Problem, named: dict[str, np.ndarray], about: dict) -> None:
    """Means, sds, their Monte Carlo errors and the correlations of all parameters."""
    flat = np.stack([draws.reshape(-1) for draws in named.values()])
    ess = np.array([float(effective_sample_size(draws)) for draws in named.values()])
    rhat = max(float(split_gelman_rubin(draws)) for draws in named.values())
    about |= {"smallest_ess": float(ess.min()), "largest_rhat": rhat, "draws": flat.shape[1]}
    np.savez_compressed(
        path,
        names=np.array([*named]),
        formula=problem.formula,
        likelihood=problem.likelihood,
        mean=flat.mean(1),
        sd=flat.std(1),
        mcse=flat.std(1) / np.sqrt(ess),
        ess=ess,
        correlation=np.corrcoef(flat),
        about=json.dumps(about),
    )
    print(f"{path.stem}: {json.dumps(about)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=[*PROBLEMS])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=600)
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only or PROBLEMS:
        started = time.perf_counter()
        with jax.enable_x64(True):
            problem = PROBLEMS[name](args.data)
            named = sample(problem, args.chains, args.warmup, args.draws)
        about = {"method": "NUTS", "numpyro": numpyro.__version__, "jax": jax.__version__}
        about["seconds"] = round(time.perf_counter() - started, 1)
        save(args.out / f"formula_{name}.npz", problem, named, about)


if __name__ == "__main__":
    main()
