"""Rows of a gaussian formula, condensed: a few rows of each group with exactly the same likelihood.

With an identity link a group's log likelihood is -S log sigma - |A v|^2 / (2 sigma^2), where S is the sum
of its weights, the rows of A are sqrt(weight) (W, X, ..., y) and v follows from z and theta. Any A with
the same A'A gives the same likelihood, and a square one exists.
"""

from dataclasses import replace

import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.formula.core import Core

# Least ratio of rows before and after. Below it a fit gains little, and later steps need other shapes.
FEWER = 8


def condensed(core: Core, groups: Groups) -> Groups:
    """The groups with fewer rows, or unchanged where that is not possible or not worth it."""
    names = [name for name in ("W", "X", "U_apart") if name in groups.rows]
    widths = [groups.rows[name].shape[1] for name in names]
    N, k = len(groups), sum(widths) + 1
    linear = core.likelihood == "gaussian" and core.link == "identity"
    linear = linear and "cens" not in groups.rows and not core.own and groups.store is None
    if not linear or core.layout.group_intercept is None or groups.n_rows < FEWER * N * k:
        return groups
    base, scale = float(core.base), float(core.scale)
    y = (groups.rows["y"].astype(np.float64) - base) / scale - groups.rows.get("offset", 0.0)
    weight = groups.rows.get("weights", np.ones(len(y))).astype(np.float64)
    columns = [column for name in names for column in groups.rows[name].T]
    each = np.repeat(_sums(groups.sizes, weight) / k, k)
    rows = _roots(groups.sizes, [*columns, y], weight).reshape(N * k, k)
    rows /= np.sqrt(np.maximum(each, 1e-300))[:, None]  # each row gets the weight `each`
    parts = dict(zip(names, np.split(rows[:, :-1], np.cumsum(widths)[:-1], 1), strict=True))
    parts |= {"y": base + scale * rows[:, -1], "weights": each}
    sizes, order = np.full(N, k, np.int64), np.arange(N * k)
    return replace(groups, rows=parts, sizes=sizes, row_order=order)


def _roots(sizes: np.ndarray, columns: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """A square R_i with R_i'R_i = sum of w a a' over the rows a of each group, [N, k, k]."""
    products = np.empty((len(sizes), len(columns), len(columns)))
    for i, j in zip(*np.tril_indices(len(columns)), strict=True):
        products[:, i, j] = products[:, j, i] = _sums(sizes, weight * columns[i] * columns[j])
    values, vectors = np.linalg.eigh(products)
    return np.sqrt(np.maximum(values, 0))[..., None] * vectors.swapaxes(-1, -2)


def _sums(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums over the rows of each group, [N]."""
    found, some = np.zeros(len(sizes)), sizes > 0
    found[some] = np.add.reduceat(values, (np.cumsum(sizes) - sizes)[some])
    return found
