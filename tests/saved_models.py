"""Models and data of the fits in `tests/saved`, which the first release saved.

Used by `tests/saved/make.py`, which made the folders, and by `tests/test_first_release.py`, which loads
them: a folder holds the family, not the data and not the code of a model.
"""

import os
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import ramify as rf

N = 8
NEW = "new"  # label of a group that no fit has seen
DRAWS = 4000  # past 4,096 the first release's draws depended on how many were asked for

Table = dict[str, np.ndarray]
Answers = dict[str, dict[str, Any]]  # arrays `mean`, `sd`, ... of each answer


def rows(seed: int) -> Table:
    """Rows of N groups with one covariate, and a column of the groups."""
    rng = np.random.default_rng(seed)
    number = np.repeat(np.arange(N), rng.integers(2, 7, N))
    x = rng.normal(size=number.size).round(2)
    own = rng.normal([1.0, 0.5], [0.8, 0.2], (N, 2))[number]
    mean = own[:, 0] + own[:, 1] * x
    y = (mean + 0.5 * rng.normal(size=x.size)).round(3)
    counts = rng.poisson(np.exp(0.7 * mean))
    area = np.linspace(0.5, 2, N)[number]
    kind = rng.choice(["dry", "rain"], x.size)
    group = np.array([f"g{i}" for i in number])
    return {"g": group, "x": x, "y": y, "counts": counts, "area": area, "kind": kind}


def normal_model() -> rf.Model:
    """Gaussian outcomes of groups with a level each, which a column of theirs explains."""
    outcome = lambda t, z, row: dist.Normal(z["level"] + t["slope"] * row["x"], t["sigma"])
    mean = lambda t, group: t["mu"][0] + t["mu"][1] * group["area"]
    return rf.Model(
        theta={"mu": rf.real(2), "tau": rf.positive(), "slope": rf.real(), "sigma": rf.positive()},
        z={"level": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 2).log_prob(jnp.append(t["mu"], t["slope"])).sum()
            + dist.HalfNormal(1).log_prob(t["tau"])
            + dist.HalfNormal(1).log_prob(t["sigma"])
        ),
        log_local=lambda t, z, group: dist.Normal(mean(t, group), t["tau"]).log_prob(z["level"]),
        log_lik=lambda t, z, row: outcome(t, z, row).log_prob(row["y"]),
        simulate=lambda key, t, z, row: outcome(t, z, row).sample(key),
    )


def normal_groups() -> rf.Groups:
    """The data of `normal_model`."""
    return rf.Groups.from_table(rows(0), by="g", rows=["x", "y"], group=["area"])


def slopes(x, y=None, *, g, n_g):
    """Intercepts and slopes that vary together, in NumPyro."""
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("groups", n_g):
        b = numpyro.sample("b", dist.MultivariateNormal(mu, scale_tril=sd[:, None] * L))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b[g, 0] + b[g, 1] * x, sigma), obs=y)


def slopes_groups() -> rf.Groups:
    """The data of `slopes`."""
    return rf.Groups.from_table(rows(1), by="g", rows=["x", "y"])


def slopes_model() -> rf.Model:
    """The model of `slopes`."""
    return rf.from_numpyro(slopes, slopes_groups())


FORMULAS = {
    "formula_weighted": "y ~ x + kind + area + (1 | g)",  # its draws of theta are weighted
    "formula_new_group": "counts ~ x + (1 + x | g)",
}
DENSITIES = ("joint", "branch", "amortized", "solved")
NAMES = (*FORMULAS, *DENSITIES, "numpyro")


def load(name: str, folder: str | os.PathLike[str]) -> rf.Posterior:
    """The fit of that name from its folder."""
    if name in FORMULAS:
        return rf.load(folder)
    return rf.load(folder, slopes_model() if name == "numpyro" else normal_model())


def data_of(name: str) -> rf.Groups | None:
    """The data that a folder does not hold; that of a formula does."""
    if name in FORMULAS:
        return None
    return slopes_groups() if name == "numpyro" else normal_groups()


def exact_answers(posterior: rf.Posterior) -> Answers:
    """What a loaded fit says without drawing: q(theta), the trace, the summary of weighted draws."""
    q, history = posterior.family.theta, posterior.history["elbo"]
    found = {"q": {"mean": q.mean, "sd": np.sqrt(np.diagonal(q.covariance))}}
    found["history"] = {"mean": history, "sd": np.zeros(len(history))}
    summary = posterior.summary().columns
    return found | ({"summary": dict(summary)} if "ess" in summary else {})


def drawn_answers(name: str, posterior: rf.Posterior) -> Answers:
    """What it says by drawing from seeds: predictions, the ELBO, samples, other summaries."""
    groups = data_of(name)
    found = {"predict": _predicted(name, posterior)}
    found["elbo"] = _estimate(posterior.elbo(groups, draws=DRAWS))
    summary = posterior.summary().columns
    found |= {} if "ess" in summary else {"summary": dict(summary)}
    if name in DENSITIES:
        draws = posterior.sample(DRAWS, groups, seed=1)
        found |= {f"sample {n}": {"mean": v.mean(0), "sd": v.std(0)} for n, v in draws.items()}
    return found


def _predicted(name: str, posterior: rf.Posterior) -> Table:
    """Mean, sd and quantiles at rows of known groups and, where the family allows it, of a new one."""
    table = rows(1 if name == "numpyro" else 0)
    at = {n: table[n][[0, 5, 9]] for n in ("g", "x", "area", "kind")}
    given = {n: table[n][:3] for n in table} | {"g": np.full(3, NEW), "area": np.full(3, 1.2)}
    new = {n: np.append(at[n], given[n][:1]) for n in at}
    if name in ("formula_weighted", "joint", "branch"):  # known groups, from what the folder has
        given = None
    elif name == "formula_new_group":
        at = {n: new[n][3:] for n in new}
    else:  # a folder has no rows of these: they are given again
        at, given = new, {n: np.append(table[n], given[n]) for n in table}
    kind = "mean" if name in FORMULAS else "response"
    found = posterior.predict(at, given, draws=DRAWS, seed=1, kind=kind)
    return {n: found[n] for n in found if n not in at}


def _estimate(found: Any) -> Table:
    """An estimate, with the sd of its terms."""
    return {"mean": np.asarray(float(found)), "sd": np.asarray(found.se * DRAWS**0.5)}
