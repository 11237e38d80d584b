"""Problems whose rows are answers or counts: binary, ordered, Poisson, negative binomial."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform

from problems.problem import Problem, ragged, tidy

# Hierarchical logistic regression with a full covariance of the coefficients.


def logistic(N: int = 1000, seed: int = 0, name: str | None = None) -> Problem:
    """Logistic regression, M = 5, D = 20; 5 to 300 rows a group, mean about 34, heavy-tailed."""
    rng = np.random.default_rng([1, N, seed])
    truth = {
        "mu": np.array([0.5, -0.8, 0.3, 0.0, 0.6]),
        "scale": np.array([1.0, 0.8, 0.7, 0.9, 0.6]),
        "off": np.array([0.4, -0.3, 0.2, 0.0, 0.3, -0.4, 0.2, -0.2, 0.1, 0.3]),
    }
    factor = np.diag(truth["scale"])
    factor[np.tril_indices(5, -1)] = truth["off"]
    truth["beta"] = truth["mu"] + rng.standard_normal((N, 5)) @ factor.T
    group = ragged(rng, N, typical=21, spread=1.0, low=5, high=300)
    x = tidy(np.column_stack([np.ones(group.size), rng.standard_normal((group.size, 4))]))
    logits = np.sum(x * truth["beta"][group], -1)
    y = (rng.random(group.size) < 1 / (1 + np.exp(-logits))).astype(np.int32)

    return Problem(
        name=name or f"logistic_{N}",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={"mu": ("real", (5,)), "scale": ("positive", (5,)), "off": ("real", (10,))},
        z={"beta": ("real", (5,))},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["scale"]).sum()
            + dist.Normal(0, 1).log_prob(theta["off"]).sum()
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=lower_triangle(theta["scale"], theta["off"])
        ).log_prob(z["beta"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=jnp.dot(row["x"], z["beta"])).log_prob(
            row["y"]
        ),
        model=_logistic_model,
        truth=truth,
    )


def _logistic_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([5]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([5]).to_event(1))
    off = numpyro.sample("off", dist.Normal(0, 1).expand([10]).to_event(1))
    factor = lower_triangle(scale, off)
    with numpyro.plate("groups", n_group):
        beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=factor))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(x * beta[group]).sum(-1)), obs=y)


def lower_triangle(scale: jax.Array, off: jax.Array) -> jax.Array:
    """A triangular factor from its diagonal [M] and, row by row, what is below it."""
    rows, columns = np.tril_indices(scale.shape[-1], -1)
    return jnp.diag(scale).at[rows, columns].set(off)


# Random-intercept logistic at large N; without covariates, so quadrature is cheap.


def random_intercept(N: int = 100_000, seed: int = 0) -> Problem:
    """Binary rows with a random intercept, 2 to 20 rows a group, D = 2, M = 1."""
    rng = np.random.default_rng([7, N, seed])
    truth = {"mu": -0.5, "sigma": 1.0}
    truth["a"] = truth["mu"] + truth["sigma"] * rng.standard_normal(N)
    group = np.repeat(np.arange(N, dtype=np.int32), rng.integers(2, 21, N))
    y = (rng.random(group.size) < 1 / (1 + np.exp(-truth["a"][group]))).astype(np.int32)

    return Problem(
        name="random_intercept",
        table={"group": group, "y": y},
        n_group=N,
        theta={"mu": ("real", ()), "sigma": ("positive", ())},
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"]) + dist.HalfNormal(2).log_prob(theta["sigma"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["sigma"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=z["a"]).log_prob(row["y"]),
        model=_random_intercept_model,
        truth=truth,
    )


def _random_intercept_model(y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(mu, sigma))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group]), obs=y)


# Poisson regression with correlated intercepts and slopes.


def poisson(N: int = 200, seed: int = 0) -> Problem:
    """Poisson counts, intercept and slope per group, an LKJ prior on their correlation."""
    rng = np.random.default_rng([2, N, seed])
    chol = np.array([[1.0, 0.0], [-0.4, np.sqrt(1 - 0.16)]])
    truth = {"mu": np.array([0.7, 0.3]), "tau": np.array([0.6, 0.4]), "chol": chol}
    truth["beta"] = truth["mu"] + rng.standard_normal((N, 2)) @ (truth["tau"][:, None] * chol).T
    group = ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = tidy(rng.standard_normal(group.size))
    beta = truth["beta"][group]
    y = rng.poisson(np.exp(beta[:, 0] + beta[:, 1] * x)).astype(np.int32)

    return Problem(
        name="poisson",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", (2,)),
            "tau": ("positive", (2,)),
            "chol": ("corr_cholesky", (2, 2)),
        },
        z={"beta": ("real", (2,))},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"]).sum()
            + dist.LKJCholesky(2, 2.0).log_prob(theta["chol"])
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=theta["tau"][:, None] * theta["chol"]
        ).log_prob(z["beta"]),
        log_lik=lambda theta, z, row: dist.Poisson(
            jnp.exp(z["beta"][0] + z["beta"][1] * row["x"])
        ).log_prob(row["y"]),
        model=_poisson_model,
        truth=truth,
    )


def _poisson_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", n_group):
        factor = tau[:, None] * chol
        beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=factor))
    with numpyro.plate("rows", x.shape[0]):
        rate = jnp.exp(beta[group, 0] + beta[group, 1] * x)
        numpyro.sample("y", dist.Poisson(rate), obs=y)


# Negative binomial regression: the likelihood has a dispersion and a slope in theta.


def negative_binomial(N: int = 200, seed: int = 0) -> Problem:
    """Overdispersed counts with group intercepts; slope and dispersion are global."""
    rng = np.random.default_rng([3, N, seed])
    truth = {"mu": 1.0, "tau": 0.7, "slope": 0.5, "concentration": 1.5}
    truth["a"] = truth["mu"] + truth["tau"] * rng.standard_normal(N)
    group = ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = tidy(rng.standard_normal(group.size))
    mean = np.exp(truth["a"][group] + truth["slope"] * x)
    gamma = rng.gamma(truth["concentration"], mean / truth["concentration"])
    y = rng.poisson(gamma).astype(np.int32)

    return Problem(
        name="negative_binomial",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", ()),
            "tau": ("positive", ()),
            "slope": ("real", ()),
            "concentration": ("positive", ()),
        },
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"])
            + dist.HalfNormal(1).log_prob(theta["tau"])
            + dist.Normal(0, 1).log_prob(theta["slope"])
            + dist.LogNormal(0, 1).log_prob(theta["concentration"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["tau"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.NegativeBinomial2(
            jnp.exp(z["a"] + theta["slope"] * row["x"]), theta["concentration"]
        ).log_prob(row["y"]),
        model=_negative_binomial_model,
        truth=truth,
    )


def _negative_binomial_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    concentration = numpyro.sample("concentration", dist.LogNormal(0, 1))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", x.shape[0]):
        mean = jnp.exp(a[group] + slope * x)
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


# Ordered logit: the likelihood has ordered cutpoints in theta.


def ordered_logit(N: int = 200, seed: int = 0) -> Problem:
    """Four ordered answers, group intercepts around zero; cutpoints and slope are global."""
    rng = np.random.default_rng([5, N, seed])
    truth = {"cut": np.array([-1.2, 0.3, 1.6]), "slope": 0.8, "tau": 0.9}
    truth["a"] = truth["tau"] * rng.standard_normal(N)
    group = ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = tidy(rng.standard_normal(group.size))
    latent = truth["a"][group] + truth["slope"] * x + rng.logistic(size=group.size)
    y = np.searchsorted(truth["cut"], latent).astype(np.int32)

    return Problem(
        name="ordered_logit",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={"cut": ("ordered", (3,)), "slope": ("real", ()), "tau": ("positive", ())},
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            _ordered_prior().log_prob(theta["cut"])
            + dist.Normal(0, 1).log_prob(theta["slope"])
            + dist.HalfNormal(1).log_prob(theta["tau"])
        ),
        log_local=lambda theta, z, group: dist.Normal(0, theta["tau"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.OrderedLogistic(
            z["a"] + theta["slope"] * row["x"], theta["cut"]
        ).log_prob(row["y"]),
        model=_ordered_logit_model,
        truth=truth,
    )


def _ordered_prior() -> dist.Distribution:
    loc = jnp.array([-1.0, 0.0, 0.0])
    return dist.TransformedDistribution(dist.Normal(loc, 1.0), OrderedTransform())


def _ordered_logit_model(x, y=None, *, group, n_group):
    cut = numpyro.sample("cut", _ordered_prior())
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(0, tau))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(a[group] + slope * x, cut), obs=y)
