"""Rows of a gaussian formula, condensed: a few rows of each group with exactly the same likelihood.

With an identity link a group's log likelihood is -S log sigma - |A v|^2 / (2 sigma^2), where S is the sum
of its weights, the rows of A are sqrt(weight) (W, X, ..., y) and v follows from z and theta. Any A with
the same A'A will do, and one has as many rows as columns.
"""

from dataclasses import replace

import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.formula.core import Core

FEWER = (
    8  # times as many rows: below that a fit gains little, and all after it needs other programs
)


def condensed(core: Core, groups: Groups) -> Groups:
    """The groups with fewer rows, or the same ones where that is not possible or not worth it."""
    linear = core.likelihood == "gaussian" and core.link == "identity"
    if not linear or core.layout.group_intercept is None:
        return groups
    names = [name for name in ("W", "X", "U_apart") if name in groups.rows]
    wide = [np.asarray(groups.rows[name], np.float64) for name in names]
    base, scale = float(core.base), float(core.scale)
    y = (groups.rows["y"].astype(np.float64) - base) / scale - groups.rows.get("offset", 0.0)
    A = np.concatenate([*wide, y[:, None]], 1)
    N, k = len(groups), A.shape[1]
    if groups.n_rows < FEWER * N * k:
        return groups
    weight = groups.rows.get("weights", np.ones(len(y))).astype(np.float64)
    total, root = _sums(groups.sizes, weight), _roots(groups.sizes, A, weight)
    each = np.repeat(total / k, k)
    rows = root.reshape(N * k, k) / np.sqrt(np.maximum(each, 1e-300))[:, None]
    ends = np.cumsum([part.shape[1] for part in wide])
    parts = dict(zip(names, np.split(rows[:, :-1], ends[:-1], 1), strict=True))
    parts |= {"y": base + scale * rows[:, -1], "weights": each}
    sizes, order = np.full(N, k, np.int64), np.arange(N * k)
    return replace(groups, rows=parts, sizes=sizes, row_order=order)


def _roots(sizes: np.ndarray, A: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A square R_i with R_i'R_i = sum of w a a' over the rows of each group, [N, k, k]."""
    products = np.empty((len(sizes), A.shape[1], A.shape[1]))
    for i, j in zip(*np.tril_indices(A.shape[1]), strict=True):
        products[:, i, j] = products[:, j, i] = _sums(sizes, weight * A[:, i] * A[:, j])
    values, vectors = np.linalg.eigh(products)
    return np.sqrt(np.maximum(values, 0))[..., None] * vectors.swapaxes(-1, -2)


def _sums(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums over the rows of each group, [N]."""
    found, some = np.zeros(len(sizes)), sizes > 0
    found[some] = np.add.reduceat(values, (np.cumsum(sizes) - sizes)[some])
    return found
