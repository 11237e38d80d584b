"""Tables without a column of labels: their rows are those of one group that the fit has not seen."""

import difflib
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ramify.data.tables import append_columns, column_names, columns_of

NEW = "(new)"


def unlabelled(table: Any, by: str, labels: Shaped[np.ndarray, " N"]) -> Any:
    """The table with the label of a new group in every row; None if it has labels, or misspelt ones."""
    names = column_names(table, "at")
    indexed = getattr(getattr(table, "index", None), "names", [])
    near = difflib.get_close_matches(by, [str(name) for name in names], 1)
    label = new_label(labels)
    if by in names or by in indexed or near or not names or label is None:
        return None
    return with_label(table, by, label)


def with_label(table: Any, by: str, label: Shaped[np.ndarray, " 1"]) -> Any:
    """The table with this label in every row, in place of its own if it has any."""
    names = [name for name in column_names(table, "at") if name != by]
    n = len(columns_of(table, names[:1], "at")[names[0]])
    if by in column_names(table, "at"):
        table = columns_of(table, names, "at")
    return append_columns(table, {by: np.repeat(label, n)})


def new_label(labels: Shaped[np.ndarray, " N"]) -> Shaped[np.ndarray, " 1"] | None:
    """A label of the same type that is not among the labels; None if there may be none.

    Example:
        >>> new_label(np.array([3, 7])).tolist(), new_label(np.array(["a", "(new)"])).tolist()
        ([8], ['(new)+'])
    """
    if labels.dtype.kind in "iuM":
        last = labels.max(keepdims=True) if len(labels) else np.zeros(1, labels.dtype)
        after = last + np.ones(1, "m8[s]" if labels.dtype.kind == "M" else labels.dtype)
        return after if (after > last).all() else None
    if labels.dtype.kind not in "UO" or not all(isinstance(label, str) for label in labels[:1]):
        return None
    label = NEW
    while label in labels:
        label += "+"
    return np.array([label])
