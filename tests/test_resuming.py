"""A fit that stops after any step and goes on from its state, in plain arrays, changes no bit."""

import io
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import ramify as rf
from quick import slow
from ramify.data.resident import to_device
from ramify.fitting import by_steps, solved
from ramify.inference import theta_remainder, theta_search
from ramify.inference.minibatches import Minibatches, Place
from ramify.inference.progress import Budget, Progress
from ramify.inference.schedules import Cycle, Plateau
from ramify.inference.steps import Recipe
from ramify.inference.theta_search import Search
from ramify.numerics import budgets


def counts(N=40):
    """Counts of groups with their own levels."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(N), rng.integers(1, 8, N))
    y = rng.poisson(np.exp(0.5 + 0.7 * rng.normal(size=N)[group]))
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]) - t["tau"],
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Poisson(jnp.exp(z["b"])).log_prob(row["y"]),
    )
    return model, rf.Groups.from_table({"g": group, "y": y}, by="g", rows=["y"])


MODEL, GROUPS = counts()


def through_a_file(tree):
    """A tree of arrays, numbers and texts, of which only its arrays' and texts' bytes are left."""
    leaves, structure = jax.tree.flatten(tree)
    is_array = [eqx.is_array(x) or isinstance(x, np.ndarray) for x in leaves]
    file = io.BytesIO()
    np.savez(file, *[x for x, yes in zip(leaves, is_array, strict=True) if yes])
    text = json.dumps([x for x, yes in zip(leaves, is_array, strict=True) if not yes])
    file.seek(0)
    arrays, rest = list(np.load(file).values()), json.loads(text)
    return jax.tree.unflatten(structure, [(arrays if yes else rest).pop(0) for yes in is_array])


# The search for theta.


def make_task(points, K):
    """A search for theta over several blocks, F averaged over so many points."""
    wish = solved.Wish(local_draws=K, draws=points, rows=60, seed=0)
    return solved.Task(MODEL, GROUPS, rf.solved(MODEL, GROUPS), wish)


@pytest.mark.parametrize(("points", "K"), [slow(4, None), (1, 64)], ids=["average", "laplace"])
def test_a_search_may_stop_after_every_step(points, K, monkeypatch):
    """Each step has a new F, which knows of those before only what the state says.

    The rule gets finer once if K was not chosen.
    """
    for most in ("MOST_BIAS", "MOST_RULE_BIAS"):
        monkeypatch.setattr(theta_remainder, most, 0.0)
    monkeypatch.setattr(budgets, "MOST_ORDER", {1: 23})
    task = make_task(points, K)
    with Progress(False, 40, None, None) as bar:
        learned, last, rows = solved.search(task, Budget(bar, None))
        state, phases, history, budget = task.start(), [], [], Budget(bar, None)
        while not theta_search.done(state):
            phases.append(state.phase)
            state = Search(*through_a_file(tuple(state)))
            F = task.marginal(state.local_draws, history, budget)
            state = theta_search.step(state, F)
        found = theta_search.finish(state, F)
    answer = {"spread", "look", "average", "double"} if points > 1 else {"laplace"}
    assert set(phases) >= {"open", "climb", "bias"} | answer
    assert state.local_draws == last.problem.local_draws == (K or 23)
    for a, b in zip(*map(jax.tree.leaves, (found, learned)), strict=True):
        np.testing.assert_array_equal(a, b)
    without_time = lambda rows: [{**row, "seconds": 0} for row in rows]
    assert without_time(history) == without_time(rows)


def test_what_f_remembers_matters():
    """Modes found before are where Newton begins: without them the last digits are others."""
    task = make_task(points=4, K=64)
    with Progress(False, 40, None, None) as bar:
        F = task.marginal(64, [], Budget(bar, None))
        state = theta_search.step(task.start(), F)
        kept, lost = (theta_search.step(s, F) for s in (state, state._replace(memory=None)))
    assert jax.tree.leaves(state.memory) and kept.value != lost.value
    np.testing.assert_allclose(kept.value, lost.value, rtol=1e-5)


# Fits by steps.


@pytest.mark.parametrize("how", [slow("blocks"), slow("minibatches")])
def test_a_fit_by_steps_may_stop_after_every_chunk(how):
    """Learner, minibatches and step sizes all go on; a user's optimizer has only its own state."""
    minibatch, rows = (7, None) if how == "minibatches" else (None, 40)
    source = lambda: Minibatches(GROUPS, 0, whole=False, rows=rows, minibatch=minibatch)
    plateau = Plateau(0.02, first=150) if how == "blocks" else None
    recipe = Recipe(by_steps.adam() if plateau else optax.adam(1e-2), 4, 1, "stl", 0)
    own = MODEL, GROUPS, to_device(GROUPS), recipe
    family = rf.branch(MODEL, GROUPS)
    with Progress(False, 40, 700, None) as bar:
        task = by_steps.StepsTask(*own, source(), plateau, 700)
        whole = by_steps.fit_by_steps(task, family, 3, bar, "as asked")
    state, elbos = by_steps.init(task, family, 3), []
    while not by_steps.done(task, state):
        state = read_again(state)
        task = by_steps.StepsTask(*own, source(), plateau, 700)
        state, info = by_steps.step(task, state)
        elbos.append(info["elbo"])
    assert len(elbos) > 2
    np.testing.assert_array_equal(np.concatenate(elbos), whole.history["elbo"])
    assert whole.notes["converged"] == (state.cycle.converged if plateau else None)
    parts = jax.tree.leaves(state.learner.family), jax.tree.leaves(whole.family)
    for a, b in zip(*parts, strict=True):
        np.testing.assert_array_equal(a, b)


def read_again(state):
    """A state whose arrays were written and read; what is no array is built anew by the fit."""
    arrays, rest = eqx.partition(state.learner, eqx.is_array)
    learner = eqx.combine(jax.tree.map(jnp.asarray, through_a_file(arrays)), rest)
    cycle = state.cycle and Cycle(*through_a_file(tuple(state.cycle)))
    place = Place(*through_a_file(tuple(state.place)))
    return by_steps.StepsState(learner, place, cycle, json.loads(json.dumps(state.seed)))
