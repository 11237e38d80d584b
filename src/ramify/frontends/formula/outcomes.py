"""Outcomes of a formula's rows: expected outcomes, and draws by NumPy with their parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.frontends.formula.core import Core
from ramify.frontends.formula.row_densities import INVERSE
from ramify.models.parameters import Named


def expected(core: Core, kind: str, theta: Named, z: Named, row: Named) -> Float[Array, "*levels"]:
    """One row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
    every = core.predictors(theta, z, row)
    eta, own = every[0], core.family_values(theta, every)
    if core.categorical:
        return jax.nn.softmax(every)
    if core.link == "identity":
        mean = core.base + core.scale * eta
        if not core.family.of_log or kind == "link":
            return mean
        return jnp.exp(mean + 0.5 * (core.scale * own["sigma"]) ** 2)
    if kind == "link":
        return eta + (core.centring(theta) if "cutpoints" in theta else 0)
    if "cutpoints" in theta:
        probability = dist.OrderedLogistic(eta, theta["cutpoints"]).probs
        numbers = jnp.arange(core.levels) if core.numbers is None else core.numbers
        return probability if kind == "probability" else probability @ numbers.astype(eta.dtype)
    mean = INVERSE[core.link](eta)
    mean = mean if core.family.mean is None else core.family.mean(mean, own)
    return mean * (row["trials"] if "trials" in row else 1.0)


def outcome_parameters(
    core: Core, theta: Named, z_rows: Float[Array, "R M"], batch: Batch
) -> Named:
    """Linear predictor and its inverse link inside, family parameters, and trials of rows."""
    rows = batch.rows | batch.group_at_rows()
    every = jax.vmap(lambda z, row: core.predictors(theta, {"effects": z}, row))(z_rows, rows)
    if core.categorical:
        return {"eta": every, "mean": jax.nn.softmax(every)}
    found = {name: theta[name][None] for name in core.parameters}
    for p, own in enumerate(core.own):
        found[own.name] = own.values(every[:, p + 1])[own.name]
    found |= {"trials": rows["trials"]} if "trials" in rows else {}
    return {"eta": every[:, 0], "mean": INVERSE[core.link](every[:, 0]), **found}


def draw_column(core: Core, rng: np.random.Generator, given: dict[str, np.ndarray]) -> np.ndarray:
    """New outcomes, by NumPy, less the origin: as the data have them, levels by their numbers."""
    own = dict(given)
    y = core.family.draw(rng, own.pop("eta"), own.pop("mean"), own)
    if core.link == "identity":
        y = np.asarray(core.base) + np.asarray(core.scale) * y
    return np.exp(y) if core.family.of_log else y
