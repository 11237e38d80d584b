"""Posteriors of theta that are hard for `solved`, against grids: weak groups, and very strong ones."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.inference.theta_search import Learned
from ramify.inference.theta_weights import weigh_theta, with_control
from ramify.numerics.psis import effective_draws


@pytest.mark.slow
@pytest.mark.parametrize("N, rows, seed", [(100, 2, 6), (64, 3, 5)])
def test_groups_that_say_little(N, rows, seed):
    """Two or three yes or no answers a group: their sd, as wide as the prior, against quadrature."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(N), rows)
    y = (rng.random(N * rows) < 1 / (1 + np.exp(-0.5 * rng.normal(size=N)[group]))).astype(int)
    model, groups = rf.from_formula("y ~ 1 + (1 | g)", {"g": group, "y": y}, likelihood="bernoulli")
    draws = rf.fit(model, groups).sample_theta(4000)
    axes = np.meshgrid(np.linspace(-2, 2, 81), np.linspace(-9, 3, 161), indexing="ij")
    grid = jnp.asarray(np.stack(axes, -1).reshape(-1, 2), jnp.float32)
    values = model.adapter.global_values(grid)
    own = {name: np.asarray(values[name], float).ravel() for name in ("Intercept", "sd")}
    x, weight = np.polynomial.hermite_e.hermegauss(60)
    eta = own["Intercept"][:, None] + own["sd"][:, None] * x
    log = np.asarray(jax.vmap(model.log_prior)(grid), float)
    for yes, count in enumerate(np.bincount(np.bincount(group, y).astype(int))):
        each = -yes * np.logaddexp(0, -eta) - (rows - yes) * np.logaddexp(0, eta)
        log += count * np.log(np.exp(each) @ (weight / weight.sum()))
    share = np.exp(log - log.max())
    share /= share.sum()
    for name, at in own.items():
        mean = share @ at
        sd = np.sqrt(share @ (at - mean) ** 2)
        found = np.asarray(draws[name], float).ravel()
        assert abs(found.mean() - mean) < 0.1 * sd  # 4,000 draws, a few hundred of them effective
        assert found.std() == pytest.approx(sd, rel=0.08)


@pytest.mark.slow
def test_large_counts_with_their_mean_in_theta():
    """A posterior sd of mu moves z by eleven of its own; exact but for 1/y, log y being normal."""
    N, exposure = 64, 1e4
    rng = np.random.default_rng(0)
    y = rng.poisson(exposure * np.exp(rng.normal(size=N))).astype(float)
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 5).log_prob(t["mu"]) + dist.HalfNormal(5).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: dist.Normal(0, t["tau"]).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Poisson(exposure * jnp.exp(t["mu"] + z["b"])).log_prob(
            row["y"]
        ),
    )
    posterior = rf.fit(model, rf.Groups.from_table({"g": np.arange(N), "y": y}, by="g", rows=["y"]))
    assert posterior.notes["converged"] and not posterior.notes["unconverged"]
    draws = posterior.sample_theta(4000)
    mu, tau = np.meshgrid(np.linspace(-0.6, 0.7, 131), np.linspace(0.5, 1.5, 101), indexing="ij")
    spread = tau[..., None] ** 2 + 1 / y
    log = -0.5 * np.sum((np.log(y / exposure) - mu[..., None]) ** 2 / spread + np.log(spread), -1)
    share = np.exp(log - (mu**2 + tau**2) / 50 - log.max())
    share /= share.sum()
    for name, at in (("mu", mu), ("tau", tau)):
        mean = np.sum(share * at)
        sd = np.sqrt(np.sum(share * (at - mean) ** 2))
        found = np.asarray(draws[name], float)
        assert abs(found.mean() - mean) < 0.1 * sd
        assert found.std() == pytest.approx(sd, rel=0.06)


@pytest.mark.slow
def test_counts_that_float32_cannot_weigh():
    """The rounding of y log(mean) - mean, at 1e8 some nats, is named, and not theta's shape."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 4)
    x = rng.normal(size=80)
    y = rng.poisson(1e8 * np.exp(0.2 * x + rng.normal(size=20)[group]))
    table = {"g": group, "x": x, "y": y, "exposure": np.full(80, np.log(1e8))}
    formula = "y ~ x + offset(exposure) + (1 | g)"
    posterior = rf.fit(*rf.from_formula(formula, table, likelihood="poisson"))
    (why,) = posterior.notes["warnings"]
    assert "float32 rounds" in why and "jax_enable_x64" in why
    assert "float32 rounds" in repr(posterior)


def test_theta_of_sds_far_apart_is_weighed():
    """A slope known to 1e-7 beside a mean known to one: draws, not SciPy's "singular"."""

    values = lambda thetas: -0.5 * np.sum((thetas / [1.0, 1e-7]) ** 2, 1)
    learned = learned_of(np.zeros(2), np.diag([1.0, 1e14]))
    points, log_weight, _ = weigh_theta(values, learned, 4000, 0)
    weight = np.exp(log_weight - log_weight.max())
    sd = np.sqrt(weight @ points**2 / weight.sum())
    np.testing.assert_allclose(sd, [1, 1e-7], rtol=5 * np.sqrt(0.5 / effective_draws(log_weight)))


def learned_of(mean, precision):
    """q(theta) as a search would have found it."""
    none = np.zeros(len(mean))
    return Learned(mean, precision, 0.0, none, none, None, np.zeros(1, bool))


def test_a_gaussian_control_takes_the_noise_of_weights_off():
    """Of a Gaussian, means of weighted points are exact; of a skewed p they have no more noise."""
    rng, D = np.random.default_rng(0), 6
    root = np.tril(rng.normal(size=(D, D))) + 3 * np.eye(D)
    learned = learned_of(rng.normal(size=D), root @ root.T)
    sd = np.sqrt(np.diag(np.linalg.inv(learned.precision)))
    apart = lambda thetas: (thetas - learned.mean) @ root
    normal = lambda thetas: -0.5 * np.sum(apart(thetas) ** 2, 1)
    skewed = lambda thetas: normal(thetas) + 0.3 * np.tanh(apart(thetas)).sum(1)
    for values, exact in ((normal, 1e-6), (skewed, None)):
        plain, moved, told = [], [], []
        for seed in range(20):
            points, log_weight, log_t = weigh_theta(values, learned, 800, seed)
            better, noise = with_control(points, log_weight, log_t, learned)
            weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
            plain.append(weight @ points / sd)
            moved.append(weight @ better / sd)
            told.append(noise)
        if exact:
            np.testing.assert_allclose(moved, np.tile(learned.mean / sd, (20, 1)), atol=exact)
            assert np.max(told) < exact
            continue
        spread = np.sqrt(np.var(moved, 0, ddof=1).mean())
        assert spread < 1.2 * np.sqrt(np.var(plain, 0, ddof=1).mean())
        assert 0.5 * spread < np.mean(told) < 2 * spread


@pytest.mark.slow
@pytest.mark.parametrize("sd", [0.0, 0.7])
def test_an_sd_near_zero_of_many_groups_is_told(sd):
    """Past 2,000 groups theta's draws are not weighed, and the log of an sd near zero is no Gaussian."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3000), 3)
    y = sd * rng.normal(size=3000)[group] + rng.normal(size=9000)
    posterior = rf.fit(*rf.from_formula("y ~ 1 + (1 | g)", {"g": group, "y": y}))
    told = posterior.notes.get("warnings", [])
    weighted = posterior.family.weighted is not None  # by weight or by NUTS
    assert weighted or any("sd" in line for line in told) if sd == 0 else not told
