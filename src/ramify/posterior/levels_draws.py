"""Draws of effects and outcomes for the posterior of a model with several factors."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ramify.data.tables import column_names
from ramify.levels.adapter import LevelsAdapter, RowsAt
from ramify.levels.design import Design
from ramify.levels.draws import draw_z
from ramify.levels.model import LevelsModel
from ramify.levels.shape import Pool
from ramify.numerics.points import gauss_hermite
from ramify.posterior.averages import Cells, Who
from ramify.posterior.interpret import Settings

ABSENT = -2
ORDER = 21  # points of the rule for a linear predictor over its population
Seed = tuple[int, ...]
NUMBERS = 2**24  # draws times rows at once


class Task(NamedTuple):
    """The parts of a fit that predictions are made from."""

    model: LevelsModel
    adapter: LevelsAdapter
    design: Design
    pool: Pool


def kept_effects(
    model: LevelsModel, design: Design, pool: Pool, rows: np.ndarray, term: int
) -> Float64[np.ndarray, "S L m"]:
    """Draws of the effects of a kept term, on the scale that the model computes on."""
    place = design.kept[model.kept.index(term)]
    own = pool.u[rows, place.start : place.stop]
    return own.reshape(len(rows), place.levels, place.effects).astype(np.float64)


def draw_groups(
    model: LevelsModel,
    design: Design,
    pool: Pool,
    rows: np.ndarray,
    groups: Int64[np.ndarray, " G"],
    seed: Seed,
) -> Float64[np.ndarray, "S G M"]:
    """Draws of z of some groups of a design, given the pool's draws of theta and b."""
    some = design if len(groups) == design.N else design.subset(groups)
    out = np.empty((len(rows), len(groups), model.M))
    z = np.zeros((len(groups), model.M))
    thetas = np.asarray(pool.theta[rows], np.float64)
    for s, (row, given) in enumerate(zip(rows, model.at_each(thetas), strict=True)):
        rng = np.random.default_rng([*seed, 2, s])
        base = some.without_z(pool.beta[row], pool.u[row])
        out[s] = draw_z(model, given, some, base, z, rng)
        z = out[s]
    return out


def predicted(
    task: Task, at: Any, given: Any, rows: np.ndarray, kind: str, seed: int
) -> np.ndarray:
    """Draws of outcomes, or of another `kind`, at the rows of a table: [S, n, ...]."""
    warn_of_absent(task.adapter, at, "at")
    where, known = read(task, at, given, outcomes=False)
    values = task.model.values(task.pool.theta[rows])
    eta = linear(task, where, known, rows, values, (seed,))
    if kind == "response":
        rng = np.random.default_rng([seed, 4])
        return task.adapter.outcomes(rng, eta, values, where)
    return task.adapter.expected(kind, eta, values, where)


def read(task: Task, at: Any, given: Any, *, outcomes: bool) -> tuple[RowsAt, RowsAt | None]:
    """Rows to predict, and those to condition on; a new level is the same in both."""
    seen: list[dict[Any, int]] = [{} for _ in task.adapter.factors]
    where = task.adapter.read(at, "test" if outcomes else "at", seen, outcomes=outcomes)
    known = None if given is None else task.adapter.read(given, "given", seen, outcomes=True)
    return where, known


def warn_of_absent(adapter: LevelsAdapter, at: Any, what: str) -> None:
    """Warns where a table has no column of a factor, which may be misspelt or an index."""
    names = {*column_names(at, what)}
    for factor in (info.name for info in adapter.factors):
        absent = [name for name in factor.split(":") if name not in names]
        if absent and factor not in names:
            warnings.warn(
                f'{what} has no column "{absent[0]}": each of its rows gets a level of "{factor}" of its '
                "own, drawn from the population. A column of None says so without this warning.",
                stacklevel=5,
            )


def own_levels(codes: Int64[np.ndarray, " n"], period: int | None = None) -> np.ndarray:
    """The codes of rows; each row without a label gets a level of its own.

    With a period, the rows are those of several scenarios, one after the other: a row then has the same
    level in all of them.
    """
    own = np.arange(len(codes)) % (period or max(len(codes), 1))
    return np.where(codes == ABSENT, np.iinfo(np.int64).max // 2 + own, codes)


def linear(
    task: Task,
    where: RowsAt,
    given: RowsAt | None,
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    seed: Seed,
    without: int | None = None,
) -> Float64[np.ndarray, "S n *V"]:
    """Draws of the linear predictor of rows, with the effects of their levels but those of a factor."""
    eta = where.design.common(task.pool.beta[rows])
    for f in task.adapter.outer_first():
        if f != without:
            add_factor(task, f, (where, given, eta), rows, values, seed)
    return eta


def add_factor(
    task: Task,
    factor: int,
    at: tuple[RowsAt, RowsAt | None, np.ndarray],
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    seed: Seed,
) -> None:
    """Adds the effects of a factor's levels to draws of the linear predictor, in place."""
    where, _, eta = at
    effects, slot = _factor_effects(task, factor, at, rows, values, seed)
    where.design.add_effects(eta, effects[:, slot], _columns(task, where, factor), factor)


def _columns(task: Task, at: RowsAt, factor: int) -> Float64[np.ndarray, "n m"]:
    """The columns of all effects of a factor."""
    own = [at.terms[t] for t in task.adapter.factors[factor].terms if at.terms]
    return np.concatenate(own, 1) if own else np.zeros((len(at.codes[factor]), 0))


def cell_means(
    task: Task, rows: np.ndarray, asked: Settings, at: RowsAt, cells: Cells
) -> Float64[np.ndarray, "S scenarios cells *categories"]:
    """The average expected outcome of the rows of each cell, in each scenario and draw."""
    n, found = len(cells.own), []
    at = at._replace(codes=[own_levels(codes, n) for codes in at.codes])
    few = max(int(NUMBERS // max(n * cells.scenarios, 1)), 1)
    add, size = cells.sums(np.arange(n)), np.bincount(cells.own, minlength=cells.number)
    for start in range(0, len(rows), few):
        some, seed = rows[start : start + few], (asked.seed, *([start] if start else []))
        own = expected(task, at, asked.groups, some, asked.kind, seed)
        found.append(add([own[:, i * n : (i + 1) * n] for i in range(cells.scenarios)]))
    total = np.concatenate(found)
    return total / size.reshape(-1, *[1] * (total.ndim - 3))


def expected(
    task: Task, at: RowsAt, who: Who, rows: np.ndarray, kind: str, seed: Seed
) -> Float64[np.ndarray, "S n *categories"]:
    """Expected outcomes of rows for own, average or new levels, or averaged over the population."""
    values = task.model.values(task.pool.theta[rows])
    of = lambda eta: task.adapter.expected(kind, eta, values, at)
    if who == "own":
        return of(linear(task, at, None, rows, values, seed))
    eta = at.design.common(task.pool.beta[rows])
    if who == "average":
        return of(eta)
    if who == "new":  # one new level of every factor, the same for all rows
        for f, info in enumerate(task.adapter.factors):
            effects = [_population(task, t, values, {}, eta[:, :1], seed)[:, 0] for t in info.terms]
            eta += np.concatenate(effects, -1) @ _columns(task, at, f).T
        return of(eta)
    spread = np.sqrt(_variance(task, at, values))
    points, log_weight = (np.asarray(x) for x in gauss_hermite(ORDER, 1))
    weight = np.exp(log_weight - 0.5 * points[:, 0] ** 2)
    pairs = zip(points[:, 0], weight / weight.sum(), strict=True)
    return sum(w * of(eta + x * spread) for x, w in pairs)  # pyright: ignore[reportReturnType]


def _variance(task: Task, at: RowsAt, values: dict[str, np.ndarray]) -> Float64[np.ndarray, "S n"]:
    """The variance of a row's linear predictor over the populations of all factors."""
    found = 0.0
    for info in task.adapter.factors:
        for t in info.terms:
            own = values[f"sd_{t}"][:, None] * at.terms[t]  # [S, n, m]
            if f"cor_{t}" in values:
                own = np.einsum("sij,sni->snj", values[f"cor_{t}"], own)
            found = found + np.sum(own**2, -1)
    return np.asarray(found)


def _factor_effects(
    task: Task,
    factor: int,
    where: tuple[RowsAt, RowsAt | None, np.ndarray],
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    seed: Seed,
) -> tuple[Float64[np.ndarray, "S slots m"], Int64[np.ndarray, " n"]]:
    """Draws of the effects of the levels of a factor that occur in rows, and the place of each row's."""
    at, given, eta = where
    codes, info = at.codes[factor], task.adapter.factors[factor]
    levels = len(info.labels)
    distinct, first, slot = np.unique(own_levels(codes), return_index=True, return_inverse=True)
    known = distinct < levels
    if known.all():
        effects = np.zeros((len(rows), len(distinct), sum(task.model.terms[t] for t in info.terms)))
    else:
        columns = task.adapter.new_columns(at, factor, first)
        many = values, columns, eta[:, first], seed
        effects = np.concatenate([_population(task, t, *many) for t in info.terms], -1)
    if factor != task.adapter.integrated:
        own = [kept_effects(task.model, task.design, task.pool, rows, t) for t in info.terms]
        effects[:, known] = np.concatenate(own, -1)[:, distinct[known]]
        return effects, slot
    told = np.zeros(len(distinct), bool)
    if given is not None:
        told = np.isin(distinct, given.codes[factor])
        if told.any():
            effects[:, told] = _conditioned(task, given, distinct[told], rows, seed)
    left = known & ~told
    if left.any():
        model, design, pool = task.model, task.design, task.pool
        effects[:, left] = draw_groups(model, design, pool, rows, distinct[left], seed)
    return effects, slot


def _conditioned(
    task: Task, given: RowsAt, wanted: np.ndarray, rows: np.ndarray, seed: Seed
) -> Float64[np.ndarray, "S G M"]:
    """Draws of z of levels of the integrated factor, given their rows in a table."""
    own = task.adapter.integrated
    for f, info in enumerate(task.adapter.factors):
        if (
            f != own
            and not (given.codes[f] < len(info.labels)).all()
            or (given.codes[f] == ABSENT).any()
        ):
            raise ValueError(
                f'given has rows whose level of "{info.name}" is not one of the fit. Only levels of '
                f'"{task.adapter.factors[own].name}" can be new in given; for others fit again.'
            )
    place = {code: i for i, code in enumerate(wanted.tolist())}
    inside = np.isin(given.codes[own], wanted)
    code = np.array([place[c] for c in given.codes[own][inside].tolist()], np.int64)
    some = task.adapter.conditioned(given, inside, code, len(wanted))
    every = np.arange(len(wanted))
    return draw_groups(task.model, some, task.pool, rows, every, seed)


def _population(
    task: Task,
    term: int,
    values: dict[str, Any],
    columns: dict[str, np.ndarray],
    others: np.ndarray,
    seed: Seed,
) -> Float64[np.ndarray, "S count m"]:
    """Draws of the effects of levels without data."""
    rng = np.random.default_rng([*seed, 3, term])
    return task.model.population(term, values, columns, others, rng)
