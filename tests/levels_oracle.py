"""The exact answers for linear Gaussian models with several factors, by dense matrices."""

from typing import NamedTuple

import numpy as np


class Exact(NamedTuple):
    """At one theta: log p(theta, y), and means and covariances of beta, u and z given y."""

    value: float
    beta: np.ndarray
    u: np.ndarray
    z: np.ndarray
    covariance_beta: np.ndarray
    covariance_u: np.ndarray


def exact(model, design, theta, given=None) -> Exact:
    """Everything from the covariance of all rows."""
    given = model.at(theta) if given is None else given
    n, M = design.W.shape
    Z = np.zeros((n, design.N * M))
    for m in range(M):
        Z[np.arange(n), design.code * M + m] = design.W[:, m]
    of_z = np.kron(np.eye(design.N), np.linalg.inv(given.precision))
    K = design.K.toarray()
    of_u = np.zeros((K.shape[1], K.shape[1]))
    for term, precision in zip(design.kept, given.kept, strict=True):
        own = slice(term.start, term.stop)
        of_u[own, own] = np.kron(np.eye(term.levels), np.linalg.inv(precision))
    _, slope, curvature = model.common_prior(np.zeros(design.X.shape[1]))
    of_beta, mean = np.diag(1 / curvature), slope / curvature
    C = given.values["sigma"] ** 2 * np.eye(n) + Z @ of_z @ Z.T + K @ of_u @ K.T
    C = C + design.X @ of_beta @ design.X.T
    residual = design.columns["y"] - design.offset - design.X @ mean
    inverse = np.linalg.inv(C)
    height = -0.5 * (n * np.log(2 * np.pi) + np.linalg.slogdet(C)[1])
    value = height - 0.5 * residual @ inverse @ residual - n * np.log(float(model.core.scale))
    weighed = inverse @ residual
    lower = lambda covariance, columns: (
        covariance - covariance @ columns.T @ inverse @ columns @ covariance
    )
    return Exact(
        value + given.log_prior,
        mean + of_beta @ design.X.T @ weighed,
        of_u @ K.T @ weighed,
        (of_z @ Z.T @ weighed).reshape(design.N, M),
        lower(of_beta, design.X),
        lower(of_u, K),
    )
