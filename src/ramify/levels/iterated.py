"""An S too large to be formed: products with vectors, conjugate gradients and Lanczos' method.

With R the inverse roots of the diagonal blocks, one for each level, S~ = R' S R has ones on its diagonal.
Two kinds of coarse directions Z are eliminated exactly: the common effects and, for every effect, the
mean over its levels, along which S is nearly singular. On what is left,

    H = S~ - S~ Z E^-1 Z' S~,    E = Z' S~ Z,    log |S| = -2 log |R| + log |E| + tr log H

conjugate gradients solve. Lanczos' method from fixed random signs, the probes, estimates tr log H, whose
part linear in H - 1 is known exactly. The same method gives H^-1/2 times noise for draws.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from jaxtyping import Float64

from ramify.levels.design import KeptTerm

PROBES = 16
CLOSE = 1e-3  # relative residual at which Lanczos' method ends; the error of traces is its square
SOLVED = 1e-6  # relative residual of solves
MOST_ITERATIONS = 400
TOGETHER = 5e7  # numbers in the basis of a run of Lanczos' method
LOOKED = 4  # iterations between two looks at the residual
NOT_DEFINITE = "the curvature in the kept effects is not positive definite"
Columns = Float64[np.ndarray, "q k"]


class Products(NamedTuple):
    """The matrix A - sum_c B_c' B_c, kept as A and the B_c."""

    whole: Any  # A, sparse [q, q]
    less: list[Any]  # the B_c, sparse [N, q]

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        found = self.whole @ x
        for own in self.less:
            found -= own.T @ (own @ x)
        return found

    def scaled(self, R: Any) -> "Products":
        """R' self R."""
        return Products(
            sp.csr_array(R.T @ self.whole @ R), [sp.csr_array(own @ R) for own in self.less]
        )

    def block(self, term: KeptTerm) -> Float64[np.ndarray, "L m m"]:
        """The diagonal blocks of a term's levels."""
        m = term.effects
        found = np.empty((term.levels, m, m))
        own = [sp.csc_array(less[:, term.start : term.stop]) for less in self.less]
        for i in range(m):
            for j in range(i + 1):
                place = slice(term.start + j, term.stop, m)
                found[:, i, j] = self.whole.diagonal(i - j)[place][: term.levels]
                for less in own:
                    found[:, i, j] -= (less[:, i::m] * less[:, j::m]).sum(0)
                found[:, j, i] = found[:, i, j]
        return found


def roots(matrix: Products, terms: tuple[KeptTerm, ...]) -> tuple[Any, Any, float]:
    """The transposed Cholesky factors of the diagonal blocks and their inverses, R; and -log |R|."""
    factors = [np.linalg.cholesky(matrix.block(term)) for term in terms]
    turned = [np.swapaxes(factor, 1, 2) for factor in factors]
    diagonals = [np.diagonal(factor, axis1=1, axis2=2) for factor in factors]
    log_det = sum(float(np.log(diagonal).sum()) for diagonal in diagonals)
    return _blocks(turned), _blocks([np.linalg.inv(own) for own in turned]), log_det


def _blocks(values: list[Float64[np.ndarray, "L m m"]]) -> Any:
    """A sparse matrix with these blocks along its diagonal."""
    parts = []
    for own in values:
        L, m, _ = own.shape
        place = np.arange(L * m).reshape(L, m)
        index = np.broadcast_to(place[:, :, None], own.shape), np.repeat(place, m, 0).ravel()
        parts.append(sp.csr_array((own.ravel(), (index[0].ravel(), index[1])), (L * m, L * m)))
    return sp.csr_array(sp.block_diag(parts))


def constants(terms: tuple[KeptTerm, ...]) -> Float64[np.ndarray, "q k"]:
    """A column for each effect of each term, with ones at this effect of all levels."""
    found = np.zeros((terms[-1].stop, sum(term.effects for term in terms)))
    column = 0
    for term in terms:
        for m in range(term.effects):
            found[term.start + m : term.stop : term.effects, column] = 1.0
            column += 1
    return found


class Iterated:
    """S by its products: solves, an estimate of its log determinant, and draws with covariance S^-1.

    `iterations` counts those of the last solve and of the last run of Lanczos' method; `stalled` says
    whether any solve or run did not converge.
    """

    def __init__(
        self,
        u: Products,
        border: Float64[np.ndarray, "q P"],
        common: Float64[np.ndarray, "P P"],
        terms: tuple[KeptTerm, ...],
    ):
        root, self.R, self.log_roots = roots(u, terms)
        self.S, P = u.scaled(self.R), len(common)
        # Coarse directions of u, in the coordinates of R; those of beta are unit vectors.
        self.coarse = np.asarray(sl.qr(root @ constants(terms), mode="economic")[0])
        self.coupled = np.column_stack([self.R.T @ border, self.S @ self.coarse])  # [q, P + k]
        inside = self.coarse.T @ self.coupled
        E = np.block([[common, inside[:, :P].T], [inside[:, :P], inside[:, P:]]])
        self.E = sl.cholesky(0.5 * (E + E.T), lower=True)
        self.coupled -= self.coarse @ inside
        self.P, self.iterations, self.stalled = P, [0, 0], False

    def product(self, x: np.ndarray) -> np.ndarray:
        """H x, for x without a part along the coarse directions."""
        found = self.S @ x
        found -= self.coupled @ sl.cho_solve((self.E, True), self.coupled.T @ x)
        return self._apart(found)

    def _apart(self, x: np.ndarray) -> np.ndarray:
        return x - self.coarse @ (self.coarse.T @ x)

    def _whole(self, c: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Effects (beta, u) from their coarse and other parts."""
        c = c - sl.cho_solve((self.E, True), self.coupled.T @ w)
        return c[: self.P], self.R @ (w + self.coarse @ c[self.P :])

    def solve(self, beta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """S^-1 (beta, u); vectors or columns."""
        right = self.R.T @ u
        c = sl.cho_solve((self.E, True), np.concatenate([beta, self.coarse.T @ right]))
        rest = self._apart(right) - self.coupled @ c
        if rest.ndim == 1:
            return self._whole(c, self._conjugate_gradients(rest))
        each = [self._conjugate_gradients(column) for column in rest.T]
        return self._whole(c, np.stack(each, 1) if each else rest)

    def _conjugate_gradients(self, right: np.ndarray) -> np.ndarray:
        counted = [0]

        def count(_: Any) -> None:
            counted[0] += 1

        make: Any = sla.LinearOperator
        operator = make((len(right),) * 2, matvec=self.product)
        found, left = sla.cg(operator, right, rtol=SOLVED, maxiter=MOST_ITERATIONS, callback=count)
        self.iterations[0], self.stalled = counted[0], self.stalled or left > 0
        return self._apart(found)

    @cached_property
    def log_dets(self) -> Float64[np.ndarray, " probes"]:
        """The log determinant by each probe."""
        q = len(self.coarse)
        signs = np.random.default_rng(0).integers(0, 2, (q, PROBES)) * 2.0 - 1.0
        start = self._apart(signs)
        run = self._lanczos(start)
        size = np.sum(start**2, 0)
        traces = np.array([run.quadratic(k, np.log) for k in range(PROBES)]) * size
        # H - 1 is close to log H and its trace is known, so the probes' error in it is subtracted.
        back = sl.solve_triangular(self.E, self.coupled.T, lower=True)
        trace = self.coarse.shape[1] - float(np.sum(self.coarse * (self.S @ self.coarse)))
        linear = (run.diagonal[:, 0] - 1) * size - (trace - float(np.sum(back**2)))
        share = float(linear @ (traces - traces.mean()) / max(linear @ linear, 1e-300))
        exact = 2 * self.log_roots + 2 * float(np.log(np.diag(self.E)).sum())
        return exact + traces - np.clip(share, 0.0, 3.0) * linear

    @property
    def log_det(self) -> float:
        """The estimate: the mean over the probes."""
        return float(self.log_dets.mean())

    def noise(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws with mean zero and covariance S^-1: [P, count] and [q, count]."""
        q, k = self.coarse.shape
        few = int(np.clip(TOGETHER / (40 * q), 1, 64))
        beta, u = np.empty((self.P, count)), np.empty((q, count))
        for begin in range(0, count, few):
            own = slice(begin, min(begin + few, count))
            size = own.stop - own.start
            start = self._apart(rng.normal(size=(q, size)))
            w = self._lanczos(start, keep=True).root_solved(np.linalg.norm(start, axis=0))
            c = sl.solve_triangular(
                self.E, rng.normal(size=(self.P + k, size)), lower=True, trans=1
            )
            beta[:, own], u[:, own] = self._whole(c, self._apart(w))
        return beta, u

    def _lanczos(self, start: Columns, *, keep: bool = False) -> "Run":
        """Lanczos' method from each column, until conjugate gradients would have small residuals."""
        diagonal, beside, basis, run = [], [], [], None
        for vector, a, b in steps(self.product, start):
            diagonal.append(a)
            beside.append(b)
            basis += [vector] if keep else []
            run = Run(np.stack(diagonal, 1), np.stack(beside, 1), basis)
            done = len(diagonal) >= min(MOST_ITERATIONS, len(start))
            if done or (len(diagonal) % LOOKED == 0 and run.residual() < CLOSE):
                break
        self.iterations[1] = len(diagonal)
        self.stalled = self.stalled or len(diagonal) == MOST_ITERATIONS
        assert run is not None
        return run


def steps(
    product: Callable[[Columns], Columns], start: Columns
) -> Iterator[tuple[Columns, Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]]:
    """The vectors of Lanczos' method, column by column, and the entries of its tridiagonal matrices."""
    vector = start / np.linalg.norm(start, axis=0)
    before, b = np.zeros_like(vector), np.zeros(vector.shape[1])
    while True:
        moved = product(vector)
        moved -= b * before
        a = np.einsum("qk,qk->k", vector, moved)
        moved -= a * vector
        b = np.linalg.norm(moved, axis=0)
        yield vector, a, b
        before, vector = vector, moved / np.maximum(b, 1e-300)


class Run(NamedTuple):
    """The tridiagonal matrices of a run of Lanczos' method, one for each column, and its vectors."""

    diagonal: Float64[np.ndarray, "k T"]
    beside: Float64[np.ndarray, "k T"]
    basis: list[Columns]

    def _decomposed(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = sl.eigh_tridiagonal(self.diagonal[column], self.beside[column, :-1])
        if not values[0] > 0:
            raise np.linalg.LinAlgError(NOT_DEFINITE)
        return values, vectors

    def residual(self) -> float:
        """The largest relative residual that conjugate gradients have after these iterations."""
        worst = 0.0
        for column in range(len(self.diagonal)):
            values, vectors = self._decomposed(column)
            last = np.sum(vectors[-1] * vectors[0] / values)
            worst = max(worst, abs(float(last)) * self.beside[column, -1])
        return worst

    def quadratic(self, column: int, function: Callable[[np.ndarray], np.ndarray]) -> float:
        """The form v' f(H) v of the normed column."""
        values, vectors = self._decomposed(column)
        return float(np.sum(vectors[0] ** 2 * function(values)))

    def root_solved(self, size: Float64[np.ndarray, " k"]) -> Columns:
        """H^-1/2 times the columns, whose norms are `size`."""
        found = np.zeros_like(self.basis[0])
        weights = []
        for column in range(len(self.diagonal)):
            values, vectors = self._decomposed(column)
            weights.append(vectors @ (vectors[0] / np.sqrt(values)) * size[column])
        for vector, own in zip(self.basis, np.stack(weights, 1), strict=True):
            found += vector * own
        return found
