"""Stochastic steps: state in, state and info out; many of them in one compiled scan."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.resident import Resident, cut, filled, lay_out
from ramify.families.build import Family
from ramify.inference.elbo import Estimator, Terms, elbo, seeds, terms
from ramify.inference.placement import held, spread_batch
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.programs import training_program


class State(NamedTuple):
    """All that the next step needs; `skipped` counts the steps without a usable gradient in a row."""

    family: Any
    optimizer: Any
    step: Int[Array, ""]
    skipped: Int[Array, ""]


class Recipe(NamedTuple):
    """What a step does; hashable, so that each recipe is compiled once."""

    optimizer: optax.GradientTransformation
    draws: int
    local_draws: int
    estimator: Estimator
    rows: int
    mesh: Mesh | None = None  # the devices, if there are several


Fixed = tuple[PRNGKeyArray, Model, Resident, Recipe]  # what all steps of a fit share


def init(family: Family, optimizer: optax.GradientTransformation) -> State:
    """The state before the first step."""
    # States are donated to the next step: nothing in one may be shared with the user's family.
    own = jax.tree.map(lambda x: jnp.copy(x) if eqx.is_array(x) else x, family)
    started = optimizer.init(eqx.filter(own, eqx.is_inexact_array))
    zero = jnp.zeros((), jnp.int32)
    return State(own, started, zero, zero + 0)


def step(
    key: PRNGKeyArray,
    state: State,
    alive: Bool[Array, ""],
    rate: Float[Array, ""],
    model: Model,
    batch: Batch,
    recipe: Recipe,
) -> tuple[State, Float[Array, ""]]:
    """One step up the ELBO of one block; returns the new state and the block's estimate."""
    # The state stays as it is if the estimate is not finite, or if not `alive`. If a gradient
    # overflows float32 at a rare draw, that step is skipped; three in a row stop the fit.
    own, how = jax.random.fold_in(key, state.step), (recipe.draws, recipe.local_draws)
    loss = lambda family: -elbo(own, family, model, batch, *how, recipe.estimator)
    value, gradient = eqx.filter_value_and_grad(loss)(state.family)
    moved = _moved(state, gradient, rate, recipe.optimizer)
    usable = jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradient)]).all()
    skipped = jnp.where(usable, 0, state.skipped + 1)
    finite = jnp.isfinite(value) & (skipped < 3)
    new = _keep_if(usable, moved, state)._replace(step=state.step + 1, skipped=skipped)
    return _keep_if(alive & finite, new, state), jnp.where(finite, -value, jnp.nan)


def _moved(
    state: State, gradient: Any, rate: Float[Array, ""], optimizer: optax.GradientTransformation
) -> State:
    """The state after the optimizer's update for a gradient."""
    learned = eqx.filter(state.family, eqx.is_inexact_array)
    updates, new = optimizer.update(gradient, state.optimizer, learned)
    updates = jax.tree.map(lambda u: rate * u, updates)
    return state._replace(family=eqx.apply_updates(state.family, updates), optimizer=new)


@training_program(donate="all-except-first")
def steps(
    fixed: Fixed,
    state: State,
    rates: Float[Array, " T"],
    members: Int[Array, "T B"],
    scales: Float[Array, " T"],
) -> tuple[State, Float[Array, " T"]]:
    """T steps in one scan. The state stays as it was before the first step that is not finite."""
    key, model, data, recipe = fixed
    moving, still = eqx.partition(state, eqx.is_array)

    def body(carry: tuple[Any, Bool[Array, ""]], x: Any) -> tuple[Any, Float[Array, ""]]:
        (moving, alive), (rate, members, scale, layout) = carry, x
        layout = lay_out(data, members, recipe.rows) if layout is None else layout
        batch = spread_batch(filled(data, members, scale, layout), recipe.mesh)
        state = eqx.combine(moving, still)
        new, value = step(key, state, alive, rate, model, batch, recipe)
        arrays = held(eqx.filter(new, eqx.is_array), state.family, recipe.mesh)
        return (arrays, alive & jnp.isfinite(value)), value

    ahead = len(members) * recipe.rows <= budgets.ROWS_AHEAD
    layouts = jax.vmap(lambda m: lay_out(data, m, recipe.rows))(members) if ahead else None
    xs = rates, members, scales, layouts
    (moving, _), values = jax.lax.scan(body, (moving, jnp.array(True)), xs)
    return eqx.combine(moving, still), values


@training_program
def terms_of_step(fixed: Fixed, state: State, members: Int[Array, " B"]) -> Terms:
    """The terms of every draw of the step after this state, [S] or [S, B]."""
    key, model, data, recipe = fixed
    batch = cut(data, members, jnp.ones(()), recipe.rows)
    drawn = seeds(jax.random.fold_in(key, state.step), recipe.draws, recipe.estimator)
    one = lambda k, sign: terms(k, state.family, model, batch, sign=sign)
    return jax.vmap(one)(*drawn)


def _keep_if(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """`new` where the condition holds, else `old`, leaf by leaf."""
    choose = lambda n, o: jnp.where(condition, n, o) if eqx.is_array(n) else n
    return jax.tree.map(choose, new, old)
