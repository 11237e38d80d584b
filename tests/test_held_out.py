"""The density of later rows of groups with three or more local dimensions, against exact integrals."""

from dataclasses import replace

import equinox as eqx
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
import ramify as rf
from exact_fits import exact_fit, gaussian, read
from quick import slow
from ramify.data.groups import Groups
from ramify.families.build import solved
from ramify.posterior.loo import Loo, refitted
from ramify.posterior.posterior import Posterior

N, DIM = 6, 4


@pytest.fixture(scope="module")
def train():
    return oracle.simulate(3, N, 8, DIM)[0]


@pytest.fixture(scope="module")
def fit(train):
    return exact_fit("solved", train, N)


def later(train, sizes):
    """Rows of groups of the same population as the training data's."""
    sizes = np.asarray(sizes)
    rng, center = np.random.default_rng(1), oracle.exact(train, N).theta_mean
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = 3 * rng.normal(size=(len(owner), DIM))
    z = center + rng.normal(size=(len(sizes), DIM))
    y = np.einsum("rm,rm->r", x, z[owner]) + rng.normal(size=len(owner))
    return {"group": owner, "x": x, "y": y}


def densities(test, mean, cov):
    """The log density of all rows together, and the sum over groups."""
    of = lambda r: oracle.gaussian_log_density(test["y"][r], mean[r], cov[np.ix_(r, r)])
    groups = [np.flatnonzero(test["group"] == i) for i in np.unique(test["group"])]
    return {"joint": of(np.arange(len(mean))), "per_group": sum(map(of, groups))}


@pytest.mark.parametrize("form", ["joint", "per_group"])
def test_new_groups_are_integrated_around_their_modes(fit, train, form):
    """Draws of z from p(z | theta) are off by hundreds of nats."""
    test, known = later(train, [30, 5, 40]), oracle.exact(train, N)
    x, same = test["x"], test["group"][:, None] == test["group"]
    cov = np.eye(len(x)) + x @ known.theta_cov @ x.T + same * (x @ x.T)
    exact = densities(test, x @ known.theta_mean, cov)[form]
    new = {**test, "group": test["group"] + N}
    found = fit.log_predictive(None, new, draws=1000, form=form)
    assert found.se < 0.2 and abs(found - exact) < 4 * found.se + 0.02
    with pytest.warns(
        UserWarning, match=r"of 200 draws fewer than 10 are effective in (3 gro|all)"
    ):
        paper = fit.log_predictive(None, new, draws=200, form=form, local_draws=1)
    assert paper < exact - 10


@pytest.mark.parametrize("form", [slow("joint"), "per_group"])
def test_known_groups_with_many_later_rows(fit, train, form):
    test, brute = later(train, [0, 40, 2, 0, 60, 1]), oracle.brute_force(train, N)
    design = np.zeros((len(test["y"]), len(brute.mean)))
    for r, i in enumerate(test["group"]):
        design[r, DIM * (1 + i) : DIM * (2 + i)] = test["x"][r]
    cov = np.eye(len(design)) + design @ brute.cov @ design.T
    exact = densities(test, design @ brute.mean, cov)[form]
    found = fit.log_predictive(None, test, draws=1000, form=form)
    assert found.se < 0.3 and abs(found - exact) < 4 * found.se + 0.05


def test_too_few_draws_of_z_are_warned_of(fit, train):
    """All draws of theta share them, so that their weights are even."""
    test = later(train, [30, 40])
    test["group"] += N
    wide = eqx.tree_at(lambda f: f.local, fit.family, replace(fit.family.local, widened=40.0))
    other = Posterior(fit.model, wide, fit.groups)
    with pytest.warns(UserWarning, match=r"8 draws of z are too few for 2 of 2 groups"):
        other.log_predictive(None, test, draws=100, form="joint", local_draws=8)


def test_a_group_left_out_by_a_refit(train):
    """The fit without it meets it as a new group, with all its rows."""
    test = later(train, [0, 0, 0, 0, 0, 0, 40])
    table = {name: np.concatenate([train[name], test[name]]) for name in train}
    groups, known = read(table, N + 1), oracle.exact(train, N)
    k_hat = np.where(np.arange(N + 1) == N, 1.0, 0.1)  # as if the last were bad
    found = Loo("group", groups.labels, np.zeros(N + 1), k_hat, np.zeros(N + 1), "group")
    again = refitted(found, groups, lambda rest: exact_fit("solved", train, len(rest)), 1000)
    cov = np.eye(40) + test["x"] @ (np.eye(DIM) + known.theta_cov) @ test["x"].T
    exact = oracle.gaussian_log_density(test["y"], test["x"] @ known.theta_mean, cov)
    assert again.elpd[N] == pytest.approx(exact, abs=0.2)


def integral(x, y, theta):
    """Log p(y | theta) of one group's zeros and ones, on a grid of z."""
    own = np.linspace(-6, 6, 61)
    z = np.stack(np.meshgrid(own, own, own, indexing="ij"), -1).reshape(-1, 3)
    log_lik = -np.logaddexp(0, -(z @ x.T) * (2 * y - 1)).sum(1)
    log_prior = -0.5 * np.sum((z - theta) ** 2, 1) - 1.5 * np.log(2 * np.pi)
    return np.logaddexp.reduce(log_lik + log_prior) + 3 * np.log(own[1] - own[0])


def test_zeros_and_ones_against_a_grid():
    """One group is new and one has rows in the fit; theta is known."""
    model = rf.Model(
        theta={"mu": rf.real(3)},
        z={"beta": rf.real(3)},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]).sum(),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=row["x"] @ z["beta"]).log_prob(row["y"]),
    )
    rng, theta = np.random.default_rng(0), np.array([0.5, -0.5, 0.2])
    x = 2 * rng.normal(size=(90, 3))
    y = (rng.random(90) < 1 / (1 + np.exp(-x @ (theta + [1.0, -1.0, 0.5])))).astype(float)
    groups = Groups.from_table(
        {"g": np.zeros(10, int), "x": x[:10], "y": y[:10]}, by="g", rows=["x", "y"]
    )
    family = eqx.tree_at(
        lambda f: f.theta, solved(model, groups), gaussian(theta, 1e-10 * np.eye(3))
    )
    fit = Posterior(model, family, groups)
    test = {"g": np.repeat([0, 7], [20, 60]), "x": x[10:], "y": y[10:]}
    exact = integral(x[30:], y[30:], theta)
    exact += integral(x[:30], y[:30], theta) - integral(x[:10], y[:10], theta)
    for form, draws in (("per_group", 200), ("joint", 20)):
        found = fit.log_predictive(None, test, draws=draws, form=form)
        assert found.se < 0.3 and abs(found - exact) < 4 * found.se + 0.02
