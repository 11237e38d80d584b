"""Where the search for a skew normal likelihood begins."""

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups

_ROWS = 100_000  # rows that are used, about
_LEAST = 0.5  # smallest |alpha|


def begin_alpha(groups: Groups) -> float:
    """Alpha that gives the skewness of the residuals after common effects and group means.

    At alpha = 0 the likelihood has no slope and no curvature in alpha for any data, so a search that
    begins there stays. The residuals are of least squares within groups, for the first groups.

    Example:
        >>> from types import SimpleNamespace
        >>> y = np.random.default_rng(0).exponential(size=200)
        >>> own = SimpleNamespace(sizes=np.full(20, 10), rows={"y": y})
        >>> bool(begin_alpha(own) > 1)
        True
    """
    some = max(int(np.searchsorted(np.cumsum(groups.sizes), _ROWS)), 1)
    sizes = groups.sizes[:some]
    n = int(sizes.sum())
    own = [groups.rows[name][:n].reshape(n, -1) for name in ("y", "X") if name in groups.rows]
    apart = _within(np.concatenate(own, 1).astype(np.float64), sizes)
    left = apart[:, 0]
    if apart.shape[1] > 1:
        left = left - apart[:, 1:] @ np.linalg.lstsq(apart[:, 1:], left)[0]
    sd = left.std()
    return alpha_of(float(np.mean((left / sd) ** 3)) if sd > 0 else 0.0)


def _within(columns: Float64[np.ndarray, "n k"], sizes: np.ndarray) -> Float64[np.ndarray, "n k"]:
    """Columns less the means of their groups."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    sums = np.stack([np.bincount(owner, column, len(sizes)) for column in columns.T], 1)
    return columns - (sums / np.maximum(sizes, 1)[:, None])[owner]


def alpha_of(skewness: float) -> float:
    """The alpha of a skew normal distribution with this skewness; not too near zero.

    Example:
        >>> from scipy.stats import skewnorm
        >>> round(alpha_of(float(skewnorm(-3).stats("s"))), 6)
        -3.0
    """
    power = min(abs(skewness), 0.95) ** (2 / 3)
    delta2 = np.pi / 2 * power / (power + ((4 - np.pi) / 2) ** (2 / 3))
    size = max(float(np.sqrt(delta2 / (1 - delta2))), _LEAST)
    return float(np.copysign(size, skewness))
