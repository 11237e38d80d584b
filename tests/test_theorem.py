"""The Theorem and its Corollary: the branch distribution of a joint one is at least as close."""

import jax.numpy as jnp
import numpy as np
import pytest

import oracle
import ramify as rf
from conjugate import assemble
from exact_fits import exact_family, read, regression
from quick import slow

SIZES, DIM = np.array([4, 0, 7, 1]), 3
N = len(SIZES)


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(0, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def groups(table):
    return read(table, N)


def random_gaussian(rng, size):
    factor = rng.standard_normal((size, size)) / np.sqrt(size)
    return rng.standard_normal(size), factor @ factor.T + 0.1 * np.eye(size)


def corresponding_branch(mean, cov, D, M):
    """The library's branch Gaussian of a joint one, assembled again."""
    theta, local = rf.joint_to_branch(jnp.asarray(mean), jnp.asarray(cov), D, M)
    return oracle.branch_to_joint(oracle.Branch(*(np.asarray(x) for x in (*theta, *local))))


@pytest.mark.parametrize("D, M", [(2, 2), slow(3, 1), slow(1, 2)])
def test_corollary_against_the_oracle(D, M, x64):
    rng = np.random.default_rng(D)
    mean, cov = random_gaussian(rng, D + N * M)
    theta, local = rf.joint_to_branch(jnp.asarray(mean), jnp.asarray(cov), D, M)
    for actual, expected in zip((*theta, *local), oracle.joint_to_branch(mean, cov, D, M)):
        np.testing.assert_allclose(actual, expected, atol=1e-10)


def test_theorem(table, x64):
    """The branch distribution is closer than the joint one, strictly if that ties groups together."""
    rng, brute = np.random.default_rng(0), oracle.brute_force(table, N)
    for _ in range(100):
        mean, cov = random_gaussian(rng, DIM * (N + 1))
        branch = corresponding_branch(mean, cov, DIM, DIM)
        joint_kl = oracle.gaussian_kl(mean, cov, brute.mean, brute.cov)
        branch_kl = oracle.gaussian_kl(*branch, brute.mean, brute.cov)
        assert branch_kl < joint_kl - 1e-3
        # Without ties beyond theta there is nothing to gain.
        again = corresponding_branch(*branch, DIM, DIM)
        again_kl = oracle.gaussian_kl(*again, brute.mean, brute.cov)
        np.testing.assert_allclose(again_kl, branch_kl, rtol=1e-9)


def test_at_the_optimum_branch_and_joint_are_equal(table, x64):
    brute = oracle.brute_force(table, N)
    branch = corresponding_branch(brute.mean, brute.cov, DIM, DIM)
    assert abs(oracle.gaussian_kl(*branch, brute.mean, brute.cov)) < 1e-9


@pytest.mark.parametrize("method", ["joint", slow("branch"), slow("solved")])
def test_the_posterior_is_a_member_of_each_dense_family(method, table, groups, x64):
    model = regression(DIM)
    brute = oracle.brute_force(table, N)
    family = exact_family(method, model, table, N)
    mean, cov = assemble(family, model, groups)
    np.testing.assert_allclose(mean, brute.mean, atol=1e-8)
    np.testing.assert_allclose(cov, brute.cov, atol=1e-8)
