"""Programs: the same numbers as the function, without gathers by own row number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ramify.frontends.numpyro.program import Program

OWN = np.arange(5, dtype=np.int32)
TURNED = np.array([1, 2, 3, 4, 0], np.int32)
KEY = jax.random.key(0)
b, x, item = jnp.arange(15.0).reshape(5, 3) ** 1.5, jnp.ones(5), jnp.array([0, 2, 1, 1, 0])

FREE = {
    "rows": lambda b, x, item: b[OWN],
    "entries": lambda b, x, item: b[OWN, 0] + b[OWN, -1] * x,
    "columns": lambda b, x, item: b.T[:, OWN],
    "middle": lambda b, x, item: b[None, OWN, 1],
    "take": lambda b, x, item: jnp.take(b, OWN, axis=0),
    "at": lambda b, x, item: b.at[OWN].get(),
    "narrowed": lambda b, x, item: b[OWN][:, 1:],
    "inside jit": lambda b, x, item: jax.jit(lambda b, own: b[own] * 2)(b, OWN),
    "twice": lambda b, x, item: b[OWN][OWN] + b[OWN],
    "beside noise": lambda b, x, item: b[OWN] + jax.random.normal(KEY, b.shape),
    "made by jax": lambda b, x, item: b[jnp.asarray(OWN)],
}
KEPT = {
    "turned": lambda b, x, item: b[TURNED],
    "turned columns": lambda b, x, item: b[OWN, item],
    "square": lambda b, x, item: b[OWN[:3]],
    "diagonal": lambda b, x, item: (b @ b.T)[OWN, OWN],
    "repeated": lambda b, x, item: b[np.zeros(5, int)],
    "by column": lambda b, x, item: b[item],
}


@pytest.mark.parametrize("name", [*FREE, *KEPT])
def test_program_computes_what_the_function_does(name):
    function = (FREE | KEPT)[name]
    program = Program(function, b, x, item)
    np.testing.assert_array_equal(program(b, x, item), function(b, x, item))
    total = lambda f: jax.grad(lambda b: jnp.sum(f(b, x, item) ** 2))(b)  # noqa: E731
    np.testing.assert_array_equal(total(program), total(function))
    assert ("gather" in str(program)) == (name in KEPT)


def test_dead_equations_are_left_out():
    def function(b, x, item):
        jnp.exp(b) @ b.T
        return x + 1

    assert "dot" not in str(Program(function, b, x, item))


def test_reached_follows_inputs():
    program = Program(lambda b, x, item: {"b": b.sum(), "both": b[:, 0] + x}, b, x, item)
    assert program.reached([True, False, False]) == {"b": True, "both": True}
    assert program.reached([False, True, False]) == {"b": False, "both": True}
    assert program.reached([False, False, True]) == {"b": False, "both": False}
