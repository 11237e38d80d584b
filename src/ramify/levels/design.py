"""The rows of a model with several factors, as the arrays of its linear predictor."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Int64

from ramify.levels.closed_forms import constant
from ramify.levels.outer import Outer

SMALL = 200_000  # most entries of an array used in place of a sparse matrix
FILLED = 0.2  # share of the entries of G'K that are not zero
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

    @property
    def row_work(self) -> int:
        """The work of a row, in units of that of one linear predictor."""
        return 1

    def eta(self, beta: np.ndarray, u: np.ndarray, z: Float64[np.ndarray, "N M"]) -> Rows:
        """The linear predictor of every row."""
        return self.without_z(beta, u) + self.of_z(z)

    def without_z(self, beta: np.ndarray, u: np.ndarray) -> Rows:
        """The linear predictor less the part of z."""
        return self.offset + self.X @ beta + self.kept_part(u)

    def of_z(self, z: Float64[np.ndarray, "N M"]) -> Rows:
        """The part of z in the linear predictor."""
        return np.einsum("rm,rm->r", self.W, z[self.code])

    def with_z(self, base: Rows, z: Float64[np.ndarray, "N *K M"]) -> np.ndarray:
        """The linear predictor at some z of each group, [n], or at several, [n, K], given the rest."""
        if z.ndim == 2:
            return base + self.of_z(z)
        return base[:, None] + np.einsum("rm,rkm->rk", self.W, z[self.code])

    def around(
        self, base: Rows, z: np.ndarray, root: np.ndarray, points: Float64[np.ndarray, "K M"]
    ) -> np.ndarray:
        """The linear predictor at z + root x of each group, for points x: [n, K]."""
        spread = np.einsum("rm,rmc->rc", self.W, root[self.code])
        return (base + self.of_z(z))[:, None] + spread @ points.T

    def by_group(self, values: Float64[np.ndarray, "n *K"]) -> Float64[np.ndarray, "N *K"]:
        """Sums over the rows of each group."""
        return np.bincount(self.code, values, self.N) if values.ndim == 1 else self.members @ values

    @cached_property
    def members(self) -> Any:
        """G', the membership of rows in groups, sparse [N, n]."""
        n = len(self.code)
        return sp.csr_array((np.ones(n), (self.code, np.arange(n))), (self.N, n))

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

    def shared(
        self, curvature: Rows, root: Float64[np.ndarray, "N M M"]
    ) -> Float64[np.ndarray, "M n"]:
        """Factors of what integrating z subtracts from the curvature in b; see `integral.Integral`."""
        return curvature * np.einsum("rm,rmc->cr", self.W, root[self.code])

    def changed(self, curvature: Rows, beta: np.ndarray, u: np.ndarray) -> Rows:
        """The decrease of the rows' slopes by a step in b."""
        return curvature * (self.X @ beta + self.kept_part(u))

    def loose(self, values: Rows) -> float:
        """The sum over rows that are in no group; zero, since all are in groups."""
        return 0.0

    def subset(self, groups: Int64[np.ndarray, " G"]) -> "Design":
        """The rows of some groups, which get new numbers in this order."""
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

    @property
    def group_sizes(self) -> Float64[np.ndarray, " N"]:
        """The observations of each group: each row counts as its trials times its weight."""
        counts = [self.columns[name] for name in ("trials", "weights") if name in self.columns]
        return self.by_group(np.prod([np.ones(len(self.code)), *counts], 0))

    @property
    def may_be_cut(self) -> bool:
        """Whether `cut` can be used."""
        return True

    def cut(
        self, number: Int64[np.ndarray, " N"], count: int
    ) -> list[tuple[np.ndarray, np.ndarray, "Design"]]:
        """For each number its groups: their rows, the groups, and their design without kept effects."""
        runs = lambda numbers: np.split(
            np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1]
        )
        place, found = np.empty(self.N, np.int64), []
        for rows, groups in zip(runs(number[self.code]), runs(number), strict=True):
            place[groups] = np.arange(len(groups))
            own = Design(
                place[self.code[rows]],
                len(groups),
                self.W[rows],
                np.zeros((len(rows), 0)),
                sp.csr_array((len(rows), 0)),
                self.offset[rows],
                {name: column[rows] for name, column in self.columns.items()},
                (),
            )
            found.append((rows, groups, own))
        return found

    def observed(self) -> "Design":
        """The rows of the table; here all rows."""
        return self

    def common(self, beta: Float64[np.ndarray, "S P"]) -> Float64[np.ndarray, "S n"]:
        """Offset and common effects in the linear predictor, at draws of the common effects."""
        return self.offset + beta.astype(np.float64) @ self.X.T

    def add_effects(
        self, eta: Float64[np.ndarray, "S n"], effects: np.ndarray, columns: Any, factor: int
    ) -> None:
        """Adds a factor's effects [S, n, m] to linear predictors, in place."""
        for m, column in enumerate(columns.T):
            eta += effects[:, :, m] * column

    @cached_property
    def _constants(self) -> dict[str, dict[str, np.ndarray]]:
        return {}

    def with_constant(self, form: str) -> dict[str, np.ndarray]:
        """The columns and a column "constant" for a closed form of the likelihood."""
        if "constant" in self.columns:
            return self.columns
        if form not in self._constants:
            self._constants[form] = {**self.columns, "constant": constant(form, self.columns)}
        return self._constants[form]

    @cached_property
    def dense(self) -> Float64[np.ndarray, "n q"] | None:
        """K as an array, where it is small: sparse matrices of few entries cost more than they save."""
        n, q = self.K.shape
        return self.K.toarray() if n * q <= SMALL and self.N * q <= SMALL else None

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The row of each entry of K, and its place in G'K as a flat array."""
        row = np.repeat(np.arange(self.K.shape[0]), np.diff(self.K.indptr))
        return row, self.code[row] * self.K.shape[1] + self.K.indices

    def kept_sum(self, values: Rows) -> Float64[np.ndarray, " q"]:
        """K' values."""
        return self.K.T @ values if self.dense is None else values @ self.dense

    def kept_part(self, u: np.ndarray) -> Rows:
        """K u."""
        return self.K @ u if self.dense is None else self.dense @ u

    def common_sum(self, values: Rows) -> Float64[np.ndarray, " P"]:
        """X' values."""
        return self.X.T @ values

    def kept_curvature(self, curvature: Rows) -> Any:
        """K' diag(curvature) K, [q, q]."""
        if self.dense is None:
            return self.K.T @ sp.diags_array(curvature) @ self.K
        return self.dense.T @ (curvature[:, None] * self.dense)

    def common_curvature(self, curvature: Rows) -> tuple[np.ndarray, np.ndarray]:
        """K' diag(curvature) X and X' diag(curvature) X, [q, P] and [P, P]."""
        K = self.K if self.dense is None else self.dense
        weighted = curvature[:, None] * self.X
        return K.T @ weighted, self.X.T @ weighted

    @cached_property
    def _terms(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

    def of_term(self, term: KeptTerm) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, "n m"]]:
        """The level of a kept term that each row has, and the columns of its effects."""
        if term.start not in self._terms:
            own: Any = sp.csr_array(self.K[:, term.start : term.stop])
            own.sort_indices()
            row = np.repeat(np.arange(own.shape[0]), np.diff(own.indptr))
            level, columns = (
                np.zeros(own.shape[0], np.int64),
                np.zeros((own.shape[0], term.effects)),
            )
            level[row] = own.indices // term.effects
            columns[row, own.indices % term.effects] = own.data
            self._terms[term.start] = level, columns
        return self._terms[term.start]

    def by_level(
        self, term: KeptTerm, values: Rows, rows: Any = slice(None)
    ) -> Float64[np.ndarray, " L"]:
        """Sums over the rows, or some rows, of each level of a kept term."""
        return np.bincount(self.of_term(term)[0][rows], values, term.levels)

    def level_products(self, term: KeptTerm, curvature: Rows) -> Float64[np.ndarray, "L m m"]:
        """Sums over the rows of each level of curvature times k_r k_r', k_r its columns of the term."""
        columns = self.of_term(term)[1]
        found = np.empty((term.levels, term.effects, term.effects))
        for i, j in zip(*np.tril_indices(term.effects), strict=True):
            own = self.by_level(term, curvature * columns[:, i] * columns[:, j])
            found[:, i, j] = found[:, j, i] = own
        return found

    def moved_by(
        self, term: KeptTerm, delta: Float64[np.ndarray, "L K m"], effects: list[int], rows: Any
    ) -> np.ndarray:
        """The change of the rows' linear predictors if a term's effects change by `delta`, [n, K]."""
        level, columns = self.of_term(term)
        return np.einsum("rm,rkm->rk", columns[rows][:, effects], delta[level[rows]])

    def expanded(self, slope: Rows, curvature: Rows, moved: np.ndarray) -> np.ndarray:
        """The second-order expansion of the rows' log likelihood less its value, after a move [n, K]."""
        return slope[:, None] * moved - 0.5 * curvature[:, None] * moved**2

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """The row of each entry of K, its place among the entries of G'K, and the pattern of G'K."""
        K = self.K.tocsr()
        row = np.repeat(np.arange(K.shape[0]), np.diff(K.indptr))
        key = self.code[row] * max(K.shape[1], 1) + K.indices
        distinct, place = np.unique(key, return_inverse=True)
        groups, columns = np.divmod(distinct, max(K.shape[1], 1))
        start = np.searchsorted(groups, np.arange(self.N + 1))
        pattern = sp.csr_array((np.ones(len(distinct)), columns, start), (self.N, K.shape[1]))
        return row, place, pattern

    @cached_property
    def filled(self) -> bool:
        """Whether G'K has so few zeros that products of arrays are cheaper."""
        pattern = self.entries[2]
        return pattern.nnz > FILLED * pattern.shape[0] * pattern.shape[1]

    @cached_property
    def outer(self) -> tuple[Outer, Outer | None] | None:
        """The pairs of entries in rows of K and, if it is not filled, of G'K; None where too many."""
        of_rows = Outer.of(self.K)
        of_groups = None if self.filled else Outer.of(self.entries[2])
        return None if of_rows is None or not (self.filled or of_groups) else (of_rows, of_groups)

    def grouped(self, values: Rows) -> Any:
        """G' diag(values) K: sums over the rows of each group of values times k_r, [N, q]."""
        if self.dense is not None:
            row, place = self.flat
            size = self.N * self.K.shape[1]
            return np.bincount(place, values[row] * self.K.data, size).reshape(self.N, -1)
        row, place, pattern = self.entries
        data = np.bincount(place, values[row] * self.K.data, pattern.nnz)
        return sp.csr_array((data, pattern.indices, pattern.indptr), pattern.shape)

    def grouped_common(self, values: Rows) -> Float64[np.ndarray, "N P"]:
        """The same for the common columns, [N, P]."""
        if not self.X.shape[1]:
            return np.zeros((self.N, 0))
        return np.stack([self.by_group(values * x) for x in self.X.T], 1)
