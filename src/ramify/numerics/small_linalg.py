"""Many small matrices at once: factors and solves by elimination, all matrices in step.

For M x M matrices with M up to a few dozen this is a handful of fused passes over the batch, on a
CPU and on an accelerator; a library call takes the matrices one by one. On a CPU there is a second
reason: in jaxlib 0.10 a batched LAPACK call waits for threads of the pool it runs in, so as many
concurrent calls as there are cores wait for each other forever.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNROLLED = 8  # dimensions up to which the passes are written out one after the other
WRITTEN_OUT = 2  # dimensions up to which every entry is: it compiles in a third of the time


@jax.custom_jvp
def inverse_factor(precision: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """Lower triangular L with L L' = precision^-1; not finite if that is not positive definite."""
    # The Cholesky factor of the matrix with reversed rows and columns is an upper factor U U' of
    # the matrix itself, and the transpose of its inverse is lower triangular.
    M = precision.shape[-1]
    if M <= WRITTEN_OUT:
        return _small_inverse_factor(precision)
    eye = jnp.broadcast_to(jnp.eye(M, dtype=precision.dtype), precision.shape)
    both = jnp.concatenate([precision[..., ::-1, ::-1], eye], -1)

    def pivot(j: Any, both: Float[Array, "*batch M wide"]) -> Float[Array, "*batch M wide"]:
        """Divides row j by its root and eliminates it below: [A | I] ends as [C' | C^-1]."""
        root = jnp.sqrt(both[..., j, j])[..., None]
        row = both[..., j, :] / root
        share = jnp.where(jnp.arange(M) > j, both[..., j] / root, 0)
        return (both - share[..., None] * row[..., None, :]).at[..., j, :].set(row)

    both = jax.lax.fori_loop(0, M, pivot, both, unroll=M <= UNROLLED)
    return both[..., M:][..., ::-1, ::-1].swapaxes(-1, -2)


def _small_inverse_factor(precision: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """`inverse_factor` for M of 1 or 2, entry by entry."""
    (a, _), (b, c) = _entries(precision)
    last = jnp.sqrt(c)
    below = b / last
    first = jnp.sqrt(a - below * below)
    return _lower(1 / first, -below / (last * first), 1 / last, precision.shape[-1])


def _entries(matrix: Float[Array, "*batch M M"]) -> list[list[Array]]:
    """The entries of a 2 x 2 matrix; those of a 1 x 1 matrix with a 1 added to its diagonal."""
    if matrix.shape[-1] == 1:
        one = matrix[..., 0, 0]
        return [[one, jnp.zeros_like(one)], [jnp.zeros_like(one), jnp.ones_like(one)]]
    return [[matrix[..., i, j] for j in range(2)] for i in range(2)]


def _lower(a: Array, b: Array, c: Array, M: int) -> Float[Array, "*batch M M"]:
    """[[a, 0], [b, c]], or [[a]] if M is 1."""
    if M == 1:
        return a[..., None, None]
    rows = jnp.stack([a, jnp.zeros_like(a)], -1), jnp.stack([b, c], -1)
    return jnp.stack(rows, -2)


@inverse_factor.defjvp
def _inverse_factor_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """By dL = -L F(L' dP L); F keeps the lower triangle and half of the diagonal."""
    factor = inverse_factor(*primals)
    # Zero, not NaN, where there is no factor: callers replace the factor, and NaN would spread.
    real = jnp.isfinite(factor).all((-2, -1), keepdims=True)
    known, moved = (jnp.where(real, x, 0) for x in (factor, tangents[0]))
    change = known.swapaxes(-1, -2) @ moved @ known
    half = jnp.tril(change) - 0.5 * change * jnp.eye(change.shape[-1], dtype=change.dtype)
    return factor, -known @ half


def solve_lower(
    factor: Float[Array, "*batch M M"], x: Float[Array, "*batch M"]
) -> Float[Array, "*batch M"]:
    """L^-1 x for lower triangular L, by forward substitution."""
    M = x.shape[-1]

    def substitute(j: Any, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        known = x[..., j] / factor[..., j, j]
        rest = jnp.where(jnp.arange(M) > j, factor[..., j], 0)
        return (x - rest * known[..., None]).at[..., j].set(known)

    return jax.lax.fori_loop(0, M, substitute, x, unroll=M <= UNROLLED)


@jax.custom_jvp
def inverse_lower(factor: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """The inverse of lower triangular matrices, row by row: M short passes in a loop.

    Example:
        >>> inverse_lower(jnp.array([[2.0, 0.0], [1.0, 1.0]])).tolist()
        [[0.5, 0.0], [-0.5, 1.0]]
    """
    M = factor.shape[-1]
    if M <= WRITTEN_OUT:
        (a, _), (b, c) = _entries(factor)
        return _lower(1 / a, -b / (a * c), 1 / c, M)
    eye = jnp.eye(M, dtype=factor.dtype)

    def row(j: Any, inverse: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
        """Computes row j from the rows above it; the rows below are still zero."""
        own, one = (jax.lax.dynamic_index_in_dim(x, j, -2) for x in (factor, eye))
        pivot = jax.lax.dynamic_index_in_dim(own, j, -1)
        new = (one - jnp.sum(own.swapaxes(-1, -2) * inverse, -2, keepdims=True)) / pivot
        return jax.lax.dynamic_update_index_in_dim(inverse, new, j, -2)

    return jax.lax.fori_loop(0, M, row, jnp.zeros_like(factor))


@inverse_lower.defjvp
def _inverse_lower_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """By dX = -X dL X."""
    inverse = inverse_lower(*primals)
    return inverse, -inverse @ tangents[0] @ inverse


# Batches along the last axis: on a CPU the loops over the batch are then contiguous, which takes a third
# of the time. Moving the axis costs as much as that gains.


def times(matrix: Float[Array, "I J #B"], x: Float[Array, "J #B"]) -> Float[Array, "I #B"]:
    """Matrix times vector for each in the batch; either may be one for all."""
    terms = [matrix[:, j] * x[j] for j in range(len(x))]
    return sum(terms[1:], terms[0])


def product(left: Float[Array, "I J #B"], right: Float[Array, "J K #B"]) -> Float[Array, "I K #B"]:
    """Matrix products of the batch; either factor may be one for all."""
    terms = [left[:, j, None] * right[j] for j in range(len(right))]
    return sum(terms[1:], terms[0])


def log_diagonal(matrix: Float[Array, "M M B"]) -> Float[Array, "M B"]:
    """Logs of diagonals."""
    return jnp.log(jnp.stack([matrix[j, j] for j in range(len(matrix))]))


def inverse_factor_last(precision: Float[Array, "M M B"]) -> Float[Array, "M M B"]:
    """`inverse_factor` of matrices in the last axis, without a derivative.

    Example:
        >>> factor = inverse_factor_last(jnp.array([[4.0, 2.0], [2.0, 2.0]])[..., None])[..., 0]
        >>> (factor @ factor.T).round(4).tolist()
        [[0.5, -0.5], [-0.5, 1.0]]
    """
    M = len(precision)
    eye = jnp.broadcast_to(jnp.eye(M, dtype=precision.dtype)[..., None], precision.shape)
    both = jnp.concatenate([precision[::-1, ::-1], eye], 1)

    def pivot(j: Any, both: Float[Array, "M wide B"]) -> Float[Array, "M wide B"]:
        root = jnp.sqrt(both[j, j])
        row = both[j] / root
        share = jnp.where((jnp.arange(M) > j)[:, None], both[:, j] / root, 0)
        return (both - share[:, None] * row).at[j].set(row)

    both = jax.lax.fori_loop(0, M, pivot, both, unroll=M <= UNROLLED)
    return both[:, M:][::-1, ::-1].swapaxes(0, 1)


def times_covariance(
    scale: Float[Array, "batch M M"], x: Float[Array, "batch M"]
) -> Float[Array, "batch M"]:
    """P^-1 x for P^-1 = L L'."""
    return jnp.einsum("bij,bkj,bk->bi", scale, scale, x)
