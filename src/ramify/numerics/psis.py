"""The tail of importance weights: k-hat and effective draws, in NumPy alone.

The upper tail of the weights p/q is fitted by a generalised Pareto distribution, whose shape k-hat says
how even they are: below 0.5 they have a variance, above 0.7 averages over them can't be relied upon
(Vehtari et al., "Pareto smoothed importance sampling", 2024). The fit is that of Zhang and Stephens
(2009) in ten lines, for all groups at once: ArviZ has the same, one vector at a time and behind an
optional dependency, and is what the tests compare with.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64

TINY = 1e-300  # of the largest weight: a quarter of the tail is as good as zero
EVEN = 0.01  # weights that exceed their mean by less than this share have no tail to speak of


def k_hat(log_weights: Float[np.ndarray, " S"] | Float[np.ndarray, "S N"]) -> Any:
    """Shape of the upper tail of importance weights, a float, or [N] for the columns of [S, N]."""
    # Zero where the weights are even; infinite where one or a few are all there is.
    columns = np.asarray(log_weights, np.float64)
    shapes = _tail_shapes(columns.reshape(len(columns), -1).T)
    return shapes if columns.ndim == 2 else float(shapes[0])


def effective_draws(log_weights: Float[np.ndarray, " S"] | Float[np.ndarray, "S N"]) -> Any:
    """Effective number of draws, (sum w)^2 / sum w^2: a float, or [N] for columns of [S, N]."""
    columns = np.asarray(log_weights, np.float64)
    with np.errstate(invalid="ignore"):
        weight = np.exp(columns - columns.max(0))
        found = np.nan_to_num(weight.sum(0) ** 2 / (weight**2).sum(0), nan=0.0)
    return found if columns.ndim == 2 else float(found)


def _tail_shapes(log_weights: Float64[np.ndarray, "N S"]) -> Float64[np.ndarray, " N"]:
    """k-hat of each row of weights."""
    N, S = log_weights.shape
    size = int(min(S / 5, 3 * S**0.5))
    if size < 5:
        raise ValueError(f"k_hat expected at least 25 weights, to see their tail; got {S}.")
    with np.errstate(invalid="ignore"):
        weight = np.exp(log_weights - log_weights.max(1, keepdims=True))
    shapes = np.full(N, np.inf)  # also of weights that are not numbers
    even = weight.mean(1) > 1 / (1 + EVEN)
    shapes[even] = 0.0
    weight = np.sort(weight, 1)[:, -size - 1 :]
    excess = weight[:, 1:] - weight[:, :1]
    fits = ~even & (excess[:, _quartile(size)] > TINY) & np.isfinite(excess[:, -1])
    for rows in np.array_split(np.flatnonzero(fits), max(1, -(-fits.sum() // 1024))):
        shapes[rows] = _pareto_shape(excess[rows])
    return shapes


def _quartile(n: int) -> int:
    """The place of the lower quartile among n sorted numbers."""
    return int(n / 4 + 0.5) - 1


def _pareto_shape(excess: Float64[np.ndarray, "N n"]) -> Float64[np.ndarray, " N"]:
    """Shape of a generalised Pareto distribution; rows are sorted. Prior: ten observations at 1/2."""
    n = excess.shape[1]
    m = 30 + int(n**0.5)
    quartile = excess[:, _quartile(n), None]
    b = (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * quartile) + 1 / excess[:, -1:]
    k = np.log1p(-b[:, :, None] * excess[:, None, :]).mean(2)
    profile = n * (np.log(-b / k) - k - 1)
    share = np.exp(profile - profile.max(1, keepdims=True))
    best = (b * share).sum(1) / share.sum(1)
    shape = np.log1p(-best[:, None] * excess).mean(1)
    return (n * shape + 5) / (n + 10)
