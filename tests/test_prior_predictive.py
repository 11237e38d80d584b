"""Draws from the prior: their distribution, the order of rows, and what can't be drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import ramify as rf
from quick import slow_but
from ramify.frontends.formula.simulation import lkj_factor
from ramify.models.simulation import _from_quadratic

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"g": RNG.permutation(np.repeat(np.arange(12), 5)), "x": RNG.normal(size=60)})
TABLE["y"] = RNG.poisson(2.0, 60)
GROUPS = rf.Groups.from_table(TABLE, by="g", rows=["x", "y"])


def counts(**changed):
    """A Poisson model of log densities."""
    own = {
        "log_prior": lambda t: (
            dist.Normal(0.5, 0.3).log_prob(t["mu"]) + dist.Gamma(8, 20).log_prob(t["tau"])
        ),
        "log_local": lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        "log_lik": lambda t, z, row: dist.Poisson(jnp.exp(z["b"])).log_prob(row["y"]),
        "simulate": lambda key, t, z, row: dist.Poisson(jnp.exp(z["b"])).sample(key),
    }
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()}, z={"b": rf.real()}, **own | changed
    )


def numpyro_counts(x, y=None, *, g, n_g):
    mu, tau = numpyro.sample("mu", dist.Normal(0.5, 0.3)), numpyro.sample("tau", dist.Gamma(8, 20))
    with numpyro.plate("groups", n_g):
        b = numpyro.sample("b", dist.Normal(mu, tau))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b[g])), obs=y)


def formula_counts():
    priors = {"Intercept": "Normal(0.5, 0.3)", "sd": "Gamma(8, 20)"}
    return rf.from_formula("y ~ 1 + (1 | g)", TABLE, likelihood="poisson", priors=priors)


@pytest.mark.parametrize("kind", slow_but(["formula"], ["densities", "numpyro", "formula"]))
def test_draws_are_those_of_the_prior(kind):
    """The same model three times: E b and Var b of a group, and E y = E exp(b)."""
    model, groups = (
        (counts() if kind == "densities" else rf.from_numpyro(numpyro_counts, GROUPS)),
        GROUPS,
    )
    if kind == "formula":
        model, groups = formula_counts()
    found, S = rf.prior_predictive(model, groups, 400, seed=1), 400
    drawn = found.parameters
    mu = drawn["Intercept"] if kind == "formula" else drawn["mu"]
    tau = drawn["sd"][:, 0] if kind == "formula" else drawn["tau"]
    for values, prior in ((mu, dist.Normal(0.5, 0.3)), (tau, dist.Gamma(8, 20))):
        mean, sd = float(prior.mean), float(np.sqrt(prior.variance))
        # Of 400 from 2,000 draws by NUTS, thinned, at least 250 are independent.
        assert abs(values.mean() - mean) < 4 * sd / np.sqrt(250)
        assert abs(np.log(values.std() / sd)) < 4 / np.sqrt(2 * 250)
    own = drawn["effects"][:, :, 0] if kind == "formula" else drawn["b"] - mu[:, None]
    assert own.shape == (S, 12)
    scaled = own / tau[:, None]
    assert abs(scaled.mean()) < 4 / np.sqrt(scaled.size)
    assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * scaled.size)
    sums = np.stack([found.outcomes[:, found._owner == i].sum(1) for i in range(12)], 1)
    rate = 5 * np.exp(own + mu[:, None])
    z = (sums - rate) / np.sqrt(rate)
    assert abs(z.mean()) < 4 / np.sqrt(z.size) and abs(z.std() - 1) < 6 / np.sqrt(2 * z.size)


@pytest.mark.slow
def test_z_of_a_quadratic_log_density_is_exact():
    rng = np.random.default_rng(2)
    mean = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)
    root = jnp.asarray(np.tril(rng.normal(size=(3, 2, 2))) + 2 * np.eye(2), jnp.float32)
    density = lambda z: dist.MultivariateNormal(mean, scale_tril=root).log_prob(z)
    draw = jax.jit(lambda noise: _from_quadratic(density, noise))
    zero = jnp.zeros((3, 2))
    np.testing.assert_allclose(draw(zero), mean, rtol=1e-5)
    jacobian = jax.jit(jax.jacobian(draw))(zero)
    for i in range(3):
        found = jacobian[i, :, i] @ jacobian[i, :, i].T
        np.testing.assert_allclose(found, root[i] @ root[i].T, rtol=1e-4)


def test_rows_are_in_the_order_of_the_table():
    far = np.arange(60) * 1000.0
    table = {"g": TABLE["g"], "y": far + RNG.normal(size=60), "far": far}
    found = rf.prior_predictive(
        "y ~ 1 + offset(far) + (1 | g)",
        table,
        20,
        priors={"Intercept": "Normal(0, 1)", "sd": "HalfNormal(1)", "sigma": "HalfNormal(1)"},
    )
    assert found.outcomes.shape == (20, 60)
    assert np.abs(found.outcomes - far).max() < 20 and np.abs(found.observed - far).max() < 20
    assert list(found.summary().names) == ["Intercept", "sd(Intercept | g)", "sigma"]
    assert "20 data sets of 60 rows" in repr(found) and "<li>" in found._repr_html_()


def test_pictures_are_those_of_a_posterior_check():
    model, groups = formula_counts()
    found = rf.prior_predictive(model, TABLE, 30)
    for by in ("row", "group"):
        assert "Prior predictive check" in found.check(by).caption
        names = [trace.get("name") for trace in found.check(by).figure["data"]]
        assert "observed" in names and "predicted, 90% intervals" in names
    with pytest.raises(ValueError, match='by must be "row" or "group"'):
        found.check("y")
    drawn = model.sample_prior(20, groups)
    assert drawn["effects"].shape == (20, 12, 1) and drawn["Intercept"].shape == (20,)
    assert set(model.sample_prior(20)) == {"Intercept", "sd"}


def test_what_can_not_be_drawn_is_told():
    with pytest.raises(ValueError, match="this model has none, or it is not clear which"):
        rf.prior_predictive(counts(simulate=None), GROUPS)
    laplace = lambda t, z, group: dist.Laplace(t["mu"], t["tau"]).log_prob(z["b"])
    with pytest.raises(ValueError, match="rf.NormalPrior"):
        rf.prior_predictive(counts(log_local=laplace), GROUPS)
    with pytest.raises(ValueError, match="several grouping factors"):
        rf.prior_predictive("y ~ x + (1 | g) + (1 | h)", TABLE.assign(h=TABLE.g % 3))
    with pytest.raises(TypeError, match=r"priors= goes with a formula, rf.prior_predictive"):
        rf.prior_predictive(formula_counts()[0], TABLE, priors={"x": "Normal(0, 1)"})


@pytest.mark.slow
def test_a_prior_without_a_total_is_told():
    with pytest.raises(ArithmeticError, match="can't be drawn from log_prior"):
        counts(log_prior=lambda t: 0.0 * t["mu"]).sample_prior(10)


@pytest.mark.parametrize("M, concentration", [(2, 1.0), (4, 0.7)])
def test_correlations_drawn_by_numpy_are_those_of_the_lkj_distribution(M, concentration, S=4000):
    """Each correlation is Beta(a, a) from -1 to 1, a = concentration - 1 + M / 2."""
    rng = np.random.default_rng(0)
    factor = np.stack([lkj_factor(rng, M, concentration) for _ in range(S)])
    own = (factor @ factor.swapaxes(1, 2))[:, *np.tril_indices(M, -1)]
    a = concentration - 1 + M / 2
    for r in own.T:
        assert stats.kstest((r + 1) / 2, stats.beta(a, a).cdf).pvalue > 1e-3
