"""Log densities of rows and groups at the draws of a fit with several factors, and their uses."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.io.arviz import Axes, data_tree
from ramify.levels.adapter import RowsAt
from ramify.levels.design import Design
from ramify.levels.integral import integrate, rule_for, solve
from ramify.posterior.held_out import PredictiveForm, all_together, sum_of_log_means
from ramify.posterior.levels_draws import (
    NUMBERS,
    Seed,
    Task,
    add_factor,
    draw_groups,
    linear,
    own_levels,
    read,
    warn_of_absent,
)
from ramify.posterior.loo import By, Loo, left_out
from ramify.posterior.metrics import Estimate

Named = dict[str, Any]


def log_densities(
    task: Task, design: Design, eta: Float64[np.ndarray, "S n *V"], rows: np.ndarray
) -> Float64[np.ndarray, "S n"]:
    """The log likelihood of each row at draws of its linear predictor."""
    thetas = np.asarray(task.pool.theta[rows], np.float64)
    each = zip(eta, task.model.at_each(thetas), strict=True)
    return np.stack([task.model.log_lik(given, design, own) for own, given in each])


def fitted_eta(
    task: Task, design: Design, rows: np.ndarray, seed: Seed
) -> Float64[np.ndarray, "S n *V"]:
    """Draws of the linear predictor of the rows of the fit, all of which `design` has."""
    every = np.arange(task.design.N)
    z = draw_groups(task.model, task.design, task.pool, rows, every, seed)
    own = zip(task.pool.beta[rows], task.pool.u[rows], z, strict=True)
    return np.stack([design.eta(beta, u, each) for beta, u, each in own])


def loo(task: Task, groups: Groups, by: By, rows: np.ndarray, seed: int) -> Loo:
    """Leaves out each row, or each level of the integrated factor, by importance weights."""
    if by not in get_args(By):
        raise ValueError(f'by must be "row" or "group"; got {by!r}.')
    name = task.adapter.factors[task.adapter.integrated].name
    if by == "group":
        elpd, k_hat, lpd = left_out(np.stack([*_by_group(task, rows)]))
        labels = task.adapter.factors[task.adapter.integrated].labels
        return Loo(by, labels, elpd, k_hat, lpd, name)
    design = task.adapter.design(groups).observed()
    eta = fitted_eta(task, design, rows, (seed,))
    n = len(design.offset)
    found, values = np.empty((3, n)), log_densities(task, design, eta, rows)
    for start in range(0, n, max(NUMBERS // (8 * len(rows)), 1)):
        own = slice(start, start + max(NUMBERS // (8 * len(rows)), 1))
        found[:, own] = left_out(values[:, own])
    order = np.argsort(groups.row_order, kind="stable")
    elpd, k_hat, lpd = found[:, order]
    return Loo(by, groups.row_order[order], elpd, k_hat, lpd, name)


def _by_group(task: Task, rows: np.ndarray) -> Iterator[Float64[np.ndarray, " N"]]:
    """For each draw of theta and b the log p^(y_i | theta, b) of all groups."""
    design, pool = task.design, task.pool
    base = (design.without_z(pool.beta[row], pool.u[row]) for row in rows)
    return _integrated(task, design, base, rows)


def log_predictive(
    task: Task, train: Any, test: Any, form: PredictiveForm, rows: np.ndarray, seed: int
) -> Estimate:
    """Log mean of p(y_test | z, b, theta), in a form that `Posterior.log_predictive` describes."""
    if form not in get_args(PredictiveForm):
        known = ", ".join(f'"{name}"' for name in get_args(PredictiveForm))
        raise ValueError(f"form must be one of {known}; got {form!r}.")
    warn_of_absent(task.adapter, test, "test")
    where, given = read(task, test, train, outcomes=True)
    if form == "per_row":
        values = task.model.values(task.pool.theta[rows])
        eta = linear(task, where, given, rows, values, (seed,))
        return sum_of_log_means(iter([log_densities(task, where.design, eta, rows)]), form)
    found = _test_groups(task, where, given, rows, (seed,))
    if form == "joint":
        return all_together(found.sum(1))
    return sum_of_log_means(iter([found]), form)


def _test_groups(
    task: Task, where: RowsAt, given: RowsAt | None, rows: np.ndarray, seed: Seed
) -> Float64[np.ndarray, "S G"]:
    """The log density of all rows of each level of the integrated factor, at draws of the rest.

    Effects of new levels of a formula are integrated out: a mean over draws of them from their
    population would be that of the few draws near the rows' outcomes. Those of other levels are drawn.
    """
    factor, values = task.adapter.integrated, task.model.values(task.pool.theta[rows])
    eta = linear(task, where, given, rows, values, seed, without=factor)
    whole = eta.copy()
    add_factor(task, factor, (where, given, whole), rows, values, seed)
    levels, code = np.unique(own_levels(where.codes[factor]), return_inverse=True)
    each = log_densities(task, where.design, whole, rows)
    found = np.stack([np.bincount(code, own) for own in each])
    new = levels >= len(task.adapter.factors[factor].labels)
    if given is not None:
        new &= ~np.isin(levels, given.codes[factor])
    if where.terms and new.any():
        inside, number = new[code], np.cumsum(new) - 1
        own = task.adapter.conditioned(where, inside, number[code[inside]], int(new.sum()))
        found[:, new] = np.stack([*_integrated(task, own, eta[:, inside], rows)])
    return found


def _integrated(
    task: Task, design: Design, base: Iterable[np.ndarray], rows: np.ndarray
) -> Iterator[Float64[np.ndarray, " N"]]:
    """Yields log p^(y_i | theta, b) of all groups, given draws of the linear predictor without z."""
    model = task.model
    rule, z = rule_for(model, len(design.offset), design.N), np.zeros((design.N, model.M))
    thetas = np.asarray(task.pool.theta[rows], np.float64)
    for own, given in zip(base, model.at_each(thetas), strict=True):
        solved = solve(model, given, design, own, z)
        z = solved.z
        yield integrate(model, given, design, own, solved, rule).groups


def tree(task: Task, groups: Groups, found: Named, rows: np.ndarray, seed: int, each: bool) -> Any:
    """Draws by name as a DataTree, with the levels of every factor as coordinates."""
    adapter, factors = task.adapter, task.adapter.factors
    data: dict[str, Named] = {"posterior": found}
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {}
    for f, info in enumerate(factors):
        own_dims, own_coords = adapter.effect_axes(f)
        dims |= own_dims
        coords |= {info.name: list(info.labels), **own_coords}
    if each:
        design = adapter.design(groups).observed()
        eta, values = (
            fitted_eta(task, design, rows, (seed,)),
            task.model.values(task.pool.theta[rows]),
        )
        at = RowsAt(design, [], [])
        rng = np.random.default_rng([seed, 4])
        data["posterior_predictive"] = {adapter.response: adapter.outcomes(rng, eta, values, at)}
        data["log_likelihood"] = {adapter.response: log_densities(task, design, eta, rows)}
    data["observed_data"] = {adapter.response: adapter.observed(groups)}
    own = factors[adapter.integrated]
    axes = Axes(own.name, own.labels, groups.row_order, {}, dims, coords)
    return data_tree(data, axes, "levels")
