"""Values of groups and rows for each draw, for ArviZ; all use the same draws of z."""

from collections.abc import Iterator
from functools import partial
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
from ramify.numerics.threads import by_threads
from ramify.posterior.conditioned import Conditioned, blocks_of
from ramify.posterior.draws import Chunk, Draws, map_draws, posterior_theta
from ramify.posterior.prediction import Columns, Task, begun, finished

OUTCOME = "outcome"


def drawn(task: Task) -> tuple[Columns, np.ndarray | None, Columns]:
    """Named z of the groups, outcomes of the rows (None if there is none), and log likelihoods."""
    model, z, outcome, log_lik, done = task.adapter.model, {}, {}, {}, 0
    _check_rows(task)
    theta = posterior_theta(jax.random.key(task.seed), task.family, model, task.draws)
    N = sum(len(part.at) for part in task.parts)
    # The host draws a block's outcomes in a thread while the next block is computed.
    blocks = by_threads(partial(_finished, task), _begun_blocks(task, theta), 1, alone=False)
    for values, own, row_values, rows, count in blocks:
        _put(z, values, np.arange(done, done + count), N)
        _put(log_lik, row_values, rows, task.n_rows)
        _put(outcome, own, rows, task.n_rows)
        done += count
    return z, outcome.get(OUTCOME), log_lik


def _begun_blocks(task: Task, theta: Draws) -> Iterator[tuple[Any, Conditioned, Batch, np.ndarray]]:
    """Yields what programs compute of each block, with its parts."""
    model, K = task.adapter.model, task.local_draws
    for given, at, rows in blocks_of(task.parts, model, K):
        use = lambda chunk, z, _: _of_chunk(task, chunk, z, given, at)  # noqa: B023
        yield map_draws(use, given, model, theta, K), given, at, rows


def _finished(
    task: Task, block: tuple[Any, Conditioned, Batch, np.ndarray]
) -> tuple[Columns, Columns, Columns, np.ndarray, int]:
    """Z, outcomes and log likelihoods of a block, the places of its rows, and its number of groups."""
    (values, begun_outcomes, row_values), given, at, rows = block
    count = int(np.asarray(given.batch.group_mask).sum())
    if task.outcome is None:
        return values, {}, row_values, rows, count
    own = finished(task, begun_outcomes, at, len(rows))
    own = own.astype(np.float64) + task.adapter.origin if task.adapter.origin else own
    return values, {OUTCOME: own}, row_values, rows, count


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
