"""S, minus the curvature of F in the kept effects b = (beta, u), and its factor.

    S = V' diag(w) V - sum_c (G' diag(t_c) V)' (G' diag(t_c) V) + the priors' precision,  V = (X, K)

with G the membership of rows in groups. The block of u is sparse or dense; common effects border it.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from jaxtyping import Float64
from scipy.linalg.lapack import dpotrf  # pyright: ignore[reportAttributeAccessIssue]
from scipy.sparse.linalg import splu

from ramify.levels.design import Design
from ramify.levels.iterated import NOT_DEFINITE, Iterated, Products
from ramify.numerics.memory import check_memory

Algebra = Literal["dense", "sparse", "iterative"]
SMALL = 400  # kept effects: below, dense is always faster
FEW = 200  # a term with at most so many effects may be linked to all others
LINKS = 3  # most entries in a column of a sparse S, for each effect that varies
PAIRS = 1e8  # most links to count
MOST_DENSE = 2000  # kept effects: above, products cost less than a dense factor


class Blocks(NamedTuple):
    """S by its blocks: of u, of u and beta, and of beta."""

    u: Any  # sparse, an array or its products, [q, q]
    border: Float64[np.ndarray, "q P"]
    common: Float64[np.ndarray, "P P"]


def assemble(
    design: Design,
    curvature: Float64[np.ndarray, "n *V"],
    shared: Float64[np.ndarray, "C n *W"],
    precision: Any,
    common: Float64[np.ndarray, " P"],
    algebra: Algebra,
) -> Blocks:
    """S, given the prior precision of u (sparse) and of beta (its diagonal)."""
    border, own = design.common_curvature(curvature)
    own, parts = own + np.diag(common), []
    for values in shared:
        of_u, of_common = design.grouped(values), design.grouped_common(values)
        parts.append(of_u)
        border = border - of_u.T @ of_common
        own = own - of_common.T @ of_common
    if algebra == "dense" and design.dense is None and design.outer is not None:
        return Blocks(_scattered(design, curvature, parts, precision), border, own)
    u = design.kept_curvature(curvature) + precision
    if algebra == "iterative":
        return Blocks(Products(sp.csr_array(u), [sp.csr_array(of) for of in parts]), border, own)
    for of_u in parts:
        u = u - of_u.T @ of_u
    return Blocks(u, border, own)


def _scattered(
    design: Design, curvature: Float64[np.ndarray, " n"], parts: list[Any], precision: Any
) -> Float64[np.ndarray, "q q"]:
    """The lower triangle of the block of u."""
    assert design.outer is not None
    of_rows, of_groups = design.outer
    found = of_rows.sums([design.K.data], curvature[design.entries[0]])
    if of_groups is not None:
        found -= of_groups.sums([of_u.data for of_u in parts])
    found = found.reshape(of_rows.q, of_rows.q).T
    for own in [of_u.toarray() for of_u in parts if of_groups is None]:
        found -= own.T @ own
    prior = precision.tocoo()
    found[prior.coords] += prior.data
    return found


def choose(design: Design) -> Algebra:
    """Chooses by the number of kept effects and the pattern of S.

    A sparse factor stays sparse if levels are linked like a tree, as in nested designs. Crossed factors
    fill it up. Terms with few effects are ignored, since their columns are eliminated last.
    """
    q = design.K.shape[1]
    if q <= SMALL:
        return "dense"
    large = [term for term in design.kept if term.stop - term.start > FEW]
    columns = np.concatenate([np.arange(term.start, term.stop) for term in large] or [[]])
    touched = design.entries[2][:, columns.astype(np.int64)]
    most = LINKS * sum(term.effects for term in large) * len(columns)
    if float(np.sum(np.diff(touched.indptr).astype(np.float64) ** 2)) < PAIRS + 10.0 * most:
        own = design.K[:, columns.astype(np.int64)]
        if (touched.T @ touched + own.T @ own).nnz <= most:
            return "sparse"
    return "dense" if q <= MOST_DENSE else "iterative"


@dataclass(frozen=True)
class Kept:
    """S factorized: solves, its log determinant and draws with covariance S^-1."""

    of_u: Any  # the factor of the block of u
    back: Float64[np.ndarray, "q P"]  # its inverse times the border
    of_common: Any  # lower Cholesky factor of what is left of the block of beta
    log_det: float

    def solve(self, beta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """S^-1 (beta, u); vectors or columns."""
        common = sl.cho_solve((self.of_common, True), beta - self.back.T @ u)
        return common, self.of_u.solve(u) - self.back @ common

    def noise(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws with mean zero and covariance S^-1: [P, count] and [q, count]."""
        P = len(self.of_common)
        common = sl.solve_triangular(
            self.of_common, rng.normal(size=(P, count)), lower=True, trans=1
        )
        u = self.of_u.root_solve(rng.normal(size=(len(self.back), count)))
        return common, u - self.back @ common


def factorize(blocks: Blocks, algebra: Algebra, design: Design) -> Kept | Iterated:
    """The factor of S; raises LinAlgError if it is not positive definite."""
    if algebra == "iterative":
        return Iterated(*blocks, design.kept)
    factor = _Dense(blocks.u) if algebra == "dense" else _Sparse(blocks.u)
    back = factor.solve(blocks.border)
    left = blocks.common - blocks.border.T @ back
    of_common = sl.cholesky(left, lower=True) if len(left) else left
    log_det = factor.log_det + 2 * float(np.log(np.diag(of_common)).sum())
    return Kept(factor, back, of_common, log_det)


class _Dense:
    """A Cholesky factor."""

    def __init__(self, matrix: Any):
        q = matrix.shape[0]
        if q > 2000:
            check_memory(3 * 8 * q * q, None, f"{q:,} kept effects", "Use fewer levels")
        dense = matrix.toarray(order="F") if sp.issparse(matrix) else np.asfortranarray(matrix)
        # Calls LAPACK directly: scipy's function also checks, copies and clears, a third of the time.
        self.factor, failed = dpotrf(dense, lower=1, clean=0, overwrite_a=1) if q else (dense, 0)
        if failed or not np.isfinite(np.diag(self.factor)).all():
            raise np.linalg.LinAlgError(NOT_DEFINITE)
        self.log_det = 2 * float(np.log(np.diag(self.factor)).sum())

    def solve(self, right: np.ndarray) -> np.ndarray:
        """S^-1 right."""
        return sl.cho_solve((self.factor, True), right) if len(self.factor) else right

    def root_solve(self, noise: np.ndarray) -> np.ndarray:
        """L^-T noise."""
        if not len(self.factor):
            return noise
        return sl.solve_triangular(self.factor, noise, lower=True, trans=1)


class _Sparse:
    """SuperLU's factors of a symmetric matrix, pivoted on its diagonal: P S P' = L D L'."""

    def __init__(self, matrix: Any):
        options = {"SymmetricMode": True, "ColPerm": "MMD_AT_PLUS_A"}
        self.lu = splu(sp.csc_matrix(matrix), diag_pivot_thresh=0.0, options=options)
        pivots = self.lu.U.diagonal()
        if not (pivots > 0).all() or not np.array_equal(self.lu.perm_r, self.lu.perm_c):
            raise np.linalg.LinAlgError(NOT_DEFINITE)
        self.log_det, self.pivots = float(np.log(pivots).sum()), pivots
        self.lower = sp.csr_matrix(self.lu.L.T)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """S^-1 right."""
        return self.lu.solve(np.ascontiguousarray(right)) if right.size else right

    def root_solve(self, noise: np.ndarray) -> np.ndarray:
        """A square root of S^-1 times noise."""
        from scipy.sparse.linalg import spsolve_triangular

        x = spsolve_triangular(self.lower, noise / np.sqrt(self.pivots)[:, None], lower=False)
        return x[self.lu.perm_c]
