"""Cholesky factors of correlation matrices from unconstrained numbers, in few operations.

The map is NumPyro's, by stick breaking with tanh; its cumulative products take a long time to compile.
Here they are sums of logarithms, by one product with a constant matrix.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions.transforms import CorrCholeskyTransform


class CorrelationFactor(CorrCholeskyTransform):
    """x -> L, where L L' is a correlation matrix: row i of L is a unit vector.

    Example:
        >>> CorrelationFactor()(jnp.array([0.0])).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    def __call__(self, x: Any) -> Float[Array, "*batch n n"]:
        """Entry (i, j) is tanh(x_ij) times what the entries before it leave of the row's length."""
        n = self.forward_shape(x.shape)[-1]
        ends = jnp.broadcast_to(jnp.array([0.0, 1.0], x.dtype), (*x.shape[:-1], 2))
        entries = jnp.concatenate([jnp.tanh(x), ends], -1)
        return entries[..., _places(n)] * jnp.exp(_log_left(x, n))

    def log_abs_det_jacobian(
        self, x: Any, y: Any, intermediates: Any = None
    ) -> Float[Array, "*batch"]:
        """Log |d L / d x|, for the entries of L below the diagonal."""
        del intermediates
        n = y.shape[-1]
        below = jnp.asarray(np.tril(np.ones((n, n)), -1), x.dtype)
        return jnp.sum(2 * _log_sech(x), -1) + jnp.sum(_log_left(x, n) * below, (-2, -1))


def _places(n: int) -> np.ndarray:
    """The index of each entry of the matrix in x, to which the numbers 0 and 1 are appended."""
    pairs = n * (n - 1) // 2
    places = np.full((n, n), pairs)
    places[np.tril_indices(n, -1)] = np.arange(pairs)
    np.fill_diagonal(places, pairs + 1)
    return places


def _log_left(x: Float[Array, "*batch pairs"], n: int) -> Float[Array, "*batch n n"]:
    """Log of the length that entries 0 .. j - 1 of row i leave for entry j."""
    row, column = np.tril_indices(n, -1)
    earlier = np.zeros((len(row), n, n))
    for pair, (i, j) in enumerate(zip(row, column, strict=True)):
        earlier[pair, i, j + 1 : i + 1] = 1.0
    flat = _log_sech(x) @ jnp.asarray(earlier.reshape(len(row), n * n), x.dtype)
    return flat.reshape(*x.shape[:-1], n, n)


def _log_sech(x: Array) -> Array:
    """Half of log(1 - tanh(x)^2)."""
    return np.log(2.0) - x - jax.nn.softplus(-2 * x)
