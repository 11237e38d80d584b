"""Gaussians: the maps between free numbers and scales, draws and densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from quick import slow
from ramify.families.gaussian import Gaussian, gaussian
from ramify.numerics.triangular import (
    free_numbers,
    free_size,
    free_start,
    log_density,
    log_det,
    positive_map,
    scale_factor,
    times,
    whiten,
)

MAPS = ["log", "paper"]
SHAPES = {"diagonal": True, "full": False}


@pytest.fixture(params=MAPS)
def map(request):
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def diagonal(request):
    return SHAPES[request.param]


def as_matrix(scale, diagonal):
    """The scale as a matrix, whatever its leading axes."""
    scale = np.asarray(scale)
    return scale[..., None] * np.eye(scale.shape[-1]) if diagonal else scale


def test_scales_are_triangular_and_positive(map, diagonal, key):
    free = 3 * jax.random.normal(key, (7, free_size(4, diagonal)))
    scale = as_matrix(scale_factor(free, 4, diagonal, map), diagonal)
    assert scale.shape == (7, 4, 4)
    assert np.all(scale[:, *np.triu_indices(4, 1)] == 0)
    assert np.all(scale[:, range(4), range(4)] > 0)


def test_free_numbers_are_the_inverse(map, diagonal, key, x64):
    free = jax.random.normal(key, (7, free_size(4, diagonal)))
    scale = scale_factor(free, 4, diagonal, map)
    np.testing.assert_allclose(free_numbers(scale, diagonal, map), free, atol=1e-12)


def test_entries_go_where_they_should(map, x64):
    """Diagonal first, then the rows of the strict lower triangle."""
    scale = np.array([[2.0, 0, 0], [0.5, 0.1, 0], [-1.0, 3.0, 30.0]])
    free = free_numbers(jnp.asarray(scale), False, map)
    below = [0.5, -1.0, 3.0]
    expected = np.array(below) / [0.1, 30.0, 30.0] if map == "log" else below
    np.testing.assert_allclose(free[3:], expected)
    np.testing.assert_allclose(scale_factor(free, 3, False, map), scale)


def test_start_is_a_multiple_of_the_identity(map, diagonal):
    scale = scale_factor(free_start(3, diagonal, 0.02, map), 3, diagonal, map)
    np.testing.assert_allclose(as_matrix(scale, diagonal), 0.02 * np.eye(3), rtol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_positive_map_is_the_papers(gamma, x64):
    x = jnp.linspace(-20, 20, 401)
    np.testing.assert_allclose(positive_map(x, gamma), (x + np.sqrt(x**2 + 4 * gamma)) / 2)


def test_positive_map_far_below_zero():
    """In float32 the printed formula is zero there; its value and slope are about 1/|x|, 1/x^2."""
    x = jnp.array(-1e4)
    assert (x + jnp.sqrt(x**2 + 4)) / 2 == 0
    np.testing.assert_allclose(positive_map(x), 1e-4, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(positive_map)(x), 1e-8, rtol=1e-4)


def test_positive_map_moves_from_where_it_starts():
    """The paper's start is x = 0: a slope of zero there would keep every scale at one for ever."""
    assert jax.grad(positive_map)(jnp.array(0.0)) == 0.5


def random_gaussian(key, dim, diagonal, map):
    a, b = jax.random.split(key)
    free = jax.random.normal(a, (free_size(dim, diagonal),))
    return Gaussian(jax.random.normal(b, (dim,)), free, dim, diagonal, map)


def test_density_is_the_multivariate_normals(map, diagonal, key, x64):
    q = random_gaussian(key, 4, diagonal, map)
    cov = as_matrix(q.scale, diagonal) @ as_matrix(q.scale, diagonal).T
    np.testing.assert_allclose(q.covariance, cov, atol=1e-12)
    reference = stats.multivariate_normal(q.mean, cov)
    for noise in np.random.default_rng(0).normal(size=(5, 4)):
        x, log_q = q.draw(jnp.asarray(noise))
        np.testing.assert_allclose(x, q.mean + as_matrix(q.scale, diagonal) @ noise)
        np.testing.assert_allclose(log_q, reference.logpdf(x), atol=1e-10)
        np.testing.assert_allclose(q.log_prob(x), log_q, atol=1e-10)
        np.testing.assert_allclose(q.log_prob(x + 1), reference.logpdf(x + 1), atol=1e-9)


@pytest.mark.parametrize("B", [slow(1), 4, slow(6)])
def test_batches_of_vectors_are_not_matrices(diagonal, key, B, x64):
    """Four vectors of four have the shape of a matrix; every function must still tell them apart."""
    free = jax.random.normal(key, (B, free_size(4, diagonal)))
    scale = scale_factor(free, 4, diagonal, "log")
    matrix, noise = as_matrix(scale, diagonal), np.random.default_rng(1).normal(size=(B, 4))
    x = times(scale, jnp.asarray(noise))
    np.testing.assert_allclose(x, np.einsum("bij,bj->bi", matrix, noise))
    np.testing.assert_allclose(whiten(scale, x), noise)
    expected = [
        stats.multivariate_normal(np.zeros(4), m @ m.T).logpdf(v) for m, v in zip(matrix, x)
    ]
    log_q = log_density(jnp.asarray(noise), log_det(scale, diagonal))
    np.testing.assert_allclose(log_q, np.array(expected), atol=1e-9)


def test_a_new_gaussian(map, diagonal):
    q = gaussian(3, diagonal=diagonal, scale=0.1, map=map)
    np.testing.assert_array_equal(q.mean, np.zeros(3))
    np.testing.assert_allclose(q.covariance, 0.01 * np.eye(3), rtol=1e-5)
    assert gaussian(3, diagonal=diagonal, mean=jnp.ones(3)).mean.tolist() == [1, 1, 1]


def test_slopes_at_a_draw_of_an_ill_conditioned_gaussian():
    """Of sticking the landing, in float32: -L^-T noise, where a solve would not give the noise back."""
    dim, rng = 60, np.random.default_rng(0)
    free = jnp.asarray(np.r_[np.zeros(dim), rng.normal(size=dim * (dim - 1) // 2)], jnp.float32)
    noise = jnp.asarray(rng.normal(size=dim), jnp.float32)
    scale = np.asarray(scale_factor(free, dim, False, "log"), float)
    assert np.linalg.cond(scale) > 1e7

    def log_q(mean, known):
        q = Gaussian(mean, free, dim, False, "log")
        x, _ = q.draw(noise)
        return jax.lax.stop_gradient(q).log_prob(x, noise if known else None)

    value, slope = jax.value_and_grad(log_q)(jnp.zeros(dim), True)
    exact = -np.linalg.solve(scale.T, np.asarray(noise, float))
    np.testing.assert_allclose(slope, exact, atol=1e-5 * np.abs(exact).max())
    assert float(value) == pytest.approx(
        stats.norm.logpdf(np.asarray(noise, float)).sum(), rel=1e-5
    )
    by_solving = jax.grad(log_q)(jnp.zeros(dim), False)
    assert np.abs(by_solving - exact).max() > 0.1 * np.abs(exact).max()
