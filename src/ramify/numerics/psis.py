"""The tail of importance weights: k-hat and effective draws, in NumPy alone.

A generalised Pareto distribution is fitted to the upper tail of the weights p/q. Its shape k-hat
says how even they are: below 0.5 their variance is finite, above 0.7 averages over them are
unreliable (Vehtari et al., "Pareto smoothed importance sampling", 2024). The fit is that of Zhang
and Stephens (2009), for all groups at once: ArviZ, an optional dependency, takes one vector.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64

TINY = 1e-300  # of the largest weight: below it the lower quarter of the tail counts as zero
EVEN = 0.01  # weights are even if the largest exceeds their mean by less than this share


def k_hat(log_weights: Float[np.ndarray, " S"] | Float[np.ndarray, "S N"]) -> Any:
    """Shape of the upper tail of importance weights, a float, or [N] for the columns of [S, N]."""
    # Zero if the weights are even; infinite if one or a few have all the weight.
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


def smoothed(
    log_weights: Float[np.ndarray, "S N"],
) -> tuple[Float64[np.ndarray, "S N"], Float64[np.ndarray, " N"]]:
    """Normalised log weights with the tail of each column replaced by its Pareto fit; and k-hat.

    The largest weights become the expected order statistics of the fitted distribution, cut at the
    largest raw weight (Vehtari et al., section 3).
    """
    rows = np.ascontiguousarray(np.asarray(log_weights, np.float64).T)
    rows -= rows.max(1, keepdims=True)
    places, shapes, scales = _tails(rows)
    below, tail = places[:, 0], places[:, 1:]
    own, n = np.flatnonzero(np.isfinite(scales))[:, None], tail.shape[1]
    level, k = (np.arange(n) + 0.5) / n, shapes[own]
    k = np.where(np.abs(k) > 1e-12, k, 1e-12)
    excess = scales[own] * np.expm1(-k * np.log1p(-level)) / k
    rows[own, tail[own[:, 0]]] = np.minimum(np.log(np.exp(rows[own, below[own]]) + excess), 0.0)
    rows -= log_sum(rows)[:, None]
    return rows.T, shapes


def log_sum(rows: Float64[np.ndarray, "N S"]) -> Float64[np.ndarray, " N"]:
    """Log of the sum of exp of each row."""
    top = rows.max(1)
    return top + np.log(np.exp(rows - top[:, None]).sum(1))


def _tail_shapes(log_weights: Float64[np.ndarray, "N S"]) -> Float64[np.ndarray, " N"]:
    """k-hat of each row of weights."""
    return _tails(log_weights)[1]


def _tails(
    log_weights: Float64[np.ndarray, "N S"],
) -> tuple[np.ndarray, Float64[np.ndarray, " N"], Float64[np.ndarray, " N"]]:
    """For each row of weights: the places of its tail in order, k-hat, and the tail's scale.

    The first place is that of the largest weight below the tail. The scale is NaN without a fit.
    """
    N, S = log_weights.shape
    size = int(min(S / 5, 3 * S**0.5))
    if size < 5:
        raise ValueError(f"k_hat expected at least 25 weights, to see their tail; got {S}.")
    with np.errstate(invalid="ignore"):
        weight = np.exp(log_weights - log_weights.max(1, keepdims=True))
    shapes, scales = np.full(N, np.inf), np.full(N, np.nan)  # also for weights that are NaN
    even = weight.mean(1) > 1 / (1 + EVEN)
    shapes[even] = 0.0
    places = np.argpartition(weight, S - size - 1, 1)[:, S - size - 1 :]
    weight = np.take_along_axis(weight, places, 1)
    order = np.argsort(weight, 1)
    places, weight = (np.take_along_axis(x, order, 1) for x in (places, weight))
    excess = weight[:, 1:] - weight[:, :1]
    fits = ~even & (excess[:, _quartile(size)] > TINY) & np.isfinite(excess[:, -1])
    for rows in np.array_split(np.flatnonzero(fits), max(1, -(-fits.sum() // 1024))):
        shapes[rows], scales[rows] = _pareto(excess[rows])
    return places, shapes, scales


def _quartile(n: int) -> int:
    """The place of the lower quartile among n sorted numbers."""
    return int(n / 4 + 0.5) - 1


def _pareto(
    excess: Float64[np.ndarray, "N n"],
) -> tuple[Float64[np.ndarray, " N"], Float64[np.ndarray, " N"]]:
    """Shape and scale of a generalised Pareto distribution; rows are sorted.

    The shape has a prior worth ten observations at 1/2.
    """
    n = excess.shape[1]
    m = 30 + int(n**0.5)
    quartile = excess[:, _quartile(n), None]
    b = (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * quartile) + 1 / excess[:, -1:]
    k = np.log1p(-b[:, :, None] * excess[:, None, :]).mean(2)
    profile = n * (np.log(-b / k) - k - 1)
    share = np.exp(profile - profile.max(1, keepdims=True))
    best = (b * share).sum(1) / share.sum(1)
    shape = np.log1p(-best[:, None] * excess).mean(1)
    return (n * shape + 5) / (n + 10), -shape / best
