"""Normal sites: what their distributions say of p(z | theta, u), for a prior in closed form."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ramify.models.structure import Normal, diagonal
from ramify.numerics.small_linalg import inverse_lower


class NormalSite(NamedTuple):
    """A site that is Normal or MultivariateNormal.

    Attributes:
        loc: its mean, as the distribution has it.
        scale: sds or, where `correlated`, a lower triangular factor of the covariance.
        correlated: whether the last axis of the value has one covariance.
        shape: the shape of the value.
    """

    loc: Array
    scale: Array
    correlated: bool
    shape: tuple[int, ...]


def normal_site(site: dict[str, Any]) -> NormalSite | None:
    """The parameters of a traced site whose distribution is normal; None for any other.

    Masks and scales (`handlers.mask`, `handlers.scale`) make a density that is not.
    """
    base = site["fn"]
    while type(base) in (dist.Independent, dist.ExpandedDistribution):
        base = base.base_dist
    if type(base) not in (dist.Normal, dist.MultivariateNormal) or site["scale"] is not None:
        return None
    correlated = type(base) is dist.MultivariateNormal
    scale = base.scale_tril if correlated else base.scale
    loc, scale = (jnp.asarray(x, jnp.result_type(x, float)) for x in (base.loc, scale))
    return NormalSite(loc, scale, correlated, jnp.shape(site["value"]))


def joined(sites: Sequence[NormalSite], axes: Sequence[int]) -> Normal:
    """The normal distribution of all sites of each group; `axes` count the groups in their values."""
    parts = [_one(site, axis) for site, axis in zip(sites, axes, strict=True)]
    count = max(len(root) for _, root in parts)
    roots = [jnp.broadcast_to(root, (count, *root.shape[1:])) for _, root in parts]
    root = jax.vmap(jax.scipy.linalg.block_diag)(*roots) if len(roots) > 1 else roots[0]
    mean = jnp.concatenate([mean for mean, _ in parts], -1)
    return Normal(mean, root[0] if count == 1 else root)


def _one(site: NormalSite, axis: int) -> tuple[Float[Array, "n m"], Float[Array, "n_or_1 m m"]]:
    """Mean and root of one site, for each group or, where groups share a root, once."""
    n, shape = site.shape[axis], site.shape
    mean = jnp.moveaxis(jnp.broadcast_to(site.loc, shape), axis, 0).reshape(n, -1)
    if not site.correlated:
        sds = _groups_first(site.scale, shape, axis)
        return mean, diagonal(1 / sds.reshape(len(sds), -1))
    k = shape[-1]
    blocks = _groups_first(inverse_lower(site.scale), (*shape, k), axis)
    blocks = blocks.reshape(len(blocks), -1, k, k)
    apart = jnp.eye(blocks.shape[1], dtype=blocks.dtype)[:, None, :, None]
    m = blocks.shape[1] * k
    return mean, (apart * blocks[:, :, :, None, :]).reshape(-1, m, m)


def _groups_first(values: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Values broadcast to a shape and their axis of groups moved first, where it may stay 1."""
    values = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    moved = jnp.moveaxis(values, axis, 0)
    return jnp.broadcast_to(moved, (len(moved), *shape[:axis], *shape[axis + 1 :]))
