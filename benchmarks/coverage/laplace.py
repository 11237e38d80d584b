"""The Laplace approximation of a random-intercept model, as lme4, glmmTMB and GPBoost use it.

Each group's integral over z_i is that of a Gaussian at the mode: with f_i(z) = log p(y_i, z | theta),

    log p(y_i | theta) ~ f_i(z_i*) + log(2 pi) / 2 - log(-f_i''(z_i*)) / 2.

Theta = (mu, log tau) is a Gaussian around the maximum of the sum, with the inverse Hessian as covariance,
and z_i given theta one around z_i*. Unlike in those packages, log p(theta) is part of what is maximised,
since theta is drawn from a prior here; and z has the uncertainty of theta (as by `sdreport` of glmmTMB).
All in NumPy, float64, without Ramify. Groups with the same sum of y are the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Array = NDArray[np.float64]


class NotAMaximum(ArithmeticError):
    """The search ended where the Hessian is not negative definite."""


class Laplace(NamedTuple):
    """A Gaussian of (mu, log tau), and what the groups' modes are found from."""

    mean: Array
    covariance: Array
    rows: int
    likelihood: str

    def sample(self, rng: np.random.Generator, draws: int, sums: Array) -> tuple[Array, Array]:
        """Draws of (mu, tau), [S, 2], and of z of groups with these sums of y, [S, groups]."""
        theta = rng.multivariate_normal(self.mean, self.covariance, draws)
        mu, tau = theta[:, :1], np.exp(theta[:, 1:])
        mode, curvature, _ = modes(mu, tau, sums[None], self.rows, self.likelihood)
        z = mode + rng.normal(size=mode.shape) / np.sqrt(curvature)
        return np.concatenate([mu, tau], 1), z


def fit(sums: Array, rows: int, likelihood: str) -> Laplace:
    """Maximises log p(theta) and the groups' approximate log p(y_i | theta); a Gaussian around it."""
    own, count = np.unique(sums, return_counts=True)

    def loss(theta: Array) -> float:
        mu, tau = theta[0], np.exp(theta[1])
        _, curvature, height = modes(mu, tau, own, rows, likelihood)
        log_prior = -0.5 * mu**2 - 0.5 * tau**2 + theta[1]
        return -log_prior - count @ (height - np.log(tau) - 0.5 * np.log(curvature))

    start = np.array([0.0, -0.5])
    found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-7})
    hessian = _hessian(loss, found.x)
    if np.any(np.linalg.eigvalsh(hessian) <= 0):
        raise NotAMaximum(f"the Hessian at {found.x} is not that of a maximum")
    return Laplace(found.x, np.linalg.inv(hessian), rows, likelihood)


def modes(
    mu: Array | float, tau: Array | float, sums: Array, rows: int, likelihood: str
) -> tuple[Array, Array, Array]:
    """The mode of log p(y_i, z | theta), its curvature there, and its height up to a constant."""
    shape = np.broadcast_shapes(np.shape(mu), np.shape(tau), np.shape(sums))
    z, precision = np.zeros(shape), 1 / np.square(tau)
    for _ in range(200):
        mean, variance = _moments(z, likelihood)
        curvature = rows * variance + precision
        step = (sums - rows * mean - precision * (z - mu)) / curvature
        z = z + np.clip(step, -1, 1)
        if np.max(np.abs(step)) < 1e-10:
            break
    total = np.exp(z) if likelihood == "poisson" else np.logaddexp(0, z)
    height = sums * z - rows * total - 0.5 * precision * (z - mu) ** 2
    return z, rows * _moments(z, likelihood)[1] + precision, height


def _moments(z: Array, likelihood: str) -> tuple[Array, Array]:
    """Mean and variance of an outcome."""
    if likelihood == "poisson":
        return np.exp(z), np.exp(z)
    p = expit(z)
    return p, p * (1 - p)


def _hessian(function, at: Array, step: float = 1e-3) -> Array:
    """By central differences."""
    e = step * np.eye(len(at))
    second = lambda a, b: (
        function(at + a + b) - function(at + a - b) - function(at - a + b) + function(at - a - b)
    )
    return np.array([[second(a, b) for b in e] for a in e]) / (4 * step**2)
