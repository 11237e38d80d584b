"""The oracle against itself: brute-force matrices, matrix identities and perturbations agree."""

import time

import numpy as np
import pytest

import oracle

CASES = {
    "equal": dict(N=4, n=np.full(4, 6), dim=3),
    "ragged": dict(N=5, n=np.array([1, 7, 2, 12, 3]), dim=2),
    "empty groups": dict(N=6, n=np.array([0, 4, 0, 9, 1, 0]), dim=3),
    "fewer rows than dims": dict(N=3, n=np.array([1, 2, 1]), dim=4),
    "no rows at all": dict(N=2, n=np.array([0, 0]), dim=2),
    "one group": dict(N=1, n=np.array([5]), dim=1),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    """A small table with its number of groups."""
    spec = CASES[request.param]
    table, _ = oracle.simulate(seed=3, **spec, shuffle=True)
    return table, spec["N"]


def close(actual, expected, tolerance=1e-9):
    """Equal to a relative and absolute tolerance."""
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def split(vector, N):
    """A vector over (theta, z_1 .. z_N) as theta [D] and z [N, D]."""
    parts = vector.reshape(N + 1, -1)
    return parts[0], parts[1:]


def random_gaussian(rng, size):
    """A mean and a well-conditioned, fully dense covariance."""
    factor = rng.standard_normal((size, size)) / np.sqrt(size)
    return rng.standard_normal(size), factor @ factor.T + 0.1 * np.eye(size)


def test_identities_match_brute_force(case):
    table, N = case
    exact, brute = oracle.exact(table, N), oracle.brute_force(table, N)
    close(exact.log_evidence, brute.log_evidence)
    close(exact.log_evidence, brute.log_evidence_from_precision)
    theta_mean, z_mean = split(brute.mean, N)
    close(exact.theta_mean, theta_mean)
    close(exact.z_mean, z_mean)
    dim = theta_mean.size
    blocks = brute.cov.reshape(N + 1, dim, N + 1, dim)
    close(exact.theta_cov, blocks[0, :, 0])
    close(exact.z_cov, np.stack([blocks[i + 1, :, i + 1] for i in range(N)]))


def test_conditionals_assemble_to_the_posterior(case):
    table, N = case
    exact, brute = oracle.exact(table, N), oracle.brute_force(table, N)
    branch = oracle.Branch(
        exact.theta_mean, exact.theta_cov, exact.z_offset, exact.z_slope, exact.z_given_cov
    )
    mean, cov = oracle.branch_to_joint(branch)
    close(mean, brute.mean)
    close(cov, brute.cov)
    assert abs(oracle.gaussian_kl(mean, cov, brute.mean, brute.cov)) < 1e-9


def test_group_without_rows_has_its_prior():
    table, _ = oracle.simulate(seed=0, N=3, n=np.array([5, 0, 5]), dim=2)
    exact = oracle.exact(table, 3)
    close(exact.z_mean[1], exact.theta_mean)
    close(exact.z_cov[1], exact.theta_cov + np.eye(2))


def test_printed_marginal_of_the_paper_is_a_slip():
    """Block (1, 2) of the covariance of y is x_1 x_2'; x_2 x_1' there is not even symmetric."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 2))
    theta = rng.standard_normal((200_000, 1, 2))
    z = theta + rng.standard_normal((200_000, 2, 2))
    y = np.einsum("gnd,sgd->sgn", x, z) + rng.standard_normal((200_000, 2, 3))
    off_diagonal = np.einsum("sa,sb->ab", y[:, 0], y[:, 1]) / len(y)
    error = np.sqrt((1 + 2 * np.sum(x**2, -1)).max() ** 2 / len(y))
    assert np.abs(off_diagonal - x[0] @ x[1].T).max() < 5 * error
    assert np.abs(off_diagonal - x[1] @ x[0].T).max() > 20 * error


@pytest.mark.parametrize("method", oracle.METHODS)
@pytest.mark.parametrize("covariance", oracle.COVARIANCES)
def test_optimum_matches_blocks_of_the_precision(case, method, covariance):
    table, N = case
    best, brute = oracle.optimum(table, N, method, covariance), oracle.brute_force(table, N)
    dim = brute.mean.size // (N + 1)
    cov = np.linalg.inv(brute.precision * _mask(method, covariance, N, dim))
    kl = oracle.gaussian_kl(brute.mean, cov, brute.mean, brute.cov)
    close(best.elbo, brute.log_evidence - kl)
    theta_mean, z_mean = split(brute.mean, N)
    theta_sd, z_sd = split(np.sqrt(np.diagonal(cov)), N)
    for actual, expected in zip(
        [best.theta_mean, best.theta_sd, best.z_mean, best.z_sd],
        [theta_mean, theta_sd, z_mean, z_sd],
        strict=True,
    ):
        close(actual, expected)


@pytest.mark.parametrize("covariance", ["block", "diagonal"])
@pytest.mark.parametrize("method", oracle.METHODS)
def test_optimum_is_a_minimum_of_kl(method, covariance):
    """Every perturbation inside the family raises KL, and by second order only."""
    N, dim, rng = 3, 2, np.random.default_rng(5)
    table, _ = oracle.simulate(seed=8, N=N, n=np.array([2, 0, 5]), dim=dim)
    brute = oracle.brute_force(table, N)
    mask = _mask(method, covariance, N, dim)
    scale = np.linalg.cholesky(np.linalg.inv(brute.precision * mask))

    def kl(step, mean_way, scale_way):
        moved = scale + step * np.tril(scale_way) * mask
        return oracle.gaussian_kl(
            brute.mean + step * mean_way, moved @ moved.T, brute.mean, brute.cov
        )

    for _ in range(50):
        way = rng.standard_normal(brute.mean.shape), rng.standard_normal(scale.shape)
        lower, here, upper = (kl(step, *way) for step in (-1e-3, 0.0, 1e-3))
        assert min(lower, upper) > here
        assert abs(upper - lower) / 2e-3 < 1e-3 * (upper + lower - 2 * here) / 1e-6


def test_families_are_ordered():
    table, _ = oracle.simulate(seed=1, N=10, n=100, dim=10)
    dense, block, diagonal = (
        oracle.optimum(table, 10, "branch", c).elbo for c in oracle.COVARIANCES
    )
    assert dense > block > diagonal


def test_branch_of_a_joint_gaussian_has_its_marginals():
    rng, D, M, N = np.random.default_rng(2), 3, 2, 4
    mean, cov = random_gaussian(rng, D + N * M)
    assembled_mean, assembled = oracle.branch_to_joint(oracle.joint_to_branch(mean, cov, D, M))
    close(assembled_mean, mean)
    close(assembled[:D], cov[:D])
    for i in range(N):
        own = slice(D + i * M, D + (i + 1) * M)
        close(assembled[own, own], cov[own, own])
        slope = np.linalg.solve(cov[:D, :D], cov[:D, own]).T
        close(oracle.joint_to_branch(mean, cov, D, M).slope[i], slope)


def test_theorem_on_random_joint_gaussians():
    """KL of the corresponding branch Gaussian is below the joint's; equal without extra links."""
    rng, N, dim = np.random.default_rng(4), 3, 2
    table, _ = oracle.simulate(seed=6, N=N, n=np.array([3, 1, 6]), dim=dim)
    brute = oracle.brute_force(table, N)
    for _ in range(100):
        mean, cov = random_gaussian(rng, brute.mean.size)
        branch = oracle.branch_to_joint(oracle.joint_to_branch(mean, cov, dim, dim))
        joint_kl = oracle.gaussian_kl(mean, cov, brute.mean, brute.cov)
        branch_kl = oracle.gaussian_kl(*branch, brute.mean, brute.cov)
        assert branch_kl < joint_kl
        again = oracle.branch_to_joint(oracle.joint_to_branch(*branch, dim, dim))
        close(oracle.gaussian_kl(*again, brute.mean, brute.cov), branch_kl)


def test_gaussian_kl_by_monte_carlo():
    rng = np.random.default_rng(0)
    mean0, cov0 = random_gaussian(rng, 3)
    mean1, cov1 = random_gaussian(rng, 3)
    draws = mean0 + rng.standard_normal((20_000, 3)) @ np.linalg.cholesky(cov0).T
    gap = _log_density(draws, mean0, cov0) - _log_density(draws, mean1, cov1)
    error = gap.std() / np.sqrt(gap.size)
    assert abs(gap.mean() - oracle.gaussian_kl(mean0, cov0, mean1, cov1)) < 4 * error


def test_equal_and_shuffled_rows_agree():
    table, _ = oracle.simulate(seed=9, N=50, n=np.arange(50) % 7, dim=3)
    order = np.random.default_rng(0).permutation(table["y"].size)
    shuffled = {name: column[order] for name, column in table.items()}
    for one, other in zip(oracle.exact(table, 50), oracle.exact(shuffled, 50), strict=True):
        close(one, other)


@pytest.mark.slow
def test_large_in_seconds():
    table, truth = oracle.simulate(seed=0, N=100_000, n=100, dim=10)
    started = time.perf_counter()
    exact = oracle.exact(table, 100_000)
    assert time.perf_counter() - started < 60
    error = (exact.theta_mean - truth["theta"]) / np.sqrt(np.diagonal(exact.theta_cov))
    assert np.sqrt(np.mean(error**2)) < 3
    white = (exact.z_mean - truth["z"]) / np.sqrt(np.diagonal(exact.z_cov, axis1=1, axis2=2))
    np.testing.assert_allclose(white.std(), 1, atol=0.01)


def _mask(method, covariance, N, dim):
    """Which entries of the joint precision a family keeps."""
    total = dim * (N + 1)
    if covariance == "dense":
        return np.ones((total, total))
    if covariance == "diagonal":
        return np.eye(total)
    if method == "joint":
        part = np.repeat([0, 1], [dim, N * dim])
    else:
        part = np.repeat(np.arange(N + 1), dim)
    return (part[:, None] == part[None, :]).astype(float)


def _log_density(values, mean, cov):
    return np.array([oracle.gaussian_log_density(v, mean, cov) for v in values])
