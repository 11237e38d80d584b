"""Fits of NumPyro models: the same as those of hand-written densities, and right."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import problems
import ramify as rf

METHODS = {"joint": rf.joint, "branch": rf.branch, "amortized": rf.amortized}


def both(name, N):
    """The problem as three densities and as NumPyro, and its data."""
    problem = problems.make(name, N=N)
    densities, groups = problems.for_ramify(problem)
    return densities, rf.from_numpyro(problem.model, groups), groups


def learned(posterior):
    return jax.tree.leaves(eqx.filter(posterior.family, eqx.is_inexact_array))


def assert_same(first, second):
    for a, b in zip(learned(first), learned(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(first.history["elbo"], second.history["elbo"], rtol=1e-9)


PLAIN = [pytest.param(m, 1, marks=pytest.mark.slow) for m in METHODS]
TIGHT = [pytest.param(m, 4, marks=pytest.mark.slow) for m in METHODS if m != "joint"]


@pytest.mark.parametrize("method, local_draws", [*PLAIN, *TIGHT])
def test_same_steps_as_densities(method, local_draws, x64):
    """Group covariates, theta in the likelihood, blocks: step by step to rounding."""
    fits = []
    densities, said, groups = both("radon", N=6)
    for model in (densities, said):
        fits.append(
            rf.fit(
                model,
                groups,
                family=METHODS[method](model, groups),
                optimizer=optax.adam(1e-2),
                local_draws=local_draws,
                draws=2,
                max_steps=8,
                rows=None if method == "joint" else 60,
                progress=False,
            )
        )
    assert len(fits[0].history["elbo"]) == 8
    assert_same(*fits)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, N",
    [
        ("random_intercept", 8),
        ("varying_noise", 5),
        ("radon", 6),
    ],
)
def test_same_solved_fit_as_densities(name, N, x64):
    densities, said, groups = both(name, N)
    found = [rf.fit(m, groups, draws=2, max_steps=5, progress=False) for m in (densities, said)]
    assert_same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eight_schools", "radon", "logistic_100"])
def test_answers_of_nuts(name):
    """Means, sds and correlations of all globals, unconstrained, with the defaults.

    Tolerances are four standard errors, ours (effective draws of theta) and the reference's together,
    and what K draws of each group's z leave: half a posterior sd over sqrt(K).
    """
    problem = problems.make(name)
    stored = problems.reference(problem)
    _, groups = problems.for_ramify(problem)
    posterior = rf.fit(rf.from_numpyro(problem.model, groups), groups, progress=False)
    said = posterior.family.weighted or posterior.family.theta
    mean, covariance = (np.asarray(m, np.float64) for m in (said.mean, said.covariance))
    sd, own = np.sqrt(np.diagonal(covariance)), posterior.notes["theta_effective_draws"] ** -0.5
    left = 0.5 / np.sqrt(posterior.local_draws)
    errors = np.abs(mean - stored.u_mean) / stored.u_sd
    assert np.all(errors < left + 4 * np.hypot(own, stored.u_mcse / stored.u_sd)), errors
    ratios = np.abs(sd / stored.u_sd - 1)
    assert np.all(ratios < left + 4 * np.hypot(own, stored.u_sd_mcse / stored.u_sd)), ratios
    corr = covariance / np.outer(sd, sd)
    noise = 4 * np.hypot(own, stored.u_ess.min() ** -0.5)
    assert np.all(np.abs(corr - stored.u_corr) < left + noise), np.abs(corr - stored.u_corr).max()


@pytest.mark.slow
def test_reparametrised_model_has_the_same_answer():
    """Centred or not is the sampler's business: mu and tau agree, and so do the effects."""
    import numpyro_models

    found = []
    for case in (numpyro_models.eight_schools(), numpyro_models.eight_schools_non_centred()):
        found.append(rf.fit(case.make(), case.groups(), progress=False))
    centred, other = (posterior.sample(4000) for posterior in found)
    for name in ("mu", "effect"):
        sd = centred[name].std(0)
        assert np.all(np.abs(centred[name].mean(0) - other[name].mean(0)) < 0.2 * sd), name
    np.testing.assert_allclose(
        np.log(centred["tau"]).mean(), np.log(other["tau"]).mean(), atol=0.25
    )
