"""`fit` by stochastic steps: a state, `init`, `step` and `done`, and the loop over them."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from ramify.data.groups import Groups
from ramify.data.resident import Resident, to_device
from ramify.families.branched import Branched
from ramify.families.build import Family, method_of
from ramify.families.joint import Joint
from ramify.families.network import Amortizer
from ramify.fitting.checkpoints import Checkpoints
from ramify.fitting.solved import Wish
from ramify.fitting.states import StepsState, read_steps, steps_state
from ramify.inference import placement
from ramify.inference import steps as _steps
from ramify.inference.elbo import Estimator
from ramify.inference.failures import not_finite
from ramify.inference.minibatches import Minibatches, Place
from ramify.inference.progress import Progress
from ramify.inference.schedules import Plateau
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.posterior.posterior import Posterior


class Steps(NamedTuple):
    """Options of a fit by steps besides those of `Wish`, as `fit` documents them."""

    optimizer: optax.GradientTransformation | None
    estimator: Estimator
    minibatch: int | None
    max_steps: int | None
    mesh: Mesh | None = None  # the devices, if there are several


class StepsTask(NamedTuple):
    """What stays the same during a fit by steps."""

    model: Model
    groups: Groups
    data: Resident
    recipe: _steps.Recipe
    minibatches: Minibatches
    plateau: Plateau | None  # None where the optimizer has step sizes of its own
    max_steps: int | None


def steps_task(model: Model, groups: Groups, family: Family, wish: Wish, asked: Steps) -> StepsTask:
    """A fit by steps with the user's options, and defaults for the rest."""
    whole, mesh = isinstance(family, Joint), asked.mesh
    minibatches = Minibatches(
        groups, wish.seed, whole=whole, rows=wish.rows, minibatch=asked.minibatch
    )
    own = wish.draws or 10, wish.local_draws or 1, asked.estimator
    recipe = _steps.Recipe(asked.optimizer or adam(), *own, rows=0, mesh=mesh)
    ours = default_plateau(family, minibatches, groups, asked.max_steps)
    plateau = ours if asked.optimizer is None else None
    data = placement.spread_data(to_device(groups), mesh)
    return StepsTask(model, groups, data, recipe, minibatches, plateau, asked.max_steps)


def init(task: StepsTask, family: Family, seed: int) -> StepsState:
    """The state before the first step."""
    cycle, mesh = task.plateau.init() if task.plateau else None, task.recipe.mesh
    learner = _steps.init(placement.filled_up(family, mesh), task.recipe.optimizer)
    return StepsState(placement.spread_state(learner, learner.family, mesh), Place(), cycle, seed)


def done(task: StepsTask, state: StepsState) -> bool:
    """Whether the fit has converged, or has made all its steps."""
    converged = state.cycle is not None and state.cycle.converged
    return converged or state.steps >= (task.max_steps or budgets.MOST_STEPS)


def step(task: StepsTask, state: StepsState) -> tuple[StepsState, dict[str, np.ndarray]]:
    """A chunk of steps; returns the next state, and step, ELBO and step size of each."""
    # The arrays of `state.learner` are donated to the next state: copy them first to keep them.
    left = (task.max_steps or budgets.MOST_STEPS) - state.steps
    wanted = budgets.CHUNK_ROWS // task.minibatches.rows_per_step
    count = min(int(np.clip(wanted, *budgets.CHUNK_STEPS)), left)
    chunk, place = task.minibatches.take(state.place, count)
    cycle, plateau = state.cycle, task.plateau
    rates = plateau.rates(cycle, count) if plateau and cycle else np.ones(count)
    mesh = task.recipe.mesh
    devices = mesh.size if mesh else 1  # which share the rows
    rows = -(-chunk.rows // devices) * devices
    key, recipe = jax.random.key(state.seed), task.recipe._replace(rows=rows)
    model = placement.on_every_device(task.model, mesh)
    before, fixed = state.steps, (key, model, task.data, recipe)
    arrays = map(jnp.asarray, (rates, chunk.members, chunk.scales))
    learner, values = _steps.steps(fixed, state.learner, *arrays)
    values = np.asarray(values, np.float64)
    if not np.isfinite(values).all():
        bad = chunk.members[np.argmax(~np.isfinite(values))]
        raise not_finite(fixed, learner, bad, task.groups)
    cycle = plateau.update(cycle, values) if plateau and cycle else None
    info = {"step": before + 1 + np.arange(count), "elbo": values, "rate": np.asarray(rates)}
    return StepsState(learner, place, cycle, state.seed), info


def fit_by_steps(
    task: StepsTask,
    family: Family,
    seed: int,
    bar: Progress,
    why: str,
    kept: Checkpoints | None = None,
) -> Posterior:
    """Steps until the fit has converged or the budget is spent; at least one chunk."""
    kept, start = kept or Checkpoints(), init(task, family, seed)
    state, history = read_steps(kept.last("steps"), start, bar) or (start, [])
    kept.waits = True  # a state's arrays are invalid while the next steps are computed
    while not done(task, state) and not (history and bar.out_of_time()):
        state, info = step(task, state)
        history.append(info | {"seconds": np.full(len(info["elbo"]), bar.seconds)})
        fraction = task.plateau.fraction(state.cycle) if task.plateau and state.cycle else None
        bar.update(state.steps, info["elbo"].mean(), fraction)
        kept.keep("steps", partial(steps_state, state, history, bar), now=done(task, state))
    notes: dict[str, Any] = {
        "method": method_of(family),
        "why": why,
        "converged": state.cycle.converged if state.cycle else None,  # unknown without a plateau
        "steps": state.steps,
        "seconds": bar.seconds,
    }
    columns = {name: np.concatenate([h[name] for h in history]) for name in history[0]}
    own, K = placement.gathered(state.learner.family, task.recipe.mesh), task.recipe.local_draws
    return Posterior(task.model, own, task.groups, local_draws=K, history=columns, notes=notes)


@cache  # a new one would be compiled anew by every fit
def adam() -> optax.GradientTransformation:
    """Adam without a step size, and with a short memory of the gradient's size (b2 = 0.99)."""
    # Near the optimum the STL gradient is almost zero. If Adam remembers that for long (b2 =
    # 0.999), a later spike moves as far as three steps: one fit in nine diverged.
    return optax.chain(optax.scale_by_adam(b2=0.99), optax.scale(-1.0))


def default_plateau(
    family: Family, minibatches: Minibatches, groups: Groups, max_steps: int | None
) -> Plateau:
    """Step sizes and stopping for a family and data."""
    epoch = max(1, groups.n_rows // minibatches.rows_per_step)
    network = isinstance(family, Branched) and isinstance(family.local, Amortizer)
    return Plateau(
        2e-3 if network else 2e-2,
        # A network learns from every block, a group's own parameters only from the group's block.
        first=int(np.clip(4 * epoch, 2000, 10_000)) if network else max(1000, 10 * epoch),
        warmup=200 if network else 50,
        epoch=epoch,
        budget=max_steps,
        tolerance=max(0.01, 1e-7 * groups.n_rows),
    )
