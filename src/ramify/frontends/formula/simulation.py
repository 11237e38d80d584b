"""Draws of theta from the priors of a formula: for `rf.calibrate`."""

from typing import Any

import jax
import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.formula.core import Core
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.priors import Priors, sd_name


def check_simulable(groups: Groups) -> None:
    """Raises if the rows have weights, of which no distribution of the outcome makes anything."""
    if "weights" in groups.rows:
        raise ValueError(
            "rf.calibrate draws outcomes from the likelihood, and this formula's rows have weights: "
            "a density to the power of a weight is nothing to draw from. Leave the weights out."
        )


def draw_prior(
    rng: np.random.Generator, formula: Formula, priors: Priors, core: Core
) -> dict[str, Any]:
    """Constrained values of theta, inside, from the priors, which are on the user's scale."""
    layout, by = formula.layout, formula.by
    draw = lambda name, *shape: np.asarray(priors[name].sample(_key(rng), shape), np.float64)
    values: dict[str, Any] = {}
    if layout.intercept:
        values["intercept"] = draw("Intercept") - formula.far_intercept - np.asarray(core.near)
    if layout.common:
        values["b"] = np.stack([draw(name) for name in layout.common])
    values["sd"] = np.stack([draw(sd_name(name, by)) for name in layout.group])
    values |= {"cor": draw("cor")} if "cor" in priors else {}
    for name in formula.family.parameters:
        # The density of independent cutpoints on increasing vectors is that of their sorted draws.
        cuts = name == "cutpoints"
        values[name] = np.sort(draw(name, core.levels - 1)) if cuts else draw(name)
    return {name: value / np.asarray(core.unit(name)) for name, value in values.items()}


def _key(rng: np.random.Generator) -> jax.Array:
    return jax.random.key(int(rng.integers(2**32)))
