"""Factors and solves of many small matrices, against LAPACK in double precision."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from quick import slow, slow_but
from ramify.numerics.small_linalg import (
    inverse_factor,
    inverse_factor_last,
    inverse_lower,
    log_diagonal,
    product,
    solve_lower,
    times,
)


def matrices(M, B=50):
    rng = np.random.default_rng(M)
    a = rng.normal(size=(B, M, M))
    return a @ a.swapaxes(-1, -2) + 0.1 * np.eye(M)


@pytest.mark.parametrize("M", slow_but([1, 2, 5], [1, 2, 5, 8, 9, 30]))
def test_inverse_factor(M):
    precision = matrices(M)
    with jax.enable_x64():
        factor = np.asarray(inverse_factor(jnp.asarray(precision)))
        last = inverse_factor_last(jnp.moveaxis(jnp.asarray(precision), 0, -1))
    np.testing.assert_allclose(np.moveaxis(np.asarray(last), -1, 0), factor, rtol=1e-12, atol=1e-13)
    assert np.all(np.triu(factor, 1) == 0)
    np.testing.assert_allclose(
        factor, np.linalg.cholesky(np.linalg.inv(precision)), rtol=1e-8, atol=1e-9
    )
    np.testing.assert_allclose(
        np.asarray(inverse_factor(jnp.asarray(precision[:3], jnp.float32)[None]))[0],
        factor[:3],
        atol=2e-3 * np.abs(factor[:3]).max(),
    )


def test_products_of_matrices_in_the_last_axis():
    """Of as many on both sides, and of one with many."""
    a, b = matrices(3), matrices(3)[::-1]
    last = lambda x: jnp.moveaxis(jnp.asarray(x, jnp.float32), 0, -1)
    for left in (a, a[:1]):
        close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        close(jnp.moveaxis(product(last(left), last(b)), -1, 0), left @ b)
        close(times(last(left), last(b[:, 0])).T, np.einsum("bij,bj->bi", left + 0 * b, b[:, 0]))
    close(log_diagonal(last(a)).T, np.log(np.diagonal(a, axis1=1, axis2=2)))


@pytest.mark.parametrize("M", [slow(2), slow(9)])
def test_gradients(M):
    with jax.enable_x64():
        symmetric = lambda a: inverse_factor(a @ a.swapaxes(-1, -2) + jnp.eye(M))
        a = jnp.asarray(np.random.default_rng(0).normal(size=(3, M, M)))
        check_grads(symmetric, (a,), order=2, modes=["fwd", "rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "bad", [np.diag([1.0, -1.0]), np.diag([0.0, 1.0]), np.full((2, 2), np.nan)]
)
def test_what_is_not_positive_definite_is_not_finite(bad):
    both = np.stack([np.eye(2), bad])
    finite = np.isfinite(np.asarray(inverse_factor(jnp.asarray(both)))).all((1, 2))
    assert finite.tolist() == [True, False]


def test_what_replaces_a_factor_that_is_not_there_has_its_own_slope():
    """In a sum over two matrices, of which one has no factor and is replaced by the number 3 x."""

    def total(x):
        factor = inverse_factor(jnp.stack([x, -x])[:, None, None])[:, 0, 0]
        return jnp.sum(jnp.where(jnp.isfinite(factor), factor, 3 * x))

    assert float(jax.grad(total)(4.0)) == pytest.approx(-0.5 * 4.0**-1.5 + 3)
    assert float(jax.grad(jax.grad(total))(4.0)) == pytest.approx(0.75 * 4.0**-2.5)


@pytest.mark.parametrize("M", [slow(1), 3, slow(12)])
def test_solve_lower(M):
    factor = np.linalg.cholesky(matrices(M))
    x = np.random.default_rng(1).normal(size=(50, M))
    exact = np.linalg.solve(factor, x[..., None])[..., 0]
    with jax.enable_x64():
        found = solve_lower(jnp.asarray(factor), jnp.asarray(x))
        solve = lambda factor, x: solve_lower(jnp.asarray(factor), jnp.asarray(x))
        check_grads(solve, (factor[:2], x[:2]), 1, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("M", slow_but([1, 2, 3], [1, 2, 3, 12]))
def test_inverse_lower(M):
    factor = np.linalg.cholesky(matrices(M))
    with jax.enable_x64():
        found = inverse_lower(jnp.asarray(factor))
    np.testing.assert_allclose(found, np.linalg.inv(factor), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("M", [2, slow(5)])
def test_where_there_is_no_factor_another_stands(M):
    """Its derivatives too: by finite differences, and finite where there is no factor."""
    bad = -np.eye(M)
    precision, other = np.stack([*matrices(M, 2), bad]), np.full((3, M, M), 7.0)
    with jax.enable_x64():

        def either(p):
            factor = inverse_factor(p)
            return jnp.where(jnp.isfinite(factor).all((-2, -1), keepdims=True), factor, other)

        found = either(jnp.asarray(precision))
        np.testing.assert_array_equal(found[2], other[2])
        np.testing.assert_array_equal(found[:2], inverse_factor(jnp.asarray(precision[:2])))
        symmetric = lambda p: either((p + p.swapaxes(-1, -2)) / 2)
        check_grads(symmetric, (jnp.asarray(precision),), 2, ["fwd", "rev"], 1e-4, 1e-4)
