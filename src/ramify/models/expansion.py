"""Expansions of functions of z to the second order, and that of log p(z | theta)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Batch, Theta, Z
from ramify.models.model import Model
from ramify.models.parameters import Named
from ramify.models.traced import shared_normal
from ramify.numerics.small_linalg import inverse_factor, times_covariance


class Quadratic(NamedTuple):
    """Value, gradient and negative Hessian in z, for each group of a block."""

    value: Float[Array, " B"]
    slope: Z
    curvature: Float[Array, "B M M"]

    def __add__(self, other: "Quadratic") -> "Quadratic":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Quadratic(*(a + b for a, b in zip(self, other, strict=True)))

    def moved(self, step: Z) -> "Quadratic":
        """The same parabola, expanded around a point that is one step away."""
        pull = jnp.einsum("bij,bj->bi", self.curvature, step)
        value = self.value + jnp.sum((self.slope - 0.5 * pull) * step, -1)
        return Quadratic(value, self.slope - pull, self.curvature)

    def packed(self) -> Float[Array, "B numbers"]:
        """Value, slope and curvature of each group in one array."""
        flat = self.curvature.reshape(len(self.value), -1)
        return jnp.concatenate([self.value[:, None], self.slope, flat], -1)

    @classmethod
    def unpacked(cls, packed: Float[Array, "B numbers"], M: int) -> "Quadratic":
        """The inverse of `packed`, for z of M dimensions."""
        curvature = packed[:, M + 1 :].reshape(-1, M, M)
        return cls(packed[:, 0], packed[:, 1 : M + 1], curvature)


def expand(function: Callable[[Array], Array], z: Float[Array, "n M"]) -> Quadratic:
    """Expansion of n independent functions, function(z)[i] depending on z[i] alone."""
    # One Hessian-vector product per coordinate, for all i at once, gives every Hessian.

    def gradient(z: Array) -> tuple[Array, Array]:
        def total(z: Array) -> tuple[Array, Array]:
            value = function(z)
            return jnp.sum(value), value

        return jax.grad(total, has_aux=True)(z)

    slope, along, value = jax.linearize(gradient, z, has_aux=True)
    directions = jnp.eye(z.shape[-1], dtype=z.dtype)
    hessian = jax.vmap(lambda e: along(jnp.broadcast_to(e, z.shape)), out_axes=1)(directions)
    return Quadratic(value, slope, -hessian)


Expander = Callable[[Z], Quadratic]  # z -> an expansion of each group around it


def expand_local(model: Model, batch: Batch, theta: Theta) -> Expander:
    """Z -> expansion of a_i = log p(z_i | theta, u_i)."""
    if model.structure.prior is not None:
        return _declared(model, batch, theta)
    if shared_normal(model, batch):
        return _shared(model, batch, theta)
    return lambda z: expand(lambda z: model.log_local(theta, z, batch), z)


def local_density(model: Model, batch: Batch, theta: Theta) -> Callable[[Z], Float[Array, " B"]]:
    """Z -> log p(z_i | theta, u_i); from the expansion of one group where that is enough."""
    if shared_normal(model, batch):
        expansion = _shared(model, batch, theta)
        return lambda z: expansion(z).value
    return lambda z: model.log_local(theta, z, batch)


def _declared(model: Model, batch: Batch, theta: Theta) -> Expander:
    """The expansion of a declared normal density."""
    assert model.structure.prior is not None
    normal = model.structure.prior(theta, batch)
    precision = jnp.einsum("...ki,...kj->...ij", normal.root, normal.root)

    def closed_form(z: Z) -> Quadratic:
        white, root = normal.whitened(z), normal.root
        value = normal.log_height - 0.5 * jnp.sum(white**2, -1)
        slope = -jnp.sum(root * white[..., None], -2)
        return Quadratic(value, slope, jnp.broadcast_to(precision, (*z.shape, z.shape[-1])))

    return closed_form


def _shared(model: Model, batch: Batch, theta: Theta) -> Expander:
    """The expansion of a density that is quadratic in z and the same function for all groups."""
    first = {name: column[:1] for name, column in batch.group.items()}
    curvature, mode, height, slope = _of_one_group(model, theta, first)

    def closed_form(z: Z) -> Quadratic:
        step = z - mode
        # Not a product of matrices, for the reason that `Normal.whitened` gives.
        pull = jnp.sum(curvature * step[..., None, :], -1)
        value = height + jnp.sum((slope - 0.5 * pull) * step, -1)
        same = jnp.broadcast_to(curvature, (*z.shape, z.shape[-1]))
        return Quadratic(value, slope - pull, same)

    return closed_form


@partial(jax.jit, static_argnums=0)  # a program calls it in many places, and traces it once
def _of_one_group(
    model: Model, theta: Theta, columns: Named
) -> tuple[Float[Array, "1 M M"], Float[Array, "1 M"], Float[Array, ""], Float[Array, "1 M"]]:
    """Curvature, mode, and value and slope at the mode, of one group's log p(z | theta)."""
    # Value and slope are computed at the mode: from far away they would be differences of large
    # numbers. The parabola does not depend on where it is expanded, so the mode has no derivative.
    density = lambda z: model.log_local_of(theta, z, columns)
    around_zero = expand(density, jnp.zeros((1, model.z.size)))
    mode = times_covariance(inverse_factor(around_zero.curvature), around_zero.slope)
    mode = jax.lax.stop_gradient(jnp.where(jnp.isfinite(mode).all(), mode, 0.0))
    height, slope = jax.value_and_grad(lambda z: jnp.sum(density(z)))(mode)
    return around_zero.curvature, mode, height, slope
