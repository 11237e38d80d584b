"""The Gibbs sampler of the benchmarks' references, beside exact answers."""

import numpy as np
import pytest

from benchmarks.right.gibbs import Design, draws, polya_gamma


@pytest.mark.parametrize("c", [0.0, 0.7, 5.0])
def test_polya_gamma_has_its_moments(c):
    drawn = polya_gamma(np.random.default_rng(0), np.full(200_000, c))
    half = np.cosh(c / 2)
    mean = np.tanh(c / 2) / (2 * c) if c else 0.25
    variance = (np.sinh(c) - c) / (4 * c**3 * half**2) if c else 1 / 24
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(variance / len(drawn))
    assert drawn.var() == pytest.approx(variance, rel=0.03)


def exact(n, ones):
    """Means and sds of an intercept and of its sd over groups of n rows, by a grid."""
    a, s, e = np.linspace(-4, 4, 81), np.linspace(0.02, 6, 120), np.linspace(-6, 6, 121)
    eta = a[:, None, None] + s[:, None] * e
    log_p = -0.5 * (a[:, None] / 2.5) ** 2 - 0.5 * (s / 2.5) ** 2
    for y, count in zip(*np.unique(ones, return_counts=True), strict=True):
        inside = y * eta - n * np.logaddexp(0, eta) - 0.5 * e**2
        log_p = log_p + count * np.logaddexp.reduce(inside, -1)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    values = [np.broadcast_to(a[:, None], weight.shape), np.broadcast_to(s, weight.shape)]
    mean = np.array([np.sum(weight * v) for v in values])
    return mean, np.sqrt([np.sum(weight * v**2) for v in values] - mean**2)


@pytest.mark.slow
@pytest.mark.parametrize("independent", [True, False])
def test_draws_are_from_the_posterior(independent):
    """Of an intercept by group, beside an effect of a column of zeros, of which only the prior knows."""
    rng, n, N = np.random.default_rng(2), 4, 60
    group = np.repeat(np.arange(N), n)
    y = (rng.random(N * n) < 1 / (1 + np.exp(-0.5 - 1.2 * rng.normal(size=N)[group]))).astype(int)
    one, none = np.ones((N * n, 1)), np.zeros((N * n, 1))
    moves = np.broadcast_to(np.array([[1.0], [0.0]]), (N, 2, 1))
    W, prior = np.column_stack([one, none]), np.array([2.5])
    of = Design(one, W, y - 0.5, group, moves, prior, np.array([2.5, 2.5]))
    beta, L, _ = draws(of, independent, 8000, 0, np.arange(2))
    mean, sd = exact(n, np.bincount(group, y).astype(int))
    sds = np.sqrt(np.sum(L**2, -1))
    found = np.stack([beta[:, 0], sds[:, 0]], 1)
    assert np.all(np.abs(found.mean(0) - mean) / sd < 0.12)
    assert np.all(np.abs(np.log(found.std(0) / sd)) < 0.1)
    half_normal = 2.5 * np.sqrt(2 / np.pi)
    assert abs(sds[:, 1].mean() - half_normal) < 0.25 * 1.5
