"""What there is for each row of the data: its log likelihood under every draw, and its columns."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.models.adapter import Adapter
from ramify.numerics.memory import check_memory
from ramify.posterior.conditioned import blocks_of
from ramify.posterior.draws import Draws, map_draws
from ramify.posterior.matching import Part

Columns = dict[str, Shaped[np.ndarray, "..."]]


def row_log_lik(
    adapter: Adapter, parts: list[Part], n_rows: int, theta: Draws, local_draws: int
) -> Columns:
    """The log likelihood of each row under each draw, [S, n_rows], by outcome."""
    draws, model = len(theta.theta), adapter.model
    cure = "Pass rows=False to leave what there is for each row out"
    what = f"{draws:,} draws of {n_rows:,} rows"
    check_memory(draws * n_rows * theta.theta.dtype.itemsize, None, what, cure)
    out: dict[str, np.ndarray] = {}
    for given, at, rows in blocks_of(parts, model):
        use = lambda chunk, z, _: _block_log_lik(adapter, chunk.theta, z, at)  # noqa: B023
        for name, values in map_draws(use, given, model, theta, local_draws, at).items():
            column = out.setdefault(name, np.empty((draws, n_rows), values.dtype))
            column[:, rows] = values[:, : len(rows)]
    return out


@eqx.filter_jit
def _block_log_lik(
    adapter: Adapter, theta: Array, z: Float[Array, "C B M"], at: Batch
) -> dict[str, Array]:
    one = lambda theta, z: adapter.log_lik_by_outcome(theta, at.at_rows(z), at)
    return jax.vmap(one)(theta, z)


def data_columns(adapter: Adapter, data: Groups) -> tuple[dict[str, Any], Columns]:
    """Observed outcomes by name; the other columns, and the number of each row's group."""
    observed = jax.tree.map(np.asarray, adapter.observed(whole(data)))
    number = np.repeat(np.arange(len(data)), data.sizes)
    rest = {n: c for n, c in data.rows.items() if n not in observed}
    return observed, rest | data.group | {f"{data.by}_index": number}
