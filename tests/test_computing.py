"""While Ramify computes, products are exact to float32; before and after as the user has them.

And what its programs consist of, where that decides how fast a GPU is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.lax import Precision
from threadpoolctl import threadpool_info, threadpool_limits

import ramify as rf
from quick import slow_but
from ramify.data.resident import whole
from ramify.families.network import Layers
from ramify.models.densities import group_log_lik
from ramify.numerics.precision import computing
from ramify.numerics.programs import program, training_program
from ramify.numerics.triangular import scale_factor


def operations(function, *args):
    """Those of the program of a function's gradient, inner programs included."""

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn
            for inner in jaxprs_in_params(eqn.params):
                yield from look(inner)

    return list(look(jax.make_jaxpr(jax.grad(lambda *a: function(*a).sum()))(*args).jaxpr))


def precisions(function, *args):
    """Of every product of matrices in a function's program, and of its gradient."""
    products = [e for e in operations(function, *args) if e.primitive.name == "dot_general"]
    return {product.params["precision"] for product in products}


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


@pytest.mark.parametrize("family", slow_but(["solved"], ["solved", "branch", "joint", "amortized"]))
def test_fits_under_settings_for_debugging(watched, family):
    """Our own programs meet NaN and add vectors to matrices; a user who debugs need not know."""
    model, groups, _ = watched
    with jax.debug_nans(True), jax.debug_infs(True), jax.numpy_rank_promotion("raise"):
        own = getattr(rf, family)(model, groups)
        posterior = rf.fit(model, groups, family=own, max_steps=3, progress=False)
        assert np.isfinite(posterior.sample(draws=10)["b"]).all()
        assert jax.config.jax_debug_nans and jax.config.jax_numpy_rank_promotion == "raise"


@pytest.mark.slow
def test_large_blocks_are_computed_as_small_ones_are():
    """A prediction is the same in a call for 6,144 rows as in a call for 60.

    XLA's older emitters for CPUs were wrong from about 6,000 rows on, for z of two dimensions or more.
    """
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(1024), 6), rng.normal(size=6144)
    y = x + rng.normal(size=(1024, 2))[group, 0] + rng.normal(size=6144)
    posterior = rf.fit(
        *rf.from_formula("y ~ x + (1 + x | g)", {"g": group, "x": x, "y": y}), max_steps=2
    )
    means = lambda n: posterior.predict({"g": group[:n], "x": x[:n]}, draws=200, kind="mean")[
        "mean"
    ]
    np.testing.assert_allclose(means(6144)[:60], means(60), atol=1e-4)


@pytest.mark.parametrize("make", [program, training_program])
def test_small_sums_are_right(make):
    """As jaxlib 0.10 compiles this by itself, half of it is wrong by whole units."""
    rng = np.random.default_rng(0)
    a, b, x = (rng.normal(size=s).astype(np.float32) for s in ((128, 512), (128, 2), (512, 2)))
    found = make(lambda a, b, x: a + jnp.sum(x[None] * b[:, None], -1))(
        *map(jnp.asarray, (a, b, x))
    )
    np.testing.assert_allclose(found, a + b @ x.T, atol=1e-5)


def test_sums_over_rows_are_known_to_be_sorted(watched):
    """Otherwise a GPU adds every row's part to its group's sum by an atomic operation."""
    model, groups, _ = watched
    batch = whole(groups)
    likelihood = lambda z: jax.vmap(lambda z: group_log_lik(model, jnp.zeros(1), z, batch))(z)
    found = operations(likelihood, jnp.zeros((3, 5, 1)))
    scatters = [e for e in found if e.primitive.name.startswith("scatter")]
    assert len(scatters) == 2  # of the rows' densities, and of their slopes in z
    assert all(e.params["indices_are_sorted"] for e in scatters)


def test_scales_are_put_in_place_without_a_search():
    """The derivative of a plain `set` scatters numbers of updates to see which came last."""
    scales = lambda free: scale_factor(free, 4, False, "paper")
    kinds = {e.primitive.name for e in operations(scales, jnp.zeros((5, 10)))}
    assert "scatter-add" in kinds and "scatter" not in kinds
