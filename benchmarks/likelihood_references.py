"""Reference posteriors of likelihoods of formulas: NUTS on the same models, written by hand.

    python -m benchmarks.likelihood_references --out tests/references
    python -m benchmarks.likelihood_references --out try --only weibull --draws 50

Data are simulated here by NumPy, and stored with the reference. Priors and models are written out
without Ramify, as an independent check. `tests/test_likelihood_references.py` compares.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from scipy.special import expit, gamma
from scipy.stats import skewnorm

N, ROWS = 50, 10
Table = dict[str, np.ndarray]
Values = dict[str, Any]


class Case(NamedTuple):
    """A formula, how its outcomes are drawn, and their log density of eta and family parameters."""

    left: str
    draw: Callable[[np.random.Generator, np.ndarray, Values], Table]
    density: Callable[[Table, jax.Array, Values], Any]
    true: Values  # family parameters, or [intercept, slope, sd over groups] of their formulas
    likelihood: str = ""  # by default the name of the case
    link: str = (
        "log"  # of the mean; "none" where the response has levels, each with its own formula
    )


def _hurdle(y: Any, count: Any, hu: Any) -> Any:
    """Log density of zero with probability hu, else of a count that is not zero."""
    some = jnp.log1p(-jnp.exp(count.log_prob(0)))
    positive = jnp.log1p(-hu) + count.log_prob(jnp.maximum(y, 1)) - some
    return jnp.where(y == 0, jnp.log(hu), positive)


def _waits(t: Table, density: Any, log_survival: Any) -> Any:
    return jnp.where(t["late"] > 0, log_survival, density)


def _censored(y: np.ndarray, limit: float) -> Table:
    return {"y": np.minimum(y, limit), "late": (y > limit).astype(float)}


def _positive(rng: np.random.Generator, draw: Callable[[], np.ndarray]) -> np.ndarray:
    """Counts that are drawn again until none is zero."""
    y = draw()
    while (y == 0).any():
        y = np.where(y == 0, draw(), y)
    return y


def _mixed(rng: np.random.Generator, mean: np.ndarray, shape: Any) -> np.ndarray:
    return rng.poisson(rng.gamma(shape, mean / shape, mean.shape))


def _weibull(t: Table, eta: Any, v: Values) -> Any:
    k = v["shape"]
    scaled = k * (jnp.log(t["y"]) - eta + gammaln(1 + 1 / k))
    density = jnp.log(k) + scaled - jnp.log(t["y"]) - jnp.exp(scaled)
    return _waits(t, density, -jnp.exp(scaled))


def _beta(eta: Any, v: Values) -> tuple[Any, Any]:
    return jax.nn.sigmoid(eta) * v["phi"], jax.nn.sigmoid(-eta) * v["phi"]


_nb = lambda eta, v: dist.NegativeBinomial2(jnp.exp(eta), v["shape"])
_zip = lambda t, eta, v: dist.ZeroInflatedPoisson(v["zi"], jnp.exp(eta)).log_prob(t["y"])
_normal = lambda t, eta, v: dist.Normal(eta, v["sigma"]).log_prob(t["y"])
_draw_zip = lambda rng, eta, v: {
    "y": np.where(rng.random(eta.shape) < v["zi"], 0, rng.poisson(np.exp(eta)))
}
_draw_beta = lambda rng, eta, v: rng.beta(expit(eta) * v["phi"], expit(-eta) * v["phi"])


def _skew_normal(t: Table, eta: Any, v: Values) -> Any:
    """Azzalini's density, its location and scale from the mean and sd."""
    delta = v["alpha"] / jnp.sqrt(1 + v["alpha"] ** 2)
    scale = v["sigma"] / jnp.sqrt(1 - 2 * delta**2 / jnp.pi)
    r = (t["y"] - eta + scale * delta * jnp.sqrt(2 / jnp.pi)) / scale
    return jnp.log(2 / scale) + norm.logpdf(r) + norm.logcdf(v["alpha"] * r)


def _draw_skew_normal(rng: np.random.Generator, eta: np.ndarray, v: Values) -> Table:
    unit = skewnorm(v["alpha"])
    return {"y": eta + v["sigma"] * (unit.rvs(len(eta), rng) - unit.mean()) / unit.std()}


LEVELS = ("bus", "car", "walk")


def _logits(v: Values) -> Any:
    """Of the levels; the first is the reference."""
    return jnp.stack([jnp.zeros_like(v["mucar"]), v["mucar"], v["muwalk"]], -1)


def _draw_level(rng: np.random.Generator, eta: np.ndarray, v: Values) -> Table:
    noise = rng.gumbel(size=(len(eta), 3))
    return {"y": np.array(LEVELS)[np.argmax(np.asarray(_logits(v)) + noise, 1)]}


CASES: dict[str, Case] = {
    "categorical": Case(
        "y",
        _draw_level,
        lambda t, eta, v: dist.Categorical(logits=_logits(v)).log_prob(
            np.searchsorted(LEVELS, t["y"])
        ),
        {"mucar": [0.4, 0.5, 0.6], "muwalk": [-0.3, -0.6, 0.9]},
        link="none",
    ),
    "student_t": Case(
        "y",
        lambda rng, eta, v: {"y": eta + v["sigma"] * rng.standard_t(v["nu"], len(eta))},
        lambda t, eta, v: dist.StudentT(v["nu"], eta, v["sigma"]).log_prob(t["y"]),
        {"sigma": 0.7, "nu": 5.0},
        link="identity",
    ),
    "binomial": Case(
        "y | trials(12)",
        lambda rng, eta, v: {"y": rng.binomial(12, expit(eta))},
        lambda t, eta, v: dist.Binomial(12, logits=eta).log_prob(t["y"]),
        {},
        link="logit",
    ),
    "poisson": Case(
        "y",
        lambda rng, eta, v: {"y": rng.poisson(np.exp(eta))},
        lambda t, eta, v: dist.Poisson(jnp.exp(eta)).log_prob(t["y"]),
        {},
    ),
    "negative_binomial": Case(
        "y",
        lambda rng, eta, v: {"y": _mixed(rng, np.exp(eta), v["shape"])},
        lambda t, eta, v: _nb(eta, v).log_prob(t["y"]),
        {"shape": 3.0},
    ),
    "lognormal": Case(
        "y",
        lambda rng, eta, v: {"y": np.exp(rng.normal(eta, v["sigma"]))},
        lambda t, eta, v: dist.LogNormal(eta, v["sigma"]).log_prob(t["y"]),
        {"sigma": 0.7},
        link="identity",
    ),
    "skew_normal": Case(
        "y", _draw_skew_normal, _skew_normal, {"sigma": 0.8, "alpha": 3.0}, link="identity"
    ),
    "gamma": Case(
        "y",
        lambda rng, eta, v: {"y": rng.gamma(v["shape"], np.exp(eta) / v["shape"])},
        lambda t, eta, v: dist.Gamma(v["shape"], v["shape"] * jnp.exp(-eta)).log_prob(t["y"]),
        {"shape": 3.0},
    ),
    "exponential": Case(
        "y | cens(late)",
        lambda rng, eta, v: _censored(rng.exponential(np.exp(eta)), 4.0),
        lambda t, eta, v: _waits(t, -eta - t["y"] * jnp.exp(-eta), -t["y"] * jnp.exp(-eta)),
        {},
    ),
    "weibull": Case(
        "y | cens(late)",
        lambda rng, eta, v: _censored(
            np.exp(eta) / gamma(1 + 1 / v["shape"]) * rng.weibull(v["shape"], len(eta)), 4.0
        ),
        _weibull,
        {"shape": 1.7},
    ),
    "beta": Case(
        "y",
        lambda rng, eta, v: {"y": _draw_beta(rng, eta, v)},
        lambda t, eta, v: dist.Beta(*_beta(eta, v)).log_prob(t["y"]),
        {"phi": 6.0},
        link="logit",
    ),
    "beta_binomial": Case(
        "y | trials(12)",
        lambda rng, eta, v: {"y": rng.binomial(12, _draw_beta(rng, eta, v))},
        lambda t, eta, v: dist.BetaBinomial(*_beta(eta, v), 12).log_prob(t["y"]),
        {"phi": 6.0},
        link="logit",
    ),
    "zero_inflated_poisson": Case("y", _draw_zip, _zip, {"zi": 0.3}),
    "zero_inflated_negative_binomial": Case(
        "y",
        lambda rng, eta, v: {
            "y": np.where(rng.random(len(eta)) < v["zi"], 0, _mixed(rng, np.exp(eta), v["shape"]))
        },
        lambda t, eta, v: jnp.log(
            v["zi"] * (t["y"] == 0) + (1 - v["zi"]) * jnp.exp(_nb(eta, v).log_prob(t["y"]))
        ),
        {"shape": 3.0, "zi": 0.25},
    ),
    "hurdle_poisson": Case(
        "y",
        lambda rng, eta, v: {
            "y": (rng.random(len(eta)) > v["hu"]) * _positive(rng, lambda: rng.poisson(np.exp(eta)))
        },
        lambda t, eta, v: _hurdle(t["y"], dist.Poisson(jnp.exp(eta)), v["hu"]),
        {"hu": 0.4},
    ),
    "hurdle_negative_binomial": Case(
        "y",
        lambda rng, eta, v: {
            "y": (rng.random(len(eta)) > v["hu"])
            * _positive(rng, lambda: _mixed(rng, np.exp(eta), v["shape"]))
        },
        lambda t, eta, v: _hurdle(t["y"], _nb(eta, v), v["hu"]),
        {"shape": 2.0, "hu": 0.4},
    ),
    "sigma_formula": Case(
        "y",
        lambda rng, eta, v: {"y": rng.normal(eta, v["sigma"])},
        _normal,
        {"sigma": [-0.3, 0.3, 0.3]},
        "gaussian",
        "identity",
    ),
    "shape_formula": Case(
        "y",
        lambda rng, eta, v: {"y": rng.gamma(v["shape"], np.exp(eta) / v["shape"])},
        lambda t, eta, v: dist.Gamma(v["shape"], v["shape"] * jnp.exp(-eta)).log_prob(t["y"]),
        {"shape": [1.0, 0.4]},
        "gamma",
    ),
    "zi_formula": Case("y", _draw_zip, _zip, {"zi": [-1.0, 0.7, 0.6]}, "zero_inflated_poisson"),
}
UNIT = {"zi", "hu"}


def formula(case: Case) -> str:
    """All formulas of a case, as Ramify reads them."""
    parts = [f"{case.left} ~ x + (1 | g)"]
    for name, true in case.true.items():
        if isinstance(true, list):
            parts.append(f"{name} ~ x + (1 | g)" if len(true) > 2 else f"{name} ~ x")
    return "; ".join(parts)


def simulate(case: Case, seed: int = 3) -> Table:
    """Groups of 4 to 16 rows, one predictor, and outcomes."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(N), rng.integers(4, 2 * ROWS - 3, N))
    x = rng.normal(0.5, 1.0, len(g))
    eta = 0.6 + 0.4 * x + rng.normal(0, 0.5, N)[g]
    values: Values = {}
    for name, true in case.true.items():
        values[name] = true
        if isinstance(true, list):
            own = true[0] + true[1] * x + sum(sd * rng.normal(size=N)[g] for sd in true[2:])
            values[name] = _parameter(name, own)
    return {"g": g, "x": x, **case.draw(rng, eta, values)}


def _parameter(name: str, predictor: Any) -> Any:
    """The inverse link of a parameter's formula."""
    if name.startswith("mu"):
        return predictor
    return jax.nn.sigmoid(predictor) if name in UNIT else jnp.exp(predictor)


def priors(case: Case, sd_y: float) -> Values:
    """The documented priors of family parameters."""
    shape = dist.Exponential(1.0) if "negative" in _likelihood(case) else dist.HalfCauchy(1.0)
    own = {"sigma": dist.Exponential(1 / sd_y), "shape": shape, "phi": dist.HalfCauchy(1.0)}
    own |= {"zi": dist.Beta(1.0, 1.0), "hu": dist.Beta(1.0, 1.0)}
    return own | {"alpha": dist.Normal(0.0, 4.0), "nu": dist.Gamma(2.0, 0.1)}


def _likelihood(case: Case) -> str:
    return case.likelihood or next(name for name, own in CASES.items() if own is case)


def model(case: Case, table: Table) -> None:
    """Effects by group are not centred, which is what NUTS likes best."""
    levels = case.link == "none"
    y = np.zeros(len(table["y"])) if levels else table["y"].astype(float)
    y = np.log(y) if _likelihood(case) == "lognormal" else y
    unit = y.std() if case.link == "identity" else 1.0
    middle = {"identity": np.mean, "log": lambda y: np.log(y.mean())}.get(case.link, lambda y: 0.0)
    prior = dist.Normal(middle(y), 2.5 * unit)
    eta: Any = 0.0 if levels else _predictor("", table, prior, unit, True)
    values: Values = {}
    for name, true in case.true.items():
        if not isinstance(true, list):
            values[name] = numpyro.sample(name, priors(case, y.std())[name])
            continue
        centre = np.log(y.std()) if name == "sigma" else 0.0
        at_means = dist.Logistic(0.0, 1.0) if name in UNIT else dist.Normal(centre, 2.5)
        own = _predictor(f"{name}_", table, at_means, 1.0, len(true) > 2)
        values[name] = _parameter(name, own)
    numpyro.factor("rows", jnp.sum(case.density(table, eta, values)))


def _predictor(prefix: str, table: Table, at_means: Any, unit: float, grouped: bool) -> jax.Array:
    """Intercept, slope of x and, if grouped, intercepts by group."""
    x = table["x"]
    level = numpyro.sample(f"{prefix}at_means", at_means)
    slope = numpyro.sample(f"{prefix}x", dist.Normal(0, 2.5 * unit / x.std()))
    numpyro.deterministic(f"{prefix}Intercept", level - slope * x.mean())
    eta = level + slope * (x - x.mean())
    if not grouped:
        return eta
    sd = numpyro.sample(f"sd({prefix}Intercept | g)", dist.HalfNormal(2.5 * unit))
    noise = numpyro.sample(f"{prefix}noise", dist.Normal(0, 1).expand([N]).to_event(1))
    return eta + sd * noise[table["g"]]


def sample(case: Case, table: Table, chains: int, warmup: int, draws: int) -> Table:
    """Draws [chains, draws] of every parameter by the names of the library's summary."""
    kernel = NUTS(partial(model, case, table), target_accept_prob=0.9)
    options = {"num_chains": chains, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, **options)
    mcmc.run(jax.random.key(0))
    found = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    return {n: d for n, d in found.items() if not n.endswith(("at_means", "noise"))}


def save(path: Path, case: Case, table: Table, named: Table, about: dict) -> None:
    """The data, and means, sds and Monte Carlo errors of all parameters."""
    flat = np.stack([draws.reshape(-1) for draws in named.values()])
    ess = np.array([float(effective_sample_size(draws)) for draws in named.values()])
    rhat = max(float(split_gelman_rubin(draws)) for draws in named.values())
    about |= {"smallest_ess": float(ess.min()), "largest_rhat": rhat, "draws": flat.shape[1]}
    np.savez_compressed(
        path,
        names=np.array([*named]),
        formula=formula(case),
        likelihood=_likelihood(case),
        mean=flat.mean(1),
        sd=flat.std(1),
        mcse=flat.std(1) / np.sqrt(ess),
        ess=ess,
        about=json.dumps(about),
        **{f"table/{name}": column for name, column in table.items()},
    )
    print(f"{path.stem}: {json.dumps(about)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=[*CASES])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only or CASES:
        started, case = time.perf_counter(), CASES[name]
        with jax.enable_x64(True):
            table = simulate(case)
            named = sample(case, table, args.chains, args.warmup, args.draws)
        about = {"method": "NUTS", "numpyro": numpyro.__version__, "jax": jax.__version__}
        about["seconds"] = round(time.perf_counter() - started, 1)
        save(args.out / f"likelihood_{name}.npz", case, table, named, about)


if __name__ == "__main__":
    main()
