"""A model in the directions of z that a group's rows see, for fewer rows than dimensions of z.

With a normal p(z | theta) and a linear predictor w' z, a group of n rows sees at most n directions
of z. Let A [M, r] be an orthonormal basis of a space that holds them. Then u = A' z is normal too,
and the likelihood depends on z through u alone. The rest of z follows its prior given u, and does
not change p(y_i | theta). So theta is learned with a z of r dimensions instead of M.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_pytree_node
from jaxtyping import Array, Float

from ramify.data.batch import Batch, Theta, Z, ZRows, example
from ramify.data.groups import Groups
from ramify.data.host import Range, ranges
from ramify.models.adapter import Adapter
from ramify.models.model import Model
from ramify.models.parameters import Space, real
from ramify.models.structure import BlockPredictors, BlockStructure, Normal, linear
from ramify.numerics.small_linalg import inverse_factor, inverse_lower

COLUMN = "seen directions"  # the group column with each group's basis A


class SeenModel(Model):
    """A model with u_i = A_i' z_i in place of z_i."""

    def __init__(self, model: Model, dim: int):
        self.whole, self.theta, self.z = model, model.theta, Space({"u": real(dim)})
        rows = model.structure.likelihood
        assert rows is not None and model.structure.prior is not None
        seen = BlockPredictors(
            self._weights,
            lambda theta, batch: rows.offsets(theta, _plain(batch)),
            lambda theta, eta, batch: rows.density(theta, eta, _plain(batch)),
            rows.uses_theta,
            rows.smooth,
        )
        self.structure = BlockStructure(self._normal, seen, trusted=True)

    @property
    def adapter(self) -> Adapter:
        """The whole model's adapter: theta's names are the same."""
        return self.whole.adapter

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        """Log p(theta), as in the whole model."""
        return self.whole.log_prior(theta)

    def log_local(self, theta: Theta, z: Z, batch: Batch) -> Float[Array, " B"]:
        """Log p(u_i | theta)."""
        return self._normal(theta, batch).log_density(z)

    def log_lik(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Float[Array, " R"]:
        """Log p(y_ij | theta, u_i) of each row."""
        declared = self.structure.likelihood
        assert declared is not None
        return declared.log_lik(theta, z_rows[..., None], batch)[:, 0]

    def _normal(self, theta: Float[Array, " D"], batch: Batch) -> Normal:
        """N(A' mean, A' C A); the root is upper triangular."""
        prior = self.whole.structure.prior
        assert prior is not None
        normal, basis = prior(theta, _plain(batch)), batch.group[COLUMN]
        # C = X X' with the inverse X of the root.
        spread = jnp.einsum("...ki,bkr->bir", inverse_lower(normal.root), basis)
        factor = inverse_factor(jnp.einsum("bir,bis->brs", spread, spread))
        centre = jnp.broadcast_to(normal.mean, basis.shape[:2])
        return Normal(jnp.einsum("bk,bkr->br", centre, basis), factor.swapaxes(-1, -2))

    def _weights(self, batch: Batch) -> Float[Array, "R P r"]:
        rows = self.whole.structure.likelihood
        assert rows is not None
        return linear(rows.weights(_plain(batch)), batch.at_rows(batch.group[COLUMN]))


register_pytree_node(
    SeenModel, lambda m: ((m.whole,), m.z.size), lambda dim, whole: SeenModel(*whole, dim)
)


def _plain(batch: Batch) -> Batch:
    """The batch without the column of bases, for the whole model."""
    return batch._replace(group={n: c for n, c in batch.group.items() if n != COLUMN})


def in_seen_directions(model: Model, groups: Groups) -> tuple[Model, Groups]:
    """The model and the data in the directions that rows see; unchanged if rows see all of them."""
    declared, M = model.structure.likelihood, model.z.size
    if declared is None or model.structure.prior is None:
        return model, groups
    P = jax.eval_shape(declared.weights, example(groups)).shape[1]
    dim = int(groups.sizes.max()) * P
    if dim >= M:
        return model, groups
    column = np.concatenate([_bases(declared, block, dim) for block in ranges(groups)])
    return SeenModel(model, dim), replace(groups, group=groups.group | {COLUMN: column})


def _bases(declared: BlockPredictors, block: Range, dim: int) -> Float[np.ndarray, "n M r"]:
    """An orthonormal basis for each group of a block, which spans what its rows see (and more)."""
    batch, count = block.batches[0], block.stop - block.start
    weights = np.asarray(declared.weights(batch), np.float64)[np.asarray(batch.row_mask)]
    _, P, M = weights.shape
    segment = np.asarray(batch.segment)[np.asarray(batch.row_mask)]
    place = np.arange(len(segment)) - np.searchsorted(segment, segment)  # of a row in its group
    padded = np.zeros((count, dim // P, P, M))
    padded[segment, place] = weights
    return np.linalg.qr(padded.reshape(count, dim, M).swapaxes(1, 2))[0]
