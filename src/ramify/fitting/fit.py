"""`fit`: from a model and data to a posterior, with defaults chosen from both."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.data.host import pack
from ramify.data.resident import to_device
from ramify.families.branched import Branched
from ramify.families.build import Family, amortized, solved
from ramify.families.joint import Joint
from ramify.families.network import Amortizer
from ramify.families.solver import MAX_DIM, Solver
from ramify.fitting.solved import Wish, fit_solved
from ramify.inference.curvature_check import missing_curvature
from ramify.inference.elbo import Estimator
from ramify.inference.failures import NonFiniteError, blame
from ramify.inference.minibatches import Feed
from ramify.inference.progress import Budget, Progress
from ramify.inference.schedules import Plateau
from ramify.inference.steps import Recipe, init, steps
from ramify.models.model import Model
from ramify.numerics.precision import computing
from ramify.posterior.posterior import Posterior


@computing
def fit(
    model: Model,
    groups: Groups,
    *,
    family: Family | None = None,
    local_draws: int | None = None,
    draws: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    estimator: Estimator = "stl",
    max_steps: int | None = None,
    max_seconds: float | None = None,
    rows: int | None = None,
    minibatch: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Posterior:
    """Fits a family to the posterior of a model; `fit(model, groups)` alone gives a good answer.

    Args:
        model: the model.
        groups: the data.
        family: from `joint`, `branch`, `amortized` or `solved`; by default `solved` where the model
            allows it, otherwise `amortized`.
        local_draws: K importance draws of z for each draw of theta; 1 is the paper's ELBO. By default
            `solved` chooses K from the data so that its bias stays below a tenth of theta's
            posterior sd, and other families use 1.
        draws: S draws of theta per step.
        optimizer: any Optax optimizer, its schedule included, run for `max_steps`; by default ours.
        estimator: of the gradient: "stl" (sticking the landing, its draws in pairs of mirror images)
            or "total", the paper's.
        max_steps: a hard budget of steps (for `solved` of sweeps over the data or a part of it).
        max_seconds: a hard budget of seconds.
        rows: rows in a block.
        minibatch: take that many groups uniformly in each step, as the paper does, not blocks.
        seed: of all randomness.
        progress: show a progress bar; by default only on a terminal.
    """
    groups = groups.renumbered(groups.labels)  # a subset's groups have their parent's numbers
    model.check(example(groups))
    why = "as asked"
    if family is None:
        family, why = default_family(model, groups)
    _check_family(family, model, groups)
    if isinstance(family, Branched):
        family = replace(family, cloud=None)  # of an earlier fit
    with Progress(progress, len(groups), max_steps, max_seconds) as bar:
        if isinstance(family, Branched) and isinstance(family.local, Solver):
            if why == "as asked" and (wrong := _missing_curvature(model, groups, family)):
                raise ValueError(f"solved() does not fit this model: {wrong}. Use amortized().")
            if optimizer is None:
                wish, budget = Wish(local_draws, draws, rows, seed), Budget(bar, max_steps)
                posterior = fit_solved(model, groups, family, wish, budget, why)
                if local_draws != 1:
                    return posterior
                # The paper's bound, K = 1, is learned by steps from where the tight one ended.
                family = posterior.family
                max_steps = None if max_steps is None else max(1, max_steps - budget.steps)
        feed = Feed(groups, seed, whole=isinstance(family, Joint), rows=rows, minibatch=minibatch)
        recipe = Recipe(optimizer or _adam(), draws or 10, local_draws or 1, estimator, 0)
        plateau = None if optimizer is not None else _plateau(family, feed, groups, max_steps)
        return _fit_by_steps(
            model, groups, family, feed, recipe, plateau, max_steps, seed, bar, why
        )


def default_family(model: Model, groups: Groups) -> tuple[Branched, str]:
    """The family for a model when none is asked for, and why."""
    M = model.z.size
    if M > MAX_DIM:
        why = f"z has {M} dimensions, more than the {MAX_DIM} that solved() takes"
        return amortized(model, groups, covariance="block"), why
    family = solved(model, groups)
    why = _missing_curvature(model, groups, family)
    if why is not None:
        return amortized(model, groups, covariance="dense" if M <= 16 else "block"), why
    return family, f"z is small (M = {M}) and the likelihood smooth in it"


def _missing_curvature(model: Model, groups: Groups, family: Branched) -> str | None:
    """Why solved() can't be used with this likelihood, judged on a few hundred groups."""
    some = np.random.default_rng(0).permutation(len(groups))[:256]
    sizes = groups.sizes[some]
    few = groups.subset(positions=np.sort(some[np.cumsum(sizes) <= max(8192, sizes[0])]))
    batch = pack(few, np.arange(len(few)), max(few.n_rows, 1))
    return missing_curvature(model, batch, family.theta.mean)


def _adam() -> optax.GradientTransformation:
    """Adam without a step size, and with a short memory of the gradient's size (b2 = 0.99).

    Near the optimum the STL gradient is almost zero, so a spike after it is taken for three steps
    at once if Adam still remembers that (b2 = 0.999): one fit in nine ran away for good.
    """
    return optax.chain(optax.scale_by_adam(b2=0.99), optax.scale(-1.0))


def _plateau(family: Family, feed: Feed, groups: Groups, budget: int | None) -> Plateau:
    epoch = max(1, groups.n_rows // feed.rows_per_step)
    network = isinstance(family, Branched) and isinstance(family.local, Amortizer)
    return Plateau(
        2e-3 if network else 2e-2,
        # A network learns from every block; a group's own parameters only from theirs.
        first=int(np.clip(4 * epoch, 2000, 10_000)) if network else max(1000, 10 * epoch),
        warmup=200 if network else 50,
        epoch=epoch,
        budget=budget,
        tolerance=max(0.01, 1e-7 * groups.n_rows),
    )


def _fit_by_steps(
    model: Model,
    groups: Groups,
    family: Family,
    feed: Feed,
    recipe: Recipe,
    plateau: Plateau | None,
    max_steps: int | None,
    seed: int,
    bar: Progress,
    why: str,
) -> Posterior:
    data, key = to_device(groups), jax.random.key(seed)
    state, history, done = init(family, recipe.optimizer), [], 0
    budget = max_steps or 200_000
    length = int(np.clip(4_000_000 // feed.rows_per_step, 10, 200))
    while (
        done < budget and not (plateau and plateau.converged) and not (done and bar.out_of_time())
    ):
        count = min(length, budget - done)
        chunk = feed.take(count)
        now = recipe._replace(rows=chunk.rows)
        rates = plateau.rates(count) if plateau else np.ones(count)
        arrays = jnp.asarray(rates), jnp.asarray(chunk.members), jnp.asarray(chunk.scales)
        state, values = steps((key, model, data, now), state, *arrays)
        values = np.asarray(values, np.float64)
        if not np.isfinite(values).all():
            bad = int(np.argmax(~np.isfinite(values)))
            raise NonFiniteError(
                blame(key, state, model, data, chunk.members[bad], now, groups), state
            )
        done += count
        history.append(_rows(done, values, rates, bar.seconds))
        if plateau:
            plateau.tell(values)
        bar.update(done, values.mean(), plateau.fraction if plateau else None)
    notes = {
        "method": _name(family),
        "why": why,
        "converged": plateau.converged if plateau else None,  # a user's optimizer runs its course
        "steps": done,
        "seconds": bar.seconds,
    }
    history = {name: np.concatenate([h[name] for h in history]) for name in history[0]}
    return Posterior(
        model, state.family, groups, local_draws=recipe.local_draws, history=history, notes=notes
    )


def _rows(done: int, values: np.ndarray, rates: np.ndarray, seconds: float) -> dict[str, Any]:
    count = len(values)
    steps_done = np.arange(done - count + 1, done + 1)
    return {
        "step": steps_done,
        "elbo": values,
        "rate": np.asarray(rates),
        "seconds": np.full(count, seconds),
    }


def _name(family: Family) -> str:
    if isinstance(family, Joint):
        return "joint"
    return {"Table": "branch", "Amortizer": "amortized", "Solver": "solved"}[
        type(family.local).__name__
    ]


def _check_family(family: Family, model: Model, groups: Groups) -> None:
    if family.N != len(groups):
        raise ValueError(
            f"This family was built for {family.N} groups; got data with {len(groups)}. "
            "Build the family from the data that it is fitted to."
        )
    if family.theta.dim != model.theta.size:
        raise ValueError(
            f"This family was built for a theta of {family.theta.dim} dimensions; the model's has "
            f"{model.theta.size}. Build the family from the model that it is fitted to."
        )
