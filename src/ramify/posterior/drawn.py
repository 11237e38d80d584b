"""Values of groups and rows for each draw, for ArviZ; all use the same draws of z."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.models.adapter import Adapter, local_values
from ramify.models.parameters import Named
from ramify.numerics.memory import check_memory
from ramify.numerics.programs import program
from ramify.posterior.conditioned import Conditioned, blocks_of
from ramify.posterior.draws import Chunk, map_draws, posterior_theta
from ramify.posterior.prediction import Columns, Task, begun, finished

OUTCOME = "outcome"


def drawn(task: Task) -> tuple[Columns, np.ndarray | None, Columns]:
    """Named z of the groups, outcomes of the rows (None if there is none), and log likelihoods."""
    model, K, z, outcome, log_lik = task.adapter.model, task.local_draws, {}, {}, {}
    _check_rows(task)
    theta = posterior_theta(jax.random.key(task.seed), task.family, model, task.draws)
    N, done = sum(len(part.at) for part in task.parts), 0
    for given, at, rows in blocks_of(task.parts, model, K):
        use = lambda chunk, z, _: _of_chunk(task, chunk, z, given, at)  # noqa: B023
        values, begun_outcomes, row_values = map_draws(use, given, model, theta, K)
        groups = np.arange(done, done + int(np.asarray(given.batch.group_mask).sum()))
        done += len(groups)
        _put(z, values, groups, N)
        _put(log_lik, row_values, rows, task.n_rows)
        if task.outcome is not None:
            own = finished(task, begun_outcomes, at, len(rows))
            own = own.astype(np.float64) + task.adapter.origin if task.adapter.origin else own
            _put(outcome, {OUTCOME: own}, rows, task.n_rows)
    return z, outcome.get(OUTCOME), log_lik


def _check_rows(task: Task) -> None:
    size = 0 if task.outcome is None else int(np.prod(task.outcome.shape))
    wanted = task.draws * task.n_rows * (1 + size) * jnp.result_type(float).itemsize
    cure = "Pass rows=False to leave what there is for each row out"
    check_memory(wanted, None, f"{task.draws:,} draws of {task.n_rows:,} rows", cure)


def _of_chunk(
    task: Task, chunk: Chunk, z: Array, given: Conditioned, at: Batch
) -> tuple[Named, Any, Named]:
    outcomes = {} if task.outcome is None else begun(task, chunk, z, at)
    values = local_values(task.adapter, chunk.theta, z, given.batch)
    return values, outcomes, _log_lik(task.adapter, chunk.theta, z, at)


@program
def _log_lik(adapter: Adapter, theta: Array, z: Float[Array, "C B M"], at: Batch) -> Named:
    one = lambda theta, z: adapter.log_lik_by_outcome(theta, at.at_rows(z), at)
    return jax.vmap(one)(theta, z)


def _put(out: Columns, values: Any, places: np.ndarray, count: int) -> None:
    """Writes a block's values, [S, block, ...] each, into columns of `count` places."""
    for name, value in values.items():
        shape = len(value), count, *value.shape[2:]
        column = out.setdefault(name, np.empty(shape, value.dtype))
        column[:, places] = value[:, : len(places)]
