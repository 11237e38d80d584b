"""Axis letters, the shapes that occur most, and the batch that travels between the rooms.

In every shape: N groups of the data set, cut into J blocks; B groups (places) and R rows of a block, of
which some may be filler; D and M, the dimensions of theta and of one group's z, unconstrained; S draws
of theta, and K local importance draws for each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ramify.data.groups import Groups

Theta = Float[Array, " D"]
Z = Float[Array, "B M"]  # z of the group at each place
ZRows = Float[Array, "R M"]  # for each row the z of its group


class Batch(NamedTuple):
    """Some groups with all their rows, packed flat into one static shape.

    Rows of a group are contiguous. Filler rows and groups are copies of real ones, not zeros: a
    density is finite there, so masking after the fact is safe for gradients as well.
    """

    rows: dict[str, Array]  # row columns, each [R, ...]
    group: dict[str, Array]  # group columns u_i, each [B, ...]
    segment: Int[Array, " R"]  # place (0..B-1) of each row's group; never decreases
    # Number of the group at each place: it selects the group's row in a table, and its noise.
    index: Int[Array, " B"]  # pyright: ignore[reportIncompatibleMethodOverride]
    # Rows of the group at each place, n_i; 0 for filler.
    count: Int[Array, " B"]  # pyright: ignore[reportIncompatibleMethodOverride]
    row_mask: Bool[Array, " R"]  # which rows are real
    group_mask: Bool[Array, " B"]  # which places are real
    # Makes a sum over the batch unbiased for all groups: J for a block, N/|B| for a minibatch.
    scale: Float[Array, ""]

    def at_rows(self, values: Shaped[Array, "B *rest"]) -> Shaped[Array, "R *rest"]:
        """For each row the value of its group."""
        at = jnp.asarray(values).at[self.segment]
        # `segment` is sorted; declaring it spares a GPU one atomic addition per row in the derivative.
        return at.get(indices_are_sorted=True, mode="promise_in_bounds")

    def group_at_rows(self) -> dict[str, Array]:
        """For each row the columns of its group."""
        return {name: self.at_rows(column) for name, column in self.group.items()}


def example(groups: Groups) -> Batch:
    """The shapes and types of a batch of two groups with two rows: enough to trace a model."""
    dtype = lambda column: jax.dtypes.canonicalize_dtype(column.dtype)
    shape = lambda column: jax.ShapeDtypeStruct((2, *column.shape[1:]), dtype(column))
    ints, flags = jax.ShapeDtypeStruct((2,), np.int32), jax.ShapeDtypeStruct((2,), bool)
    scale = jax.ShapeDtypeStruct((), jnp.result_type(float))
    rows, group = ({n: shape(c) for n, c in own.items()} for own in (groups.rows, groups.group))
    return Batch(rows, group, ints, ints, ints, flags, flags, scale)  # pyright: ignore[reportArgumentType]
