"""The integral over z of the integrated factor's groups, given theta and b, with its derivatives in b.

Around each group's mode, found by Newton, a quadrature rule gives log p^(y_i | theta, b). With E the
mean by the rule's weights, the slope in b is E[s_r] (Fisher) and minus the curvature is E[W_r] less the
covariance of the scores (Louis). The score s_r of a row is a smooth function of z, so this covariance is
a sum of outer products of E[s_r phi_c], for a few orthonormal polynomials phi_c of z. With one point, the
mode, this is Laplace's method, which is exact if the model is linear and Gaussian.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.design import Design
from ramify.levels.model import Derivatives, Given, LevelsModel, differentiate
from ramify.numerics.points import Rule, gauss_hermite

ORDERS = {1: 9, 2: 5, 3: 4, 4: 3}  # points along each dimension of z; beyond, Laplace's method
LARGE = 15  # mean rows per group: above, z is nearly normal and five points are enough
WORK = 3e8  # most evaluations of rows in one integral
CLOSE = 1e-10  # nats that a last step of Newton may gain, per group
MOST_STEPS = 30


class Solved(NamedTuple):
    """The modes of z given b, and the Gaussians around them."""

    z: Float64[np.ndarray, "N M"]
    rows: Derivatives  # at the modes
    root: Float64[np.ndarray, "N M M"]  # L with L L' the inverse of minus the Hessian in z
    value: Float64[np.ndarray, " N"]  # log p(y_i, z_i | theta, b) at the modes


class Integral(NamedTuple):
    """The integral over z given b, and its derivatives for the search for b."""

    groups: Float64[np.ndarray, " N"]  # log p^(y_i | theta, b)
    slope: Float64[np.ndarray, " n"]  # E[s_r]
    curvature: Float64[np.ndarray, " n"]  # E[W_r]
    shared: Float64[np.ndarray, "C n"]  # E[s_r phi_c]; subtract their outer products by group
    solved: Solved

    @property
    def value(self) -> float:
        """The sum over groups."""
        return float(self.groups.sum())


def rule_for(model: LevelsModel, n_rows: int, N: int) -> Rule | None:
    """The quadrature rule for z; None for Laplace's method."""
    order = ORDERS.get(model.M, 1)
    if n_rows > LARGE * N:
        order = min(order, 5)
    while order > 1 and n_rows * order**model.M > WORK:
        order -= 2
    return None if model.linear or order <= 1 else gauss_hermite(order, model.M)


def solve(
    model: LevelsModel, given: Given, design: Design, base: np.ndarray, z: np.ndarray
) -> Solved:
    """The modes of z by Newton's method, damped by group; `base` is the linear predictor without z."""
    found = _evaluate(model, given, design, base, z)
    for _ in range(MOST_STEPS):
        slope = design.weighted(found.rows.slope) - found.z @ given.precision
        step = np.einsum("nij,nkj,nk->ni", found.root, found.root, slope)
        gain = np.einsum("nm,nm->n", step, slope)
        if gain.max(initial=0.0) < CLOSE * (1 + np.abs(found.value).max(initial=0.0) * 1e-3):
            break
        tried = _evaluate(model, given, design, base, found.z + step)
        worse = ~(tried.value >= found.value - 1e-9 * (1 + np.abs(found.value)))
        for _ in range(8):
            if not worse.any():
                break
            step[worse] *= 0.3
            tried = _evaluate(model, given, design, base, found.z + step)
            worse = ~(tried.value >= found.value - 1e-9 * (1 + np.abs(found.value)))
        found = tried
        if model.linear:
            break
    return found


def _evaluate(
    model: LevelsModel, given: Given, design: Design, base: np.ndarray, z: np.ndarray
) -> Solved:
    rows = model.convex(differentiate(model, given, design, design.with_z(base, z)))
    root = root_of(given.precision + design.products(rows.curvature))
    value = design.by_group(rows.value) - 0.5 * np.einsum("ni,ij,nj->n", z, given.precision, z)
    value += 0.5 * (given.log_det - model.M * np.log(2 * np.pi))
    return Solved(z, rows, root, value)


def root_of(precision: Float64[np.ndarray, "N M M"]) -> Float64[np.ndarray, "N M M"]:
    """L, lower triangular, with L L' the inverse: by a Cholesky factor in reversed order.

    A matrix that is not positive definite is replaced by a nearby one that is.
    """
    try:
        factor = np.linalg.cholesky(precision[:, ::-1, ::-1])
    except np.linalg.LinAlgError:
        if not np.isfinite(precision).all():
            raise
        values, vectors = np.linalg.eigh(precision)
        floor = 1e-4 * np.maximum(np.abs(values).max(1, keepdims=True), 1e-12)
        near = np.einsum("nij,nj,nkj->nik", vectors, np.maximum(np.abs(values), floor), vectors)
        factor = np.linalg.cholesky(near[:, ::-1, ::-1])
    return np.swapaxes(np.linalg.inv(factor), 1, 2)[:, ::-1, ::-1]


def integrate(
    model: LevelsModel,
    given: Given,
    design: Design,
    base: np.ndarray,
    solved: Solved,
    rule: Rule | None,
) -> Integral:
    """The integral over z around the modes; `base` is the linear predictor without z."""
    volume = np.log(np.diagonal(solved.root, axis1=1, axis2=2)).sum(1)
    rows = solved.rows
    if rule is None:
        value = solved.value + volume + 0.5 * model.M * np.log(2 * np.pi)
        shared = design.shared(rows.curvature, solved.root)
        return Integral(value, rows.slope, rows.curvature, shared, solved)
    points, log_weight = np.asarray(rule.points), np.asarray(rule.log_weight)
    z = solved.z[:, None] + np.einsum("nij,kj->nki", solved.root, points)  # [N, K, M]
    eta = design.around(base, solved.z, solved.root, points)
    rows = differentiate(model, given, design, eta)
    height = design.by_group(rows.value)
    height += -0.5 * np.einsum("nki,ij,nkj->nk", z, given.precision, z)
    height += 0.5 * (given.log_det - model.M * np.log(2 * np.pi)) + log_weight
    top = height.max(1, keepdims=True)
    weight = np.exp(height - top)
    total = weight.sum(1, keepdims=True)
    value = (np.log(total) + top)[:, 0] + volume
    weight /= total
    mean = lambda weight, values: np.einsum("rk,rk...->r...", weight[design.code], values)
    shared = [mean(weight * phi, rows.slope) for phi in _polynomials(points, weight)]
    slope, curvature = mean(weight, rows.slope), mean(weight, rows.curvature)
    return Integral(value, slope, curvature, np.stack(shared), solved)


def _polynomials(
    points: Float64[np.ndarray, "K M"], weight: Float64[np.ndarray, "N K"]
) -> list[Float64[np.ndarray, "N K"]]:
    """Polynomials at the points, without the constant, orthonormal under each group's weights."""
    M = points.shape[1]
    powers = [points[:, m] for m in range(M)]
    powers += [points[:, i] * points[:, j] for i in range(M) for j in range(i + 1)]
    powers += [points[:, m] ** 3 for m in range(M)] if M == 1 else []
    found: list[np.ndarray] = []
    for power in powers:
        own = np.broadcast_to(power, weight.shape)
        for other in [np.ones_like(weight), *found]:
            own = own - np.einsum("nk,nk,nk->n", weight, own, other)[:, None] * other
        size = np.sqrt(np.einsum("nk,nk->n", weight, own**2))
        found.append(own * np.where(size > 1e-8, 1 / np.maximum(size, 1e-8), 0.0)[:, None])
    return found
