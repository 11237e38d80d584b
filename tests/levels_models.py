"""Models of log densities with several grouping factors, for tests, and the formulas that they are."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

import ramify as rf
from levels_tables import table
from ramify.frontends.densities.adapter import prepared

CROSSED = "y ~ 0 + (x || a) + (1 + x | b) + (1 | c)"
NESTED = "y ~ 0 + (1 | school/klass)"


def half_normals(theta):
    return sum(dist.HalfNormal(2.0).log_prob(theta[name]).sum() for name in theta)


def crossed():
    """The model of CROSSED, and its data."""
    groups = rf.Groups.from_table(table(), by=["a", "b", "c"], rows=["x", "y"])

    def log_lik(theta, z, row):
        a, b = z["a"]["of_a"], z["b"]["of_b"]
        mean = a[0] + b[0] + (a[1] + b[1]) * row["x"] + z["c"]["of_c"]
        return dist.Normal(mean, theta["sigma"]).log_prob(row["y"])

    def of_b(theta, z, group):
        root = theta["sd_b"][:, None] * theta["cor_b"]
        return dist.MultivariateNormal(jnp.zeros(2), scale_tril=root).log_prob(z["of_b"])

    model = rf.Model(
        theta={
            "sd_a": rf.positive(2), "sd_b": rf.positive(2), "cor_b": rf.correlation_cholesky(2),
            "sd_c": rf.positive(), "sigma": rf.positive(),
        },
        z={"a": {"of_a": rf.real(2)}, "b": {"of_b": rf.real(2)}, "c": {"of_c": rf.real()}},
        log_prior=lambda theta: half_normals({n: v for n, v in theta.items() if n != "cor_b"}),
        log_local={
            "a": lambda theta, z, group: dist.Normal(0, theta["sd_a"]).log_prob(z["of_a"]).sum(),
            "b": of_b,
            "c": lambda theta, z, group: dist.Normal(0, theta["sd_c"]).log_prob(z["of_c"]),
        },
        log_lik=log_lik,
    )  # fmt: skip
    return model, groups


def nested():
    """The model of NESTED, and its data."""
    groups = rf.Groups.from_table(table(), by=["school", "school:klass"], rows=["y"])
    inner = "school:klass"

    def log_lik(theta, z, row):
        mean = z["school"]["of_school"] + z[inner]["of_class"]
        return dist.Normal(mean, theta["sigma"]).log_prob(row["y"])

    model = rf.Model(
        theta={"sd_school": rf.positive(), "sd_class": rf.positive(), "sigma": rf.positive()},
        z={"school": {"of_school": rf.real()}, inner: {"of_class": rf.real()}},
        log_prior=half_normals,
        log_local={
            "school": lambda t, z, group: dist.Normal(0, t["sd_school"]).log_prob(z["of_school"]),
            inner: lambda t, z, group: dist.Normal(0, t["sd_class"]).log_prob(z["of_class"]),
        },
        log_lik=log_lik,
    )
    return model, groups


# The parameters of each model by the formula's names for them.
NAMES = {
    CROSSED: {
        "sd_a": ["sd(Intercept | a)", "sd(x | a)"],
        "sd_b": ["sd(Intercept | b)", "sd(x | b)"],
        "sd_c": "sd(Intercept | c)",
        "sigma": "sigma",
    },
    NESTED: {
        "sd_school": "sd(Intercept | school)",
        "sd_class": "sd(Intercept | school:klass)",
        "sigma": "sigma",
    },
}
MODELS = {CROSSED: crossed, NESTED: nested}


def intercepts(text, likelihood, log_prior, names, rows=None):
    """`y ~ x + (1 | a) + (1 | b)` with both common effects in theta; `names` are those of its factors."""
    first, second = names
    groups = rf.Groups.from_table(rows or table(), by=list(names), rows=["x", text])
    linear = lambda theta, z, row: (
        theta["Intercept"] + theta["x"] * row["x"] + z[first]["first"] + z[second]["second"]
    )
    model = rf.Model(
        theta={
            "Intercept": rf.real(), "x": rf.real(), "sd_0": rf.positive(), "sd_1": rf.positive(),
            **({"sigma": rf.positive()} if likelihood == "gaussian" else {}),
        },
        z={first: {"first": rf.real()}, second: {"second": rf.real()}},
        log_prior=log_prior,
        log_local={
            first: lambda t, z, group: dist.Normal(0, t["sd_0"]).log_prob(z["first"]),
            second: lambda t, z, group: dist.Normal(0, t["sd_1"]).log_prob(z["second"]),
        },
        log_lik=lambda t, z, row: family(likelihood, linear(t, z, row), t).log_prob(row[text]),
        simulate=lambda key, t, z, row: family(likelihood, linear(t, z, row), t).sample(key),
    )  # fmt: skip
    return model, groups


def family(likelihood, eta, theta):
    """The distribution of a row."""
    if likelihood == "gaussian":
        return dist.Normal(eta, theta["sigma"])
    return dist.Bernoulli(logits=eta) if likelihood == "bernoulli" else dist.Poisson(jnp.exp(eta))


def engine(model, groups):
    """What the engine sees of a model: itself, its rows and its adapter."""
    own, adapter = prepared(model, groups)
    return own, adapter.design(groups), adapter


def flat(model, values):
    """The unconstrained theta of named values."""
    with jax.enable_x64(True):
        return jnp.asarray(model.theta.unconstrain(values)).__array__()
