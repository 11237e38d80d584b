"""The rounding error of float32 in a sum near 1e7 nats, measured in float64 on a few draws.

Sums are exact (`precise_sum`), but every term is rounded, and this has a bias: log(2 pi)/2 alone is off
by 1.6e-8, a tenth of a nat in 10 million rows. The bias is nearly the same for every draw, so a few draws
measure it: the same z and theta in both precisions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import pack, ranges
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.models.model import Model
from ramify.numerics.hashing import normals
from ramify.numerics.programs import program
from ramify.numerics.sums import precise_sum
from ramify.numerics.triangular import log_density
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Chunk, Draws

_NATS = 1e5  # below this, rounding is of no interest
_DRAWS = 2


class Points(NamedTuple):
    """Where the terms were evaluated, and their sum in float32."""

    z: Float[Array, "S B M"]
    noise: Float[Array, "S B M"]
    diagonal: Float[Array, "S B M"]
    high: Float[Array, " S"]
    low: Float[Array, " S"]


def rounding(family: Family, model: Model, groups: Groups, draws: Draws, value: float) -> float:
    """The correction to add to a float32 sum of log p(y, z) - log q(z) over all groups, near `value`."""
    if abs(value) < _NATS or not isinstance(family, Branched) or draws.theta.dtype == jnp.float64:
        return 0.0
    few = next(draws.chunks(_DRAWS))
    total = 0.0
    for block in ranges(groups):
        (batch,) = block.batches
        points = jax.tree.map(np.asarray, _points(condition(family, model, batch), model, few))
        try:
            with jax.enable_x64(True):
                same = pack(groups, block.members, batch.segment.shape[0])
                double = lambda x: jnp.asarray(np.asarray(x, np.float64))
                exact = _exact(model, same, double(few.theta), jax.tree.map(double, points))
                total += float(np.mean(exact))
        except TypeError:
            # Some densities can't be traced in double precision (JAX 0.11 mixes index types when a
            # NumPy index is used there): the sum then keeps float32's bias, about 1e-8 a term.
            return 0.0
        total -= float(np.mean(points.high.astype(np.float64) + points.low))
    return total


@program
def _points(known: Conditioned, model: Model, chunk: Chunk) -> Points:
    conditional, batch = known.conditional(model), known.batch

    def one(key: PRNGKeyArray, theta: Array) -> Points:
        local, noise = conditional(theta), normals(key, batch.index, (model.z.size,))
        z, log_q = local.draw(noise)
        full = local.scale.ndim == 3
        diagonal = jnp.diagonal(local.scale, axis1=-2, axis2=-1) if full else local.scale
        total = precise_sum(log_ratio_terms(model, theta, z, log_q, batch))
        return Points(z, noise, diagonal, *total)

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))


@program
def _exact(
    model: Model, batch: Batch, theta: Float[Array, "S D"], points: Points
) -> Float[Array, " S"]:
    def one(x: tuple[Array, Points]) -> Float[Array, ""]:
        theta, at = x
        log_q = log_density(at.noise, jnp.sum(jnp.log(at.diagonal), -1))
        return jnp.sum(log_ratio_terms(model, theta, at.z, log_q, batch))

    return jax.lax.map(one, (theta, points))


def log_ratio_terms(
    model: Model, theta: Array, z: Array, log_q: Array, batch: Batch
) -> Float[Array, " terms"]:
    """A block's terms of log p(y, z | theta) / q(z | theta): one per row and one per group."""
    local = jnp.where(batch.group_mask, model.log_local(theta, z, batch) - log_q, 0)
    return jnp.concatenate([row_terms(model, theta, z, batch), local])


def row_terms(model: Model, theta: Array, z: Array, batch: Batch) -> Float[Array, " R"]:
    """Log p(y | theta, z) of each row, zero for filler."""
    return jnp.where(batch.row_mask, model.log_lik(theta, batch.at_rows(z), batch), 0)
