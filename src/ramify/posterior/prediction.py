"""Predicted outcomes of rows and the tables they go back into."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.data.tables import append_columns, column_names, columns_of, n_rows
from ramify.families.build import Family
from ramify.models.adapter import Adapter
from ramify.models.parameters import Named
from ramify.numerics import budgets
from ramify.numerics.hashing import generator
from ramify.numerics.memory import check_memory
from ramify.numerics.programs import program
from ramify.posterior.conditioned import blocks_of
from ramify.posterior.draws import OUTCOMES, Chunk, map_draws, posterior_theta
from ramify.posterior.matching import DataSchema, Part, check_columns

Kind = Literal["response", "mean", "link", "probability"]
Columns = dict[str, Shaped[np.ndarray, "..."]]


def read(
    schema: DataSchema, adapter: Adapter, table: Any, what: str, *, outcomes: bool = False
) -> Groups:
    """A table as groups, with those of the fit's columns that it has; `outcomes`: see `Adapter.read`."""
    if isinstance(table, Groups):
        groups = replace(table, row_order=np.arange(table.n_rows))
    elif (groups := adapter.read(table, what, outcomes=outcomes)) is None:
        names = column_names(table, what)
        columns_of(table, [schema.by], what)  # whose message says which table
        present = lambda columns: [name for name in columns if name in names]
        groups = Groups.from_table(
            table, by=schema.by, rows=present(schema.rows), group=present(schema.group)
        )
    check_columns(schema.rows, groups.rows, f"row column of {what}", missing=True)
    return groups


def has_rows(table: Any, by: str, what: str) -> bool:
    """Whether a table has rows; for Groups the answer is always yes."""
    if isinstance(table, Groups):
        return True
    names = column_names(table, what)
    counted = by if by in names or not names else names[0]  # without labels: one new group
    return n_rows(table, counted, what) > 0


def nothing(table: Any, names: Sequence[str] | None, draws: int, categories: int) -> Any:
    """The prediction for a table without rows: empty columns with these names, or an empty array."""
    if names is None:
        return np.zeros((draws, 0, categories) if categories else (draws, 0), np.float32)
    return appended(table, {name: np.zeros(0, np.float32) for name in names})


def categories_of(adapter: Any, kind: str) -> list[str]:
    """Names of the categories of a prediction; [] if it is one number."""
    if kind not in get_args(Kind):
        known = ", ".join(f'"{name}"' for name in get_args(Kind))
        raise ValueError(f"predict expected kind to be one of {known}; got {kind!r}.")
    return adapter.categories(kind)


def outcome_of(adapter: Adapter, schema: DataSchema, part: Part, kind: Kind, seen: dict) -> Any:
    """Shape and type of one outcome, traced once for each kind of table and then kept in `seen`."""
    columns = part.at.rows | part.at.group
    missing = schema.rows.keys() - columns.keys() - {adapter.outcome}
    if kind == "response" and not missing and (own := adapter.outcome_type()) is not None:
        return own
    known = kind, *((name, c.shape[1:], c.dtype.str) for name, c in columns.items())
    if known not in seen:
        seen[known] = _traced(adapter, schema, part, kind)
    return seen[known]


def _outcome(
    kind: Kind, adapter: Adapter, key: PRNGKeyArray, theta: Array, z_rows: Array, batch: Batch
) -> Array:
    """A new outcome of each row, or for another kind `Adapter.expected`, [R, ...]."""
    if kind == "response":
        return adapter.model.simulate(key, theta, z_rows, batch)
    return adapter.expected(kind, theta, z_rows, batch)


def _traced(adapter: Adapter, schema: DataSchema, part: Part, kind: Kind) -> Any:
    """Shape and type of one outcome; raises if `simulate` asks for a column that is not there."""
    model, batch, key = adapter.model, example(part.at), jax.random.key(0)
    theta = jax.ShapeDtypeStruct((model.theta.size,), part.family.theta.mean.dtype)
    z = jax.ShapeDtypeStruct((2, model.z.size), theta.dtype)
    try:
        out = jax.eval_shape(partial(_outcome, kind, adapter), key, theta, z, batch)
    except KeyError as error:
        name = error.args[0]
        known = name in schema.rows or name in schema.group
        raise ValueError(
            f'simulate(key, theta, z, row) asks for "{name}", and the table to predict has no such '
            "column: add it." + ("" if known else " (Nor had the data of the fit.)")
        ) from error
    return jax.ShapeDtypeStruct(out.shape[1:], out.dtype)


class Task(NamedTuple):
    """A prediction: what to draw and for which groups; rows are numbered in the order of the result."""

    adapter: Adapter
    family: Family
    parts: list[Part]
    n_rows: int
    outcome: Any
    kind: Kind
    draws: int
    local_draws: int
    seed: int
    categories: Sequence[str] = ()


def summaries(task: Task, quantiles: Sequence[float]) -> dict[str, np.ndarray]:
    """Mean, sd and quantiles of every row's outcome, each [rows, ...], or [rows] of each category."""
    if task.kind == "response" and not task.adapter.numeric:
        raise ValueError(
            "the outcome is one of several categories, of which no mean makes sense: use "
            'kind="probability", or summary=False for draws of their numbers.'
        )
    names = summary_names(quantiles)
    shape, origin = (task.n_rows, *task.outcome.shape), task.adapter.origin
    kind = np.float64 if origin else np.float32
    out = {name: np.empty(shape, np.float32 if name == "sd" else kind) for name in names}
    for rows, values in outcomes(task):
        for name, column in summarise(values, quantiles).items():
            out[name][rows] = column if name == "sd" else column.astype(kind) + origin
    if not task.categories:
        return out
    apart = [out[name][:, k] for k in range(len(task.categories)) for name in names]
    return dict(zip(summary_names(quantiles, task.categories), apart, strict=True))


def draws(task: Task) -> Shaped[np.ndarray, "S rows ..."]:
    """All draws of the outcomes: float64 if they are too far from zero for float32."""
    shape = (task.draws, task.n_rows, *task.outcome.shape)
    kind = np.dtype(np.float64 if task.adapter.origin else task.outcome.dtype)
    what = f"{task.draws:,} draws of {task.n_rows:,} rows"
    check_memory(math.prod(shape) * kind.itemsize, None, what, "Predict fewer rows")
    out = np.empty(shape, kind)
    for rows, values in outcomes(task):
        out[:, rows] = values
    if task.adapter.origin:
        out += task.adapter.origin
    return out


def outcomes(task: Task) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (numbers of rows, their outcomes [S, rows, ...]) block by block."""
    model = task.adapter.model
    theta = posterior_theta(jax.random.key(task.seed), task.family, model, task.draws)
    rows, places = block_limits(task)
    for given, at, places_of_rows in blocks_of(
        task.parts, model, task.local_draws, rows=rows, places=places
    ):
        use = lambda chunk, z, _: begun(task, chunk, z, at)  # noqa: B023
        out = map_draws(use, given, model, theta, task.local_draws)
        yield places_of_rows, finished(task, out, at, len(places_of_rows))


def block_limits(task: Task) -> tuple[int, int]:
    """Most rows, and groups, of a block."""
    size = max(int(np.prod(task.outcome.shape)), 1)
    numbers = budgets.PREDICTED_NUMBERS // task.draws
    most = budgets.result_rows()
    rows, places = (
        int(np.clip(numbers // each, 1, most)) for each in (size, task.adapter.model.z.size)
    )
    return rows, places


def begun(task: Task, chunk: Chunk, z: Array, at: Batch) -> Any:
    """The outcomes of a block's rows, or the parameters from which the host draws them."""
    make = _parameters if _on_host(task) else _simulate
    return make(task.adapter, chunk, z, at, task.kind)


def finished(task: Task, out: Any, at: Batch, count: int) -> Shaped[np.ndarray, "S rows ..."]:
    """The outcomes of a block's first `count` rows."""
    out = jax.tree.map(lambda x: x[:, :count], out)
    if not _on_host(task):
        return out
    rng = generator(jax.random.key(task.seed), OUTCOMES, int(np.asarray(at.index)[0]))
    return task.adapter.draw_outcomes(rng, out).astype(task.outcome.dtype)


def _on_host(task: Task) -> bool:
    return task.kind == "response" and task.adapter.draws_on_host


@program
def _parameters(adapter: Adapter, chunk: Chunk, z: Array, at: Batch, kind: Kind) -> Named:
    """The parameters of the outcomes, for each row of `at` and each draw, [C, R, ...] each."""
    del kind
    one = lambda theta, z: adapter.outcome_parameters(theta, at.at_rows(z), at)
    return jax.vmap(one)(jnp.asarray(chunk.theta), z)


@program
def _simulate(adapter: Adapter, chunk: Chunk, z: Array, at: Batch, kind: Kind) -> Array:
    """An outcome for each row of `at` and each draw, [C, R, ...]."""
    # Groups fold their numbers, below 2^31, into the draw's key; the rows of a block fold 2^31 or more.
    rows = jnp.uint32(2**31) + at.index[0].astype(jnp.uint32)

    def one(key: PRNGKeyArray, theta: Array, z: Array) -> Array:
        return _outcome(kind, adapter, jax.random.fold_in(key, rows), theta, at.at_rows(z), at)

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta), z)


def summarise(values: Shaped[np.ndarray, "S rows ..."], quantiles: Sequence[float]) -> Columns:
    """Mean, sd and quantiles over draws, as exact as these; quantiles of counts are possible values."""
    method = "linear" if values.dtype.kind == "f" else "inverted_cdf"
    kind = np.float64 if values.dtype.itemsize > 4 else np.float32
    numbers = values if values.dtype.kind == "f" else values.astype(kind)
    mean, sd = numbers.mean(0, dtype=np.float64), numbers.std(0, dtype=np.float64)
    levels = np.quantile(numbers, np.asarray(quantiles, np.float64), axis=0, method=method)
    columns = (column.astype(kind) for column in (mean, sd, *levels))
    return dict(zip(summary_names(quantiles), columns, strict=True))


def quantile_names(quantiles: Sequence[float]) -> list[str]:
    """q5 for 0.05, q50 for 0.5, q97.5 for 0.975.

    Example:
        >>> quantile_names([0.05, 0.5, 0.975])
        ['q5', 'q50', 'q97.5']
    """
    if isinstance(quantiles, str) or np.ndim(quantiles) != 1:
        expected = "a list of numbers between 0 and 1, as (0.05, 0.95)"
        raise TypeError(f"quantiles is {quantiles!r}; expected {expected}.")
    if not all(0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles must be between 0 and 1; got {list(quantiles)}.")
    return [f"q{100 * q:.6g}" for q in quantiles]


def summary_names(quantiles: Sequence[float], categories: Sequence[str] = ()) -> list[str]:
    """The columns that a summary appends, for each category where there are any.

    Example:
        >>> summary_names([0.5], ["low", "high"])
        ['low_mean', 'low_sd', 'low_q50', 'high_mean', 'high_sd', 'high_q50']
    """
    names = ["mean", "sd", *quantile_names(quantiles)]
    return [f"{c}_{name}" for c in categories for name in names] if categories else names


def labelled(by: str, labels: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """A table with a row for each group, labels first.

    A result column named like the label column gets the prefix `group_`.

    Example:
        >>> list(labelled("user", [7], {"n": [3]})), list(labelled("n", [7], {"n": [3]}))
        (['user', 'n'], ['n', 'group_n'])
    """
    own = {f"group_{name}" if name == by else name: column for name, column in columns.items()}
    return {by: labels, **own}


def check_no_clash(table: Any, new: Sequence[str]) -> None:
    """Raises if the table already has one of the columns that predict appends."""
    is_groups = isinstance(table, Groups)
    names = [*table.rows, *table.group, table.by] if is_groups else column_names(table, "at")
    clash = [name for name in new if name in names]
    if clash:
        raise ValueError(
            f'the table to predict has a column "{clash[0]}", which is what predict calls one of '
            "its own: rename yours, or pass summary=False."
        )


def appended(table: Any, columns: dict[str, np.ndarray]) -> Any:
    """The table with columns appended, as the same kind of table; Groups become a dict."""
    if isinstance(table, Groups):
        owner = np.repeat(np.arange(len(table)), table.sizes)
        group = {name: column[owner] for name, column in table.group.items()}
        table = {table.by: table.labels[owner], **table.rows, **group}
    return append_columns(table, columns)


def data_columns(adapter: Adapter, data: Groups) -> tuple[Columns, Columns, Columns]:
    """Observed outcomes by name; the other columns of rows, with each one's group; those of groups."""
    observed = jax.tree.map(np.asarray, adapter.observed(whole(data)))
    number = np.repeat(np.arange(len(data)), data.sizes)
    rows, group = adapter.predictors(data)
    rest = {n: c for n, c in rows.items() if n not in observed}
    return observed, rest | {f"{data.by}_index": number}, group
