"""Weighted points of theta, against integrals on a fine grid."""

from types import SimpleNamespace

import numpy as np
import pytest

from ramify.inference.theta_weights import weigh_theta


@pytest.mark.parametrize("seed", range(5))
def test_a_long_tail_that_the_first_points_hardly_reach_is_weighed(seed):
    """A positive parameter whose density is flat at zero: its logarithm has a long tail."""
    log_density = lambda x: x - 0.5 * ((np.exp(x) - 0.3) / 0.25) ** 2
    grid = np.linspace(-14, 2, 100_001)
    mass = np.exp(log_density(grid))
    mass /= mass.sum()
    mean = mass @ np.exp(grid)
    sd = np.sqrt(mass @ (np.exp(grid) - mean) ** 2)
    learned = SimpleNamespace(
        mean=np.array([-0.85, 0, 0, 0]), precision=np.diag([1 / 0.267**2, 1, 1, 1])
    )
    F = lambda x: log_density(x[:, 0]) - 0.5 * np.sum(x[:, 1:] ** 2, 1)
    points, log_weight, _ = weigh_theta(F, learned, 2000, seed)
    weight, value = np.exp(log_weight - np.logaddexp.reduce(log_weight)), np.exp(points[:, 0])
    found = weight @ value
    # Some 1,500 effective points: three standard errors are 0.08 sds, and 5% of the sd.
    assert abs(found - mean) < 0.08 * sd
    assert np.sqrt(weight @ (value - found) ** 2) == pytest.approx(sd, rel=0.05)
