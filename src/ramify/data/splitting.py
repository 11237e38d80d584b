"""Which rows of each group a random split holds out."""

import numpy as np
from jaxtyping import Bool, Int


def held_out(
    sizes: Int[np.ndarray, " N"], fraction: float, rng: np.random.Generator
) -> Bool[np.ndarray, " n_rows"]:
    """Chooses at random, within each group, a fraction of its rows to hold out."""
    # The share m_i = min(n_i fraction, n_i - 1) is rounded systematically, with one uniform u for all:
    # group i takes floor(m_1 + .. + m_i + u) - floor(m_1 + .. + m_{i-1} + u) rows, m_i on average.
    share = np.maximum(np.minimum(sizes * fraction, sizes - 1), 0)
    take = np.diff(np.floor(np.cumsum(share) + rng.random()), prepend=0.0).astype(np.int64)
    take = np.minimum(take, np.maximum(sizes - 1, 0))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # Shuffle the rows within each group and choose the first `take` of them.
    shuffled = np.argsort(owner + rng.random(len(owner)), kind="stable")
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(owner), bool)
    chosen[shuffled[place < np.repeat(take, sizes)]] = True
    return chosen
