"""`update`: a fit with some groups new or changed, without the others' rows."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.data.labels import find
from ramify.data.merging import with_groups
from ramify.data.partition import sequential, shared_shape
from ramify.data.sources import packed
from ramify.engine.local import LocalEngine
from ramify.families.branched import Branched
from ramify.families.gaussian import Gaussian
from ramify.families.solver import Solver
from ramify.fitting.solved import default_local_draws
from ramify.inference.marginal import Marginal, definite
from ramify.inference.sweep import Problem
from ramify.numerics import budgets
from ramify.numerics.precision import computing
from ramify.numerics.triangular import free_numbers
from ramify.posterior.fitted import mean_theta_sd
from ramify.posterior.matching import check_columns
from ramify.posterior.posterior import Posterior

MOST_STEPS = 20
NEAR = 1e-3  # posterior sds: a Newton step that is shorter ends the search
FAR = 2.0  # posterior sds that a mean may move: farther off the old posterior is no parabola


class Part(NamedTuple):
    """Groups whose share of F is added or taken off."""

    sign: float
    F: Marginal


@computing
def update(posterior: Posterior, groups: Any) -> Posterior:
    """The posterior after some groups are new or have changed; the rows of the others are not read.

    Yesterday's posterior of theta stands for all data it was fitted to. A group that was among them
    enters by its new share less its old one, so never twice. The answer is that of a fit to all data,
    as far as yesterday's posterior of theta is Gaussian: with hundreds of groups or more, of which a
    part has changed. `notes["moved_sds"]` has how far each mean moved, in yesterday's sds.

    Args:
        posterior: a `solved` fit, with its data.
        groups: the new and the changed groups, Groups or a table, each with all of its rows: they
            replace those that the fit has.

    Raises:
        ValueError: if theta moves by more than two sds: fit again.
    """
    family = posterior.family
    if not (isinstance(family, Branched) and isinstance(family.local, Solver)):
        raise ValueError("update needs a solved() fit, which solves for groups one by one.")
    if posterior.groups is None:
        raise ValueError("this fit was loaded without its data, which update needs: fit again.")
    new, old = posterior._default(groups), posterior.groups
    check_columns(posterior._schema.rows, new.rows, "row column of groups")
    check_columns(posterior._schema.group, new.group, "group column of groups")
    known = find(old.labels, new.labels, "groups")
    parts = [Part(1.0, _share(posterior, family.local, new))]
    if (known >= 0).any():
        was = old.subset(positions=np.sort(known[known >= 0]))
        parts.append(Part(-1.0, _share(posterior, family.local, was)))
    mean, precision = _newton(family.theta, parts)
    merged = with_groups(old, new)
    modes = _modes(family.local, old, merged, new, parts[0].F)
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision)))
    theta = Gaussian(jnp.asarray(mean), free_numbers(factor, False, "log"), len(mean), False, "log")
    moved = (mean - np.asarray(family.theta.mean)) / _sds(family.theta)
    _check_near(posterior, moved)
    updated = Branched(theta, replace(family.local, modes=modes), len(merged))
    notes = {
        **posterior.notes,
        "theta_sd": mean_theta_sd(updated),
        "why": f"updated by {len(new):,} groups, {int((known < 0).sum()):,} of them new",
        "moved_sds": dict(zip(posterior.adapter.coordinates(), moved.tolist(), strict=True)),
        "unconverged": int((~parts[0].F.converged).sum()),
    }
    own = {"local_draws": posterior.local_draws, "history": posterior.history, "notes": notes}
    return Posterior(posterior.model, updated, merged, **own)


def _share(posterior: Posterior, local: Solver, groups: Groups) -> Marginal:
    """The share of some groups in F."""
    M = posterior.model.z.size
    groups = replace(groups, number=np.arange(len(groups)))
    K = posterior.notes.get("quadrature_points") or max(
        posterior.local_draws, default_local_draws(M, groups.n_rows)
    )
    problem = Problem(posterior.model, replace(local.lean(), modes=None), K, None, True)
    if M in budgets.FIRST_ORDER:
        problem = problem._replace(local_draws=round(K ** (1 / M)) ** M)
        problem = problem.with_rule(problem.order)
    R, B = shared_shape(groups.sizes)
    source = packed(groups, sequential(groups.sizes, R, B), R)
    key = jax.random.key(0)
    return Marginal(problem, source, LocalEngine(), key, 1, lambda row: None)


def _newton(theta: Gaussian, parts: list[Part]) -> tuple[np.ndarray, np.ndarray]:
    """The mode of log q(theta) plus the shares of the parts, and the precision there."""
    centre = np.asarray(theta.mean, np.float64)
    first = np.linalg.inv(np.asarray(theta.covariance, np.float64))
    mean, value = centre, None
    precision, best = first, centre
    step = np.zeros_like(mean)
    for _ in range(MOST_STEPS):
        apart = mean - centre
        here, slope, hessian = -0.5 * apart @ first @ apart, -first @ apart, -first.copy()
        for sign, F in parts:
            found = F.share(mean)
            here, slope = here + sign * found.value, slope + sign * found.slope
            hessian = hessian + sign * np.asarray(found.hessian)
        if value is not None and not here >= value - 0.01 - 1e-6 * abs(
            value
        ):  # too far: half of the step
            step = step / 2
            mean = best + step
            continue
        best, value, precision = mean, here, definite(-hessian)
        step = np.linalg.solve(precision, slope)
        mean = best + step
        if np.sqrt(step @ precision @ step) < NEAR:
            break
    return mean, precision


def _sds(theta: Gaussian) -> np.ndarray:
    return np.sqrt(np.diag(np.asarray(theta.covariance, np.float64)))


def _check_near(posterior: Posterior, moved: np.ndarray) -> None:
    worst = int(np.argmax(np.abs(moved)))
    if not np.abs(moved[worst]) < FAR:
        raise ValueError(
            f"the new groups move {posterior.adapter.coordinates()[worst]} by {moved[worst]:.1f} "
            f"posterior sds; an update is for moves of up to {FAR:g}. Fit all data again."
        )


def _modes(local: Solver, old: Groups, merged: Groups, new: Groups, F: Marginal) -> np.ndarray:
    """The modes of all groups: those found now, and those known from before."""
    M = F.model.z.size
    found = np.full((len(merged), M), np.nan, np.asarray(local.points).dtype)
    if local.modes is not None:
        at = find(merged.labels, old.labels)
        found[at[at >= 0]] = np.asarray(local.modes)[at >= 0]
    found[find(merged.labels, new.labels)] = F.modes
    return found
