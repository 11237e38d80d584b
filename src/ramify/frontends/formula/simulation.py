"""Draws of theta from the priors of a formula."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ramify.data.groups import Groups
from ramify.frontends.formula.core import Core
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.priors import Priors, away_from, priors_of, sd_name


def check_simulable(groups: Groups) -> None:
    """Raises if the rows have weights, of which no distribution of the outcome makes anything."""
    if "weights" in groups.rows:
        raise ValueError(
            "outcomes are drawn from the likelihood, and this formula's rows have weights: "
            "a density to the power of a weight is nothing to draw from. Leave the weights out."
        )


def censored(y: np.ndarray, rows: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """New outcomes; those that were censored are so again beyond the same limit."""
    if "cens" not in rows:
        return {"y": y}
    limit = np.where(np.asarray(rows["cens"]) > 0, np.asarray(rows["y"], np.float64), np.inf)
    return {"y": np.minimum(y, limit), "cens": (y > limit).astype(np.float64)}


def prior_draws(
    formula: Formula, priors: Priors, core: Core
) -> Callable[[PRNGKeyArray], dict[str, Any]]:
    """Draws constrained values of theta, inside, from the priors, on the user's scale. Traced."""
    layout, by, far = formula.layout, formula.by, formula.far_intercept
    names: dict[str, Any] = {name: name for name in formula.parameters}
    names |= {"b": list(layout.common)} if layout.common else {}
    names |= {"sd": [sd_name(name, by) for name in layout.group]} if layout.group else {}
    names |= {"cor": "cor"} if "cor" in priors else {}
    for own in formula.own:
        parts = priors_of(own, Priors({name: name for name in priors}), by)
        names |= dict(parts)

    def draw(key: PRNGKeyArray) -> dict[str, Any]:
        keys = dict(zip(priors, jax.random.split(key, len(priors)), strict=True))
        one = lambda name, *shape: priors[name].sample(keys[name], shape)
        of = lambda own: jnp.stack([one(n) for n in own]) if isinstance(own, list) else one(own)
        values = {name: of(own) for name, own in names.items()}
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

    return draw
