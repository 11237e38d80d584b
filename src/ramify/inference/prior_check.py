"""Evaluates log_prior far from a theta: whether it is a density at all, and how wide it is.

With a wrong sign it rises without bound. Near the posterior's mode the data outweigh it, so the fit
looks just as good.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpyro.distributions import constraints

from ramify.models.model import Model, log_priors

FAR = np.array([1e4, 1e5, 1e6])  # distances from theta's mean, for coordinates without constraint
FAR_LOG = np.array([20.0, 30.0, 40.0])  # for the others, most of which are logarithms
SCALES = 10.0 ** np.arange(7)  # candidates for the width of a prior
RISE = 1.0  # nats between distances in FAR that count as a rise: a flat prior has none
RISE_LOG = 15.0  # the same in FAR_LOG, where the Jacobian alone adds 10


def rising_priors(model: Model, centre: Float[np.ndarray, " D"]) -> list[str]:
    """Coordinates of theta along which log p(theta) rises without bound in some direction."""
    plain = _unconstrained(model)
    centre = np.where(plain, centre, np.clip(centre, -20, 20))
    away = np.where(plain[:, None], FAR * np.maximum(1, np.abs(centre))[:, None], FAR_LOG)  # [D, 3]
    step = np.eye(len(centre))[:, None] * np.stack([away, -away], 1).reshape(len(centre), 6, 1)
    thetas = (centre + step.reshape(-1, len(centre))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        rise = np.diff(log_priors(model, thetas).astype(np.float64).reshape(-1, 2, 3))
    most = np.where(plain, RISE, RISE_LOG)[:, None, None]
    rising = (rise > most).all(-1).any(-1)
    names = model.adapter.coordinates()
    return [names[i] for i in np.flatnonzero(rising)]


def prior_reach(model: Model, centre: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
    """The scale of each coordinate: a power of ten over which its log prior falls by less than a nat.

    It is 1 for coordinates with a constraint, which are logarithms, and for flat priors.
    """
    D = len(centre)
    step = np.eye(D)[:, None] * SCALES[:, None]  # [D, scales, D]
    thetas = np.concatenate([centre[None], (centre + step).reshape(-1, D)]).astype(np.float32)
    here, there = np.split(log_priors(model, thetas).astype(np.float64), [1])
    within = np.cumprod((there > here - 1).reshape(D, -1), 1).sum(1)
    known = _unconstrained(model) & (0 < within) & (within < len(SCALES))
    return np.where(known, SCALES[np.maximum(within, 1) - 1], 1.0)


def _unconstrained(model: Model) -> Bool[np.ndarray, " D"]:
    """Which coordinates of theta belong to parameters without a constraint."""
    sizes = [np.prod(p.unconstrained_shape, dtype=int) for p in model.theta.parameters.values()]
    return np.repeat(
        [p.constraint is constraints.real for p in model.theta.parameters.values()], sizes
    )
