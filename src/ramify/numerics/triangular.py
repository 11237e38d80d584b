"""Gaussians with triangular scale factors: the maps from free numbers, draws and densities.

A scale is either a vector (diagonal) or a lower triangular matrix, with any leading axes. Both are
built from a free vector: the diagonal's entries first, then the rows of the strict lower triangle.
"""

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ramify.numerics.arrays import floats
from ramify.numerics.small_linalg import solve_lower

Covariance = Literal["dense", "block", "diagonal"]
ScaleMap = Literal["log", "paper"]

FREEDOM = 8.0  # degrees of freedom of importance proposals: tails heavier than any Gaussian's
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def free_size(dim: int, diagonal: bool) -> int:
    """How many free numbers a scale of this dimension has."""
    return dim if diagonal else dim * (dim + 1) // 2


def free_start(dim: int, diagonal: bool, scale: float, map: ScaleMap) -> Float[Array, " free"]:
    """Free numbers of the scale `scale * I`."""
    first = math.log(scale) if map == "log" else scale - 1 / scale
    return floats(np.where(np.arange(free_size(dim, diagonal)) < dim, first, 0.0))


def positive_map(x: Float[Array, "..."], gamma: float = 1.0) -> Float[Array, "..."]:
    """The paper's map to the positive numbers, x -> (x + sqrt(x^2 + 4 gamma)) / 2 (appendix A)."""
    # For x far below zero it is about -gamma/x, computed so that nothing cancels.
    root = jnp.sqrt(x**2 + 4 * gamma)
    # The first form at zero, where the paper starts: JAX's slope of |x| there is not that of -x.
    return jnp.where(x >= 0, (x + root) / 2, 2 * gamma / (root + jnp.abs(x)))


@partial(jax.jit, static_argnames=("dim", "diagonal", "map"), inline=True)
def scale_factor(
    free: Float[Array, "*batch free"], dim: int, diagonal: bool, map: ScaleMap
) -> Float[Array, "..."]:
    """The scale L of free numbers: a vector if diagonal, else lower triangular with L_ii > 0."""
    # `log` is ours: L = diag(exp s) U with U unit lower triangular, so that one number moves a whole
    # row through orders of magnitude. `paper` maps the diagonal by `positive_map`.
    first = free[..., :dim]
    size = jnp.exp(first) if map == "log" else positive_map(first)
    if diagonal:
        return size
    rows, columns = np.tril_indices(dim, -1)
    below = jnp.zeros((*free.shape[:-1], dim, dim), free.dtype)
    # `add`, since each place is written once into zeros: the derivative of `set` costs more.
    below = below.at[..., rows, columns].add(free[..., dim:], unique_indices=True)
    eye = jnp.broadcast_to(jnp.eye(dim, dtype=free.dtype), below.shape)
    if map == "log":
        return size[..., None] * (below + eye)
    return below + size[..., None] * eye


@partial(jax.jit, static_argnames=("diagonal", "map"), inline=True)
def free_numbers(factor: Float[Array, "..."], diagonal: bool, map: ScaleMap) -> Array:
    """The free numbers of a scale: the inverse of `scale_factor`."""
    size = factor if diagonal else jnp.diagonal(factor, axis1=-2, axis2=-1)
    first = jnp.log(size) if map == "log" else size - 1 / size
    if diagonal:
        return first
    rows, columns = np.tril_indices(factor.shape[-1], -1)
    below = factor / size[..., None] if map == "log" else factor
    return jnp.concatenate([first, below[..., rows, columns]], -1)


def times(scale: Array, noise: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """L @ noise, for a vector or a matrix L."""
    if scale.ndim == noise.ndim:
        return scale * noise
    return jnp.einsum("...ij,...j->...i", scale, noise)


def whiten(
    scale: Array, x: Float[Array, "*batch dim"], known: Float[Array, "*batch dim"] | None = None
) -> Float[Array, "*batch dim"]:
    """L^-1 x, for a vector or lower triangular matrix L; `known` is the result, if x is a draw."""
    # For an ill-conditioned L a solve in float32 loses the noise, and fits diverge: hence `known`.
    if known is not None:
        return _with_value(whiten(scale, x), jax.lax.stop_gradient(known))
    if scale.ndim == x.ndim:
        return x / scale
    if scale.ndim == 2:  # one matrix, perhaps a large one
        return solve_triangular(scale, x, lower=True)
    return solve_lower(scale, x)


@jax.custom_jvp
def _with_value(computed: Array, known: Array) -> Array:
    """`known`, with the derivative of `computed`."""
    return known


_with_value.defjvps(lambda t, *_: t, None)


def log_det(scale: Array, diagonal: bool) -> Float[Array, "*batch"]:
    """Log |L|; `diagonal` is passed, since ten vectors of ten have the shape of a matrix."""
    if not diagonal:
        scale = jnp.diagonal(scale, axis1=-2, axis2=-1)
    return jnp.sum(jnp.log(scale), -1)


def log_density(noise: Float[Array, "*batch dim"], log_det: Float[Array, "*batch"]) -> Array:
    """Log density of mean + L noise, from the noise itself: no triangular solve (appendix A)."""
    return -0.5 * jnp.sum(noise**2, -1) - noise.shape[-1] * _HALF_LOG_2PI - log_det


def log_density_t(noise: Float[Array, "*batch dim"], log_det: Float[Array, "*batch"]) -> Array:
    """Log density of mean + L noise for noise from the standard Student t with `FREEDOM`."""
    dim, v = noise.shape[-1], FREEDOM
    return constant_t(dim) - 0.5 * (v + dim) * jnp.log1p(jnp.sum(noise**2, -1) / v) - log_det


def gaussian_over_t(noise: Float[np.ndarray, "*batch dim"]) -> np.ndarray:
    """Log of the standard normal density of noise over its standard Student t density, by NumPy.

    Example:
        >>> noise = np.array([[0.0, 0.0], [1.0, -2.0]])
        >>> other = log_density(noise, np.zeros(2)) - log_density_t(noise, np.zeros(2))
        >>> bool(np.allclose(gaussian_over_t(noise), other, atol=1e-5))
        True
    """
    dim, v, squared = noise.shape[-1], FREEDOM, np.sum(noise**2, -1)
    log_t = constant_t(dim) - 0.5 * (v + dim) * np.log1p(squared / v)
    return -0.5 * squared - dim * _HALF_LOG_2PI - log_t


def constant_t(dim: int) -> float:
    """Log density of the standard Student t at zero."""
    v = FREEDOM
    return math.lgamma((v + dim) / 2) - math.lgamma(v / 2) - 0.5 * dim * math.log(v * math.pi)
