"""Correlation factors are NumPyro's, with their Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions.transforms import CorrCholeskyTransform

from quick import slow
from ramify.models.correlation import CorrelationFactor


@pytest.mark.parametrize("n", [slow(2), 5])
def test_the_map_is_numpyros(n, x64):
    x = jnp.asarray(np.random.default_rng(n).normal(size=(3, n * (n - 1) // 2)))
    ours, theirs = CorrelationFactor(), CorrCholeskyTransform()
    back = theirs._inverse

    @jax.jit
    def found(x):
        factor = theirs(x)
        volumes = [t.log_abs_det_jacobian(x, factor) for t in (ours, theirs)]
        return (ours(x), factor), volumes, back(ours(x))

    factors, volumes, again = found(x)
    np.testing.assert_allclose(*factors, atol=1e-12)
    np.testing.assert_allclose(*volumes, rtol=1e-10)
    np.testing.assert_allclose(again, x, rtol=1e-8)


@pytest.mark.slow
def test_far_out_it_is_finite():
    """Correlations near one in float32: log(1 - tanh^2) would be minus infinity."""
    x, ours = jnp.array([9.0, -12.0, 15.0]), CorrelationFactor()
    assert np.isfinite(ours(x)).all()
    log_det = lambda x: ours.log_abs_det_jacobian(x, ours(x))
    assert np.isfinite(log_det(x)) and np.isfinite(jax.grad(log_det)(x)).all()
