"""Problems by NumPyro with other local distributions. All but `eight_schools` were chosen after.

"After" means: after the thresholds were fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import betaln, gammaln
from jax.scipy.stats import norm

import ramify as rf
from benchmarks.right.issue import from_numpyro
from benchmarks.right.problem import Data, Problem, Sample, Target, by_normal, on_grid, shown


def _named(*names: str):
    """Globals that are sites."""
    return lambda sample, data: {name: sample[name] for name in names}


def eight_schools_model(error, y=None, *, g, n_g):
    """Rubin's: effects of coaching with known errors."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", n_g):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(effect[g], error), obs=y)


def _eight_marginal(data: Data) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    spread = jnp.sqrt(tau**2 + data["error"] ** 2)
    numpyro.factor("y", norm.logpdf(data["y"], mu, spread).sum())


def eight_schools() -> Problem:
    """Eight schools, one row each, integrated in closed form. Chosen before."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    table = {"g": np.arange(8), "error": error, "y": y}

    def z(key: jax.Array, sample: Sample, data: Data):
        kept = data["error"] ** 2 / (data["error"] ** 2 + sample["tau"] ** 2)  # of the mean
        mean = kept * sample["mu"] + (1 - kept) * data["y"]
        sd = sample["tau"] * jnp.sqrt(kept)
        return {"effect": shown(mean + sd * jax.random.normal(key, mean.shape))}

    target = Target(_eight_marginal, {"y": y, "error": error}, _named("mu", "tau"), z)
    return from_numpyro(eight_schools_model, table, lambda data: target)


def gamma_poisson_model(y=None, *, g, n_g):
    """Rates with a gamma distribution: z is positive."""
    mean = numpyro.sample("mean", dist.LogNormal(0, 1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 1))
    with numpyro.plate("groups", n_g):
        rate = numpyro.sample("rate", dist.Gamma(shape, shape / mean))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Poisson(rate[g]), obs=y)


def _gamma_poisson_marginal(data: Data) -> None:
    mean = numpyro.sample("mean", dist.LogNormal(0, 1))
    a = numpyro.sample("shape", dist.LogNormal(0, 1))
    b, n, total = a / mean, data["n"], data["sum"]
    rows = a * jnp.log(b) - gammaln(a) + gammaln(a + total) - (a + total) * jnp.log(b + n)
    numpyro.factor("y", rows.sum())


def gamma_poisson() -> Problem:
    """200 groups of 1 to 5 counts whose rates are gamma."""
    rng = np.random.default_rng(41)
    g = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    table = {"g": g, "y": rng.poisson(rng.gamma(1.5, 1.2, 200)[g])}

    def z(key: jax.Array, sample: Sample, data: Data):
        a = sample["shape"]
        rate = jax.random.gamma(key, a + data["sum"]) / (a / sample["mean"] + data["n"])
        return {"rate": shown(rate)}

    names = _named("mean", "shape")
    return from_numpyro(
        gamma_poisson_model, table, lambda d: Target(_gamma_poisson_marginal, d, names, z)
    )


def beta_binomial_model(y=None, *, g, n_g):
    """Chances with a beta distribution: z is between 0 and 1."""
    mean = numpyro.sample("mean", dist.Beta(2, 2))
    size = numpyro.sample("size", dist.LogNormal(1, 1))
    with numpyro.plate("groups", n_g):
        p = numpyro.sample("p", dist.Beta(mean * size, (1 - mean) * size))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p[g]), obs=y)


def _beta_binomial_marginal(data: Data) -> None:
    mean = numpyro.sample("mean", dist.Beta(2, 2))
    size = numpyro.sample("size", dist.LogNormal(1, 1))
    a, b, n, total = mean * size, (1 - mean) * size, data["n"], data["sum"]
    numpyro.factor("y", (betaln(a + total, b + n - total) - betaln(a, b)).sum())


def beta_binomial() -> Problem:
    """120 groups of 3 to 20 Bernoulli rows whose chances are beta."""
    rng = np.random.default_rng(42)
    g = np.repeat(np.arange(120), rng.integers(3, 21, 120))
    table = {"g": g, "y": (rng.random(g.size) < rng.beta(2.0, 5.0, 120)[g]).astype(int)}

    def z(key: jax.Array, sample: Sample, data: Data):
        a, b = sample["mean"] * sample["size"], (1 - sample["mean"]) * sample["size"]
        return {"p": shown(jax.random.beta(key, a + data["sum"], b + data["n"] - data["sum"]))}

    names = _named("mean", "size")
    return from_numpyro(
        beta_binomial_model, table, lambda d: Target(_beta_binomial_marginal, d, names, z)
    )


def heavy_tails_model(y=None, *, g, n_g):
    """Effects with outliers."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_g):
        a = numpyro.sample("a", dist.StudentT(4.0, mu, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], sigma), obs=y)


HEAVY = np.arange(-30, 30.01, 0.1)


def _heavy_inside(sample: Sample, data: Data) -> jax.Array:
    """Log p(y_i, a) of every group at the grid, [N, K]."""
    n, total, squares = (data[name][:, None] for name in ("n", "sum", "squares"))
    rows = by_normal(n, total, squares, HEAVY, sample["sigma"])
    return rows + dist.StudentT(4.0, sample["mu"], sample["tau"]).log_prob(HEAVY)


def _heavy_marginal(data: Data) -> None:
    sample = {"mu": numpyro.sample("mu", dist.Normal(0, 5))}
    sample["tau"] = numpyro.sample("tau", dist.HalfNormal(2))
    sample["sigma"] = numpyro.sample("sigma", dist.HalfNormal(2))
    numpyro.factor("y", jax.nn.logsumexp(_heavy_inside(sample, data), -1).sum())


def heavy_tails() -> Problem:
    """80 groups of 3 to 8 Gaussian rows whose effects are Student's t."""
    rng = np.random.default_rng(43)
    g = np.repeat(np.arange(80), rng.integers(3, 9, 80))
    a = 1.0 + 0.8 * rng.standard_t(3, 80)
    table = {"g": g, "y": (a[g] + 1.5 * rng.normal(size=g.size)).round(4)}

    def z(key: jax.Array, sample: Sample, data: Data):
        return {"a": on_grid(key, shown(_heavy_inside(sample, data)), jnp.asarray(HEAVY))}

    names = _named("mu", "tau", "sigma")
    return from_numpyro(heavy_tails_model, table, lambda d: Target(_heavy_marginal, d, names, z))


def varying_noise_model(y=None, *, g, n_g):
    """Groups differ in their level and in their noise."""
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("groups", n_g):
        a = numpyro.sample("a", dist.Normal(mu[0], sd[0]))
        log_s = numpyro.sample("log_s", dist.Normal(mu[1], sd[1]))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], jnp.exp(log_s[g])), obs=y)


def _varying_noise_joint(data: Data) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([100, 2]).to_event(2))
    a, log_s = (mu + sd * noise).T
    rows = by_normal(data["n"], data["sum"], data["squares"], a, jnp.exp(log_s))
    numpyro.factor("y", rows.sum())


def varying_noise() -> Problem:
    """100 groups of 4 to 12 Gaussian rows with a mean and a noise of their own (M = 2)."""
    rng = np.random.default_rng(44)
    g = np.repeat(np.arange(100), rng.integers(4, 13, 100))
    a, log_s = rng.normal([2.0, -0.3], [0.8, 0.5], (100, 2)).T
    table = {"g": g, "y": (a[g] + np.exp(log_s)[g] * rng.normal(size=g.size)).round(4)}

    def theta(sample: Sample, data: Data):
        return {f"{name}[{k}]": sample[name][k] for name in ("mu", "sd") for k in (0, 1)}

    def z(key: jax.Array, sample: Sample, data: Data):
        a, log_s = (sample["mu"] + sample["sd"] * sample["noise"]).T
        return {"a": shown(a), "log_s": shown(log_s)}

    target = lambda d: Target(_varying_noise_joint, d, theta, z, ("noise",))
    return from_numpyro(varying_noise_model, table, target)


def durations_densities() -> rf.Model:
    """Times until an event, some of them cut off; three densities."""
    rate = lambda t, z: jnp.exp(z["log_rate"])
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"log_rate": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 2).log_prob(t["mu"]) + dist.HalfNormal(1).log_prob(t["tau"])
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["log_rate"]),
        log_lik=lambda t, z, row: row["seen"] * z["log_rate"] - rate(t, z) * row["time"],
    )


def _durations_joint(data: Data) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([150]).to_event(1))
    log_rate = mu + tau * noise
    numpyro.factor("y", (data["seen"] * log_rate - jnp.exp(log_rate) * data["time"]).sum())


def durations() -> Problem:
    """150 groups of 1 to 6 exponential times, cut off at 3 (three densities)."""
    rng = np.random.default_rng(45)
    g = np.repeat(np.arange(150), rng.integers(1, 7, 150))
    time = rng.exponential(np.exp(0.5 - 0.7 * rng.normal(size=150))[g])
    table = {"g": g, "time": np.minimum(time, 3).round(4), "seen": (time < 3).astype(float)}
    data = {name: np.bincount(g, table[name]) for name in ("time", "seen")}

    def z(key: jax.Array, sample: Sample, data: Data):
        return {"log_rate": shown(sample["mu"] + sample["tau"] * sample["noise"])}

    def fit():
        groups = rf.Groups.from_table(table, by="g", rows=["time", "seen"])
        return durations_densities(), groups

    target = Target(_durations_joint, data, _named("mu", "tau"), z, ("noise",))
    return Problem(table, "g", fit, lambda: target)
