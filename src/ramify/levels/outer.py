"""Sums of outer products of sparse rows as one dense matrix: what S is made of at every theta anew.

The places to which products are added depend on the design only, so they are found once.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

MOST = 10_000_000  # pairs of entries that are kept


class Outer(NamedTuple):
    """The pairs of entries in the same row of a sparse matrix A, for A' diag(w) A."""

    first: np.ndarray  # the number of the entry with the larger column
    second: np.ndarray
    place: np.ndarray  # in the lower triangle, columns one after the other
    q: int

    @classmethod
    def of(cls, pattern: Any) -> "Outer | None":
        """The pairs of a matrix by rows whose columns are in order; None where they are too many."""
        counts = np.diff(pattern.indptr).astype(np.int64)
        if float(np.sum(counts * (counts + 1) / 2)) > MOST:
            return None
        before = np.arange(pattern.nnz) - np.repeat(pattern.indptr[:-1], counts)  # in its row
        first = np.repeat(np.arange(pattern.nnz), before + 1)
        ends = np.cumsum(before + 1)
        back = np.repeat(ends, before + 1) - 1 - np.arange(len(first))
        second, q = first - back, pattern.shape[1]
        columns = pattern.indices.astype(np.int64)
        place = columns[second] * q + columns[first]
        return cls(first.astype(np.int32), second.astype(np.int32), place, q)

    def sums(self, entries: list[np.ndarray], weight: Any = 1.0) -> Float64[np.ndarray, " qq"]:
        """The sum of A' diag(weight) A over A's with these entries: its lower triangle, as one column.

        `weight` is that of each entry's row, and may be negative.
        """
        found = np.zeros(len(self.first))
        for own in entries:
            found += (weight * own)[self.first] * own[self.second]
        return np.bincount(self.place, found, self.q * self.q)
