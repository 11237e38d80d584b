"""The rows of a model with several factors, as the arrays of its linear predictor."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Int64

Rows = Float64[np.ndarray, " n"]


class KeptTerm(NamedTuple):
    """The place of a kept term's effects in u: level by level, the effects of a level side by side."""

    start: int
    levels: int
    effects: int

    @property
    def stop(self) -> int:
        """The place after its last effect."""
        return self.start + self.levels * self.effects


@dataclass(frozen=True)
class Design:
    """Rows of the linear predictor eta = offset + X beta + K u + sum_m W_m z_m of the row's group."""

    code: Int64[np.ndarray, " n"]  # the row's group of the integrated factor
    N: int  # groups of that factor
    W: Float64[np.ndarray, "n M"]
    X: Float64[np.ndarray, "n P"]
    K: Any  # sparse, by rows, [n, q]
    offset: Rows
    columns: dict[str, np.ndarray]  # what the likelihood reads of a row: y, trials, weights
    kept: tuple[KeptTerm, ...]  # the terms of u

    def eta(self, beta: np.ndarray, u: np.ndarray, z: Float64[np.ndarray, "N M"]) -> Rows:
        """The linear predictor of every row."""
        return self.without_z(beta, u) + self.of_z(z)

    def without_z(self, beta: np.ndarray, u: np.ndarray) -> Rows:
        """The linear predictor less the part of z."""
        return self.offset + self.X @ beta + self.K @ u

    def of_z(self, z: Float64[np.ndarray, "N M"]) -> Rows:
        """The part of z in the linear predictor."""
        return np.einsum("rm,rm->r", self.W, z[self.code])

    def by_group(self, values: Rows) -> Float64[np.ndarray, " N"]:
        """Sums over the rows of each group."""
        return np.bincount(self.code, values, self.N)

    def weighted(self, values: Rows) -> Float64[np.ndarray, "N M"]:
        """Sums over the rows of each group of values times w_r."""
        return np.stack([self.by_group(values * w) for w in self.W.T], 1)

    def products(self, values: Rows) -> Float64[np.ndarray, "N M M"]:
        """Sums over the rows of each group of values times w_r w_r'."""
        M = self.W.shape[1]
        found = np.empty((self.N, M, M))
        for i, j in zip(*np.tril_indices(M), strict=True):
            found[:, i, j] = found[:, j, i] = self.by_group(values * self.W[:, i] * self.W[:, j])
        return found

    def subset(self, groups: Int64[np.ndarray, " G"]) -> "Design":
        """The rows of some groups, which are numbered anew in this order."""
        place = np.full(self.N, -1)
        place[groups] = np.arange(len(groups))
        rows = place[self.code] >= 0
        return replace(
            self,
            code=place[self.code[rows]],
            N=len(groups),
            W=self.W[rows],
            X=self.X[rows],
            K=self.K[rows],
            offset=self.offset[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """The row of each entry of K, its place among the entries of G'K, and the pattern of that."""
        K = self.K.tocsr()
        row = np.repeat(np.arange(K.shape[0]), np.diff(K.indptr))
        key = self.code[row] * max(K.shape[1], 1) + K.indices
        distinct, place = np.unique(key, return_inverse=True)
        groups, columns = np.divmod(distinct, max(K.shape[1], 1))
        start = np.searchsorted(groups, np.arange(self.N + 1))
        pattern = sp.csr_array((np.ones(len(distinct)), columns, start), (self.N, K.shape[1]))
        return row, place, pattern

    def grouped(self, values: Rows) -> Any:
        """G' diag(values) K: sums over the rows of each group of values times k_r, sparse [N, q]."""
        row, place, pattern = self.entries
        data = np.bincount(place, values[row] * self.K.data, pattern.nnz)
        return sp.csr_array((data, pattern.indices, pattern.indptr), pattern.shape)

    def grouped_common(self, values: Rows) -> Float64[np.ndarray, "N P"]:
        """The same of the common columns."""
        if not self.X.shape[1]:
            return np.zeros((self.N, 0))
        return np.stack([self.by_group(values * x) for x in self.X.T], 1)
