"""Columns of a design that are combinations of each other: only priors tell their effects apart."""

import numpy as np
from jaxtyping import Float64

from ramify.numerics.user_warning import warn_user

_FEW = 5_000  # rows that are looked at first
_MOST = 500  # columns that are looked at: seconds
_NONE = 1e-10  # the share of a column's variance below which nothing of it is its own
_PART = 1e-3  # of the largest weight in a combination: which columns are in it


def warn_of_dependent(names: list[str], matrix: Float64[np.ndarray, "n P"]) -> None:
    """Warns if a column is a combination of others in every row of the fit."""
    found = _combined(names, matrix[:_FEW])
    if found and len(matrix) > _FEW:
        found = _combined(names, matrix)
    if found:
        constant = " (and a constant)" if "Intercept" in names else ""
        those = ", ".join(f'"{name}"' for name in found)
        warn_user(
            f"columns {those} are combinations of each other{constant} in every row: only their priors "
            "tell their effects apart. Leave one of them out."
        )


def _combined(names: list[str], X: Float64[np.ndarray, "n P"]) -> list[str]:
    """The names of columns of which one is a combination of the others; [] if there are none."""
    own = [i for i, name in enumerate(names) if name != "Intercept"]
    X = X[:, own] - (X[:, own].mean(0) if len(own) < len(names) else 0.0)
    length = np.linalg.norm(X, axis=0)
    used = np.flatnonzero(length > 0)  # a constant column is refused for itself
    if not 1 < len(used) <= _MOST or len(X) <= len(names) or not np.isfinite(length).all():
        return []
    X = X[:, used] / length[used]
    share, directions = np.linalg.eigh(X.T @ X)
    if share[0] > _NONE:
        return []
    weight = np.abs(directions[:, 0])
    return [names[own[used[k]]] for k in range(len(used)) if weight[k] > _PART * weight.max()]
