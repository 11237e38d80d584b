"""The type of an outcome, for every likelihood of a formula."""

import jax
import jax.numpy as jnp
import pytest

import ramify as rf
from ramify.data.batch import example
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from test_structure import RESPONSES, table

__all__ = ["table"]  # a fixture


@pytest.mark.parametrize("x64", [False, True])
def test_the_type_of_an_outcome_is_that_of_simulate(table, x64):
    """For every likelihood, without tracing its sampler."""
    with jax.enable_x64(x64):
        for name in LIKELIHOODS:
            model, groups = rf.from_formula(
                f"{RESPONSES[name]} ~ x0 + (1 | g)", table, likelihood=name
            )
            flat = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.result_type(float))
            own = flat(model.theta.size), flat(2, model.z.size), example(groups)
            traced = jax.eval_shape(model.simulate, jax.random.key(0), *own)
            found = model.adapter.outcome_type()
            assert (found.shape, found.dtype) == (traced.shape[1:], traced.dtype), name
