"""The paper's conjugate hierarchical regression, solved exactly in NumPy float64.

    theta ~ N(0, I)      z_i | theta ~ N(theta, I)      y_ij | z_i ~ N(x_ij' z_i, 1)

Everything here is independent of the library and of JAX. With G_i = x_i' x_i, b_i = x_i' y_i and
P_i = I + G_i, the joint precision of (theta, z_1 .. z_N) given y is

    Lambda_tt = (1 + N) I      Lambda_ti = -I      Lambda_ii = P_i      Lambda_ij = 0,

so z_i | theta ~ N(P_i^-1 (b_i + theta), P_i^-1), and integrating z out leaves theta with precision
I + sum_i (I - P_i^-1) and natural mean sum_i P_i^-1 b_i. `exact` uses these identities (any N,
ragged n_i, n_i = 0 allowed); `brute_force` assembles the matrices instead (small N).

The appendix of the paper prints the covariance of y with x_n x_1' in both off-diagonal corners;
block (i, j) is x_i x_j', which for ragged n_i is the only one that has the right shape.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Table = dict[str, np.ndarray]

METHODS = ("joint", "branch", "amortized")
COVARIANCES = ("dense", "block", "diagonal")


class Exact(NamedTuple):
    """Evidence and posterior of the conjugate model; D is the dimension of theta and of each z_i.

    Attributes:
        log_evidence: log p(y | x), in nats.
        theta_mean: [D].
        theta_cov: [D, D].
        z_mean: marginal means, [N, D].
        z_cov: marginal covariances, [N, D, D].
        z_offset: z_i | theta ~ N(z_offset_i + z_slope_i theta, z_given_cov_i), [N, D].
        z_slope: [N, D, D].
        z_given_cov: [N, D, D].
        precision: P_i = I + x_i' x_i, [N, D, D].
    """

    log_evidence: float
    theta_mean: Array
    theta_cov: Array
    z_mean: Array
    z_cov: Array
    z_offset: Array
    z_slope: Array
    z_given_cov: Array
    precision: Array


class Brute(NamedTuple):
    """The same by assembled matrices: (theta, z_1 .. z_N) is one vector of length D (1 + N)."""

    log_evidence: float
    log_evidence_from_precision: float
    mean: Array
    cov: Array
    precision: Array


class Optimum(NamedTuple):
    """The best member of a Gaussian family: its ELBO in nats and its marginals.

    `theta_mean` [D], `theta_cov` [D, D], `z_mean` [N, D], `z_cov` [N, D, D]; the sds are the
    roots of their diagonals.
    """

    elbo: float
    theta_mean: Array
    theta_cov: Array
    z_mean: Array
    z_cov: Array

    @property
    def theta_sd(self) -> Array:
        """Marginal sds of theta, [D]."""
        return np.sqrt(np.diagonal(self.theta_cov))

    @property
    def z_sd(self) -> Array:
        """Marginal sds of every z_i, [N, D]."""
        return np.sqrt(np.diagonal(self.z_cov, axis1=-2, axis2=-1))


class Branch(NamedTuple):
    """N(theta | mean, cov) prod_i N(z_i | offset_i + slope_i theta, z_cov_i): the Corollary.

    Shapes [D], [D, D], [N, M], [N, M, D], [N, M, M].
    """

    mean: Array
    cov: Array
    offset: Array
    slope: Array
    z_cov: Array


def simulate(
    seed: int, N: int, n: int | np.ndarray, dim: int, *, shuffle: bool = False
) -> tuple[Table, dict[str, np.ndarray]]:
    """Draw a long-format table {"group" [rows], "x" [rows, dim], "y" [rows]} and its truth.

    Args:
        seed: seed of NumPy's generator.
        N: number of groups.
        n: rows per group: one number for all, or [N] numbers (zero allowed).
        dim: dimension of theta, of each z_i and of each x_ij.
        shuffle: put the rows in random order.

    Returns:
        The table and the truth {"theta" [dim], "z" [N, dim], "count" [N]}.
    """
    rng = np.random.default_rng(seed)
    count = np.broadcast_to(np.asarray(n, dtype=np.int64), (N,)).copy()
    theta = rng.standard_normal(dim)
    z = theta + rng.standard_normal((N, dim))
    group = np.repeat(np.arange(N), count)
    if shuffle:
        rng.shuffle(group)
    x = rng.standard_normal((group.size, dim))
    y = np.einsum("rd,rd->r", x, z[group]) + rng.standard_normal(group.size)
    return {"group": group, "x": x, "y": y}, {"theta": theta, "z": z, "count": count}


def exact(table: Table, N: int) -> Exact:
    """Evidence and posterior by matrix identities: O(rows D^2 + N D^3), no matrix beyond D x D."""
    count, gram, xy, yy = _sufficient(table, N)
    dim = gram.shape[-1]
    precision = np.eye(dim) + gram
    given_cov = np.linalg.inv(precision)
    offset = np.einsum("nij,nj->ni", given_cov, xy)

    theta_precision = np.eye(dim) + np.sum(np.eye(dim) - given_cov, axis=0)
    theta_cov = np.linalg.inv(theta_precision)
    natural = offset.sum(axis=0)
    theta_mean = theta_cov @ natural

    per_group = (
        -0.5 * count * np.log(2 * np.pi)
        - 0.5 * np.linalg.slogdet(precision)[1]
        - 0.5 * (yy - np.einsum("ni,ni->n", xy, offset))
    )
    log_evidence = (
        per_group.sum() - 0.5 * np.linalg.slogdet(theta_precision)[1] + 0.5 * natural @ theta_mean
    )
    return Exact(
        log_evidence=float(log_evidence),
        theta_mean=theta_mean,
        theta_cov=theta_cov,
        z_mean=offset + given_cov @ theta_mean,
        z_cov=given_cov + given_cov @ theta_cov @ given_cov,
        z_offset=offset,
        z_slope=given_cov,
        z_given_cov=given_cov,
        precision=precision,
    )


def brute_force(table: Table, N: int) -> Brute:
    """Evidence from the assembled covariance of y, posterior from the assembled joint precision.

    The two share nothing but the data. `log_evidence_from_precision` is Bayes' rule at the
    posterior mean, log p(theta, z, y) - log p(theta, z | y).
    """
    group, x, y = table["group"], table["x"], table["y"]
    rows, dim = x.shape
    total = dim * (1 + N)

    same = (group[:, None] == group[None, :]).astype(float)
    y_cov = np.eye(rows) + (x @ x.T) * (1 + same)
    log_evidence = gaussian_log_density(y, np.zeros(rows), y_cov)

    prior = np.zeros((total, total))
    prior[:dim, :dim] = np.eye(dim)
    for i in range(N):
        difference = np.zeros((dim, total))
        difference[:, :dim] = -np.eye(dim)
        difference[:, dim * (1 + i) : dim * (2 + i)] = np.eye(dim)
        prior += difference.T @ difference
    design = np.zeros((rows, total))
    for r in range(rows):
        start = dim * (1 + group[r])
        design[r, start : start + dim] = x[r]
    precision = prior + design.T @ design
    cov = np.linalg.inv(precision)
    mean = cov @ (design.T @ y)

    log_joint = (
        gaussian_log_density(mean, np.zeros(total), np.linalg.inv(prior))
        - 0.5 * rows * np.log(2 * np.pi)
        - 0.5 * np.sum((y - design @ mean) ** 2)
    )
    log_posterior = gaussian_log_density(mean, mean, cov)
    return Brute(log_evidence, log_joint - log_posterior, mean, cov, precision)


def optimum(table: Table, N: int, method: str, covariance: str) -> Optimum:
    """The best member of one of the paper's nine families, in closed form.

    The posterior is N(m, Lambda^-1). The best q that factorizes over given blocks has mean m and
    precision blocks Lambda_bb, and KL = (sum_b log|Lambda_bb| - log|Lambda|) / 2. As
    Lambda_ij = 0 between groups, one dense block over *all* of z (joint) has the same optimum as a
    block per group (branch), and a network that maps each group's rows to the optimal local
    parameters reaches the same again (amortized). So the method decides nothing here: it is
    an argument for the sake of the caller's table of nine.
    """
    if method not in METHODS or covariance not in COVARIANCES:
        raise ValueError(f"expected one of {METHODS} and {COVARIANCES}; got {method}, {covariance}")
    post = exact(table, N)
    if covariance == "dense":
        return Optimum(post.log_evidence, post.theta_mean, post.theta_cov, post.z_mean, post.z_cov)
    dim = post.theta_mean.size
    diagonal = np.diagonal(post.precision, axis1=-2, axis2=-1)
    log_det_blocks = np.linalg.slogdet(post.precision)[1].sum()
    log_det = log_det_blocks - np.linalg.slogdet(post.theta_cov)[1]
    if covariance == "block":
        log_det_q, z_cov = log_det_blocks, post.z_given_cov
    else:
        log_det_q, z_cov = np.log(diagonal).sum(), np.eye(dim) / diagonal[:, :, None]
    kl = 0.5 * (dim * np.log(1 + N) + log_det_q - log_det)
    return Optimum(
        elbo=float(post.log_evidence - kl),
        theta_mean=post.theta_mean,
        theta_cov=np.eye(dim) / (1 + N),
        z_mean=post.z_mean,
        z_cov=z_cov,
    )


def gaussian_log_density(value: Array, mean: Array, cov: Array) -> float:
    """log N(value | mean, cov)."""
    scale = np.linalg.cholesky(cov)
    white = np.linalg.solve(scale, value - mean)
    log_det = 2 * np.log(np.diagonal(scale)).sum()
    return float(-0.5 * (value.size * np.log(2 * np.pi) + log_det + white @ white))


def gaussian_kl(mean0: Array, cov0: Array, mean1: Array, cov1: Array) -> float:
    """KL(N(mean0, cov0) || N(mean1, cov1)), in nats."""
    scale0, scale1 = np.linalg.cholesky(cov0), np.linalg.cholesky(cov1)
    ratio = np.linalg.solve(scale1, scale0)
    shift = np.linalg.solve(scale1, mean1 - mean0)
    log_det = 2 * np.log(np.diagonal(scale1) / np.diagonal(scale0)).sum()
    return float(0.5 * (np.sum(ratio**2) + shift @ shift - mean0.size + log_det))


def joint_to_branch(mean: Array, cov: Array, D: int, M: int) -> Branch:
    """The Corollary: the branch Gaussian with the joint Gaussian's q(theta) and q(z_i | theta).

    A_i = Sigma_{i,theta} Sigma_theta^-1, offset_i = mean_i - A_i mean_theta, and the Schur
    complement Sigma_ii - A_i Sigma_{theta,i}. Written group by group, from the precision of each
    (theta, z_i) marginal, so as not to share its algebra with the library's version.
    """
    N = (mean.size - D) // M
    offset, slope, z_cov = np.empty((N, M)), np.empty((N, M, D)), np.empty((N, M, M))
    for i in range(N):
        own = np.arange(D + i * M, D + (i + 1) * M)
        keep = np.concatenate([np.arange(D), own])
        precision = np.linalg.inv(cov[np.ix_(keep, keep)])
        z_cov[i] = np.linalg.inv(precision[D:, D:])
        slope[i] = -z_cov[i] @ precision[D:, :D]
        offset[i] = mean[own] - slope[i] @ mean[:D]
    return Branch(mean[:D].copy(), cov[:D, :D].copy(), offset, slope, z_cov)


def branch_to_joint(branch: Branch) -> tuple[Array, Array]:
    """Assemble the mean [D + N M] and covariance of (theta, z_1 .. z_N) under a branch Gaussian."""
    mean, cov, offset, slope, z_cov = branch
    N, M, D = slope.shape
    stacked = np.concatenate([np.eye(D), slope.reshape(N * M, D)])
    full = stacked @ cov @ stacked.T
    for i in range(N):
        own = slice(D + i * M, D + (i + 1) * M)
        full[own, own] += z_cov[i]
    return np.concatenate([mean, (offset + slope @ mean).reshape(-1)]), full


def _sufficient(table: Table, N: int) -> tuple[Array, Array, Array, Array]:
    """n_i [N], x_i'x_i [N, D, D], x_i'y_i [N, D] and y_i'y_i [N].

    Groups of equal size are stacked and multiplied together, which is as fast for ragged data as
    for equal sizes and leaves groups without rows at zero.
    """
    group = np.asarray(table["group"])
    x, y = np.asarray(table["x"], dtype=float), np.asarray(table["y"], dtype=float)
    if np.any(np.diff(group) < 0):
        order = np.argsort(group, kind="stable")
        group, x, y = group[order], x[order], y[order]
    count = np.bincount(group, minlength=N)
    if count.size != N:
        raise ValueError(f"expected group numbers below {N}; got {count.size - 1}")
    start = np.cumsum(count) - count
    dim = x.shape[-1]
    gram, xy, yy = np.zeros((N, dim, dim)), np.zeros((N, dim)), np.zeros(N)
    for size in np.unique(count[count > 0]):
        groups = np.flatnonzero(count == size)
        for part in np.array_split(groups, 1 + groups.size * size // 1_000_000):
            rows = start[part][:, None] + np.arange(size)
            xs, ys = x[rows], y[rows]
            gram[part] = xs.transpose(0, 2, 1) @ xs
            xy[part] = (xs.transpose(0, 2, 1) @ ys[:, :, None])[:, :, 0]
            yy[part] = np.sum(ys**2, axis=1)
    return count.astype(float), gram, xy, yy
