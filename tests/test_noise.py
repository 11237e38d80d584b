"""The noise of a group and the points of its z: they follow its number, and their distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from quick import slow
from ramify.numerics import points as _points
from ramify.numerics.hashing import normals
from ramify.numerics.points import orthogonal
from ramify.numerics.triangular import FREEDOM, log_density, log_density_t

group_points = jax.jit(_points.group_points, static_argnums=(2, 3))


def test_noise_belongs_to_the_group(key):
    one = normals(key, jnp.array([5, 2, 9]), (4,))
    other = normals(key, jnp.array([9, 9, 1, 5]), (4,))
    np.testing.assert_array_equal(one[jnp.array([0, 2])], other[jnp.array([3, 0])])
    np.testing.assert_array_equal(other[0], other[1])
    assert abs(np.corrcoef(normals(key, jnp.arange(5000), (2,)).T)[0, 1]) < 0.06


@pytest.mark.parametrize("K, M", [slow(4, 1), slow(32, 3), slow(10, 2), (7, 4)], ids=str)
def test_points_belong_to_the_group_and_are_student_t(key, K, M):
    points = group_points(key, jnp.arange(4000), K, M)
    assert points.shape == (K, 4000, M)
    alone = group_points(key, jnp.array([17]), K, M)
    np.testing.assert_allclose(alone[:, 0], points[:, 17], atol=1e-5)
    for k in (0, K // 2, K - 1):  # each point alone is t-distributed
        x = np.asarray(points[k, :, 0], float)
        assert stats.kstest(x, stats.t(FREEDOM).cdf).pvalue > 1e-3
        radius = np.sum(np.asarray(points[k], float) ** 2, 1) / M
        assert stats.kstest(radius, stats.f(M, FREEDOM).cdf).pvalue > 1e-3


def test_quarters_of_points_are_independent(key):
    points = np.asarray(group_points(key, jnp.arange(4000), 8, 2), float)
    length = np.log(np.sum(points**2, -1))
    for a, b in [(0, 2), (0, 4), (2, 6), (1, 7)]:
        assert abs(np.corrcoef(length[a], length[b])[0, 1]) < 0.07
        assert abs(np.corrcoef(points[a, :, 0], points[b, :, 0])[0, 1]) < 0.07


def test_orthogonal_frames(key):
    q = orthogonal(jax.random.normal(key, (500, 6, 6)))
    np.testing.assert_allclose(q @ q.swapaxes(1, 2), np.tile(np.eye(6), (500, 1, 1)), atol=1e-5)
    # Uniform: the last entry of the first row is distributed as a coordinate on the sphere.
    entry = np.asarray(q[:, -1, 0], float) ** 2
    assert stats.kstest(entry, stats.beta(0.5, 2.5).cdf).pvalue > 1e-3


def test_points_are_balanced_and_independent_of_place():
    """Directions come both ways, frames are orthogonal, and a group's points follow its number."""
    points = np.asarray(group_points(jax.random.key(0), jnp.array([5, 2]), 48, 3))
    swapped = np.asarray(group_points(jax.random.key(0), jnp.array([2, 5]), 48, 3))
    np.testing.assert_array_equal(points[:, 0], swapped[:, 1])
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-5)
    frame = np.asarray(orthogonal(jax.random.normal(jax.random.key(1), (7, 4, 4))))
    np.testing.assert_allclose(
        frame @ frame.swapaxes(1, 2), np.eye(4)[None].repeat(7, 0), atol=1e-5
    )


@pytest.mark.slow
def test_points_follow_the_proposal():
    """Weights of the t proposal against a Gaussian average to one: points and density agree."""
    index = jnp.arange(4000)
    for M in (1, 3, 6):
        points = group_points(jax.random.key(M), index, 16, M)
        zero = jnp.zeros(points.shape[:-1])
        w = np.exp(np.asarray(log_density(points, zero) - log_density_t(points, zero), np.float64))
        points, each = np.asarray(points, np.float64), w.mean(0)
        assert abs(each.mean() - 1) < 4 * each.std() / np.sqrt(len(each))
        second = (w[..., None] * points**2).mean(0)
        se = second.std(0) / np.sqrt(len(second))
        assert (np.abs(second.mean(0) - 1) < 4 * se).all()
