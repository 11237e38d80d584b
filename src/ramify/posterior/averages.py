"""Averages of expected outcomes over rows, draw by draw: for contrasts, slopes and their like.

Each row belongs to a cell, and only averages of cells are kept, [S, cells], never draws times rows. If
all scenarios have the same rows in the same groups, z is drawn once for all of them, by the programs that
predict at these rows. If rows have no groups of their own, all scenarios together are one table.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.models.adapter import Adapter
from ramify.models.model import Model
from ramify.numerics.budgets import chunk_size
from ramify.numerics.chunks import put_together
from ramify.numerics.hashing import generator
from ramify.numerics.points import gauss_hermite, normal_points
from ramify.numerics.programs import program
from ramify.numerics.small_linalg import inverse_lower
from ramify.posterior.conditioned import condition
from ramify.posterior.draws import Draws, map_draws, posterior_theta
from ramify.posterior.prediction import Kind, Task, begun, block_limits

Who = Literal["own", "average", "new", "population"]
Sums = Float64[np.ndarray, "C scenarios cells *categories"]

NEW_GROUP = 3  # a stream of random numbers, beside those of `draws`
ROWS = 256  # rows that share a label, where groups do not matter
_ORDER = 21  # points of the rule for one linear predictor
_POINTS = 64  # points of z for rows with several linear predictors


class Cells(NamedTuple):
    """The cell of each row; the same in every scenario."""

    own: Int[np.ndarray, " rows"]
    number: int  # of cells
    scenarios: int
    weight: Float64[np.ndarray, "scenarios rows"] | None = None  # factors of the rows' values

    def in_one(self) -> "Cells":
        """The rows of all scenarios as one scenario, in which each has its own cells."""
        every = np.arange(self.scenarios)[:, None] * self.number + self.own
        weight = None if self.weight is None else self.weight.reshape(1, -1)
        return Cells(every.ravel(), self.scenarios * self.number, 1, weight)

    def sums(self, rows: Int[np.ndarray, " n"]) -> Callable[[list[Any]], Sums]:
        """A function that adds up the values [C, n, ...] of these rows by cell, for each scenario."""
        cells = self.own[rows]
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1))

        def add(values: list[Any]) -> Sums:
            every = np.stack([np.asarray(v)[:, order] for v in values], 1)
            if self.weight is not None:
                weight = self.weight[:, rows[order]]
                every = every * weight.reshape(*weight.shape, *[1] * (every.ndim - 3))
            out = np.zeros((len(every), self.scenarios, self.number, *every.shape[3:]))
            out[:, :, cells[order][starts]] = np.add.reduceat(
                every, starts, axis=2, dtype=np.float64
            )
            return out

        return add


def cell_means(
    task: Task, who: Who, cells: Cells
) -> Float64[np.ndarray, "S scenarios cells *categories"]:
    """The average expected outcome of the rows of each cell in each scenario, for each draw.

    `task` has the rows of the first scenario, then those of the second, ...
    """
    if who == "own":
        # If scenarios differ in the groups of their rows, they are treated as one table.
        total = _own(task, cells if _same_groups(task, cells) else cells.in_one())
    else:
        total = _population(task, who, cells.in_one())
    total = total.reshape(task.draws, cells.scenarios, cells.number, *total.shape[3:])
    rows = np.bincount(cells.own, minlength=cells.number).astype(np.float64)
    mean = total / rows.reshape(-1, *[1] * len(task.outcome.shape))
    # With an identity link, linear predictors are less the origin too, as outcomes are.
    return mean + task.adapter.origin if task.adapter.origin else mean


def _same_groups(task: Task, cells: Cells) -> bool:
    """Whether every scenario has the same number of rows in each group."""
    for part in task.parts:
        owner = np.repeat(np.arange(len(part.at)), part.at.sizes)
        rows = np.zeros((len(part.at), cells.scenarios), np.int64)
        np.add.at(rows, (owner, part.at.row_order // len(cells.own)), 1)
        if (rows != rows[:, :1]).any():
            return False
    return True


def _own(task: Task, cells: Cells) -> Sums:
    """Sums by cell, with z of each row's own group."""
    model, K = task.adapter.model, task.local_draws
    theta = posterior_theta(jax.random.key(task.seed), task.family, model, task.draws)
    total: Any = 0.0
    for part in task.parts:
        at = _scenarios(part.at, cells)
        rows, places = block_limits(task)
        for block in ranges(part.given, *at, rows=rows, places=places, largest=part.largest):
            given, *batches = block.batches
            own = at[0].row_order[at[0]._rows_of(np.arange(block.start, block.stop))]
            add, known = cells.sums(own), condition(part.family, model, given, K)
            use = lambda chunk, z, _: add([begun(task, chunk, z, b) for b in batches])  # noqa: B023
            total += map_draws(use, known, model, theta, K)
    return total


def _scenarios(groups: Groups, cells: Cells) -> list[Groups]:
    """The rows of each scenario: the same groups, of the same sizes."""
    n = len(cells.own)
    scenario = groups.row_order // n
    sizes = groups.sizes // cells.scenarios
    found = []
    for i in range(cells.scenarios):
        mine = np.flatnonzero(scenario == i)
        rows = {name: column[mine] for name, column in groups.rows.items()}
        order = groups.row_order[mine] - i * n
        found.append(replace(groups, sizes=sizes, rows=rows, row_order=order))
    return found


def _population(task: Task, who: Who, cells: Cells) -> Sums:
    """Sums by cell, with z of the population."""
    model, (part,) = task.adapter.model, task.parts
    theta = posterior_theta(jax.random.key(task.seed), task.family, model, task.draws)
    linear = who == "population" and _one_predictor(model, part.at)
    points, weight = _points(who, theta, 1 if linear else model.z.size)
    at, total = _scenarios(part.at, cells), 0.0
    for block in ranges(*at):
        each = points.shape[1] * block.batches[0].segment.shape[0] * (model.z.size + 4)
        size, found = chunk_size(task.draws, each), []
        add = cells.sums(at[0].row_order[at[0]._rows_of(np.arange(block.start, block.stop))])
        for start, chunk in zip(range(0, task.draws, size), theta.chunks(size), strict=True):
            own = np.resize(points[start : start + size], (size, *points.shape[1:]))
            of = lambda b: _expected(task.adapter, chunk.theta, own, weight, b, task.kind, linear)  # noqa: B023
            found.append(add([of(batch) for batch in block.batches]))
        total += put_together(found, task.draws)
    return total  # pyright: ignore[reportReturnType]


def _points(who: Who, theta: Draws, M: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal points for each draw of theta, [S, K, M], and their weights [K]."""
    S, kind = len(theta.theta), theta.theta.dtype
    if who == "new":  # one group for all rows
        noise = generator(theta.key, NEW_GROUP).normal(size=(S, 1, M))
        return noise.astype(kind), np.ones(1, kind)
    points, weight = np.zeros((1, M)), np.ones(1)
    if who == "population" and M == 1:
        points, log_weight = (np.asarray(x) for x in gauss_hermite(_ORDER, M))
        weight = np.exp(log_weight - 0.5 * np.sum(points**2, 1))
    elif who == "population":
        points = normal_points(_POINTS, M)
        weight = np.ones(len(points))
    weight = (weight / weight.sum()).astype(kind)
    return np.broadcast_to(points.astype(kind), (S, *points.shape)), weight


@program
def _expected(
    adapter: Adapter,
    theta: Float[Array, "C D"],
    points: Float[Array, "C K M"],
    weight: Float[Array, " K"],
    at: Batch,
    kind: Kind,
    linear: bool,
) -> Float[Array, "C R *categories"]:
    """Expected outcomes of the rows of `at`, averaged over points of z given theta."""
    structure = adapter.model.structure

    def one(theta: Float[Array, " D"], points: Float[Array, "K M"]) -> Array:
        normal = structure.prior(theta, at)
        along = _directions(normal, structure, at) if linear else None

        def at_point(point: Float[Array, " M"]) -> Array:
            if along is not None:
                z_rows = at.at_rows(normal.mean) + point * along
            else:
                z_rows = at.at_rows(normal.draw(jnp.broadcast_to(point, normal.mean.shape)))
            return adapter.expected(kind, theta, z_rows, at)

        return jnp.tensordot(weight, jax.vmap(at_point)(points), 1)

    return jax.vmap(one)(theta, points)


def _one_predictor(model: Model, at: Groups) -> bool:
    """Whether z enters a row through a single number."""
    seen = model.structure.likelihood
    return seen is not None and jax.eval_shape(seen.weights, example(at)).shape[1] == 1


def _directions(normal: Any, structure: Any, at: Batch) -> Float[Array, "R M"]:
    """For each row the step of z that moves w'z by one sd: Sigma w / sqrt(w' Sigma w).

    A row depends on z through w'z alone, so an integral over z is one over a standard normal number.
    """
    w = structure.likelihood.weights(at)[:, 0]
    factor = inverse_lower(normal.root)  # Sigma is factor factor'
    if factor.ndim == 3:  # one for each group
        factor = at.at_rows(factor)
        white = jnp.einsum("rij,ri->rj", factor, w)
        moved = jnp.einsum("rij,rj->ri", factor, white)
    else:
        white = w @ factor
        moved = white @ factor.T
    return moved / jnp.maximum(jnp.linalg.norm(white, axis=-1, keepdims=True), 1e-30)


def no_groups(n: int, scenarios: int) -> np.ndarray:
    """Labels for rows whose groups do not matter, so that a block has many rows."""
    return np.tile(np.arange(n) // ROWS, scenarios)
