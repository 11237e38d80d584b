"""Draws of theta from the priors of a formula."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import PRNGKeyArray

from ramify.data.groups import Groups
from ramify.frontends.formula.core import Core
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.priors import Priors, away_from, priors_of, sd_name


def check_simulable(groups: Groups) -> None:
    """Raises if the rows have weights, which no distribution of the outcome takes into account."""
    if "weights" in groups.rows:
        raise ValueError(
            "outcomes are drawn from the likelihood, and this formula's rows have weights: "
            "a density to the power of a weight is nothing to draw from. Leave the weights out."
        )


def censored(y: np.ndarray, rows: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """New outcomes; rows that were censored are censored again, at the same limit."""
    if "cens" not in rows:
        return {"y": y}
    limit = np.where(np.asarray(rows["cens"]) > 0, np.asarray(rows["y"], np.float64), np.inf)
    return {"y": np.minimum(y, limit), "cens": (y > limit).astype(np.float64)}


def lkj_factor(rng: np.random.Generator, M: int, concentration: float) -> np.ndarray:
    """The Cholesky factor of a correlation matrix with density |C|^(concentration - 1), by the onion.

    Lewandowski, Kurowicka and Joe (2009). By NumPy: NumPyro's takes two seconds to compile.

    Example:
        >>> L = lkj_factor(np.random.default_rng(0), 3, 2.0)
        >>> np.allclose(np.diag(L @ L.T), 1), bool(L[0, 2] == 0)
        (True, True)
    """
    L = np.eye(M)
    for k in range(1, M):
        share = rng.beta(k / 2, concentration + (M - 1 - k) / 2)
        u = rng.normal(size=k)
        L[k, :k] = np.sqrt(share) * u / np.linalg.norm(u)
        L[k, k] = np.sqrt(1 - share)
    return L


def prior_draws(
    formula: Formula, priors: Priors, core: Core
) -> tuple[
    Callable[[PRNGKeyArray, dict[str, Any]], dict[str, Any]],
    Callable[[np.random.Generator], dict[str, Any]],
]:
    """Draws constrained values of theta, inside, from the priors, on the user's scale. Traced.

    Also returns what draws correlations by NumPy, which the first takes.
    """
    layout, by, far = formula.layout, formula.by, formula.far_intercept
    names: dict[str, Any] = {name: name for name in formula.parameters}
    names |= {"b": list(layout.common)} if layout.common else {}
    names |= {"sd": [sd_name(name, by) for name in layout.group]} if layout.group else {}
    names |= {"cor": "cor"} if "cor" in priors else {}
    for own in formula.own:
        parts = priors_of(own, Priors({name: name for name in priors}), by)
        names |= dict(parts)

    plain = {name: priors[own] for name, own in names.items() if isinstance(own, str)}
    lkj = {name: own for name, own in plain.items() if isinstance(own, dist.LKJCholesky)}
    names = {name: own for name, own in names.items() if name not in lkj}

    def correlations(rng: np.random.Generator) -> dict[str, Any]:
        return {
            name: lkj_factor(rng, own.dimension, np.asarray(own.concentration).item())
            for name, own in lkj.items()
        }

    def draw(key: PRNGKeyArray, factors: dict[str, Any]) -> dict[str, Any]:
        keys = dict(zip(priors, jax.random.split(key, len(priors)), strict=True))
        one = lambda name, *shape: priors[name].sample(keys[name], shape)
        of = lambda own: jnp.stack([one(n) for n in own]) if isinstance(own, list) else one(own)
        values = {name: of(own) for name, own in names.items()} | factors
        if "cutpoints" in values:
            # The density of independent cutpoints on increasing vectors is that of sorted draws.
            values["cutpoints"] = jnp.sort(one("cutpoints", core.levels - 1))
        if layout.intercept:
            away, prior = away_from(priors["Intercept"], far)
            values["intercept"] = prior.sample(keys["Intercept"]) - away - core.near
        for own in core.own:
            if own.intercept:
                values[f"{own.name}_intercept"] -= own.shift
        return {name: value / core.unit(name) for name, value in values.items()}

    return draw, correlations
