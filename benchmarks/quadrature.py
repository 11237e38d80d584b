"""Posteriors by quadrature, for problems with theta = (location, positive scale) and one number z.

The references of `random_intercept` and `eight_schools`: see `references.py`, which imports this.
"""

import numpy as np
from scipy.interpolate import RectBivariateSpline

import problems
from problems import Problem

Arrays = dict[str, np.ndarray]

LEVELS = (0.05, 0.5, 0.95)  # of the quantiles that are stored


def random_intercept(problem: Problem, nodes: int = 40, size: int = 61) -> Arrays:
    """Logistic random intercept: groups with the same (n_i, sum of y) share their integral.

    The locals are integrated by adaptive Gauss-Hermite quadrature, and the posterior of
    (mu, log sigma) is summed on a grid of 13 posterior sds each way in its principal axes.
    """
    count = np.bincount(problem.table["group"], minlength=problem.n_group)
    total = np.bincount(problem.table["group"], problem.table["y"], minlength=problem.n_group)
    cells, index, many = np.unique(
        np.column_stack([count, total]), axis=0, return_inverse=True, return_counts=True
    )
    n, s = cells.T

    def log_posterior(mu, log_sigma):
        evidence = _intercept_moments(n, s, mu, log_sigma, nodes)[0]
        sigma = np.exp(log_sigma)
        prior = _log_normal(mu, 0, 2) + np.log(2) + _log_normal(sigma, 0, 2) + log_sigma
        return evidence @ many + prior

    centre, axes = _laplace(log_posterior, np.array([0.0, 0.0]))
    steps = np.linspace(-6.5, 6.5, size)
    u, v = (way.reshape(-1) for way in np.meshgrid(steps, steps))
    mu, log_sigma = centre[:, None] + axes @ np.stack([u, v])
    parts = np.array_split(np.arange(mu.size), size)
    log_density = np.concatenate([log_posterior(mu[p], log_sigma[p]) for p in parts])
    area = np.abs(np.linalg.det(axes)) * (steps[1] - steps[0]) ** 2

    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    first, second = np.zeros(n.size), np.zeros(n.size)
    for p in parts:
        _, mean, square = _intercept_moments(n, s, mu[p], log_sigma[p], nodes)
        first += weight[p] @ mean
        second += weight[p] @ square
    sd = np.sqrt(second - first**2)
    arrays = _grid_summary(problem, mu, log_sigma, log_density, area)
    arrays |= _same_z(first, sd) | {"z_index": index.reshape(-1).astype(np.min_scalar_type(n.size))}

    fine = np.linspace(-6.5, 6.5, 16 * (size - 1) + 1)  # quantiles want more than moments do
    spline = RectBivariateSpline(steps, steps, log_density.reshape(size, size))
    v, u = (way.reshape(-1) for way in np.meshgrid(fine, fine, indexing="ij"))
    mu, log_sigma = centre[:, None] + axes @ np.stack([u, v])
    weight = np.exp(spline(fine, fine).reshape(-1) - log_density.max())
    columns = (mu, np.exp(log_sigma))
    return arrays | {"quantiles": np.stack([_quantiles(c, weight) for c in columns], -1)}


def _intercept_moments(n, s, mu, log_sigma, nodes):
    """Log of int p(y_i | a) N(a | mu, sigma) da, E[a] and E[a^2], each [points, cells]."""
    mu, sigma = mu.reshape(-1, 1), np.exp(log_sigma).reshape(-1, 1)
    mode = np.broadcast_to(mu, (mu.size, n.size)).copy()
    for _ in range(50):  # log-concave with bounded curvature: damped Newton settles
        p = 1 / (1 + np.exp(-mode))
        precision = n * p * (1 - p) + sigma**-2
        mode += np.clip((s - n * p + (mu - mode) * sigma**-2) / precision, -1, 1)
    p = 1 / (1 + np.exp(-mode))
    scale = 1 / np.sqrt(n * p * (1 - p) + sigma**-2)

    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    a = mode[..., None] + scale[..., None] * points
    log_joint = (
        s[:, None] * a
        - n[:, None] * np.logaddexp(0, a)
        + _log_normal(a, mu[..., None], sigma[..., None])
    )
    log_terms = log_joint + np.log(weights) + points**2 / 2 + np.log(scale)[..., None]
    top = log_terms.max(-1, keepdims=True)
    terms = np.exp(log_terms - top)
    norm = terms.sum(-1)
    log_integral = np.log(norm) + top[..., 0]
    return log_integral, (terms * a).sum(-1) / norm, (terms * a**2).sum(-1) / norm


def eight_schools(problem: Problem, size: int = 801) -> Arrays:
    """One Normal row a group: y_i | mu, tau ~ N(mu, error_i^2 + tau^2), and z_i is Normal too."""
    y, error = problem.table["y"], problem.table["error"]
    mus, log_taus = np.linspace(-45, 45, size), np.linspace(-16, 9, size)
    mu, log_tau = (way.reshape(-1) for way in np.meshgrid(mus, log_taus))
    tau2 = np.exp(2 * log_tau)
    log_density = _log_normal(mu, 0, 5) + np.log(2 / (np.pi * 5)) - np.log1p(tau2 / 25) + log_tau
    for one, its_error in zip(y, error, strict=True):
        log_density += _log_normal(one, mu, np.sqrt(its_error**2 + tau2))
    area = (mus[1] - mus[0]) * (log_taus[1] - log_taus[0])

    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    first, second = [], []
    for one, its_error in zip(y, error, strict=True):
        shrink = its_error**2 / (its_error**2 + tau2)
        mean = shrink * mu + (1 - shrink) * one
        first.append(weight @ mean)
        second.append(weight @ (mean**2 + shrink * tau2))
    first = np.array(first)
    sd = np.sqrt(np.array(second) - first**2)
    return _grid_summary(problem, mu, log_tau, log_density, area) | _same_z(first, sd)


def _grid_summary(problem, location, log_scale, log_density, area) -> Arrays:
    """What `summarize` gives, from a log density in (location, log scale) on a uniform grid."""
    top = log_density.max()
    weight = np.exp(log_density - top)
    log_evidence = np.log(weight.sum() * area) + top
    weight /= weight.sum()
    free, constrained = (
        np.stack([location, log_scale], -1),
        np.stack([location, np.exp(log_scale)], -1),
    )
    arrays = {
        "names": np.array(problems.flat_names(problem.theta)),
        "u_names": np.array(problems.flat_names(problem.theta)),
        "log_mean": np.array([np.nan, weight @ log_scale]),
        "quantiles": np.stack([_quantiles(column, weight) for column in constrained.T], -1),
        "log_evidence": np.array(log_evidence),
    }
    for prefix, values in (("", constrained), ("u_", free)):
        mean = weight @ values
        cov = (values - mean).T @ ((values - mean) * weight[:, None])
        sd = np.sqrt(np.diagonal(cov))
        exact = {"mcse": 0.0, "sd_mcse": 0.0, "ess": np.inf, "rhat": 1.0}
        arrays |= {f"{prefix}{name}": np.full(2, value) for name, value in exact.items()}
        arrays |= {
            f"{prefix}mean": mean,
            f"{prefix}sd": sd,
            f"{prefix}corr": cov / np.outer(sd, sd),
        }
    return arrays


def _quantiles(values, weight) -> np.ndarray:
    """Weighted quantiles, good to a part of the grid's spacing in `values`."""
    places, index = np.unique(values, return_inverse=True)
    mass = np.bincount(index.reshape(-1), weight)
    below = (np.cumsum(mass) - mass / 2) / mass.sum()
    return np.interp(LEVELS, below, places)


def _same_z(mean, sd) -> Arrays:
    """One real z: constrained and unconstrained values coincide."""
    mean, sd = mean[:, None].astype(np.float32), sd[:, None].astype(np.float32)
    return {"z_mean": mean, "z_sd": sd, "zu_mean": mean, "zu_sd": sd}


def _log_normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def _laplace(log_density, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode [2] and Cholesky factor [2, 2] of the inverse curvature, by Newton on differences."""

    def derivatives(point, step):
        offsets = step * np.array([[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)])
        f = log_density(*(point + offsets).T).reshape(3, 3)
        gradient = np.array([f[2, 1] - f[0, 1], f[1, 2] - f[1, 0]]) / (2 * step)
        mixed = (f[2, 2] - f[2, 0] - f[0, 2] + f[0, 0]) / 4
        second = [f[2, 1] - 2 * f[1, 1] + f[0, 1], f[1, 2] - 2 * f[1, 1] + f[1, 0]]
        return gradient, np.array([[second[0], mixed], [mixed, second[1]]]) / step**2

    point = start
    for _ in range(50):
        gradient, hessian = derivatives(point, 1e-3)
        move = np.linalg.solve(-hessian, gradient)
        point = point + np.clip(move, -0.3, 0.3)
        if np.abs(move).max() < 1e-8:
            break
    return point, np.linalg.cholesky(np.linalg.inv(-derivatives(point, 1e-3)[1]))


QUADRATURE = {"random_intercept": random_intercept, "eight_schools": eight_schools}
