"""Results as ArviZ keeps them; the only file that imports it."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from ramify._version import __version__

NEEDED = 'to_arviz needs arviz-base: install it with pip install "ramify[arviz]".'
Columns = dict[str, Shaped[np.ndarray, "..."]]

DRAWN = ("posterior", "posterior_predictive", "log_likelihood")  # groups with draws first


class Axes(NamedTuple):
    """The names and coordinates of the axes of groups and of rows."""

    by: str  # name of the label column
    labels: Shaped[np.ndarray, " N"]  # of the groups
    rows: Shaped[np.ndarray, " n_rows"] | None  # positions in their table, if any
    local: dict[str, set[str]]  # by group of the tree, the variables with a value for each group
    dims: Mapping[str, Sequence[str]] = {}  # names of other axes of a variable
    coords: Mapping[str, Sequence[Any]] = {}  # what they count


def begin_import() -> None:
    """Imports ArviZ in a thread of its own: this takes as long as computing the draws for it."""
    if find_spec("arviz_base") is None:
        raise ImportError(NEEDED)
    Thread(target=_import, daemon=True).start()


def _import() -> None:
    """Imports ArviZ, and Dask where it is installed, which xarray imports at its first array."""
    arviz = import_module("arviz_base")
    arviz.from_dict({"posterior": {"x": np.zeros((1, 1))}})


def data_tree(tree: dict[str, Columns], axes: Axes, method: str) -> Any:
    """A DataTree with one chain, from variables by group: those of `DRAWN` are [S, ...] each."""
    from arviz_base import from_dict

    tree = {group: values for group, values in tree.items() if values}
    taken = {"chain", "draw", *(name for values in tree.values() for name in values)}
    by = axes.by if axes.by not in taken else f"{axes.by}_group"
    row = "row" if "row" not in taken else "row_position"
    coords: dict[str, Any] = {by: axes.labels} | ({} if axes.rows is None else {row: axes.rows})
    found: Any = None
    for group, values in tree.items():  # an effect and a column of data may have the same name
        dims = {name: _dims(axes, group, name, value, by, row) for name, value in values.items()}
        used = {dim for own in dims.values() for dim in own}
        known = coords | {
            n: list(c) for n, c in axes.coords.items() if n in used and n not in coords
        }
        chains = {name: value[None] if group in DRAWN else value for name, value in values.items()}
        one = from_dict({group: chains}, coords=known, dims=dims)
        found = one if found is None else found.assign({group: one[group]})
    about = {"inference_library": "ramify", "inference_library_version": __version__}
    found["posterior"].attrs.update(about, method=method)
    return found


def _dims(axes: Axes, group: str, name: str, value: np.ndarray, by: str, row: str) -> list[str]:
    """Names of a variable's axes."""
    local = name in axes.local.get(group, ())
    first = [by] if local else [] if group == "posterior" else [row]
    more = np.ndim(value) - (group in DRAWN) - len(first)
    given = list(axes.dims.get(name, ())) if group == "posterior" else []
    return [*first, *(given if len(given) == more else [f"{name}_dim_{i}" for i in range(more)])]
