"""Hashed noise is uniform, independent over keys, groups and places, and belongs to the group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ramify.numerics.hashing import (
    _between_zero_and_one,
    generator,
    keys_of,
    normals,
    standard_normal,
    uniforms,
)


@pytest.mark.parametrize("seed", [0, 1])
def test_uniform_and_uncorrelated(seed):
    """65,536 numbers of neighbouring groups and places: by Kolmogorov and Smirnov, and in pairs."""
    key = jax.random.key(seed)
    numbers = np.asarray(uniforms(key, jnp.arange(4096), (16,)), np.float64)
    assert 0 < numbers.min() < 1e-4 and 1 - 1e-4 < numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.001
    other = np.asarray(uniforms(jax.random.key(seed + 10), jnp.arange(4096), (16,)), np.float64)
    pairs = {
        "groups": (numbers[:-1], numbers[1:]),
        "places": (numbers[:, :-1], numbers[:, 1:]),
        "keys": (numbers, other),
    }
    for a, b in pairs.values():
        for of in (lambda x: x - 0.5, lambda x: (x - 0.5) ** 2 - 1 / 12):
            r = np.corrcoef(of(a.ravel()), of(b.ravel()))[0, 1]
            assert abs(r) * np.sqrt(a.size) < 4
        cells = np.histogram2d(a.ravel(), b.ravel(), 16, [[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 0.001


def test_normal_moments():
    x = np.asarray(normals(jax.random.key(3), jnp.arange(4096), (16,)), np.float64)
    assert stats.kstest(x.ravel(), "norm").pvalue > 0.001


def test_normal_quantiles():
    """Of the smallest and largest uniform numbers as well."""
    bits = jnp.asarray([0, 511, 512, 2**20, 2**31, 2**32 - 513, 2**32 - 1], jnp.uint32)
    chance = _between_zero_and_one(bits)
    exact = stats.norm.ppf(np.asarray(chance, np.float64))
    np.testing.assert_allclose(standard_normal(chance), exact, rtol=6e-6, atol=1e-6)
    assert abs(exact[0]) > 5


def test_a_groups_numbers_are_its_own():
    """Whatever block a group is in, and however many follow it."""
    key = jax.random.key(0)
    few, many = uniforms(key, jnp.array([7, 3]), (5,)), uniforms(key, jnp.arange(10), (5,))
    np.testing.assert_array_equal(few, many[np.array([7, 3])])


def test_keys_of_draws_differ():
    words = keys_of(jax.random.key(5), np.arange(100_000))
    assert len(np.unique(words, axis=0)) == len(words)
    assert (words != keys_of(jax.random.key(6), np.arange(100_000))).any(1).all()


def test_no_number_is_zero_or_one():
    """Not even those of the first and last words, in float32: a quantile there is infinite."""
    ends = np.asarray(_between_zero_and_one(jnp.array([0, 2**32 - 1], jnp.uint32)))
    assert 0 < ends[0] < 1e-7 and 1 - 1e-7 < ends[1] < 1


def test_streams_of_a_key_are_apart():
    """Also those of the first key and stream, where all words are zero."""
    key = jax.random.key(0)
    first = [generator(key, *stream).random() for stream in ((), (0,), (1,), (2, 0), (2, 1))]
    assert len({*first, generator(jax.random.key(1), 0).random()}) == 6
    assert generator(key, 2, 1).random() == first[-1]
