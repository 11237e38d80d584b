"""Places the arrays of a fit by steps on several devices; XLA divides the work accordingly.

Rows and group columns are cut into equal runs, one on each device, and so are the parameters of a
table, with its groups. All other parameters are on every device. A block's rows are spread over the
devices too, and XLA adds up what each of them computes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from ramify.data.batch import Batch
from ramify.data.resident import Resident
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.table import Table
from ramify.models.model import Model

AXIS = "devices"


def mesh_of(devices: Sequence[Any]) -> Mesh | None:
    """The devices as JAX names them for sharding; None for fewer than two."""
    return Mesh(np.asarray(devices), (AXIS,)) if len(devices) > 1 else None


def spread_data(data: Resident, mesh: Mesh | None) -> Resident:
    """The data in equal runs; the filler of the last run is never used."""
    if mesh is None:
        return data
    runs = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.tree.map(lambda x: jax.device_put(_even(x, mesh), runs), data)


def filled_up(family: Family, mesh: Mesh | None) -> Family:
    """The family with its table filled up to a multiple of the devices; filler is never used."""
    if mesh is None or not (isinstance(family, Branched) and isinstance(family.local, Table)):
        return family
    return replace(family, local=replace(family.local, w=_even(family.local.w, mesh)))


def spread_state(state: Any, family: Family, mesh: Mesh | None) -> Any:
    """A state of steps with each group's own parameters on one device, and the rest on all."""
    if mesh is None:
        return state
    arrays, rest = eqx.partition(state, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, _places(arrays, family, mesh)), rest)


def gathered(family: Family, mesh: Mesh | None) -> Family:
    """The family on JAX's default device again, without the filler of its table."""
    if mesh is None:
        return family
    family = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)) if eqx.is_array(x) else x, family)
    if isinstance(family, Branched) and isinstance(family.local, Table):
        family = replace(family, local=replace(family.local, w=family.local.w[: family.N]))
    return family


def on_every_device(model: Model, mesh: Mesh | None) -> Model:
    """The model with its arrays copied to all devices."""
    if mesh is None:
        return model
    arrays, rest = eqx.partition(model, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, PartitionSpec())), rest)


def spread_batch(batch: Batch, mesh: Mesh | None) -> Batch:
    """Inside a program: spreads a block's rows over the devices, if these divide them evenly."""
    R = len(batch.row_mask)
    if mesh is None or R % mesh.size:
        return batch
    runs = NamedSharding(mesh, PartitionSpec(AXIS))
    own = {"rows": batch.rows, "segment": batch.segment, "row_mask": batch.row_mask}
    return batch._replace(**jax.lax.with_sharding_constraint(own, runs))


def held(arrays: Any, family: Family, mesh: Mesh | None) -> Any:
    """Inside a program: keeps the arrays of a state where `spread_state` put them."""
    # Otherwise XLA copies a table's gradient, and with it the table, to every device.
    if mesh is None:
        return arrays
    return jax.lax.with_sharding_constraint(arrays, _places(arrays, family, mesh))


def _places(arrays: Any, family: Family, mesh: Mesh) -> Any:
    """The sharding of each array: a table and its moments in runs of groups, others everywhere."""
    local = family.local if isinstance(family, Branched) else None
    shape = local.w.shape if isinstance(local, Table) else None
    in_runs, copied = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((AXIS,), ()))
    return jax.tree.map(lambda x: in_runs if x.shape == shape else copied, arrays)


def _even(x: Array, mesh: Mesh) -> Array:
    """Adds copies of the last entry, so that all devices get equally many."""
    more = -len(x) % mesh.size
    return jnp.concatenate([x, jnp.repeat(x[-1:], more, 0)]) if more else x
