"""Whether ranks are uniform: a test of their whole distribution at once, and the bands that go with it.

If n ranks among 0 .. L are uniform, the number of them below i is binomial, with probability i / (L + 1).
The statistic is the smallest two-sided tail probability over all i, and its distribution comes from
simulated ranks: Säilynoja, Bürkner and Vehtari, "Graphical test for discrete uniformity and its
applications in goodness-of-fit evaluation and multiple sample comparison" (2022).
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float64, Int

REPEATS = 10_000  # simulated sets of ranks: p values are multiples of its inverse


def p_value(ranks: Int[np.ndarray, " n"], draws: int) -> float:
    """The probability of ranks at least as far from uniform on 0 .. L as these, with L = `draws`.

    Example:
        >>> p_value(np.arange(100), 99) > 0.99, p_value(np.arange(100) // 2, 99) < 0.001
        (True, True)
    """
    counts = np.bincount(ranks, minlength=draws + 1)
    tails, null = _under_uniformity(len(ranks), draws)
    return float((1 + np.sum(null <= _statistic(counts, tails))) / (1 + len(null)))


def bands(n: int, draws: int, level: float = 0.95) -> Float64[np.ndarray, "2 L"]:
    """Bounds on the shares of n uniform ranks below 1 .. L that hold jointly with this probability."""
    tails, null = _under_uniformity(n, draws)
    inside = tails >= np.quantile(null, 1 - level)
    low, high = inside.argmax(1), n - inside[:, ::-1].argmax(1)
    return np.stack([low, high]) / n


@lru_cache(maxsize=4)
def _under_uniformity(
    n: int, draws: int
) -> tuple[Float64[np.ndarray, "L n_plus_1"], Float64[np.ndarray, " repeats"]]:
    """Two-sided tails of the number of ranks below 1 .. L, and statistics of uniform ranks."""
    from scipy.stats import binom

    share, count = np.arange(1, draws + 1)[:, None] / (draws + 1), np.arange(n + 1)
    below, above = binom.cdf(count, n, share), binom.sf(count - 1, n, share)
    tails = np.minimum(2 * np.minimum(below, above), 1.0)
    even = np.full(draws + 1, 1 / (draws + 1))
    counts = np.random.default_rng(0).multinomial(n, even, REPEATS)
    return tails, _statistic(counts, tails)


def _statistic(
    counts: Int[np.ndarray, "*repeats L_plus_1"], tails: Float64[np.ndarray, "L n_plus_1"]
) -> Float64[np.ndarray, "*repeats"]:
    """The smallest tail probability, from the number of ranks of each value."""
    below = np.cumsum(counts, -1)[..., :-1]
    return np.asarray(np.min(tails[np.arange(len(tails)), below], -1))
