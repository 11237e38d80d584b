"""Targets of formulas: generalised linear models with effects by group, from `docs/formulas.md` by hand.

Columns, priors and likelihoods are written out here without Ramify. z is integrated out where that is
exact: in Gaussian models by matrix identities, in models of an intercept alone by the trapezoidal rule
(`GRID`), which converges exponentially for such integrands. Elsewhere NUTS samples z too.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.distributions.transforms import OrderedTransform

import ramify as rf
from benchmarks.right import gibbs
from benchmarks.right.problem import Data, Problem, Sample, Table, Target, codes, shown, sums

GRID = np.arange(-8, 8.05, 0.1)  # of a standardised effect


class Formula(NamedTuple):
    """A formula and the same in columns, made by hand.

    `common` and `varying` hold the columns of the common effects, without the intercept, and of the
    effects by group, by their names in a summary.
    """

    formula: str
    likelihood: str
    table: Table
    by: str
    response: str
    common: Table
    varying: Table
    independent: bool = False
    link: str | None = None
    trials: str | None = None
    offset: str | None = None
    centred: bool = False  # what NUTS samples: effects, or standardised effects
    chains: int = 4
    gibbs: bool = False  # whether NUTS would mix too slowly (`gibbs.py`)

    @property
    def y(self) -> np.ndarray:
        """The response."""
        return self.table[self.response].astype(float)

    @property
    def ordered(self) -> bool:
        """Whether cutpoints stand in for the intercept."""
        return self.likelihood == "ordered"

    @property
    def identity(self) -> bool:
        """Whether the linear predictor is in units of the response."""
        return self.likelihood in ("gaussian", "student_t")


def problem(of: Formula) -> Problem:
    """A formula as a problem."""
    keywords = {"likelihood": of.likelihood, "link": of.link, "trials": of.trials}
    fit = lambda: rf.from_formula(of.formula, of.table, **keywords)
    gibbs = partial(_by_gibbs, of) if of.gibbs else None
    return Problem(of.table, of.by, fit, partial(target, of), of.chains, gibbs)


def target(of: Formula) -> Target:
    """The target, with z integrated out where that is exact."""
    alone = not of.common and [*of.varying] == ["Intercept"] and of.offset is None
    kind = _gaussian if of.likelihood == "gaussian" else _alone if alone else _joint
    return kind(of)


def _columns(columns: Table, rows: int) -> np.ndarray:
    return np.column_stack([np.zeros((rows, 0)), *columns.values()])


def _theta(of: Formula, sample: Sample, data: Data) -> dict[str, jax.Array]:
    """The globals by the names of a summary."""
    coefficients = _coefficients(of, sample, data)
    names = ([] if of.ordered else ["Intercept"]) + [*of.common]
    found = {name: coefficients[name] for name in names}
    varying = [*of.varying]
    found |= {f"sd({name} | {of.by})": sample["sd"][m] for m, name in enumerate(varying)}
    if len(varying) > 1 and not of.independent:
        cor = sample["factor"] @ sample["factor"].T
        for i, second in enumerate(varying):
            for j, first in enumerate(varying[:i]):
                found[f"cor({first}, {second} | {of.by})"] = cor[i, j]
    found |= {name: sample[name] for name in ("sigma", "nu", "shape") if name in sample}
    if of.ordered:
        cuts = sample["cutpoints"]
        found |= {f"cutpoint({k}|{k + 1})": cuts[k] for k in range(cuts.shape[0])}
    return found


def _coefficients(of: Formula, sample: Sample, data: Data) -> dict[str, Any]:
    """Every common effect on the user's scale; the intercept is sampled at the predictors' means."""
    slopes = sample.get("slopes", jnp.zeros(0))
    named: dict[str, Any] = {name: slopes[k] for k, name in enumerate(of.common)}
    middle = 0.0 if of.ordered else sample["at_means"]
    return {"Intercept": middle - data["means"] @ slopes} | named


def _priors(of: Formula, data: Data) -> dict[str, Any]:
    """Samples the globals from the documented priors."""
    y, unit = of.y, of.y.std() if of.identity else 1.0
    sample: dict[str, Any] = {}
    if not of.ordered:
        counts = of.likelihood in ("poisson", "negative_binomial")
        middle = y.mean() if of.identity else np.log(y.mean()) if counts else 0.0
        sample["at_means"] = numpyro.sample("at_means", dist.Normal(middle, 2.5 * unit))
    if of.common:
        prior = dist.Normal(0.0, 2.5 * unit / data["units"]).to_event(1)
        sample["slopes"] = numpyro.sample("slopes", prior)
    spread = dist.HalfNormal(2.5 * unit / data["varying_units"]).to_event(1)
    sample["sd"] = numpyro.sample("sd", spread)
    M = len(of.varying)
    if M > 1 and not of.independent:
        sample["factor"] = numpyro.sample("factor", dist.LKJCholesky(M, 1.0))
    return sample | _family(of, unit)


def _family(of: Formula, unit: float) -> dict[str, Any]:
    """Samples the parameters of the likelihood."""
    own: dict[str, Any] = {}
    if of.identity:
        own["sigma"] = numpyro.sample("sigma", dist.Exponential(1 / unit))
    if of.likelihood == "student_t":
        own["nu"] = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    if of.likelihood == "negative_binomial":
        own["shape"] = numpyro.sample("shape", dist.Exponential(1.0))
    if of.ordered:
        own["cutpoints"] = _cutpoints(int(of.y.max()))
    return own


def _cutpoints(many: int) -> jax.Array:
    """Increasing numbers, each Normal(0, 2.5): sampled by an unconstrained vector of another density."""
    ordered = OrderedTransform()
    free = numpyro.sample("free", dist.Normal(0, 2).expand([many]).to_event(1))
    cuts = numpyro.deterministic("cutpoints", ordered(free))
    wanted = dist.Normal(0, 2.5).log_prob(cuts).sum() + ordered.log_abs_det_jacobian(free, cuts)
    numpyro.factor("prior", wanted - dist.Normal(0, 2).log_prob(free).sum())
    return cuts


def _factor(of: Formula, sample: Sample) -> jax.Array:
    """The Cholesky factor of the covariance of a group's effects."""
    M = len(of.varying)
    return sample["sd"][:, None] * sample.get("factor", jnp.eye(M))


def _data(of: Formula) -> Data:
    """The arrays that all targets need."""
    rows = len(of.y)
    X, W = _columns(of.common, rows), _columns(of.varying, rows)
    return {
        "X": X,
        "W": W,
        "y": of.y,
        "group": codes(of.table[of.by]),
        "means": X.mean(0),
        "units": X.std(0),
        "varying_units": np.array([1.0 if np.ptp(w) == 0 else w.std() for w in W.T]),
        "offset": of.table[of.offset] if of.offset else np.zeros(rows),
        "trials": of.table[of.trials] if of.trials else np.ones(rows),
    }


def _log_lik(of: Formula, eta: Any, own: Sample, data: Data) -> jax.Array:
    """Log density of the responses at linear predictors."""
    y = data["y"].astype(int)
    if of.likelihood == "student_t":
        return dist.StudentT(own["nu"], eta, own["sigma"]).log_prob(data["y"])
    if of.likelihood == "poisson":
        return dist.Poisson(jnp.exp(eta)).log_prob(y)
    if of.likelihood == "negative_binomial":
        return dist.NegativeBinomial2(jnp.exp(eta), own["shape"]).log_prob(y)
    if of.ordered:
        return dist.OrderedLogistic(eta, own["cutpoints"]).log_prob(y)
    if of.link == "probit":
        return jnp.where(y == 1, norm.logcdf(eta), norm.logcdf(-eta))
    return dist.Binomial(data["trials"].astype(int), logits=eta).log_prob(y)


# Gibbs sampling


def _by_gibbs(of: Formula, sweeps: int) -> tuple[Table, Table]:
    """Draws [chains, S] of the globals, and of the shown z, by name."""
    data = _data(of)
    own = gibbs.design(data, [*of.common], [*of.varying])
    groups = shown(np.arange(own.group.max() + 1))
    chains = [gibbs.draws(own, of.independent, sweeps, seed, groups) for seed in range(of.chains)]
    beta, L, z = (np.stack(part) for part in zip(*chains, strict=True))
    sd = np.sqrt(np.sum(L**2, -1))
    samples = {"at_means": beta[..., 0], "slopes": beta[..., 1:], "sd": sd}
    samples["factor"] = L / sd[..., None]
    named = jax.vmap(jax.vmap(lambda sample: _theta(of, sample, data)))(samples)
    effects = {"effects": z}
    return {n: np.asarray(x) for n, x in named.items()}, effects


# NUTS over theta and z


def _joint(of: Formula) -> Target:
    data = _data(of)
    sizes = np.bincount(data["group"])
    tidy = np.ptp(sizes) == 0 and bool(np.all(np.diff(data["group"]) >= 0))
    size = int(sizes[0]) if tidy else None  # rows of each group, if all have as many
    kept = data | {"shown": shown(np.arange(len(sizes)))}
    model = partial(_joint_model, of, len(sizes), size)
    return Target(model, kept, partial(_theta, of), partial(_joint_z, of), ("noise",))


def _joint_model(of: Formula, N: int, size: int | None, data: Data) -> None:
    sample = _priors(of, data)
    scale, M = _factor(of, sample), len(of.varying)
    coefficients = _coefficients(of, sample, data)
    if of.centred:  # around the common effects, which makes these easy to sample
        own = jnp.stack([jnp.asarray(coefficients.get(name, 0.0)) for name in of.varying])
        effects = numpyro.sample(
            "noise", dist.MultivariateNormal(own, scale_tril=scale).expand([N])
        )
        rest = {n: c for n, c in coefficients.items() if n not in of.varying}
    else:
        noise = numpyro.sample("noise", dist.Normal(0, 1).expand([N, M]).to_event(2))
        effects, rest = noise @ scale.T, coefficients
    eta = data["offset"] + rest.get("Intercept", 0.0)
    for k, name in enumerate(of.common):
        eta = eta + data["X"][:, k] * rest.get(name, 0.0)
    eta = eta + jnp.sum(data["W"] * _to_rows(effects, data, size), -1)
    numpyro.factor("y", _log_lik(of, eta, sample, data).sum())


def _to_rows(effects: jax.Array, data: Data, size: int | None) -> jax.Array:
    """Each group's effects for each of its rows; sums of a fixed shape are faster than a gather's."""
    if size is None:
        return effects[data["group"]]
    N, M = effects.shape
    return jnp.broadcast_to(effects[:, None], (N, size, M)).reshape(N * size, M)


def _joint_z(of: Formula, key: jax.Array, sample: Sample, data: Data) -> dict[str, jax.Array]:
    found = sample["noise"][data["shown"]]
    if not of.centred:
        return {"effects": found @ _factor(of, sample).T}
    coefficients = _coefficients(of, sample, data)
    own = jnp.stack([jnp.asarray(coefficients.get(name, 0.0)) for name in of.varying])
    return {"effects": found - own}


# An intercept alone: groups with the same outcomes share their integral


def _alone(of: Formula) -> Target:
    data = _data(of)
    n = sums(data["group"], data["trials"])
    cells, index, many = np.unique(
        np.stack([n, sums(data["group"], data["y"])], -1),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    kept = data | {"cells": cells, "many": many, "shown": shown(index.reshape(-1))}
    return Target(partial(_alone_model, of), kept, partial(_theta, of), partial(_alone_z, of))


def _alone_model(of: Formula, data: Data) -> None:
    sample = _priors(of, data)
    inside = _alone_densities(of, sample, data)
    spacing = np.log(GRID[1] - GRID[0])
    numpyro.factor("y", data["many"] @ (jax.nn.logsumexp(inside, -1) + spacing))


def _alone_densities(of: Formula, sample: Sample, data: Data) -> jax.Array:
    """Log p(y_i, u) of each cell at the grid's u, [cells, K]; the effect is sd u."""
    if of.likelihood not in ("bernoulli", "binomial"):
        raise ValueError(f"expected bernoulli or binomial rows; got {of.likelihood}")
    n, successes = data["cells"].T[..., None]
    eta = sample["at_means"] + sample["sd"][0] * GRID
    if of.link == "probit":
        log_p, log_not = norm.logcdf(eta), norm.logcdf(-eta)
    else:
        log_p, log_not = jax.nn.log_sigmoid(eta), jax.nn.log_sigmoid(-eta)
    return successes * log_p + (n - successes) * log_not + norm.logpdf(GRID)


def _alone_z(of: Formula, key: jax.Array, sample: Sample, data: Data) -> dict[str, jax.Array]:
    inside = _alone_densities(of, sample, data)[data["shown"]]
    u = jnp.asarray(GRID)[jax.random.categorical(key, inside, axis=-1)]
    return {"effects": sample["sd"][0] * u[:, None]}


# Gaussian: e = y - X b has the covariance sigma^2 I + W L L' W' in each group


def _gaussian(of: Formula) -> Target:
    data = _data(of)
    group, X, W, y = (data[name] for name in ("group", "X", "W", "y"))
    X = np.column_stack([np.ones(len(y)), X])
    outer = lambda a, b: sums(group, a[:, :, None] * b[:, None, :])
    kept = {name: data[name] for name in ("means", "units", "varying_units")}
    kept |= {"XX": X.T @ X, "Xy": X.T @ y, "yy": y @ y, "n": np.bincount(group)}
    kept |= {"WW": outer(W, W), "WX": outer(W, X), "Wy": sums(group, W * y[:, None])}
    kept["shown"] = shown(np.arange(len(kept["n"])))
    return Target(partial(_gaussian_model, of), kept, partial(_theta, of), partial(_gaussian_z, of))


def _gaussian_model(of: Formula, data: Data) -> None:
    """With A = sigma^2 I + L' W'W L: log|.| = (n - M) log sigma^2 + log|A|, and Woodbury's identity."""
    sample = _priors(of, data)
    b = _stacked(of, sample, data)
    root, white, _ = _conditional(of, sample, data)
    s2, M = sample["sigma"] ** 2, len(of.varying)
    error = data["yy"] - 2 * b @ data["Xy"] + b @ data["XX"] @ b
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)))
    log_det += jnp.sum(data["n"] - M) * jnp.log(s2)
    numpyro.factor("y", -0.5 * ((error - jnp.sum(white**2)) / s2 + log_det))


def _stacked(of: Formula, sample: Sample, data: Data) -> jax.Array:
    coefficients = _coefficients(of, sample, data)
    return jnp.stack([coefficients[name] for name in ("Intercept", *of.common)])


def _conditional(of: Formula, sample: Sample, data: Data) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A's Cholesky factor R of each group, R^-1 L'W'e and L: u_i ~ N(A^-1 L'W'e, sigma^2 A^-1)."""
    L = _factor(of, sample)
    A = sample["sigma"] ** 2 * jnp.eye(len(of.varying)) + L.T @ data["WW"] @ L
    root = jnp.linalg.cholesky(A)
    We = data["Wy"] - data["WX"] @ _stacked(of, sample, data)
    return root, jax.scipy.linalg.solve_triangular(root, (We @ L)[..., None], lower=True), L


def _gaussian_z(of: Formula, key: jax.Array, sample: Sample, data: Data) -> dict[str, jax.Array]:
    own = {name: data[name][data["shown"]] for name in ("WW", "WX", "Wy")}
    root, white, L = _conditional(of, sample, data | own)
    noise = sample["sigma"] * jax.random.normal(key, white.shape)
    turned = jnp.swapaxes(root, -1, -2)
    u = jax.scipy.linalg.solve_triangular(turned, white + noise, lower=False)[..., 0]
    return {"effects": u @ L.T}
