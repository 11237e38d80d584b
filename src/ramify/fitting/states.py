"""Converts the states of both ways to fit to arrays and numbers for a checkpoint, and back."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ramify.engine.local import Engine
from ramify.inference import steps
from ramify.inference.marginal import Tilt
from ramify.inference.minibatches import Place
from ramify.inference.progress import Budget, Progress
from ramify.inference.schedules import Cycle
from ramify.inference.sweep import Modes
from ramify.inference.theta_search import Search
from ramify.io.checkpoint import State
from ramify.io.saving import part_of

Rows = list[dict[str, float]]
Columns = dict[str, np.ndarray]


class StepsState(NamedTuple):
    """All that the next steps need: arrays and numbers."""

    learner: steps.State
    place: Place
    cycle: Cycle | None
    seed: int  # with the number of a step, it makes the step's noise

    @property
    def steps(self) -> int:
        """Steps made."""
        return int(self.learner.step)


def search_state(state: Search, history: Rows, budget: Budget, engine: Engine) -> State:
    """A search for theta, with its history and the budget it has spent."""
    arrays, numbers = {}, {"steps": budget.steps, "seconds": budget.bar.seconds}
    for name, value in state._replace(tilt=None, memory=None)._asdict().items():
        (arrays if isinstance(value, np.ndarray) else numbers)[f"search/{name}"] = value
    if state.tilt is not None:
        arrays |= {f"tilt/{name}": part for name, part in state.tilt._asdict().items()}
    if state.memory is not None:
        modes, numbers["newton_steps"] = state.memory
        begin, converged = zip(*engine.fetch(modes), strict=True)
        arrays |= {"modes": np.stack(begin), "converged": np.stack(converged)}
    columns = {name: np.asarray([row[name] for row in history]) for name in history[0]}
    return State(arrays | {f"history/{name}": c for name, c in columns.items()}, numbers)


def read_search(found: State | None, budget: Budget) -> tuple[Search, Rows] | None:
    """The inverse of `search_state`, which also restores the budget."""
    if found is None:
        return None
    arrays, numbers = found
    budget.steps = numbers["steps"]
    budget.bar.went_on(numbers["seconds"])
    memory, tilt = None, part_of(arrays, "tilt/")
    if "modes" in arrays:
        modes = map(Modes, arrays["modes"], arrays["converged"])
        memory = tuple(modes), numbers["newton_steps"]
    fields: dict[str, Any] = part_of(arrays | numbers, "search/")
    state = Search(**fields | {"tilt": Tilt(**tilt) if tilt else None, "memory": memory})
    columns = {name: c.tolist() for name, c in part_of(arrays, "history/").items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return state, rows


def steps_state(state: StepsState, history: list[Columns], bar: Progress) -> State:
    """A fit by steps, with its trace."""
    leaves = jax.device_get(jax.tree.leaves(eqx.filter(state.learner, eqx.is_array)))
    arrays = {f"learner/{number}": leaf for number, leaf in enumerate(leaves)}
    numbers = {"seconds": bar.seconds, "place": list(state.place), "cycle": None}
    if state.cycle is not None:
        arrays["trace"] = state.cycle.trace
        numbers["cycle"] = state.cycle._replace(trace=None)._asdict()
    columns = {name: np.concatenate([part[name] for part in history]) for name in history[0]}
    return State(arrays | {f"history/{name}": c for name, c in columns.items()}, numbers)


def read_steps(
    found: State | None, start: StepsState, bar: Progress
) -> tuple[StepsState, list[Columns]] | None:
    """The inverse of `steps_state`; `start` is the state before the first step."""
    if found is None:
        return None
    arrays, numbers = found
    bar.went_on(numbers["seconds"])
    holes, rest = eqx.partition(start.learner, eqx.is_array)
    leaves = [_like(arrays[f"learner/{n}"], own) for n, own in enumerate(jax.tree.leaves(holes))]
    filled = jax.tree.unflatten(jax.tree.structure(holes), leaves)
    cycle = numbers["cycle"]
    if cycle is not None:
        level = cycle["level"] and tuple(cycle["level"])
        cycle = Cycle(**cycle | {"trace": arrays["trace"], "level": level})
    own = eqx.combine(filled, rest), Place(*numbers["place"]), cycle, start.seed
    return StepsState(*own), [part_of(arrays, "history/")]


def _like(found: np.ndarray, own: jax.Array) -> jax.Array:
    """An array of a checkpoint on this fit's devices; a table may get another length of filler."""
    if found.shape != own.shape:
        found = np.resize(found, own.shape)
    return jax.device_put(found, own.sharding) if len(own.devices()) > 1 else jnp.asarray(found)
