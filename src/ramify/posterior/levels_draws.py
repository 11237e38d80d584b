"""Draws of effects and outcomes for the posterior of a model with several factors."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ramify.levels.adapter import LevelsAdapter, RowsAt
from ramify.levels.design import Design
from ramify.levels.draws import draw_z
from ramify.levels.model import LevelsModel
from ramify.levels.shape import Pool

ABSENT = -2
NUMBERS = 2**24  # draws times rows at once


class Task(NamedTuple):
    """A fit: what predictions are made from."""

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
    seed: int,
) -> Float64[np.ndarray, "S G M"]:
    """Draws of z of some groups of a design, given the pool's draws of theta and b."""
    some = design if len(groups) == design.N else design.subset(groups)
    out = np.empty((len(rows), len(groups), model.M))
    z = np.zeros((len(groups), model.M))
    thetas = np.asarray(pool.theta[rows], np.float64)
    for s, (row, given) in enumerate(zip(rows, model.at_each(thetas), strict=True)):
        rng = np.random.default_rng([seed, 2, s])
        base = some.without_z(pool.beta[row], pool.u[row])
        out[s] = draw_z(model, given, some, base, z, rng)
        z = out[s]
    return out


def predicted(
    task: Task, at: Any, given: Any, rows: np.ndarray, kind: str, seed: int
) -> np.ndarray:
    """Draws of outcomes, or of what the kind says, at the rows of a table: [S, n, ...]."""
    seen: list[dict[Any, int]] = [{} for _ in task.adapter.factors]
    where = task.adapter.read(at, "at", seen, outcomes=False)
    known = None if given is None else task.adapter.read(given, "given", seen, outcomes=True)
    values = task.model.values(task.pool.theta[rows])
    eta = _linear(where.design, task.pool, rows)
    for f in range(len(task.adapter.factors)):
        effects, slot = _factor_effects(task, f, where, known, rows, values, seed)
        terms = task.adapter.factors[f].terms
        columns = np.concatenate([where.terms[t] for t in terms], 1)
        for m, column in enumerate(columns.T):
            eta += effects[:, slot, m] * column
    if kind == "response":
        rng = np.random.default_rng([seed, 4])
        return task.adapter.outcomes(rng, eta, values, where)
    return task.adapter.expected(kind, eta, values, where)


def _linear(design: Design, pool: Pool, rows: np.ndarray) -> Float64[np.ndarray, "S n"]:
    """The linear predictor of common effects alone."""
    return design.offset + pool.beta[rows].astype(np.float64) @ design.X.T


def _factor_effects(
    task: Task,
    factor: int,
    at: RowsAt,
    given: RowsAt | None,
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    seed: int,
) -> tuple[Float64[np.ndarray, "S slots m"], Int64[np.ndarray, " n"]]:
    """Draws of the effects of those levels of a factor that rows have, and which of these each has."""
    codes, info = at.codes[factor], task.adapter.factors[factor]
    levels = len(info.labels)
    # A row without a label has a level of its own.
    absent = codes == ABSENT
    codes = np.where(absent, np.iinfo(np.int64).max // 2 + np.arange(len(codes)), codes)
    distinct, slot = np.unique(codes, return_inverse=True)
    effects = np.concatenate(
        [_population(task, t, values, len(distinct), seed) for t in info.terms], -1
    )
    known = distinct < levels
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
    task: Task, given: RowsAt, wanted: np.ndarray, rows: np.ndarray, seed: int
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
    design = given.design
    some = Design(
        code,
        len(wanted),
        design.W[inside],
        design.X[inside],
        design.K[inside],
        design.offset[inside],
        {name: column[inside] for name, column in design.columns.items()},
        design.kept,
    )
    every = np.arange(len(wanted))
    return draw_groups(task.model, some, task.pool, rows, every, seed)


def _population(
    task: Task, term: int, values: dict[str, Any], count: int, seed: int
) -> Float64[np.ndarray, "S count m"]:
    """Effects of levels that nothing is known of."""
    sd = values[f"sd_{term}"]  # [S, m]
    rng = np.random.default_rng([seed, 3, term])
    noise = rng.normal(size=(len(sd), count, sd.shape[1]))
    if f"cor_{term}" in values:
        noise = np.einsum("sij,snj->sni", values[f"cor_{term}"], noise)
    return sd[:, None] * noise
