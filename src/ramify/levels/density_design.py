"""The rows of a model of log densities: each depends on a vector v, its z and kept effects side by side.

A row's log density is any smooth function of v, so its slope is a vector [V] and minus its curvature a
matrix [V, V]. The priors of effects are rows too, one for each level. Priors of the integrated factor's
levels belong to its groups; priors of kept levels belong to no group.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float64, Int64

from ramify.levels.design import Design, KeptTerm

DATA = -1  # the kind of the rows of the table; others are the priors of a factor's levels
Slopes = Float64[np.ndarray, "n V"]
Curvatures = Float64[np.ndarray, "n V V"]


class Part(NamedTuple):
    """Rows of one kind, with their columns."""

    kind: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    columns: dict[str, np.ndarray]


@dataclass(frozen=True)
class DensityDesign(Design):
    """Rows of a model of log densities; `W`, `X` and `offset` are not used, entries of `K` are ones.

    Rows of the table come first, then the priors of the groups, then those of kept levels, whose `code`
    is -1.
    """

    places: Int64[np.ndarray, "n m"]  # positions of a row's kept effects in u; q where it has none
    parts: tuple[Part, ...]
    slots: tuple[slice, ...]  # of v: the effects of each factor

    @property
    def M(self) -> int:
        """The dimension of z."""
        return self.W.shape[1]

    @property
    def q(self) -> int:
        """The number of kept effects."""
        return self.K.shape[1]

    @property
    def row_work(self) -> int:
        """The entries of a row's curvature."""
        return (self.M + self.places.shape[1]) ** 2

    @cached_property
    def grouped_rows(self) -> int:
        """The rows that are in a group, which come first."""
        return int((self.code >= 0).sum())

    # Programs get each part padded to a round size with copies of its last row ("padded rows" below).

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kind of each part."""
        return tuple(part.kind for part in self.parts)

    @property
    def padded_counts(self) -> tuple[int, ...]:
        """The number of padded rows of each part."""
        return tuple(padded(part.count) for part in self.parts)

    @cached_property
    def padded_rows(self) -> Int64[np.ndarray, " rows"]:
        """The row of the design behind each padded row."""
        found, start = [], 0
        for part, count in zip(self.parts, self.padded_counts, strict=True):
            found.append(start + np.minimum(np.arange(count), part.count - 1))
            start += part.count
        return np.concatenate(found)

    @cached_property
    def mask(self) -> Bool[np.ndarray, " rows"]:
        """Which of the padded rows are not copies."""
        each = zip(self.parts, self.padded_counts, strict=True)
        return np.concatenate([np.arange(count) < part.count for part, count in each])

    @cached_property
    def own_rows(self) -> Int64[np.ndarray, " n"]:
        """The positions of the design's rows among the padded rows."""
        return np.flatnonzero(self.mask)

    @cached_property
    def on_device(self) -> list[dict[str, Any]]:
        """The columns of the padded rows, by part, for JAX; call it where x64 is on."""
        found = []
        for part, count in zip(self.parts, self.padded_counts, strict=True):
            rows = np.minimum(np.arange(count), part.count - 1)
            found.append({name: jnp.asarray(c[rows]) for name, c in part.columns.items()})
        return found

    def without_z(self, beta: np.ndarray, u: np.ndarray) -> Slopes:
        """The vectors v with zeros for z."""
        found = np.zeros((len(self.code), self.M + self.places.shape[1]))
        found[:, self.M :] = np.append(u, 0.0)[self.places]
        return found

    def with_z(self, base: Slopes, z: Float64[np.ndarray, "N *K M"]) -> np.ndarray:
        """The vectors v at some z of each group, [n, V], or at several, [n, K, V]."""
        own, n = z[self.code[: self.grouped_rows]], self.grouped_rows
        found = np.repeat(base[:, None], z.shape[1], 1) if z.ndim == 3 else base.copy()
        found[:n, ..., : self.M] = own
        return found

    def eta(self, beta: np.ndarray, u: np.ndarray, z: Float64[np.ndarray, "N M"]) -> Slopes:
        """The vector v of every row."""
        return self.with_z(self.without_z(beta, u), z)

    def around(
        self, base: Slopes, z: np.ndarray, root: np.ndarray, points: Float64[np.ndarray, "K M"]
    ) -> np.ndarray:
        """The vectors v at z + root x of each group, for points x: [n, K, V]."""
        return self.with_z(base, z[:, None] + np.einsum("nij,kj->nki", root, points))

    def by_group(self, values: Float64[np.ndarray, "n *K"]) -> Float64[np.ndarray, "N *K"]:
        """Sums over the rows of each group."""
        n = self.grouped_rows
        if values.ndim == 1:
            return np.bincount(self.code[:n], values[:n], self.N)
        return np.stack([self.by_group(column) for column in values.T], 1)

    def loose(self, values: Float64[np.ndarray, " n"]) -> float:
        """The sum over the priors of kept levels."""
        return float(values[self.grouped_rows :].sum())

    def weighted(self, values: Slopes) -> Float64[np.ndarray, "N M"]:
        """Sums over the rows of each group of slopes in z."""
        return np.stack([self.by_group(values[:, m]) for m in range(self.M)], 1)

    def products(self, values: Curvatures) -> Float64[np.ndarray, "N M M"]:
        """Sums over the rows of each group of curvatures in z."""
        found = np.empty((self.N, self.M, self.M))
        for i, j in zip(*np.tril_indices(self.M), strict=True):
            found[:, i, j] = found[:, j, i] = self.by_group(values[:, i, j])
        return found

    def shared(
        self, curvature: Curvatures, root: Float64[np.ndarray, "N M M"]
    ) -> Float64[np.ndarray, "M n V"]:
        """Factors of what integrating z subtracts from the curvature in b, by Laplace's method."""
        return np.einsum("rvm,rmc->crv", curvature[:, :, : self.M], root[self.code])

    def changed(self, curvature: Curvatures, beta: np.ndarray, u: np.ndarray) -> Slopes:
        """The decrease of the rows' slopes by a step in b."""
        step = np.append(u, 0.0)[self.places]
        return np.einsum("rvk,rk->rv", curvature[:, :, self.M :], step)

    def kept_sum(self, values: Slopes) -> Float64[np.ndarray, " q"]:
        """Sums of slopes in the kept effects."""
        return np.bincount(self.places.ravel(), values[:, self.M :].ravel(), self.q + 1)[:-1]

    def common_sum(self, values: Slopes) -> Float64[np.ndarray, " 0"]:
        """An empty array: common effects are in theta."""
        return np.zeros(0)

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The used entries of the rows' curvatures, their places in S, and the keys of those places."""
        n, m = self.places.shape
        there = self.places < self.q
        both = (there[:, :, None] & there[:, None, :]).ravel()
        key = (self.places[:, :, None] * self.q + self.places[:, None, :]).ravel()[both]
        return np.flatnonzero(both), *_found(key, self.dense is not None)

    @cached_property
    def outer(self) -> None:
        """None: S is made from `_pairs` instead of pairs of entries of K."""
        return None

    def kept_curvature(self, curvature: Curvatures) -> Any:
        """The sum of the rows' curvatures in the kept effects, [q, q]."""
        own, place, distinct = self._pairs
        values = curvature[:, self.M :, self.M :].ravel()[own]
        return _matrix(place, distinct, values, (self.q, self.q))

    def common_curvature(self, curvature: Curvatures) -> tuple[np.ndarray, np.ndarray]:
        """Empty arrays: common effects are in theta."""
        return np.zeros((self.q, 0)), np.zeros((0, 0))

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `_pairs`, for slopes in the kept effects: used entries, places in G'K, their keys."""
        n = self.grouped_rows
        places = self.places[:n]
        there = (places < self.q).ravel()
        key = (self.code[:n, None] * self.q + places).ravel()[there]
        return np.flatnonzero(there), *_found(key, self.dense is not None)

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """As in `Design`, without the priors of kept levels, which are in no group."""
        own, n = self.code[: self.grouped_rows], self.grouped_rows
        one = Design(
            own, self.N, self.W[:n], self.X[:n], self.K[:n], self.offset[:n], {}, self.kept
        )
        return one.entries

    def grouped(self, values: Slopes) -> Any:
        """Sums over the rows of each group of slopes in the kept effects, [N, q]."""
        own, place, distinct = self._members
        flat = values[: self.grouped_rows, self.M :].ravel()[own]
        return _matrix(place, distinct, flat, (self.N, self.q))

    def grouped_common(self, values: Slopes) -> Float64[np.ndarray, "N 0"]:
        """An empty array: common effects are in theta."""
        return np.zeros((self.N, 0))

    def _slot(self, term: KeptTerm) -> int:
        """Where the effects of a kept term begin in v."""
        return self.M + sum(own.effects for own in self.kept if own.start < term.start)

    def of_term(self, term: KeptTerm) -> tuple[Int64[np.ndarray, " n"], np.ndarray]:
        """The level of a kept term that each row has, one past the last if none."""
        first = self.places[:, self._slot(term) - self.M]
        level = np.where(first < self.q, (first - term.start) // term.effects, term.levels)
        return level, np.zeros((len(level), 0))

    def by_level(
        self, term: KeptTerm, values: Float64[np.ndarray, " n"], rows: Any = slice(None)
    ) -> Float64[np.ndarray, " L"]:
        """Sums over the rows, or some rows, of each level of a kept term."""
        return np.bincount(self.of_term(term)[0][rows], values, term.levels + 1)[:-1]

    def level_products(self, term: KeptTerm, curvature: Curvatures) -> Float64[np.ndarray, "L m m"]:
        """Sums over the rows of each level of curvatures in its effects."""
        at, m = self._slot(term), term.effects
        found = np.empty((term.levels, m, m))
        for i, j in zip(*np.tril_indices(m), strict=True):
            own = self.by_level(term, curvature[:, at + i, at + j])
            found[:, i, j] = found[:, j, i] = own
        return found

    def moved_by(
        self, term: KeptTerm, delta: Float64[np.ndarray, "L K m"], effects: list[int], rows: Any
    ) -> np.ndarray:
        """The change of the rows' vectors v if a term's effects change by `delta`, [n, K, V]."""
        level = self.of_term(term)[0][rows]
        padded = np.concatenate([delta, np.zeros((1, *delta.shape[1:]))])
        found = np.zeros((len(level), delta.shape[1], self.M + self.places.shape[1]))
        found[:, :, [self._slot(term) + m for m in effects]] = padded[level]
        return found

    def expanded(self, slope: Slopes, curvature: Curvatures, moved: np.ndarray) -> np.ndarray:
        """The second-order expansion of the rows' log densities less their values, [n, K]."""
        bent = np.einsum("rkv,rvw,rkw->rk", moved, curvature, moved, optimize=True)
        return np.einsum("rv,rkv->rk", slope, moved) - 0.5 * bent

    def subset(self, groups: Int64[np.ndarray, " G"]) -> "DensityDesign":
        """The rows and priors of some groups, which get new numbers in this order."""
        place = np.full(self.N + 1, -1)
        place[groups] = np.arange(len(groups))
        return self.taken(place[self.code] >= 0, place, len(groups))

    @property
    def may_be_cut(self) -> bool:
        """False: a program takes all rows."""
        return False

    def observed(self) -> "DensityDesign":
        """The rows of the table alone."""
        return self.taken(
            np.arange(len(self.code)) < self.parts[0].count, np.arange(self.N), self.N
        )

    def common(self, beta: Float64[np.ndarray, "S 0"]) -> np.ndarray:
        """Vectors v of zeros, for each draw."""
        return np.zeros((len(beta), len(self.code), self.M + self.places.shape[1]))

    def add_effects(
        self, eta: Float64[np.ndarray, "S n V"], effects: np.ndarray, columns: Any, factor: int
    ) -> None:
        """Puts a factor's effects [S, n, m] into vectors v, in place."""
        eta[:, :, self.slots[factor]] = effects

    def taken(self, rows: np.ndarray, place: np.ndarray, N: int) -> "DensityDesign":
        """The rows of a mask, whose groups get new numbers by `place`."""
        parts, start = [], 0
        for part in self.parts:
            own = rows[start : start + part.count]
            columns = {name: column[own] for name, column in part.columns.items()}
            parts += [Part(part.kind, int(own.sum()), columns)] if own.any() else []
            start += part.count
        return replace(
            self,
            code=place[self.code[rows]],
            N=N,
            W=self.W[rows],
            X=self.X[rows],
            K=self.K[rows],
            offset=self.offset[rows],
            places=self.places[rows],
            parts=tuple(parts),
        )


def padded(count: int) -> int:
    """The number of rows rounded up a little: few different sizes, so few programs are compiled."""
    step = max(2 ** (max(count, 1).bit_length() - 3), 8)
    return -(-count // step) * step


def _found(key: np.ndarray, dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """The place of each key among the distinct keys, and these; for an array, the keys themselves."""
    if dense:
        return key, np.zeros(0, np.int64)
    distinct, place = np.unique(key, return_inverse=True)
    return place, distinct


def _matrix(place: np.ndarray, distinct: np.ndarray, values: np.ndarray, shape: Any) -> Any:
    """An array, or a sparse matrix if `distinct` has the keys of its entries."""
    rows, columns = shape
    if not len(distinct):
        return np.bincount(place, values, rows * columns).reshape(shape)
    start = np.searchsorted(distinct, np.arange(rows + 1) * columns)
    data = np.bincount(place, values, len(distinct))
    return sp.csr_array((data, distinct % columns, start), shape)


def density_design(
    order: tuple[int, ...],
    sizes: tuple[int, ...],
    levels: tuple[int, ...],
    codes: dict[int, dict[int, np.ndarray]],
    parts: list[Part],
) -> DensityDesign:
    """The design of parts of rows.

    Args:
        order: the factors, the integrated one first.
        sizes: the number of effects of each factor.
        levels: the number of levels of each factor.
        codes: for each kind of rows, the levels of those factors that they have; -1 for none.
        parts: the kinds of rows.
    """
    M, terms, start = sizes[order[0]], [], 0
    slots, at = {order[0]: slice(0, M)}, M
    for f in order[1:]:
        terms.append(KeptTerm(start, levels[f], sizes[f]))
        slots[f], at = slice(at, at + sizes[f]), at + sizes[f]
        start = terms[-1].stop
    places, code = [], []
    for part in parts:
        own, none = codes[part.kind], np.full(part.count, -1)
        code.append(own.get(order[0], none))
        blocks = []
        for f, term in zip(order[1:], terms, strict=True):
            level = own.get(f, none)[:, None]
            at = term.start + level * term.effects + np.arange(term.effects)
            blocks.append(np.where(level >= 0, at, start))
        places.append(np.concatenate(blocks, 1))
    joined = np.concatenate(places).astype(np.int64)
    n, there = len(joined), joined < start
    row = np.nonzero(there)[0]
    K: Any = sp.csr_array((np.ones(len(row)), (row, joined[there])), (n, start))
    none, W = np.zeros((n, 0)), np.zeros((n, M))
    own = np.concatenate(code).astype(np.int64), levels[order[0]], W, none, K, np.zeros(n), {}
    slot = tuple(slots[f] for f in range(len(order)))
    return DensityDesign(*own, tuple(terms), joined, tuple(parts), slot)
