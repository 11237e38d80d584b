"""Where q(theta) is no Gaussian: weighted draws of theta if the data are small, a warning if not."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ramify.families.branched import Branched
from ramify.families.weighted_theta import WeightedTheta
from ramify.inference.marginal import Marginal, OutOfBudget
from ramify.inference.theta_search import Learned
from ramify.inference.theta_weights import MOST_K_HAT, value_noise, weigh_theta
from ramify.models.model import Model
from ramify.numerics.psis import effective_draws, k_hat

COARSE = 0.3  # nats of rounding in F, past which it is that which makes theta's weights uneven
WIDEST, WIDE = 8, 0.15  # coordinates of theta, and their sds, whose shape is looked at


def with_weighted_theta(
    family: Branched, F: Marginal, learned: Learned, count: int, seed: int
) -> tuple[Branched, dict[str, Any]]:
    """The family with weighted draws of theta if their weights are even enough, and notes on them."""
    try:
        points, log_weight = weigh_theta(F, learned, count, seed)
        k, ess = k_hat(log_weight), effective_draws(log_weight)
        noise = value_noise(F, learned) if k > MOST_K_HAT else 0.0
    except OutOfBudget:
        why = "the budget ended before theta's draws were weighed: its posterior is a Gaussian's"
        return family, {"warnings": [why]}
    notes: dict[str, Any] = {"theta_k_hat": k, "theta_effective_draws": ess}
    if k > MOST_K_HAT:
        return family, notes | {"warnings": [_uneven(k, noise)]}
    normal = log_weight - np.logaddexp.reduce(log_weight)
    weighted = WeightedTheta(jnp.asarray(points), jnp.asarray(normal))
    return replace(family, weighted=weighted), notes


def _uneven(k: float, noise: float) -> str:
    """What to do about weights of theta of which a few have nearly all."""
    if noise > COARSE:
        return (
            f"float32 rounds the log likelihood of these data by {noise:.1f} nats, so that theta's draws "
            "can't be weighed and its sds may be wrong: call "
            'jax.config.update("jax_enable_x64", True) first'
        )
    why = f"theta's posterior is far from a Gaussian, and from a Student t (k-hat {k:.2f})"
    return f"{why}: compare with NUTS"


def not_gaussian(model: Model, F: Marginal, learned: Learned) -> str | None:
    """A warning if F is far from a parabola, as it is for the log of an sd near zero."""
    # F is evaluated 1.5 sds to both sides of the widest coordinates, where a Gaussian falls by 1.125.
    covariance = np.linalg.inv(learned.precision)
    sd = np.sqrt(np.diag(covariance))
    widest = [i for i in np.argsort(-sd)[:WIDEST] if sd[i] > WIDE]
    if not widest:
        return None
    way = 1.5 * covariance[widest] / sd[widest, None]
    try:
        values = F.values(learned.mean + np.concatenate([0 * way[:1], way, -way]))
    except OutOfBudget:
        return None
    fall = (values[0] - values[1:]).reshape(2, -1)
    far = ~(np.abs(fall - 1.125) < 0.5).all(0)
    names = ", ".join(model.theta.coordinates()[i] for i in np.asarray(widest)[far])
    return names and (
        f"the posterior of {names} is not the Gaussian that q(theta) is, on the scale where it is "
        "learned (an sd near zero, perhaps): its interval may be too narrow; compare with NUTS"
    )
