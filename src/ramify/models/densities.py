"""Densities of a block summed by group: log likelihood, log joint, sums over rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Batch, Theta, Z
from ramify.models.expansion import local_density
from ramify.models.model import Model


def sum_rows(values: Float[Array, "R *rest"], batch: Batch) -> Float[Array, "B *rest"]:
    """Sum over each group's rows; filler rows count as zero."""
    # One scatter of contiguous windows with sorted indices: on a CPU much faster than one a column.
    mask = batch.row_mask.reshape(-1, *(1,) * (values.ndim - 1))
    kept, B = jnp.where(mask, values, 0), batch.index.shape[0]
    return jax.ops.segment_sum(kept, batch.segment, B, indices_are_sorted=True)


def group_log_lik(model: Model, theta: Theta, z: Z, batch: Batch) -> Float[Array, " B"]:
    """l_i(theta, z_i): each group's log likelihood, summed over its rows."""
    return sum_rows(model.log_lik(theta, batch.at_rows(z), batch), batch)


def group_log_liks(
    model: Model, theta: Theta, z: Float[Array, "K B M"], batch: Batch
) -> Float[Array, "K B"]:
    """`group_log_lik` of K draws of every z."""
    return log_liks_at(model, theta, jnp.moveaxis(z, 0, -1), batch).T


def log_liks_at(
    model: Model, theta: Float[Array, " D"], z: Float[Array, "B M K"], batch: Batch
) -> Float[Array, "B K"]:
    """`group_log_lik` of K points of every z."""
    return sum_rows(row_log_liks_at(model, theta, z, batch), batch)


def row_log_liks_at(
    model: Model, theta: Float[Array, " D"], z: Float[Array, "B M K"], batch: Batch
) -> Float[Array, "R K"]:
    """Log p(y | theta, z) of each row at K points of its z."""
    # With the points in the last axis a row's copy of its z is one contiguous window, and later
    # operations run along the points: half the time of one point after the other.
    z_rows = batch.at_rows(z)
    if (declared := model.structure.likelihood) is not None:
        return declared.log_lik(theta, z_rows, batch)
    return jax.vmap(lambda z: model.log_lik(theta, z, batch), -1, -1)(z_rows)


def log_joint(model: Model, batch: Batch, theta: Theta, z: Z) -> Float[Array, " B"]:
    """Log p(y_i, z_i | theta) of each group."""
    return local_density(model, batch, theta)(z) + group_log_lik(model, theta, z, batch)


def log_joints(
    model: Model, batch: Batch, theta: Theta, z: Float[Array, "K B M"]
) -> Float[Array, "K B"]:
    """`log_joint` of K draws of every z."""
    local = jax.vmap(local_density(model, batch, theta))(z)
    return local + group_log_liks(model, theta, z, batch)
