"""Few draws of theta with polynomials of theta as control variates, against exact answers."""

import equinox as eqx
import jax
import numpy as np
import pytest

import oracle
from exact_fits import exact_fit, gaussian
from ramify.families.weighted_theta import WeightedTheta
from ramify.posterior.draws import draw_theta
from ramify.posterior.posterior import Posterior
from ramify.posterior.theta_controls import (
    FIRST_DRAWS,
    LogMeans,
    _controlled,
    _polynomials,
    by_few,
    standardised,
)

N, DIM = 12, 2


@pytest.fixture(scope="module")
def train():
    return oracle.simulate(3, N, 2, DIM)[0]


@pytest.fixture(scope="module")
def fit(train):
    return exact_fit("solved", train, N)


def later(train):
    """Rows of new groups, and the exact log density of each row and of each group, summed."""
    rng, known = np.random.default_rng(1), oracle.exact(train, N)
    owner = np.repeat(np.arange(20), 3)
    x, z = rng.normal(size=(60, DIM)), known.theta_mean + rng.normal(size=(20, DIM))
    y = np.einsum("rm,rm->r", x, z[owner]) + rng.normal(size=60)
    cov = np.eye(60) + x @ (np.eye(DIM) + known.theta_cov) @ x.T
    of = lambda r: oracle.gaussian_log_density(y[r], x[r] @ known.theta_mean, cov[np.ix_(r, r)])
    exact = {"per_row": sum(of([r]) for r in range(60))}
    exact["per_group"] = sum(of(np.flatnonzero(owner == i)) for i in range(20))
    return {"group": owner + N, "x": x, "y": y}, exact


@pytest.mark.parametrize("form", ["per_row", "per_group"])
def test_rows_held_out(fit, train, form):
    """A tenth of the draws, and no larger an error."""
    test, exact = later(train)
    found = [fit.log_predictive(None, test, form=form, seed=seed) for seed in range(8)]
    plain = fit.log_predictive(None, test, 10_000, form)
    assert all(one.draws == FIRST_DRAWS for one in found) and plain.draws == 10_000
    off = np.array(found) - exact[form]
    assert np.mean(off**2) < plain.se**2 and plain.se < 0.1
    assert np.allclose([one.se for one in found], plain.se, rtol=0.2)


def test_evidence(fit, train):
    """q(theta) is wider than the posterior, so that weights are uneven."""
    known = oracle.exact(train, N)
    wide = eqx.tree_at(
        lambda f: f.theta, fit.family, gaussian(known.theta_mean + 0.05, 1.3 * known.theta_cov)
    )
    other = Posterior(fit.model, wide, fit.groups)
    found = [other.log_evidence(form="per_group", seed=seed) for seed in range(8)]
    plain = other.log_evidence(draws=10_000, form="per_group")
    assert all(one.draws == FIRST_DRAWS for one in found) and plain.draws == 10_000
    off = np.array(found) - oracle.brute_force(train, N).log_evidence
    assert np.mean(off**2) < plain.se**2 + 1e-6 and plain.se < 0.02
    assert np.allclose([one.se for one in found], plain.se, rtol=0.2)


def test_each_draw_is_corrected_by_the_others():
    rng = np.random.default_rng(0)
    e = rng.normal(size=(60, 1))
    influence, terms = np.exp(e[:, 0]) + rng.normal(size=60), _polynomials(e)
    design = np.column_stack([np.ones(60), terms])
    assert design.shape[1] == 4
    found = []
    for i in range(60):
        others = np.arange(60) != i
        own = np.linalg.lstsq(design[others], influence[others], rcond=None)[0]
        found.append((terms[i] @ own[1:], influence[i] - design[i] @ own))
    explained, rest = np.array(found).T
    shift, se = _controlled(influence, e)
    assert shift == pytest.approx(-explained.mean(), rel=1e-9)
    assert se == pytest.approx(np.linalg.norm(rest) / 59, rel=1e-9)


def test_where_polynomials_explain_little_all_draws_are_taken():
    asked = []

    def of_first(count):
        asked.append(count)
        found = LogMeans(0.0, influence[:count], np.full(count, 1 / count), effective)
        return found._replace(effective=effective * count)

    e = np.random.default_rng(0).normal(size=(10_000, 2))
    influence, effective = np.sin(40 * e[:, 0]), np.array([0.9])
    assert by_few(of_first, e) is None and asked == [FIRST_DRAWS]
    influence = np.sin(0.5 * e[:, 0])  # nearly a polynomial
    assert by_few(of_first, e).draws == FIRST_DRAWS
    effective = np.array([0.9, 0.1])  # one mean is that of few draws
    assert by_few(of_first, e) is None


def test_weighted_draws_are_all_taken(fit, train):
    """Their moments are not known."""
    test, _ = later(train)
    points = 0.1 * np.random.default_rng(0).normal(size=(50, DIM))
    family = eqx.tree_at(
        lambda f: f.weighted, fit.family, WeightedTheta.even(points), is_leaf=lambda x: x is None
    )
    other = Posterior(fit.model, family, fit.groups)
    found = other.log_predictive(None, test, form="per_row")
    assert found == other.log_predictive(None, test, 10_000, "per_row") and found.draws == 10_000


def test_moments_of_rounded_draws_are_not_trusted(fit):
    """Near 1000 float32 numbers are 6e-5 apart."""
    far = eqx.tree_at(
        lambda f: f.theta, fit.family, gaussian(np.full(DIM, 1000.0), 1e-6 * np.eye(DIM))
    )
    for family, known in ((fit.family, True), (far, False)):
        theta = draw_theta(jax.random.key(0), family, fit.model, 100)
        assert (standardised(family, theta) is not None) == known
