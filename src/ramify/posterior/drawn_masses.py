"""Log p(y_i | theta) of each group by importance draws of z around its conditional given all its rows.

For later rows y' it is a difference, log p(y, y' | theta) - log p(y | theta), as in `marginal_values`.
The mean of p(y' | z) over draws of z given y, or for a new group from p(z | theta), would be that of
the few draws near the y': where y' says much about z, it is low by hundreds of nats.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from ramify.data.host import ranges
from ramify.families.branched import Branched
from ramify.families.build import is_fixed
from ramify.families.solver import Solver
from ramify.models.densities import log_joints
from ramify.models.model import Model
from ramify.numerics.points import group_points
from ramify.numerics.programs import program
from ramify.numerics.sums import log_mean_exp
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Chunk, Draws, at_once, of_chunks
from ramify.posterior.marginal_values import together
from ramify.posterior.matching import Part


class Masses(NamedTuple):
    """Log p^(y_i | theta) by all K draws, and by each half of them."""

    whole: Float64[np.ndarray, "S B"]
    halves: Float64[np.ndarray, "2 S B"]

    def less(self, other: "Masses") -> "Masses":
        """The difference, such as log p^(y' | theta, y)."""
        return Masses(self.whole - other.whole, self.halves - other.halves)

    def ratio(self) -> Float64[np.ndarray, "S B"]:
        """Log p^ such that p^, a quotient of means, is right on average to order 1/K: the jackknife."""
        apart = np.exp(self.halves - self._finite).mean(0)  # 1 where nothing was subtracted
        return self.whole + np.log(np.maximum(2 - apart, 0.1))

    def log(self) -> Float64[np.ndarray, "S B"]:
        """Log p^ that is itself right on average to order 1/K, and corrected by a nat at most."""
        return self.whole + np.tanh(self._finite - self.halves.mean(0))

    @property
    def _finite(self) -> Float64[np.ndarray, "S B"]:
        return np.where(np.isfinite(self.whole), self.whole, 0.0)

    @property
    def variance(self) -> Float64[np.ndarray, " B"]:
        """The variance of each group's log p^ at a theta, from the draws of z."""
        return np.mean((self.halves[0] - self.halves[1]) ** 2, 0) / 4


def can_weigh(part: Part) -> bool:
    """Whether draws of z can be proposed given all rows of the part's groups."""
    # A network may be far off for groups with more rows than it has seen: its draws given the fit's
    # rows are kept. Groups without such rows have nothing else.
    family = part.family
    if not isinstance(family, Branched) or is_fixed(family):
        return False
    return isinstance(family.local, Solver) or not part.given.n_rows


def predictive_masses(
    model: Model, part: Part, theta: Draws, K: int, key: PRNGKeyArray | None = None
) -> Iterator[Masses]:
    """Yields log p^(y_i,test | theta, y_i) for some groups at a time."""
    both = together(part.given, part.at), part.given
    for block in ranges(*(both if part.given.n_rows else both[:1])):
        found = []
        for batch in block.batches:
            known = condition(part.family, model, batch, K)
            found.append(masses(known, model, theta, K, key))
        own = found[0].less(found[1]) if len(found) > 1 else found[0]
        yield jax.tree.map(lambda x: x[..., : block.stop - block.start], own)  # noqa: B023


def masses(
    known: Conditioned, model: Model, theta: Draws, K: int, key: PRNGKeyArray | None = None
) -> Masses:
    """Log p^(y_i | theta) by K > 1 draws of z: each theta's own, or with a key the same for all."""
    # With the same draws log p^ is a smooth function of theta, whose error is a common shift. Draws of
    # their own leave nearly no noise in an average over theta.
    one = lambda chunk: _by_draws(known, model, key, chunk, K)
    whole, halves = of_chunks(one, theta, at_once(known, model, len(theta.theta), K))
    return Masses(np.asarray(whole, np.float64), np.moveaxis(halves, 1, 0).astype(np.float64))


@program
def _by_draws(
    known: Conditioned, model: Model, key: PRNGKeyArray | None, chunk: Chunk, K: int
) -> tuple[Float[Array, "C B"], Float[Array, "C 2 B"]]:
    conditional, batch, half = known.conditional(model), known.batch, (K + 1) // 2
    make = lambda key: group_points(key, batch.index, K, model.z.size)
    shared = None if key is None else make(key)

    def one(key: PRNGKeyArray, theta: Float[Array, " D"]) -> tuple[Array, Array]:
        points = make(key) if shared is None else shared
        z, log_q = jax.vmap(conditional(theta).propose)(points)
        log_weight = log_joints(model, batch, theta, z) - log_q
        log_weight = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight)
        halves = log_mean_exp(log_weight[:half]), log_mean_exp(log_weight[half:])
        return log_mean_exp(log_weight), jnp.stack(halves)

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))
