"""Problems whose rows are real numbers: Student-t, a noise of each group, schools, houses."""

import numpy as np
import numpyro
import numpyro.distributions as dist

from problems.problem import Problem, ragged, tidy

# Student-t regression: not log-concave in z.


def student_t(N: int = 200, seed: int = 0) -> Problem:
    """Regression with heavy-tailed noise; its scale and degrees of freedom are global."""
    rng = np.random.default_rng([4, N, seed])
    truth = {"mu": np.array([1.0, -0.5]), "tau": np.array([0.8, 0.5]), "sigma": 0.7, "nu": 3.0}
    truth["beta"] = truth["mu"] + truth["tau"] * rng.standard_normal((N, 2))
    group = ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = tidy(rng.standard_normal(group.size))
    beta = truth["beta"][group]
    noise = truth["sigma"] * rng.standard_t(truth["nu"], group.size)
    y = tidy(beta[:, 0] + beta[:, 1] * x + noise)

    return Problem(
        name="student_t",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", (2,)),
            "tau": ("positive", (2,)),
            "sigma": ("positive", ()),
            "nu": ("positive", ()),
        },
        z={"beta": ("real", (2,))},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"]).sum()
            + dist.HalfNormal(1).log_prob(theta["sigma"])
            + dist.Gamma(2.0, 0.1).log_prob(theta["nu"])
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], theta["tau"]).log_prob(z["beta"]).sum()
        ),
        log_lik=lambda theta, z, row: dist.StudentT(
            theta["nu"], z["beta"][0] + z["beta"][1] * row["x"], theta["sigma"]
        ).log_prob(row["y"]),
        model=_student_t_model,
        truth=truth,
    )


def _student_t_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("groups", n_group):
        beta = numpyro.sample("beta", dist.Normal(mu, tau).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        mean = beta[group, 0] + beta[group, 1] * x
        numpyro.sample("y", dist.StudentT(nu, mean, sigma), obs=y)


# A noise scale per group, with a Gamma prior: constrained z, log_local not Gaussian.


def varying_noise(N: int = 200, seed: int = 0) -> Problem:
    """Normal rows whose mean and noise scale both belong to the group; Gamma-distributed scales."""
    rng = np.random.default_rng([6, N, seed])
    truth = {"mu": 0.5, "tau": 1.0, "shape": 4.0, "level": 1.2}
    truth["m"] = truth["mu"] + truth["tau"] * rng.standard_normal(N)
    truth["sigma"] = rng.gamma(truth["shape"], truth["level"] / truth["shape"], N)
    group = ragged(rng, N, typical=8, spread=0.7, low=3, high=60)
    y = tidy(truth["m"][group] + truth["sigma"][group] * rng.standard_normal(group.size))

    return Problem(
        name="varying_noise",
        table={"group": group, "y": y},
        n_group=N,
        theta={
            "mu": ("real", ()),
            "tau": ("positive", ()),
            "shape": ("positive", ()),
            "level": ("positive", ()),
        },
        z={"m": ("real", ()), "sigma": ("positive", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"])
            + dist.HalfNormal(2).log_prob(theta["tau"])
            + dist.LogNormal(1.0, 0.7).log_prob(theta["shape"])
            + dist.HalfNormal(2).log_prob(theta["level"])
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], theta["tau"]).log_prob(z["m"])
            + dist.Gamma(theta["shape"], theta["shape"] / theta["level"]).log_prob(z["sigma"])
        ),
        log_lik=lambda theta, z, row: dist.Normal(z["m"], z["sigma"]).log_prob(row["y"]),
        model=_varying_noise_model,
        truth=truth,
    )


def _varying_noise_model(y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    shape = numpyro.sample("shape", dist.LogNormal(1.0, 0.7))
    level = numpyro.sample("level", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        m = numpyro.sample("m", dist.Normal(mu, tau))
        sigma = numpyro.sample("sigma", dist.Gamma(shape, shape / level))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(m[group], sigma[group]), obs=y)


# Eight schools, and houses in counties.


def eight_schools(N: int = 8, seed: int = 0) -> Problem:
    """Rubin's eight schools: one row a group, its standard error known; N < 8 takes the first N."""
    del seed
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])[:N]
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])[:N]
    return Problem(
        name="eight_schools",
        table={"group": np.arange(y.size, dtype=np.int32), "error": error, "y": y},
        n_group=y.size,
        theta={"mu": ("real", ()), "tau": ("positive", ())},
        z={"effect": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 5).log_prob(theta["mu"]) + dist.HalfCauchy(5).log_prob(theta["tau"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["tau"]).log_prob(
            z["effect"]
        ),
        log_lik=lambda theta, z, row: dist.Normal(z["effect"], row["error"]).log_prob(row["y"]),
        model=_eight_schools_model,
        truth={"mu": 5.0, "tau": 3.0, "effect": np.full(y.size, 5.0)},
        non_centred=("effect",),
    )


def _eight_schools_model(error, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("groups", n_group):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("rows", error.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], error), obs=y)


def radon(N: int = 85, seed: int = 0) -> Problem:
    """Houses in counties, like the Minnesota radon data: a county covariate, a floor effect."""
    rng = np.random.default_rng([8, N, seed])
    uranium = tidy(rng.normal(0.0, 0.4, N))
    truth = {"gamma": np.array([1.4, 0.7]), "tau": 0.3, "floor_effect": -0.7, "sigma": 0.75}
    mean = truth["gamma"][0] + truth["gamma"][1] * uranium
    truth["a"] = mean + truth["tau"] * rng.standard_normal(N)
    group = ragged(rng, N, typical=6, spread=1.0, low=1, high=120)
    floor = (rng.random(group.size) < 0.17).astype(np.float64)
    noise = truth["sigma"] * rng.standard_normal(group.size)
    y = tidy(truth["a"][group] + truth["floor_effect"] * floor + noise)

    return Problem(
        name="radon",
        table={"group": group, "floor": floor, "y": y, "uranium": uranium[group]},
        n_group=N,
        theta={
            "gamma": ("real", (2,)),
            "tau": ("positive", ()),
            "floor_effect": ("real", ()),
            "sigma": ("positive", ()),
        },
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["gamma"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"])
            + dist.Normal(0, 2).log_prob(theta["floor_effect"])
            + dist.HalfNormal(2).log_prob(theta["sigma"])
        ),
        log_local=lambda theta, z, group: dist.Normal(
            theta["gamma"][0] + theta["gamma"][1] * group["uranium"], theta["tau"]
        ).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.Normal(
            z["a"] + theta["floor_effect"] * row["floor"], theta["sigma"]
        ).log_prob(row["y"]),
        model=_radon_model,
        group=("uranium",),
        truth=truth,
        non_centred=("a",),
    )


def _radon_model(floor, y=None, *, uranium, group, n_group):
    gamma = numpyro.sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    floor_effect = numpyro.sample("floor_effect", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau))
    with numpyro.plate("rows", floor.shape[0]):
        numpyro.sample("y", dist.Normal(a[group] + floor_effect * floor, sigma), obs=y)
