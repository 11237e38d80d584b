"""What is known of a model's densities: declared by its author, checked, and never guessed.

A normal p(z | theta, u) has its value, slope and curvature in closed form. A likelihood that sees z
only through P linear predictors, eta_p = w_p(row)' z + offset_p(theta, row), has P first and P x P
second derivatives a row, whatever the size of z. `Structure` declares both for one group and one
row, like the densities of `Model`; `BlockStructure` declares them for a block.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.data.batch import Batch, Theta
from ramify.models.parameters import Named, Space
from ramify.numerics.small_linalg import inverse_lower

WRITTEN_OUT = 16  # terms of a linear predictor up to which the sum is written out


class Normal(NamedTuple):
    """p(z_i | theta, u_i) of each place: N(mean, P^-1), P = root' root; places may share a root."""

    mean: Float[Array, "*places M"]
    root: Float[Array, "*places_or_one M M"]

    def log_density(self, z: Float[Array, "*places M"]) -> Float[Array, "*places"]:
        """Log density at one z of each place."""
        return self.log_height - 0.5 * jnp.sum(self.whitened(z) ** 2, -1)

    def whitened(self, z: Float[Array, "*places M"]) -> Float[Array, "*places M"]:
        """Root (z - mean), which is standard normal."""
        # Not a product of matrices: in the derivative of one root that all places share, that would
        # have M x M entries and sum over all places, which leaves most of a GPU idle.
        return jnp.sum(self.root * (z - self.mean)[..., None, :], -1)

    def draw(self, noise: Float[Array, "places M"]) -> Float[Array, "places M"]:
        """A z of each place from standard normal noise: the inverse of `whitened`."""
        roots = jnp.broadcast_to(self.root, (len(noise), *self.root.shape[-2:]))
        own = jax.vmap(partial(jax.scipy.linalg.solve_triangular, lower=True))
        return self.mean + own(roots, noise)

    @property
    def log_height(self) -> Float[Array, "*places_or_one"]:
        """Log density at the mean."""
        diagonal = jnp.diagonal(self.root, axis1=-2, axis2=-1)
        return jnp.sum(jnp.log(diagonal), -1) - 0.5 * self.mean.shape[-1] * math.log(2 * math.pi)


@dataclass(frozen=True)
class BlockPredictors:
    """A likelihood that sees z through linear predictors, for a block of rows."""

    weights: Callable[[Batch], Float[Array, "R P M"]]  # of z in each predictor
    offsets: Callable[[Array, Batch], Float[Array, "R P"]]  # theta, batch -> the part without z
    # theta, predictors [R, P, K], batch -> log p(y | theta, z, x) of each row at K draws.
    density: Callable[[Array, Array, Batch], Float[Array, "R K"]]
    uses_theta: Callable[[Batch], bool] | None  # whether theta has a part; None if not declared
    smooth: bool  # whether the density is known to have two derivatives in the predictors

    def log_lik(
        self, theta: Theta, z_rows: Float[Array, "R M K"], batch: Batch
    ) -> Float[Array, "R K"]:
        """Log p(y_ij | theta, z_i, x_ij) of each row, given K draws of each row's own z."""
        eta = linear(self.weights(batch), z_rows) + self.offsets(theta, batch)[..., None]
        return self.density(theta, eta, batch)


@dataclass(frozen=True)
class Around:
    """Entries of theta that are drawn around others: x = loc + scale e, where e is free of the others."""

    # Of theta: loc and scale of each entry, 0 and 1 where it is not such a one.
    at: Callable[[Array], tuple[Float[Array, " D"], Float[Array, " D"]]]
    sites: int  # how many are drawn so; one may be drawn around another


@dataclass(frozen=True)
class BlockStructure:
    """What is known of a model, for a block; None where nothing is known."""

    prior: Callable[[Array, Batch], Normal] | None = None  # theta, batch -> p(z_i | theta, u_i)
    likelihood: BlockPredictors | None = None  # how the likelihood of a row depends on z
    # Whether a front end made structure and densities together, so `fit` need not compare them.
    trusted: bool = False
    around: Around | None = None  # which entries of theta are drawn around others


@dataclass(frozen=True)
class NormalPrior:
    """Declares that p(z | theta, u) is normal, for z as one unconstrained vector [M].

    The vector has the entries of all of z's parameters in order. A real number is its own
    unconstrained value; that of a positive number is its logarithm, so a log-normal is normal here.

    Attributes:
        mean: theta, group -> [M].
        scale: theta, group -> [M], the sds of independent entries, or [M, M], a lower triangular L with
            a positive diagonal and covariance L L'.
    """

    mean: Callable[[Named, Named], Array]
    scale: Callable[[Named, Named], Array]

    def on_blocks(self, theta: Space) -> Callable[[Array, Batch], Normal]:
        """The same as a function of the flat theta and a block."""

        def normal(flat: Theta, batch: Batch) -> Normal:
            values, places = theta.values(flat), batch.index.shape[0]
            each = lambda of: jax.vmap(lambda group: of(values, group), axis_size=places)
            # Without group columns all groups have the same scale, and one inverse is enough.
            scale = each(self.scale)(batch.group) if batch.group else self.scale(values, {})
            independent = scale.ndim == 1 + bool(batch.group)
            root = diagonal(1 / scale) if independent else inverse_lower(scale)
            return Normal(each(self.mean)(batch.group), root)

        return normal


@dataclass(frozen=True)
class LinearPredictors:
    """Declares that a row's likelihood sees z only through P linear predictors.

    They are `weights(row) @ z + offset(theta, row)`, for z as one unconstrained vector [M].

    Attributes:
        weights: row -> [P, M].
        offset: theta, row -> [P].
        density: theta, predictors [P], row -> [], log p(y | theta, z, x).
        uses_theta: whether offset or density involve theta, if that is known; or a function that
            tells it from the names of the columns.
        smooth: whether the density is known to have two derivatives in the predictors, so that
            `fit` need not test for it.
    """

    weights: Callable[[Named], Array]
    offset: Callable[[Named, Named], Array]
    density: Callable[[Named, Array, Named], Array]
    uses_theta: bool | Callable[[Collection[str]], bool] | None = None
    smooth: bool = False

    def on_blocks(self, theta: Space) -> BlockPredictors:
        """The same as functions of the flat theta and a block."""
        rows = lambda batch: batch.rows | batch.group_at_rows()
        weights = lambda batch: jax.vmap(self.weights)(rows(batch))

        def offsets(flat: Theta, batch: Batch) -> Array:
            values = theta.values(flat)
            return jax.vmap(lambda row: self.offset(values, row))(rows(batch))

        def density(flat: Theta, eta: Float[Array, "R P K"], batch: Batch) -> Array:
            values = theta.values(flat)
            # vmap over draws inside that over rows: the other way round JAX puts draws first.
            one = lambda eta, row: jax.vmap(lambda e: self.density(values, e, row), -1)(eta)
            return jax.vmap(one)(eta, rows(batch))

        uses_theta = None if self.uses_theta is None else self._uses_theta
        return BlockPredictors(weights, offsets, density, uses_theta, self.smooth)

    def _uses_theta(self, batch: Batch) -> bool:
        said = self.uses_theta
        return bool(said({*batch.rows, *batch.group}) if callable(said) else said)


@dataclass(frozen=True)
class Structure:
    """What a model's author knows of its densities, for one group and one row.

    It makes fits compile and run faster, and changes no result. `fit` compares it with the
    densities, and raises if they disagree.

    Attributes:
        prior: that p(z | theta, u) is normal.
        likelihood: that a row sees z only through linear predictors.
    """

    prior: NormalPrior | None = None
    likelihood: LinearPredictors | None = None

    def on_blocks(self, theta: Space) -> BlockStructure:
        """The same for blocks."""
        on_blocks = lambda part: part and part.on_blocks(theta)
        return BlockStructure(on_blocks(self.prior), on_blocks(self.likelihood))


def linear(weights: Float[Array, "R P M"], z_rows: Float[Array, "R M K"]) -> Float[Array, "R P K"]:
    """Sums over m of w_pm z_m, for each row and draw."""
    # A few terms are written out: XLA fuses them into the operation that uses them. A product of
    # matrices is an operation of its own, and slow on a GPU for small matrices.
    M = z_rows.shape[1]
    if M > WRITTEN_OUT:
        return jnp.einsum("rpm,rmk->rpk", weights, z_rows)
    terms = [weights[:, :, m, None] * z_rows[:, None, m] for m in range(M)]
    return sum(terms[1:], terms[0])


def diagonal(entries: Float[Array, "*batch M"]) -> Float[Array, "*batch M M"]:
    """Diagonal matrices with these entries."""
    return entries[..., None] * jnp.eye(entries.shape[-1], dtype=entries.dtype)
