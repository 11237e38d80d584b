"""Draws of (theta, z): theta on the host, z of a block a few draws at a time.

Draw s of group i is a function of (key, s, i) alone. Numbers of draws are never shapes of a compiled
program: draws come in chunks of a fixed size.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt32

from ramify.data.batch import Batch
from ramify.families.build import Family
from ramify.families.conditional import Local
from ramify.families.joint import Joint
from ramify.families.solver import Solver
from ramify.families.weighted_theta import WeightedTheta
from ramify.inference.theta_weights import Proposal, fitted_proposal
from ramify.models.adapter import Adapter, local_values
from ramify.models.densities import log_joints
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.budgets import chunk_size
from ramify.numerics.chunks import put_together
from ramify.numerics.hashing import generator, keys_of, normals
from ramify.numerics.points import box_points, student_points
from ramify.numerics.programs import program
from ramify.posterior.conditioned import Conditioned

THETA, LEVELS, OUTCOMES = range(3)  # what a key's streams of random numbers are for
FEWEST_IN_BOX = 256  # with fewer draws hardly any would be near a mode


class Draws(NamedTuple):
    """S draws of theta, on the host."""

    theta: Float[np.ndarray, "S D"]
    log_q: Float[np.ndarray, " S"]  # of theta, or for a joint family of the whole draw
    key: PRNGKeyArray  # with a draw's number it makes the locals that go with the draw
    numbers: Int[np.ndarray, " S"]

    def some(self, start: int, stop: int) -> "Draws":
        """The draws from number `start` to before `stop`."""
        own = slice(start, stop)
        return self._replace(
            theta=self.theta[own], log_q=self.log_q[own], numbers=self.numbers[own]
        )

    def chunks(self, size: int) -> Iterator["Chunk"]:
        """All draws, `size` at a time; the last chunk is filled up with copies."""
        for start in range(0, len(self.theta), size):
            own = slice(start, start + size)
            theta, numbers = self.theta[own], self.numbers[own]
            words = keys_of(self.key, np.resize(numbers, size))
            yield Chunk(words, np.resize(theta, (size, theta.shape[1])))


class Chunk(NamedTuple):
    """Some draws of theta, as many as a program takes; `words` make their locals' keys."""

    words: UInt32[Array, "C 2"] | UInt32[np.ndarray, "C 2"]
    theta: Float[Array, "C D"] | Float[np.ndarray, "C D"]

    def keys(self) -> Key[Array, " C"]:
        """A key for each draw. A joint family draws theta again with it, others z alone."""
        return jax.random.wrap_key_data(jnp.asarray(self.words), impl="threefry2x32")


def posterior_theta(key: PRNGKeyArray, family: Family, model: Model, draws: int) -> Draws:
    """S draws of theta: from the fit's weighted draws if there are any (log q is NaN), or q(theta)."""
    found = draw_theta(key, family, model, draws)
    if isinstance(family, Joint) or family.weighted is None:
        return found
    theta = family.weighted.at_levels(generator(key, LEVELS).random(draws)).astype(
        found.theta.dtype
    )
    return found._replace(theta=theta, log_q=np.full(draws, np.nan))


def proposal_of(weighted: WeightedTheta) -> Proposal | None:
    """A Student t fitted to a fit's weighted draws of theta; None if too few are effective."""
    with np.errstate(divide="ignore"):  # a draw may have no weight
        log_weight = np.log(weighted.weight)
    return fitted_proposal(np.asarray(weighted.points, np.float64), log_weight)


def proposed_theta(key: PRNGKeyArray, family: Family, model: Model, draws: int) -> Draws:
    """S draws of theta to weigh: from `proposal_of` a fit's weighted draws, if any, or q(theta)."""
    found = draw_theta(key, family, model, draws)
    if isinstance(family, Joint) or family.weighted is None:
        return found
    if (proposal := proposal_of(family.weighted)) is None:
        return found
    theta, log_q = proposal.sample(generator(key), draws)
    return found._replace(theta=theta.astype(found.theta.dtype), log_q=log_q)


def draw_theta(key: PRNGKeyArray, family: Family, model: Model, draws: int) -> Draws:
    """S draws from q(theta); the first of them are the same for every S."""
    if draws < 1:
        raise ValueError(f"draws must be at least 1; got {draws}.")
    numbers = np.arange(draws, dtype=np.int32)
    if isinstance(family, Joint):
        return _draw_joint(key, family, model, numbers)
    mean = np.asarray(family.theta.mean, np.float64)
    scale = np.asarray(family.theta.scale, np.float64)
    scale = np.diag(scale) if scale.ndim == 1 else scale
    # Few numbers, so NumPy draws them and nothing is compiled. Draw s is row s for any S.
    noise = generator(key, THETA).normal(size=(draws, len(mean)))
    constant = 0.5 * len(mean) * np.log(2 * np.pi) + np.log(np.diag(scale)).sum()
    theta = (mean + noise @ scale.T).astype(family.theta.mean.dtype)
    return Draws(theta, -0.5 * np.sum(noise**2, 1) - constant, key, numbers)


def _draw_joint(key: PRNGKeyArray, family: Joint, model: Model, numbers: np.ndarray) -> Draws:
    size = chunk_size(len(numbers), 4 * (family.D + family.N * family.M))
    empty = np.zeros((len(numbers), family.D), family.theta.mean.dtype)
    draws = Draws(empty, np.zeros(len(numbers)), key, numbers)
    found = [_joint_chunk(chunk, family, model) for chunk in draws.chunks(size)]
    theta, log_q = put_together(found, len(numbers))
    return draws._replace(theta=theta, log_q=log_q.astype(np.float64))


@program
def _joint_chunk(chunk: Chunk, family: Joint, model: Model) -> tuple[Array, Array]:
    drawn = jax.vmap(lambda key: family.draw(key, model, everyone(family)))(chunk.keys())
    return drawn.theta, drawn.log_q_theta


def map_draws(
    use: Callable[[Chunk, Array, Array], Any],
    known: Conditioned,
    model: Model,
    draws: Draws,
    local_draws: int,
) -> Any:
    """`use(chunk, z [C, B, M], log_q [C, B])` of all draws, put together: [S, ...] each."""
    # With K = local_draws > 1, z is one of K draws, chosen by importance weight. Its distribution is
    # then closer to p(z | theta, y) than q is, and log q has no meaning: it is zero.
    size = at_once(known, model, len(draws.theta), local_draws)
    of_chunk = lambda chunk: use(chunk, *draw_locals(known, model, chunk, local_draws))
    return of_chunks(of_chunk, draws, size)


def of_chunks(function: Callable[[Chunk], Any], draws: Draws, size: int) -> Any:
    """Applies the function to all draws, `size` at a time, and puts the results together."""
    return put_together([function(chunk) for chunk in draws.chunks(size)], len(draws.theta))


def locals_of(
    known: Conditioned, model: Model, chunk: Chunk, local_draws: int
) -> tuple[Float[Array, "C B M"], Float[Array, "C B"]]:
    """Z of the block's groups for each draw of theta, and log q(z | theta)."""
    family, batch = known.family, known.batch
    if isinstance(family, Joint):
        z = jax.vmap(lambda key: family.draw(key, model, everyone(family)).z)(chunk.keys())
        return z[:, batch.index], jnp.zeros((len(z), len(batch.index)))
    conditional = known.conditional(model)

    def one(key: PRNGKeyArray, theta: Array) -> tuple[Array, Array]:
        local = conditional(theta)
        if local_draws == 1:
            return local.draw(normals(key, batch.index, (model.z.size,)))
        z = _resample(key, local, known, model, theta, local_draws)
        return z, jnp.zeros(len(z))

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))


@program
def draw_locals(
    known: Conditioned, model: Model, chunk: Chunk, local_draws: int
) -> tuple[Float[Array, "C B M"], Float[Array, "C B"]]:
    """`locals_of` as a separate program, which all uses of draws of z share."""
    return locals_of(known, model, chunk, local_draws)


def _resample(
    key: PRNGKeyArray, local: Local, known: Conditioned, model: Model, theta: Array, K: int
) -> Float[Array, "B M"]:
    """One of K draws for each group, chosen by weight."""
    z, log_weight, chance = weighed_locals(key, local, known, model, theta, K)
    score = log_weight - jnp.log(-jnp.log(chance))
    return jnp.take_along_axis(z, jnp.argmax(score, 0)[None, :, None], 0)[0]


def weighed_locals(
    key: PRNGKeyArray, local: Local, known: Conditioned, model: Model, theta: Array, K: int
) -> tuple[Float[Array, "K B M"], Float[Array, "K B"], Float[Array, "K B"]]:
    """K draws of each group's z, their log weights up to a constant, and a uniform number with each.

    They come from a Student t proposal, or from a box.
    """
    batch, M = known.batch, model.z.size
    if K < FEWEST_IN_BOX or not _several_modes(known.family):
        # Independent draws, unlike those of the bounds: balanced points help averages but not the
        # choice of one draw, and would cost more than all the rest.
        points, chance = student_points(key, batch.index, K, M)
        z, log_q = jax.vmap(local.propose)(points)
    else:  # a Student t would hardly ever reach a second mode far away
        points, chance = box_points(key, batch.index, K, M, budgets.WIDENED_REACH[M])
        z, log_q = jax.vmap(local.draw)(points)[0], jnp.zeros(())
    log_weight = log_joints(model, batch, theta, z) - log_q
    return z, jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight), chance


def _several_modes(family: Family) -> bool:
    """Whether groups may have modes that a Student t around one of them does not reach."""
    local = None if isinstance(family, Joint) else family.local
    return isinstance(local, Solver) and local.widened > 1


def everyone(family: Joint) -> Batch:
    """A batch of all groups without any data: what a joint family needs in order to draw."""
    index, yes = jnp.arange(family.N), jnp.ones(family.N, bool)
    none = jnp.zeros(0, jnp.int32)
    return Batch({}, {}, none, index, 0 * index, none > 0, yes, jnp.ones(()))


def at_once(known: Conditioned, model: Model, draws: int, local_draws: int) -> int:
    """How many draws of a block a program takes: a power of two that memory has room for."""
    family, batch, M = known.family, known.batch, model.z.size
    R, B = batch.segment.shape[0], batch.index.shape[0]
    each = local_draws * R * (M + 4) + B * (M * M + 4 * M + local_draws * (2 * M + 4))
    if isinstance(family, Joint):
        each += 2 * (family.D + family.N * M)
    elif isinstance(family.local, Solver) and family.local.uses_theta:
        each += R * M * (M + 2)
    return chunk_size(draws, each)


def sample_block(
    known: Conditioned, adapter: Adapter, draws: Draws, local_draws: int
) -> dict[str, np.ndarray]:
    """Named, constrained z of a block's groups for every draw: each [S, B, ...]."""
    use = lambda chunk, z, _: local_values(adapter, chunk.theta, z, known.batch)
    return map_draws(use, known, adapter.model, draws, local_draws)
