"""Draws of (theta, z) block by block: one theta for all blocks, noise that belongs to the group.

Draw s of group i is a function of (key, s, i): not of the block it is in, nor of how many draws
were asked for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.families.build import Family
from ramify.families.conditional import Local
from ramify.families.gaussian import Gaussian
from ramify.families.joint import Joint
from ramify.families.solver import Solver
from ramify.models.adapter import Adapter
from ramify.models.densities import log_joint
from ramify.models.model import Model
from ramify.numerics.memory import chunk_size
from ramify.numerics.points import group_noise
from ramify.numerics.triangular import FREEDOM
from ramify.posterior.conditioned import Conditioned

Sampler = Callable[[PRNGKeyArray, Array], tuple[Array, Array]]


class Draws(NamedTuple):
    """S draws of theta; `keys` make the locals that go with each.

    `log_q` is log q(theta), and for a joint family that of the whole draw.
    """

    theta: Float[Array, "S D"]
    log_q: Float[Array, " S"]
    keys: PRNGKeyArray


def posterior_theta(key: PRNGKeyArray, family: Family, model: Model, draws: int) -> Draws:
    """S draws of theta as the posterior has it: from the weighted cloud, where the fit has one.

    Their density has no meaning then: metrics that need it draw from q(theta) itself.
    """
    found = draw_theta(key, family, model, draws)
    if isinstance(family, Joint) or family.cloud is None:
        return found
    return found._replace(
        theta=family.cloud.draw(key, draws), log_q=jnp.full_like(found.log_q, jnp.nan)
    )


def draw_theta(key: PRNGKeyArray, family: Family, model: Model, draws: int) -> Draws:
    """S draws from q(theta)."""
    if draws < 1:
        raise ValueError(f"draws must be at least 1; got {draws}.")
    if isinstance(family, Joint):
        return _draw_joint(key, family, model, draws)
    return _draw_gaussian(key, family.theta, draws)


@eqx.filter_jit
def _draw_gaussian(key: PRNGKeyArray, q: Gaussian, draws: int) -> Draws:
    def one(number: Array) -> Draws:
        key_theta, key_z = jax.random.split(jax.random.fold_in(key, number))
        return Draws(*q.draw(jax.random.normal(key_theta, (q.dim,))), key_z)

    return jax.lax.map(one, jnp.arange(draws), batch_size=chunk_size(draws, 4 * q.dim))


@eqx.filter_jit
def _draw_joint(key: PRNGKeyArray, family: Joint, model: Model, draws: int) -> Draws:
    def one(number: Array) -> Draws:
        own = jax.random.fold_in(key, number)
        draw = family.draw(own, model, everyone(family))
        return Draws(draw.theta, draw.log_q_theta, own)

    size = 4 * (family.D + family.N * family.M)
    return jax.lax.map(one, jnp.arange(draws), batch_size=chunk_size(draws, size))


def local_sampler(known: Conditioned, model: Model, local_draws: int) -> Sampler:
    """(key, theta) -> z of the block's groups and log q(z | theta).

    With K = local_draws > 1, z is one of K draws, chosen by importance weight, so that it is closer
    to p(z | theta, y) than to q; log q has no meaning then and is zero.
    """
    batch = known.batch
    if isinstance(known.family, Joint):
        return _joint_sampler(known.family, model, batch)
    conditional = known.conditional(model)

    def plain(key: PRNGKeyArray, theta: Array) -> tuple[Array, Array]:
        return conditional(theta).draw(group_noise(key, batch.index, (model.z.size,)))

    def resampled(key: PRNGKeyArray, theta: Array) -> tuple[Array, Array]:
        z = _resample(key, conditional(theta), model, batch, theta, local_draws)
        return z, jnp.zeros(len(z))

    return plain if local_draws == 1 else resampled


def _resample(
    key: PRNGKeyArray, local: Local, model: Model, batch: Batch, theta: Array, K: int
) -> Float[Array, "B M"]:
    """One of K draws from the Student t proposal for each group, chosen by weight.

    Independent draws, unlike the balanced ones of the bounds: balance helps averages, not choices,
    and costs more than all the rest.
    """

    def own(i: Array) -> tuple[Array, Array, Array]:
        keys = jax.random.split(jax.random.fold_in(key, i), 3)
        uniform = jax.random.uniform(keys[1], (K, int(FREEDOM) // 2), minval=1e-30)
        chi2 = -2 * jnp.sum(jnp.log(uniform), -1)  # of FREEDOM degrees, an even number
        return jax.random.normal(keys[0], (K, model.z.size)), chi2, jax.random.gumbel(keys[2], (K,))

    def weighted(points: Float[Array, "B M"]) -> tuple[Array, Array]:
        z, log_q = local.propose(points)
        return z, log_joint(model, batch, theta, z) - log_q

    normal, chi2, gumbel = jax.vmap(own, out_axes=1)(batch.index)
    points = normal * jnp.sqrt(FREEDOM / chi2)[..., None]
    z, log_weight = jax.lax.map(weighted, points, batch_size=8)
    score = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight) + gumbel
    return jnp.take_along_axis(z, jnp.argmax(score, 0)[None, :, None], 0)[0]


def _joint_sampler(family: Joint, model: Model, batch: Batch) -> Sampler:
    def sample(key: PRNGKeyArray, theta: Array) -> tuple[Array, Array]:
        del theta  # the same key draws it again
        z = family.draw(key, model, everyone(family)).z[batch.index]
        return z, jnp.zeros(len(z))

    return sample


def everyone(family: Joint) -> Batch:
    """A batch of all groups without any data: what a joint family needs in order to draw."""
    index, yes = jnp.arange(family.N), jnp.ones(family.N, bool)
    none = jnp.zeros(0, jnp.int32)
    return Batch({}, {}, none, index, 0 * index, none > 0, yes, jnp.ones(()))


def per_draw(known: Conditioned, model: Model, local_draws: int, at: Batch | None = None) -> int:
    """About how many numbers one draw of a block needs while it is worked on.

    `at` is another block of the same groups, whose rows are looked at too.
    """
    size = _per_draw(known.family, model, known.batch, local_draws)
    return size if at is None else size + _per_draw(known.family, model, at, 1)


def _per_draw(family: Family, model: Model, batch: Batch, local_draws: int) -> int:
    R, B, M = batch.segment.shape[0], batch.index.shape[0], model.z.size
    at_once = 1 if local_draws == 1 else 8  # as weights are worked out
    size = at_once * R * (M + 4) + B * (M * M + 4 * M + local_draws * (2 * M + 4))
    if isinstance(family, Joint):
        return size + 2 * (family.D + family.N * M)
    again = isinstance(family.local, Solver) and family.local.uses_theta
    return size + (R * M * (M + 2) if again else 0)


def map_draws(one: Callable[..., Any], draws: Draws, per_draw: int) -> Any:
    """`one(key, theta)` of each draw, as many at once as memory allows."""
    size = chunk_size(draws.theta.shape[0], per_draw)
    return jax.lax.map(lambda x: one(*x), (draws.keys, draws.theta), batch_size=size)


@eqx.filter_jit
def sample_block(
    known: Conditioned, adapter: Adapter, draws: Draws, local_draws: int
) -> dict[str, Array]:
    """Named, constrained z of a block's groups for every draw: each [S, B, ...]."""
    model = adapter.model
    sample = local_sampler(known, model, local_draws)
    one = lambda key, theta: adapter.local_values(theta, sample(key, theta)[0], known.batch)
    return map_draws(one, draws, per_draw(known, model, local_draws))
