"""What there is for each row of the data: its log likelihood under every draw, and its columns."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.data.resident import whole
from ramify.models.adapter import Adapter
from ramify.numerics.memory import check_memory
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Draws, local_sampler, map_draws, per_draw
from ramify.posterior.matching import Part

Columns = dict[str, Shaped[np.ndarray, "..."]]


def row_log_lik(
    adapter: Adapter, parts: list[Part], n_rows: int, theta: Draws, local_draws: int
) -> Columns:
    """The log likelihood of each row under each draw, [S, n_rows], by outcome."""
    draws = len(theta.theta)
    cure = "Pass rows=False to leave what there is for each row out"
    what = f"{draws:,} draws of {n_rows:,} rows"
    check_memory(draws * n_rows * theta.theta.dtype.itemsize, None, what, cure)
    out: dict[str, np.ndarray] = {}
    for part in parts:
        for block in ranges(part.given, part.at, rows=16_384, coarse=True):
            given, at = condition(part.family, adapter.model, block.batches[0]), block.batches[1]
            found = _block_log_lik(given, adapter, at, theta, local_draws)
            first = int(part.at.starts[block.start])
            count = int(part.at.sizes[block.start : block.stop].sum())
            rows = part.at.row_order[first : first + count]
            for name, values in found.items():
                column = out.setdefault(name, np.empty((draws, n_rows), values.dtype))
                column[:, rows] = np.asarray(values)[:, :count]
    return out


@eqx.filter_jit
def _block_log_lik(
    given: Conditioned, adapter: Adapter, at: Batch, draws: Draws, local_draws: int
) -> dict[str, Array]:
    model = adapter.model
    sample = local_sampler(given, model, local_draws)

    def one(key: PRNGKeyArray, theta: Array) -> dict[str, Array]:
        return adapter.log_lik_by_outcome(theta, at.at_rows(sample(key, theta)[0]), at)

    return map_draws(one, draws, per_draw(given, model, local_draws, at))


def data_columns(adapter: Adapter, data: Groups) -> tuple[dict[str, Any], Columns]:
    """Observed outcomes by name; the other columns, and the number of each row's group."""
    observed = jax.tree.map(np.asarray, adapter.observed(whole(data)))
    number = np.repeat(np.arange(len(data)), data.sizes)
    rest = {n: c for n, c in data.rows.items() if n not in observed}
    return observed, rest | data.group | {f"{data.by}_index": number}
