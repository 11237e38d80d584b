"""While Ramify computes, products are exact to float32; before and after as the user has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.lax import Precision
from threadpoolctl import threadpool_info, threadpool_limits

import ramify as rf
from ramify._computing import compiled, computing
from ramify._local import Layers


def precisions(function, *args):
    """Of every product of matrices in a function's program, and of its gradient."""
    found = []

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                found.append(eqn.params["precision"])
            for inner in jaxprs_in_params(eqn.params):
                look(inner)

    look(jax.make_jaxpr(jax.grad(lambda *a: function(*a).sum()))(*args).jaxpr)
    return set(found)


def test_products_in_full_precision():
    product, x = lambda x: x @ x, jnp.ones((3, 3))
    assert precisions(product, x) == {None}
    assert computing(precisions)(product, x) == {(Precision.HIGHEST, Precision.HIGHEST)}
    assert precisions(product, x) == {None}


def test_networks_may_round():
    layers = Layers(jax.random.key(0), (3, 4, 2))
    assert computing(precisions)(layers, jnp.ones((5, 3))) == {(Precision.HIGH, Precision.HIGH)}


def test_one_blas_thread():
    threads = lambda: {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}
    with threadpool_limits(2, "blas"):
        assert computing(threads)() == {1}
        assert threads() == {2}


@pytest.fixture
def watched():
    """A model whose density notes the precision that it is traced with."""
    seen = []

    def log_lik(theta, z, row):
        seen.append(jax.config.jax_default_matmul_precision)
        return -0.5 * (row["y"] - z["b"]) ** 2

    model = rf.Model(
        theta={"mu": rf.real()},
        z={"b": rf.real()},
        log_prior=lambda theta: -0.5 * theta["mu"] ** 2,
        log_local=lambda theta, z, group: -0.5 * (z["b"] - theta["mu"]) ** 2,
        log_lik=log_lik,
        simulate=lambda key, theta, z, row: z["b"] + jax.random.normal(key),
    )
    y = np.random.default_rng(0).normal(size=40).astype(np.float32)
    return model, rf.Groups.from_table({"g": np.arange(40) % 5, "y": y}, by="g", rows=["y"]), seen


def test_every_density_is_exact(watched):
    """Whatever evaluates the user's densities: fitting, measuring, sampling in blocks."""
    model, groups, seen = watched
    family = rf.branch(model, groups)
    posterior = rf.fit(model, groups, family=family, max_steps=2, local_draws=4)
    posterior.elbo(draws=10)
    so_far = len(seen)
    next(iter(posterior.sample_blocks(draws=10)))
    assert len(seen) > so_far > 1 and set(seen) == {"highest"}


def test_compiled_once_and_inside_others():
    """A function that is compiled can be called by one that is traced, though it has options."""
    traces = []

    @compiled
    def square(x):
        traces.append(None)
        return x**2

    one, three = np.float32(1), np.float32(3)
    assert square(one) == 1 and square(three) == 9
    assert len(traces) == 1
    assert compiled(lambda x: square(x) + 1)(three) == 10
    assert jax.grad(square)(three) == 6
