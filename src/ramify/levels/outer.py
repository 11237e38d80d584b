"""Sums of outer products of sparse rows as one dense matrix, of which S is made at every theta.

The places to which products are added depend only on the design, so they are found once.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

MOST = 10_000_000  # pairs of entries that are kept
TOGETHER = 2**16  # pairs whose products stay in a processor's cache


class Outer(NamedTuple):
    """The pairs of entries in the same row of a sparse matrix A, for A' diag(w) A, sorted by place."""

    first: np.ndarray  # the number of the entry with the larger column
    second: np.ndarray
    place: np.ndarray  # places with pairs, in the lower triangle stored column by column
    start: np.ndarray  # where the pairs of each place begin, and where the last ones end
    q: int

    @classmethod
    def of(cls, pattern: Any) -> "Outer | None":
        """The pairs of a CSR matrix with sorted columns; None if they are too many."""
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
        order = np.argsort(place)
        place = place[order]
        start = np.flatnonzero(np.diff(place, prepend=-1))
        own = place[start], np.append(start, len(place)), q
        return cls(first[order], second[order], *own)

    def sums(self, entries: list[np.ndarray], weight: Any = 1.0) -> Float64[np.ndarray, " qq"]:
        """The sum of A' diag(weight) A over the A with these entries: its lower triangle, flattened.

        `weight` has the weight of each entry's row, which may be negative.
        """
        found, left = np.zeros(len(self.place)), [weight * own for own in entries]
        cuts = np.searchsorted(self.start, np.arange(0, len(self.first), TOGETHER))
        cuts = np.unique(np.append(cuts, len(self.place)))
        for low, high in zip(cuts[:-1], cuts[1:], strict=True):
            begin, end = self.start[low], self.start[high]
            first, second = self.first[begin:end], self.second[begin:end]
            products = np.zeros(end - begin)
            for a, b in zip(left, entries, strict=True):
                products += a[first] * b[second]
            found[low:high] = np.add.reduceat(products, self.start[low:high] - begin)
        whole = np.zeros(self.q * self.q)
        whole[self.place] = found
        return whole
