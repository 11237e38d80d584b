"""`update`: updates a fit by new or changed groups, without the rows of the others."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.data.labels import find
from ramify.data.merging import with_groups
from ramify.data.partition import sequential, shared_shape
from ramify.data.sources import packed
from ramify.engine.local import LocalEngine
from ramify.families.branched import Branched
from ramify.families.gaussian import Gaussian
from ramify.families.solver import Solver
from ramify.families.weighted_theta import WeightedTheta
from ramify.fitting.solved import default_local_draws
from ramify.inference.marginal import Marginal, definite
from ramify.inference.sweep import Problem
from ramify.numerics import budgets
from ramify.numerics.arrays import floats
from ramify.numerics.precision import computing
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.thresholds import MOST_K_HAT
from ramify.numerics.triangular import free_numbers
from ramify.posterior.fitted import check_posterior, mean_theta_sd
from ramify.posterior.matching import check_columns
from ramify.posterior.posterior import Posterior

MOST_STEPS = 20
POINTS = 32  # thetas in one sweep, if draws of theta are weighted anew
FEWEST = 100  # effective draws of theta that must be left
NEAR = 1e-3  # posterior sds: a shorter Newton step ends the search
# Notes on draws by NUTS, which are weighed anew.
OF_CHAINS = "theta_r_hat", "theta_worst", "theta_divergences"
FAR = 2.0  # posterior sds that a mean may move: farther out the old posterior is not Gaussian


class Part(NamedTuple):
    """Groups whose share of F is added or subtracted."""

    sign: float
    F: Marginal


@computing
def update(posterior: Posterior, groups: Any, *, as_prior: bool = False) -> Posterior:
    """The posterior with some groups new or changed, without reading the rows of the others.

    The old posterior of theta stands for all data it was fitted to. For a group that was among them
    the old share is subtracted and the new one added, so no group counts twice. Weighted draws of
    theta are weighted anew, so that the answer is that of a fit to all data. Without such draws
    (with many groups) it is so as far as the old posterior of theta is Gaussian.
    `notes["moved_sds"]` says how far each mean moved, in the old posterior's sds.

    Args:
        posterior: a `solved` fit, with its data.
        groups: the new and the changed groups, Groups or a table, each with all of its rows: they
            replace those that the fit has.
        as_prior: the old posterior of theta is the prior of these groups, which are all data from
            now on: nothing is subtracted for a group that was in the fit, and the fit's data are
            not needed. For rows that the old fit has not seen.

    Raises:
        ValueError: if theta moves by more than two sds: fit again.
    """
    check_posterior(posterior, "rf.update(posterior, groups)")
    family = posterior.family
    if not (isinstance(family, Branched) and isinstance(family.local, Solver)):
        raise ValueError("update needs a solved() fit, which solves for groups one by one.")
    if posterior.groups is None and not as_prior:
        raise ValueError("this fit was loaded without its data, which update needs: fit again.")
    new = posterior._default(groups)
    check_columns(posterior._schema.rows, new.rows, "row column of groups")
    check_columns(posterior._schema.group, new.group, "group column of groups")
    parts, known = [Part(1.0, _share(posterior, family, new))], np.full(len(new), -1)
    merged, old = replace(new, number=np.arange(len(new))), posterior.groups
    if old is not None and not as_prior:
        known, merged = find(old.labels, new.labels, "groups"), with_groups(old, new)
        if (known >= 0).any():
            _warn_of_lost_rows(old, new, known)
            was = old.subset(positions=np.sort(known[known >= 0]))
            parts.append(Part(-1.0, _share(posterior, family, was)))
    mean, precision = _newton(family.theta, parts)
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision)))
    theta = Gaussian(jnp.asarray(mean), free_numbers(factor, False, "log"), len(mean), False, "log")
    weighted, about = _weighted(family.weighted, parts, posterior.notes.get("warnings", ()))
    moved = _moved(family, replace(family, theta=theta, weighted=weighted))
    _check_near(posterior, moved)
    modes = _modes(family.local, old, merged, new, parts[0].F)
    local = replace(_for(posterior, merged), modes=modes)
    updated = Branched(theta, local, len(merged), weighted)
    who = f"{len(new):,} groups, {int((known < 0).sum()):,} of them new"
    notes = {
        **{name: note for name, note in posterior.notes.items() if name not in OF_CHAINS},
        "theta_sd": mean_theta_sd(updated),
        "why": f"updated by {who}" if not as_prior else f"of {who}, the fit before as the prior",
        "moved_sds": dict(zip(posterior.adapter.coordinates(), moved.tolist(), strict=True)),
        **_unconverged(posterior.notes, new, parts[0].F),
        **about,
    }
    own = {"local_draws": posterior.local_draws, "history": posterior.history, "notes": notes}
    return Posterior(posterior.model, updated, merged, **own)


def _unconverged(notes: Mapping[str, Any], new: Groups, F: Marginal) -> dict[str, Any]:
    """Notes on the groups without a mode: those of the update, and the others of the fit."""
    now, replaced = new.labels[~F.converged], {str(label) for label in new.labels}
    before = notes.get("unconverged_groups", [])  # the first of them
    others = [label for label in before if label not in replaced]
    count = notes.get("unconverged", 0) - (len(before) - len(others)) + len(now)
    return {"unconverged": count, "unconverged_groups": [*map(str, now), *others][:20]}


def _warn_of_lost_rows(old: Groups, new: Groups, known: np.ndarray) -> None:
    """Warns where groups lose more than half of their rows: these may be the new rows alone."""
    had, has = int(old.sizes[known[known >= 0]].sum()), int(new.sizes[known >= 0].sum())
    if 2 * has < had:
        warnings.warn(
            f"{int((known >= 0).sum()):,} of the groups are in the fit, where they have {had:,} rows; "
            f"{has:,} replace them. An update takes all rows of a group, those of the fit too.",
            stacklevel=4,
        )


def _weighted(
    before: WeightedTheta | None, parts: list[Part], warned: Sequence[str]
) -> tuple[WeightedTheta | None, dict[str, Any]]:
    """The old draws of theta with new weights, if these are even enough, and notes on them."""
    if before is None:
        return None, {}
    points = np.asarray(before.points, np.float64)
    change = sum(sign * F.shares(points) for sign, F in parts)
    log_weight = np.log(np.maximum(before.weight, 1e-300)) + change
    log_weight -= np.logaddexp.reduce(log_weight)
    k, count = k_hat(log_weight), effective_draws(log_weight)
    notes: dict[str, Any] = {"theta_k_hat": k, "theta_effective_draws": count}
    if k > MOST_K_HAT or count < FEWEST:
        why = (
            f"the new groups leave {count:.0f} of yesterday's {len(points):,} draws of theta, too few: "
            "its posterior is a Gaussian's; fit all data again"
        )
        return None, notes | {"warnings": [*warned, why]}
    return WeightedTheta(floats(points), floats(log_weight)), notes


def _moved(before: Branched, after: Branched) -> np.ndarray:
    """How far the mean of each coordinate of theta moved, in the old sds."""
    both = before.weighted is not None and after.weighted is not None
    was, now = ((f.weighted if both else f.theta) for f in (before, after))
    assert was is not None and now is not None
    sds = np.sqrt(np.diag(np.asarray(was.covariance, np.float64)))
    return (np.asarray(now.mean, np.float64) - np.asarray(was.mean, np.float64)) / sds


def _for(posterior: Posterior, groups: Groups) -> Solver:
    """The solver for these groups, whose likelihood may involve theta where that of the fit's did not."""
    local: Solver = posterior.family.local  # pyright: ignore[reportAttributeAccessIssue]
    return replace(local, uses_theta=local.follows_theta(posterior.model, example(groups)))


def _share(posterior: Posterior, family: Branched, groups: Groups) -> Marginal:
    """The share of some groups in F."""
    local, points = _for(posterior, groups), 1 if family.weighted is None else POINTS
    M = posterior.model.z.size
    groups = replace(groups, number=np.arange(len(groups)))
    K = posterior.notes.get("quadrature_points")
    if K is None:
        K = max(posterior.local_draws, default_local_draws(M, groups.n_rows))
        K = min(K, budgets.MOST_ORDER[M] ** M) if M in budgets.FIRST_ORDER else K
    problem = Problem(posterior.model, replace(local.lean(), modes=None), K, None, True)
    if M in budgets.FIRST_ORDER:
        problem = problem._replace(local_draws=round(K ** (1 / M)) ** M)
        problem = problem.with_rule(problem.order)
    R, B = shared_shape(groups.sizes)
    source = packed(groups, sequential(groups.sizes, R, B), R)
    key = jax.random.key(0)
    return Marginal(problem, source, LocalEngine(), key, points, lambda row: None)


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


def _check_near(posterior: Posterior, moved: np.ndarray) -> None:
    worst = int(np.argmax(np.abs(moved)))
    if not np.abs(moved[worst]) < FAR:
        raise ValueError(
            f"the new groups move {posterior.adapter.coordinates()[worst]} by {moved[worst]:.1f} "
            f"posterior sds; an update is for moves of up to {FAR:g}. Fit all data again."
        )


def _modes(
    local: Solver, old: Groups | None, merged: Groups, new: Groups, F: Marginal
) -> np.ndarray:
    """The modes of all groups: those found now, and those known from before."""
    M = F.model.z.size
    found = np.full((len(merged), M), np.nan, np.asarray(local.points).dtype)
    if local.modes is not None and old is not None:
        at = find(merged.labels, old.labels)
        found[at[at >= 0]] = np.asarray(local.modes)[at >= 0]
    found[find(merged.labels, new.labels)] = F.modes
    return found
