"""`calibrate`: fits data simulated from the model, and ranks the truth among posterior draws."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.diagnostics.calibration import Calibration
from ramify.fitting.fit import fit as default_fit
from ramify.models.adapter import Adapter, local_values
from ramify.models.model import Model, check_model_and_groups
from ramify.models.simulation import Simulated, Simulator
from ramify.numerics.precision import computing
from ramify.posterior.posterior import Posterior
from ramify.posterior.summary import summary_draws
from ramify.posterior.trust import findings, verdict_of

GROUPS = 10  # number of groups whose z is ranked
Simulate = Callable[[np.random.Generator, Groups], tuple[Mapping, Mapping, Mapping]]


@computing
def calibrate(
    model: Model,
    groups: Groups,
    simulations: int = 100,
    *,
    draws: int = 199,
    simulate: Simulate | None = None,
    fit: Callable[..., Posterior] = default_fit,
    seed: int = 0,
) -> Calibration:
    """Simulation-based calibration: whether posteriors of this model, at data like these, are right.

    Theta is drawn from its prior, z of each group given theta, and the outcomes of all rows given
    both, with the covariates and group sizes of `groups`. The posterior is fitted, and the rank of each
    true value among its draws is noted. If the posterior is right, ranks are uniform. Priors matter:
    data drawn from very wide ones are unlike any real data.

    Args:
        model: from a formula, from NumPyro, or of log densities with `simulate`.
        groups: the data, of which covariates and group sizes are used, but not the outcomes.
        simulations: data sets to simulate and fit. 100 show gross errors, 1,000 small ones.
        draws: L, posterior draws to rank each true value among.
        simulate: for a model that can't be drawn from: a function (rng, groups) -> (theta, z, rows).
            rng is a NumPy generator; theta has named values drawn from the prior, z those of all
            groups, [N, ...] each, and rows the outcome columns, [n_rows, ...], rows in their order.
        fit: what is to be judged, called as fit(model, groups, seed=...). For options of `rf.fit`:
            `fit=functools.partial(rf.fit, theta="weighted")`.
        seed: the result is a function of it.

    Returns:
        Ranks, p values and coverage. Fits that raise an arithmetic error, such as `NonFiniteError`,
        are counted as failures; those that say "do not trust" are counted in.
    """
    check_model_and_groups(model, groups, "rf.calibrate")
    groups = groups.renumbered(groups.labels)
    simulator = _simulator(model, groups, simulate)
    *each, own = np.random.default_rng(seed).spawn(simulations + 1)
    some = np.sort(own.choice(len(groups), min(GROUPS, len(groups)), replace=False))
    verdicts, failures, found = Counter(), [], []
    for rng in each:
        truth = simulator(rng)
        try:
            posterior = fit(model, _data(truth, groups), seed=int(rng.integers(2**32)))
        except ArithmeticError as error:
            failures.append(str(error))
            continue
        verdicts[verdict_of(findings(posterior.notes, len(groups)))] += 1
        found.append(_ranks(posterior, truth, some, draws, rng))
    if not found:
        raise ArithmeticError(f"all {simulations} fits failed. The first said: {failures[0]}")
    stack = lambda ranks: {name: np.stack([own[name] for own in ranks]) for name in ranks[0]}
    theta, z = map(stack, zip(*found, strict=True))
    return Calibration(draws, theta, z, groups.labels[some], verdicts, tuple(failures))


def _data(truth: Simulated, groups: Groups) -> Groups:
    """The data with simulated outcomes in place of theirs, in the same types if these hold them."""
    for name, y in truth.rows.items():
        if not np.all(np.isfinite(y)):
            raise FloatingPointError(
                f'a simulated "{name}" is not finite: theta was {truth.theta.tolist()}, '
                "unconstrained. Are the priors too wide?"
            )
    new = {name: _in_type(y, groups.rows[name].dtype) for name, y in truth.rows.items()}
    return replace(groups, rows={**groups.rows, **new})


def _in_type(y: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Outcomes in this type, unless it is one of whole numbers and they are not whole."""
    found = y.astype(kind)
    return found if kind.kind == "f" or np.array_equal(found, y) else y


def _ranks(
    posterior: Posterior, truth: Simulated, some: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ranks of theta's entries, and of the entries of some groups' z, [groups] each."""
    assert posterior.groups is not None  # it was just fitted
    few, adapter = posterior.groups.subset(positions=some), posterior.adapter
    drawn = posterior.sample(draws, few, int(rng.integers(2**32)))
    theta, z = np.asarray(truth.theta)[None], np.asarray(truth.z)[None, some]
    true = adapter.global_values(theta)
    local = jax.tree.map(np.asarray, local_values(adapter, theta, z, whole(few)))
    ranked = partial(_rank_all, rng=rng)
    return (
        ranked(summary_draws(adapter, drawn), summary_draws(adapter, true)),
        ranked(_entries(adapter, {name: drawn[name] for name in local}), _entries(adapter, local)),
    )


def _entries(adapter: Adapter, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws [S, groups, ...] of a group's named values as entries, [S, groups] each."""
    found = {}
    for name, value in values.items():
        names = adapter.entry_names(name, value.shape[2:])
        flat = value.reshape(*value.shape[:2], -1)
        found |= {f"z: {entry}": flat[:, :, k] for k, entry in enumerate(names)}
    return found


def _rank_all(
    drawn: Mapping[str, np.ndarray], true: Mapping[str, np.ndarray], rng: np.random.Generator
) -> dict[str, Any]:
    """How many draws [S, ...] are below the truth [1, ...], for each name that is not constant."""
    found = {}
    for name, values in drawn.items():
        below, equal = np.sum(values < true[name], 0), np.sum(values == true[name], 0)
        if not np.all(equal == len(values)):
            found[name] = below + rng.integers(0, equal + 1)  # ties are broken at random
    return found


def _simulator(model: Model, groups: Groups, simulate: Simulate | None) -> Simulator:
    if simulate is not None:
        return partial(_by_user, simulate, model, groups)
    try:
        return model.adapter.simulator(groups)
    except ValueError as error:
        instead = (
            "Pass simulate=, a function (rng, groups) -> (theta, z, rows) that draws all of them."
        )
        raise ValueError(f"{error} {instead}") from error


def _by_user(
    simulate: Simulate, model: Model, groups: Groups, rng: np.random.Generator
) -> Simulated:
    """What a user's function draws, checked and unconstrained."""
    theta, z, rows = simulate(rng, groups)
    _check("theta", theta, {n: p.shape for n, p in model.theta.parameters.items()})
    _check("z", z, {n: (len(groups), *p.shape) for n, p in model.z.parameters.items()})
    known = {name: column.shape for name, column in groups.rows.items() if name in rows}
    _check("rows", rows, known)
    arrays = {name: np.asarray(values) for name, values in z.items()}
    flat = jax.vmap(model.z.unconstrain)(arrays)
    columns = {name: np.asarray(column) for name, column in rows.items()}
    return Simulated(model.theta.unconstrain(theta), flat, columns)


def _check(what: str, given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    got = {name: np.shape(value) for name, value in given.items()}
    if got != dict(shapes) or not got:
        show = lambda own: ", ".join(f"{n} {list(shape)}" for n, shape in own.items()) or "nothing"
        raise ValueError(
            f"simulate(rng, groups) must return (theta, z, rows); its {what} has {show(got)}; "
            f"expected {show(shapes)}."
        )
