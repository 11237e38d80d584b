"""Is log_prior a density at all? One with a wrong sign rises without bound far from the data's theta.

A few data drown a prior near the mode of the posterior, so that a fit looks as good with the wrong sign.
"""

import numpy as np
from jaxtyping import Float
from numpyro.distributions import constraints

from ramify.models.model import Model, log_priors

FAR = np.array([1e4, 1e5, 1e6])  # from theta's mean, of coordinates without a constraint
FAR_LOG = np.array([20.0, 30.0, 40.0])  # of others, most of which are logarithms
RISE = 1.0  # nats from one of these places to the next, of the former: a flat prior has none
RISE_LOG = 15.0  # of the latter, where one that is flat in the parameter rises by 10: its Jacobian


def rising_priors(model: Model, centre: Float[np.ndarray, " D"]) -> list[str]:
    """Coordinates of theta along which log p(theta) rises without bound, to one side."""
    plain = np.concatenate(
        [
            np.full(np.prod(p.unconstrained_shape, dtype=int), p.constraint is constraints.real)
            for p in model.theta.parameters.values()
        ]
    )
    centre = np.where(plain, centre, np.clip(centre, -20, 20))
    away = np.where(plain[:, None], FAR * np.maximum(1, np.abs(centre))[:, None], FAR_LOG)  # [D, 3]
    step = np.eye(len(centre))[:, None] * np.stack([away, -away], 1).reshape(len(centre), 6, 1)
    thetas = (centre + step.reshape(-1, len(centre))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        rise = np.diff(log_priors(model, thetas).astype(np.float64).reshape(-1, 2, 3))
    most = np.where(plain, RISE, RISE_LOG)[:, None, None]
    rising = (rise > most).all(-1).any(-1)
    return [name for name, bad in zip(model.adapter.coordinates(), rising, strict=True) if bad]
