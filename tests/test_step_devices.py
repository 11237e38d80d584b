"""Fits by steps on several devices: the same answer, and each group's parameters on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ramify as rf
from quick import slow
from ramify.fitting import by_steps
from ramify.fitting.solved import Wish
from ramify.fitting.states import read_steps, steps_state
from ramify.inference.placement import mesh_of
from ramify.inference.progress import Progress
from ramify.numerics import budgets
from test_resuming import counts

pytestmark = pytest.mark.skipif(len(jax.local_devices()) < 2, reason="needs two devices")
STEPS = 30


MODEL, GROUPS = counts(41)  # two devices divide neither groups nor rows evenly


def fitted(family, devices, rows=40, **options):
    """A short fit with steps of a fixed size."""
    own = {"optimizer": optax.adam(1e-3), "max_steps": STEPS, "rows": rows, "progress": False}
    return rf.fit(MODEL, GROUPS, family=family, devices=devices, **own, **options)


@pytest.mark.parametrize("method", ["branch", slow("amortized"), slow("joint")])
def test_two_devices_give_the_answer_of_one(method, x64):
    """To the rounding of sums: those over rows are added up in another order."""
    family = getattr(rf, method)(MODEL, GROUPS)
    rows = None if method == "joint" else 40
    one, two = (fitted(family, devices, rows) for devices in (1, 2))
    np.testing.assert_allclose(two.history["elbo"], one.history["elbo"], rtol=1e-11)
    for a, b in zip(jax.tree.leaves(one.family), jax.tree.leaves(two.family), strict=True):
        assert a.shape == b.shape and len(b.devices()) == 1
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)
    mean = two.sample(10, GROUPS)["b"].mean()
    np.testing.assert_allclose(mean, one.sample(10, GROUPS)["b"].mean(), rtol=1e-6)


def started(devices):
    """A fit by Adam before its first step."""
    family, mesh = rf.branch(MODEL, GROUPS), mesh_of(jax.local_devices()[:devices])
    asked = by_steps.Steps(optax.adam(1e-3), "stl", None, 2 * STEPS, mesh)
    task = by_steps.steps_task(MODEL, GROUPS, family, Wish(None, 4, 40, 0), asked)
    return task, by_steps.init(task, family, 0)


@pytest.mark.slow
def test_a_table_and_its_moments_are_on_the_device_of_their_groups(monkeypatch):
    """Also after steps, whose gradient XLA would leave on every device."""
    monkeypatch.setattr(budgets, "CHUNK_STEPS", (STEPS, STEPS))
    task, state = started(2)
    assert not task.data.rows["y"].sharding.is_fully_replicated
    for _ in range(2):
        tables = [x for x in jax.tree.leaves(state.learner) if jnp.shape(x)[:1] == (42,)]
        assert len(tables) == 3  # parameters and Adam's two moments
        for x in tables:
            assert {shard.data.shape[0] for shard in x.addressable_shards} == {21}
        state, info = by_steps.step(task, state)


@pytest.mark.slow
def test_a_checkpoint_of_two_devices_goes_on_with_one(monkeypatch):
    """A table is filled up to another length on two devices; the groups' own entries stay."""
    monkeypatch.setattr(budgets, "CHUNK_STEPS", (STEPS, STEPS))
    (two, state), (one, start) = started(2), started(1)
    state, info = by_steps.step(two, state)
    with Progress(False, 41, None, None) as bar:
        kept = steps_state(state, [info], bar)
        again = read_steps(kept, start, bar)[0]
    elbos = [by_steps.step(*own)[1]["elbo"] for own in ((two, state), (one, again))]
    assert len(elbos[0]) == STEPS
    np.testing.assert_allclose(*elbos, rtol=1e-5)


@pytest.mark.parametrize("option", [{"engine": object()}, {"streamed": True}, {"theta": "nuts"}])
def test_options_of_solved_fits_are_refused(option):
    """They would be ignored without a word."""
    with pytest.raises(ValueError, match=f"{next(iter(option))}= is for solved.. fits"):
        fitted(rf.branch(MODEL, GROUPS), None, **option)


@pytest.mark.parametrize("option", [{"engine": object()}, {"streamed": True}, {"devices": 2}])
def test_several_factors_refuse_them_too(option):
    """Models with several grouping factors are computed in this process, on one device."""
    table = {"a": [0, 0, 1, 1, 2, 2] * 4, "b": [0, 1, 2] * 8, "y": np.arange(24.0)}
    with pytest.raises(ValueError, match=f"{next(iter(option))}= is for models with one"):
        rf.fit("y ~ 1 + (1 | a) + (1 | b)", table, **option)
