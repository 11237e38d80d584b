"""A data set with some of its groups replaced, and others added."""

from dataclasses import replace

import numpy as np

from ramify.data.groups import Groups
from ramify.data.labels import find

# Row columns of a formula that data have only where they need them: see its `_arranged`.
SPARSE = ("U_apart",)


def with_sparse(
    rows: dict[str, np.ndarray], others: dict[str, np.ndarray], n: int
) -> dict[str, np.ndarray]:
    """The columns of n rows, and the sparse ones that only other rows have, as zeros."""
    more = {name: others[name] for name in SPARSE if name in others and name not in rows}
    return rows | {name: np.zeros((n, *c.shape[1:]), c.dtype) for name, c in more.items()}


def with_groups(groups: Groups, new: Groups) -> Groups:
    """All groups, ordered by label; those that are in `new` have the rows they have there."""
    known = find(groups.labels, new.labels, "the new groups")
    kept = np.setdiff1d(np.arange(len(groups)), known[known >= 0])
    if not len(kept):
        return replace(new, number=np.arange(len(new)))
    old, n = groups.in_memory().subset(positions=kept), groups.n_rows
    both = lambda a, b: {name: np.concatenate([a[name], b[name]]) for name in a}
    full = lambda own, other: with_sparse(own.rows, other.rows, own.n_rows)
    merged = replace(
        old,
        labels=np.concatenate([old.labels, new.labels]),
        sizes=np.concatenate([old.sizes, new.sizes]),
        rows=both(full(old, new), full(new, old)),
        group=both(old.group, new.group),
        number=np.arange(len(old) + len(new)),
        row_order=np.concatenate([old.row_order, n + new.row_order]),
    )
    ordered = merged.subset(positions=np.argsort(merged.labels, kind="stable"))
    order = np.empty_like(ordered.row_order)
    order[np.argsort(ordered.row_order, kind="stable")] = np.arange(ordered.n_rows)
    return replace(ordered, number=np.arange(len(ordered)), row_order=order)
