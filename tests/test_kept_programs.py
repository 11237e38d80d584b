"""Traced programs on disk: found by whoever asks for the same again, and by nobody else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ramify as rf
from compiling import counted
from ramify.inference.sweep import Modes
from ramify.models.model import Model, expand_priors
from ramify.numerics import kept_programs
from ramify.numerics.kept_programs import kept
from ramify.numerics.programs import QUICK, filter_jit


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for programs; the tests have a cache of JAX's own, and so none of ours."""
    monkeypatch.setattr(kept_programs, "folder_in_use", lambda: tmp_path)
    return tmp_path


def files(folder):
    return list(folder.rglob("*.traced"))


def new_process(body):
    """What `program` makes of a function of the library in a new process, and how often it is traced."""
    traces = []

    def function(*args):
        traces.append(args)
        return body(*args)

    function.__module__, function.__qualname__ = "ramify.somewhere", "function"
    return kept(function, QUICK, filter_jit(function, compiler_options=QUICK)), traces


def powers(x, power):
    return {"b": Modes(x**power, x > 0), "a": (None, [x.sum()])}


def test_a_program_is_traced_once_for_all_processes(folder):
    x, other = np.array([1.0, 2.0], np.float32), np.array([3.0, -5.0], np.float32)
    first, traces = new_process(powers)
    first(x, 2)
    assert len(traces) == len(files(folder)) == 1
    second, traces = new_process(powers)
    found = second(other, 2)
    assert not traces
    expected = powers(jnp.asarray(other), 2)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert isinstance(found["b"], Modes)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_program_returned_is_no_other_argument(folder):
    """Results are bound to their device; given back, they find the program that they came from."""
    usual, other = jax.local_devices()
    call, _ = new_process(lambda x: 2 * x)
    x = call(jnp.ones(3))
    with counted() as compiled:
        np.testing.assert_array_equal(call(jax.device_put(x, usual)), 4)
    assert not compiled
    elsewhere = call(jax.device_put(x, other))
    np.testing.assert_array_equal(elsewhere, 4)
    assert elsewhere.device == other


@pytest.mark.parametrize(
    "args",
    [
        (np.ones(2, np.float32), 3),
        (np.ones(2, np.float32), 2.0),
        (np.ones(3, np.float32), 2),
        (np.ones(2, np.int32), 2),
        (np.ones(2, np.float32), np.float32(2)),
    ],
    ids=["value", "type", "shape", "dtype", "array"],
)
def test_other_arguments_are_another_program(folder, args):
    new_process(powers)[0](np.ones(2, np.float32), 2)
    call, traces = new_process(powers)
    found = call(*args)
    assert len(traces) == 1 and len(files(folder)) == 2
    np.testing.assert_allclose(found["b"].begin, np.asarray(args[0]) ** np.asarray(args[1]))


def test_precision_is_part_of_the_key(folder):
    new_process(powers)[0](np.ones(2, np.float32), 2)
    call, traces = new_process(powers)
    with jax.enable_x64(True):
        call(np.ones(2, np.float32), 2)
    assert len(traces) == 1


def test_functions_of_a_user_are_never_kept(folder):
    """Two models that look alike, and differ in a function that has no name of its own."""

    def model(scale):
        return Model(
            theta={"mu": rf.real()},
            z={"b": rf.real()},
            log_prior=lambda t: -0.5 * (t["mu"] / scale) ** 2,
            log_local=lambda t, z, group: -0.5 * (z["b"] - t["mu"]) ** 2,
            log_lik=lambda t, z, row: -0.5 * (row["y"] - z["b"]) ** 2,
        )

    thetas = np.ones((4, 1), np.float32)
    assert repr(model(1.0)) == repr(model(0.5))
    found = [expand_priors(model(scale), thetas, False)[0][0] for scale in (1.0, 0.5)]
    np.testing.assert_allclose(found, [-0.5, -2.0])
    call, _ = new_process(lambda x, f: f(x))
    for power in (2, 3):
        one = lambda x, power=power: x**power
        np.testing.assert_allclose(call(2 * np.ones(1), one), 2.0**power)
    assert not files(folder)


def test_a_damaged_program_is_traced_anew_and_replaced(folder):
    x = np.ones(2, np.float32)
    new_process(powers)[0](x, 2)
    (file,) = files(folder)
    whole = file.read_bytes()
    for damaged in (whole[:-100], b"", whole[:200] + b"x" + whole[201:]):
        file.write_bytes(damaged)
        call, traces = new_process(powers)
        call(x, 2)
        assert len(traces) == 1
        call, traces = new_process(powers)
        call(x, 2)
        assert not traces
