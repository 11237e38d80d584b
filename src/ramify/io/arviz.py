"""Results as ArviZ keeps them; the only file that imports it."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from ramify._version import __version__

Columns = dict[str, Shaped[np.ndarray, "..."]]

DRAWN = ("posterior", "posterior_predictive", "log_likelihood")  # groups with draws first


class Axes(NamedTuple):
    """What the axes of groups and of rows are called, and what they count."""

    by: str  # name of the label column
    labels: Shaped[np.ndarray, " N"]  # of the groups
    rows: Shaped[np.ndarray, " n_rows"] | None  # positions in their table, if any
    local: set[str]  # names of the variables that have a value for each group


def data_tree(tree: dict[str, Columns], axes: Axes, method: str) -> Any:
    """A DataTree with one chain, from variables by group: those of `DRAWN` are [S, ...] each."""
    try:
        from arviz_base import from_dict
    except ImportError as error:
        cure = 'install it with pip install "ramify[arviz]"'
        raise ImportError(f"to_arviz needs arviz-base: {cure}.") from error
    tree = {group: values for group, values in tree.items() if values}
    taken = {"chain", "draw", *(name for values in tree.values() for name in values)}
    by = axes.by if axes.by not in taken else f"{axes.by}_group"
    row = "row" if "row" not in taken else "row_position"
    dims: dict[str, list[str]] = {}
    for group, values in tree.items():
        for name, value in values.items():
            first = [by] if name in axes.local else [] if group == "posterior" else [row]
            more = np.ndim(value) - (group in DRAWN) - len(first)
            dims[name] = [*first, *(f"{name}_dim_{i}" for i in range(more))]
    chained = lambda group, values: {n: v[None] if group in DRAWN else v for n, v in values.items()}
    coords: dict[str, Any] = {by: axes.labels} | ({} if axes.rows is None else {row: axes.rows})
    chains = {group: chained(group, values) for group, values in tree.items()}
    found = from_dict(chains, coords=coords, dims=dims)
    about = {"inference_library": "ramify", "inference_library_version": __version__}
    found["posterior"].attrs.update(about, method=method)
    return found
