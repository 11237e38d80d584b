"""The conjugate regression by matrix identities, in float64: evidence and optima for any N.

With G_i = x_i' x_i, b_i = x_i' y_i and P_i = I + G_i, y_i given theta is N(x_i theta, I + x_i x_i') and

    log p(y_i | theta) = -1/2 (n_i log 2 pi + log |P_i| + y_i'y_i - b_i' P_i^-1 b_i)
                         + theta' P_i^-1 b_i - 1/2 theta' (I - P_i^-1) theta,

whose sum over groups is quadratic in theta and integrates out. The largest matrix has D x D entries, so
that the paper's 100,000 groups take seconds; the covariance of all of y, which its appendix prints
(with x_n x_1' in both corners, where block (i, j) is x_i x_j'), would have 10^14 entries.
"""

from typing import NamedTuple

import numpy as np

import ramify as rf

AT_ONCE = 20_000  # groups


class Exact(NamedTuple):
    """The exact answers: D is the dimension of theta and of each z_i.

    `best` is the highest ELBO of each covariance, in nats; that of "dense" is log p(y). Given theta,
    z_i is N(offset_i + cov_i theta, cov_i).
    """

    best: dict[str, float]
    theta_mean: np.ndarray
    theta_cov: np.ndarray
    offset: np.ndarray
    cov: np.ndarray


def solve(groups: rf.Groups) -> Exact:
    """Evidence, optima and posterior of groups with row columns x [D] and y."""
    dim = groups.rows["x"].shape[1]
    gram, xy, yy = _sufficient(groups)
    P = np.eye(dim) + gram
    cov = np.linalg.inv(P)
    offset = np.einsum("nij,nj->ni", cov, xy)
    log_det_P = np.linalg.slogdet(P)[1]
    precision = np.eye(dim) + np.sum(np.eye(dim) - cov, 0)
    natural = offset.sum(0)
    mean = np.linalg.solve(precision, natural)
    own = groups.sizes * np.log(2 * np.pi) + log_det_P + yy - np.einsum("ni,ni->n", xy, offset)
    log_det = np.linalg.slogdet(precision)[1]
    evidence = float(-0.5 * own.sum() - 0.5 * log_det + 0.5 * natural @ mean)
    # The best q that factorizes over blocks b of the posterior's precision Lambda has these as its
    # precisions, and KL = (sum_b log |Lambda_bb| - log |Lambda|) / 2. Theta's block is (1 + N) I.
    log_det_joint = log_det_P.sum() + log_det
    theta_block = dim * np.log(1 + len(groups))
    diagonal = np.log(np.diagonal(P, axis1=1, axis2=2)).sum()
    best = {
        "dense": evidence,
        "block": evidence - 0.5 * float(theta_block + log_det_P.sum() - log_det_joint),
        "diagonal": evidence - 0.5 * float(theta_block + diagonal - log_det_joint),
    }
    return Exact(best, mean, np.linalg.inv(precision), offset, cov)


def _sufficient(groups: rf.Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x_i'x_i [N, D, D], x_i'y_i [N, D] and y_i'y_i [N] of groups that have rows, all of them."""
    parts = []
    for first in range(0, len(groups), AT_ONCE):
        last = min(first + AT_ONCE, len(groups))
        begin, end = (
            int(groups.starts[first]),
            int(groups.starts[last - 1] + groups.sizes[last - 1]),
        )
        x = groups.rows["x"][begin:end].astype(np.float64)
        y = groups.rows["y"][begin:end].astype(np.float64)
        starts = groups.starts[first:last] - begin
        add = lambda values: np.add.reduceat(values, starts, axis=0)
        gram = np.stack([add(x * x[:, [k]]) for k in range(x.shape[1])], 1)
        parts.append((gram, add(x * y[:, None]), add(y**2)))
    gram, xy, yy = (np.concatenate(part) for part in zip(*parts, strict=True))
    return gram, xy, yy
