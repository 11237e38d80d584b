"""The densities of formulas, on the user's scale, against SciPy and matrices made by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit, gamma

from quick import slow_but
from ramify.data.batch import example
from ramify.data.resident import whole
from ramify.families.solver import solver
from ramify.frontends.formula.build import from_formula
from ramify.frontends.formula.core import SD
from ramify.frontends.formula.priors import from_plain, in_words, to_plain
from ramify.models.traced import uses_theta

pytestmark = pytest.mark.usefixtures("x64")

N, ROWS = 6, 5


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    n = N * ROWS
    group = np.repeat(np.arange(N), ROWS)
    return {
        "g": group,
        "x": rng.normal(3, 2, n),
        "age": rng.normal(40, 9, N)[group],
        "kind": np.tile(["a", "b", "c"], 10),
        "o": rng.normal(1, 0.1, n),
        "y": rng.normal(10, 4, n),
        "count": rng.poisson(4, n),
        "yes": rng.integers(0, 2, n),
        "trials": rng.integers(5, 9, n),
        "rating": rng.integers(1, 5, n),
        "wait": rng.gamma(2.0, 3.0, n),
        "share": rng.uniform(0.01, 0.99, n),
        "late": np.arange(n) % 3 == 0,
        "w": rng.uniform(0.5, 2, n),
    }


def random_values(model, seed=0):
    rng = np.random.default_rng(seed)
    theta = jnp.asarray(rng.normal(0, 0.5, model.theta.size))
    return theta, jnp.asarray(rng.normal(0, 1, (N, model.z.size)))


def predictor(table, values, effects):
    """X b + W u + offset, by hand, for y ~ x + kind + age + offset(o) + (x | g)."""
    own = effects[table["g"]]
    eta = table["o"] + values["x"] * table["x"] + values["age"] * table["age"]
    eta += values["kind[b]"] * (table["kind"] == "b") + values["kind[c]"] * (table["kind"] == "c")
    return eta + values.get("Intercept", 0.0) + own[:, 0] + own[:, 1] * table["x"]


def cumulative(eta, cut, level):
    ends = np.concatenate([[-np.inf], cut, [np.inf]])
    return np.log(expit(ends[level + 1] - eta) - expit(ends[level] - eta))


def binary(link, y, eta):
    """Log p of 0s and 1s, from the logs of both probabilities."""
    yes, no = {
        "logit": (-np.log1p(np.exp(-eta)), -np.log1p(np.exp(eta))),
        "probit": (stats.norm.logcdf(eta), stats.norm.logcdf(-eta)),
        "cloglog": (np.log(-np.expm1(-np.exp(eta))), -np.exp(eta)),
    }[link]
    return np.where(y == 1, yes, no)


def nbinom(values, eta):
    return stats.nbinom(values["shape"], values["shape"] / (values["shape"] + np.exp(eta)))


def skewed(values, eta):
    """Of mean eta and sd sigma: SciPy's, moved and stretched."""
    unit = stats.skewnorm(values["alpha"])
    scale = values["sigma"] / unit.std()
    return stats.skewnorm(values["alpha"], eta - scale * unit.mean(), scale)


def weibull(values, eta):
    return stats.weibull_min(values["shape"], scale=np.exp(eta) / gamma(1 + 1 / values["shape"]))


def survived(waits, table):
    return np.where(table["late"], waits.logsf(table["wait"]), waits.logpdf(table["wait"]))


def inflated(counts, zi, y):
    return np.log(zi * (y == 0) + (1 - zi) * counts.pmf(y))


def over_hurdle(counts, hu, y):
    return np.log(np.where(y == 0, hu, (1 - hu) * counts.pmf(y) / counts.sf(0)))


# name and link -> the response in the formula, and its log density by SciPy
DENSITIES = {
    ("lognormal", "identity"): (
        "wait",
        lambda t, v, e: stats.lognorm(v["sigma"], scale=np.exp(e)).logpdf(t["wait"]),
    ),
    ("gamma", "log"): (
        "wait",
        lambda t, v, e: stats.gamma(v["shape"], scale=np.exp(e) / v["shape"]).logpdf(t["wait"]),
    ),
    ("exponential", "log"): (
        "wait | cens(late)",
        lambda t, v, e: survived(stats.expon(scale=np.exp(e)), t),
    ),
    ("weibull", "log"): ("wait | cens(late)", lambda t, v, e: survived(weibull(v, e), t)),
    ("beta", "logit"): (
        "share",
        lambda t, v, e: stats.beta(v["phi"] * expit(e), v["phi"] * expit(-e)).logpdf(t["share"]),
    ),
    ("beta_binomial", "logit"): (
        "count | trials(trials)",
        lambda t, v, e: stats.betabinom(
            t["trials"], v["phi"] * expit(e), v["phi"] * expit(-e)
        ).logpmf(t["count"]),
    ),
    ("zero_inflated_poisson", "log"): (
        "count",
        lambda t, v, e: inflated(stats.poisson(np.exp(e)), v["zi"], t["count"]),
    ),
    ("zero_inflated_negative_binomial", "log"): (
        "count",
        lambda t, v, e: inflated(nbinom(v, e), v["zi"], t["count"]),
    ),
    ("hurdle_poisson", "log"): (
        "count",
        lambda t, v, e: over_hurdle(stats.poisson(np.exp(e)), v["hu"], t["count"]),
    ),
    ("hurdle_negative_binomial", "log"): (
        "count",
        lambda t, v, e: over_hurdle(nbinom(v, e), v["hu"], t["count"]),
    ),
    ("gaussian", "identity"): ("y", lambda t, v, e: stats.norm(e, v["sigma"]).logpdf(t["y"])),
    ("gaussian", "log"): ("y", lambda t, v, e: stats.norm(np.exp(e), v["sigma"]).logpdf(t["y"])),
    ("student_t", "identity"): (
        "y",
        lambda t, v, e: stats.t(v["nu"], e, v["sigma"]).logpdf(t["y"]),
    ),
    ("skew_normal", "identity"): ("y", lambda t, v, e: skewed(v, e).logpdf(t["y"])),
    **{
        ("bernoulli", link): (
            "yes",
            lambda t, v, e, link=link: binary(link, t["yes"], e),
        )
        for link in ("logit", "probit", "cloglog")
    },
    ("binomial", "logit"): (
        "count | trials(trials)",
        lambda t, v, e: stats.binom(t["trials"], expit(e)).logpmf(t["count"]),
    ),
    ("poisson", "log"): ("count", lambda t, v, e: stats.poisson(np.exp(e)).logpmf(t["count"])),
    ("negative_binomial", "log"): (
        "count",
        lambda t, v, e: nbinom(v, e).logpmf(t["count"]),
    ),
    ("ordered", "logit"): (
        "rating",
        lambda t, v, e: cumulative(e, v["cutpoints"], t["rating"] - 1),
    ),
}
RARE = ("gamma", "exponential", "beta", "zero_inflated_negative_binomial", "hurdle_poisson")
COMMON = [
    case for case in DENSITIES if case[1] not in ("probit", "cloglog") and case[0] not in RARE
]
DRAWN = [("poisson", "log"), ("ordered", "logit")]


@pytest.mark.parametrize("likelihood, link", slow_but(COMMON, DENSITIES))
def test_row_densities_are_those_of_the_users_scale(likelihood, link, table):
    response, density = DENSITIES[likelihood, link]
    small = {**table, "count": np.minimum(table["count"], table["trials"])}
    formula = f"{response} ~ x + kind + age + offset(o) + (x | g)"
    model, groups = from_formula(formula, small, likelihood=likelihood, link=link)
    assert model.formula.layout.shared == ((0, 1),) and model.formula.layout.grouped == (3,)
    batch = whole(groups)
    theta, z = random_values(model)
    values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
    effects = np.asarray(model.adapter.local_values(theta, z, batch)["effects"])
    eta = predictor(small, values, effects)
    expected = density(small, values, eta)[groups.row_order]
    found = np.asarray(model.log_lik(theta, z[batch.segment], batch))[: groups.n_rows]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)

    at = model.adapter.read(small, "at", outcomes=False)
    places = whole(at)._replace(group=batch.group)
    for rows in (batch, places):  # as data of the fit, and as places to predict
        link_scale = model.adapter.expected("link", theta, z[rows.segment], rows)[: groups.n_rows]
        np.testing.assert_allclose(link_scale, eta[groups.row_order], rtol=1e-9)


@pytest.mark.parametrize("likelihood, link", slow_but(DRAWN, DENSITIES))
def test_new_outcomes_follow_the_density(likelihood, link, table, key):
    """Of 4,000 of each row: their mean, a Student t's median, the share of each level."""
    response, density = DENSITIES[likelihood, link]
    small = {**table, "count": np.minimum(table["count"], table["trials"])}
    model, groups = from_formula(
        f"{response} ~ x + (x | g)", small, likelihood=likelihood, link=link
    )
    batch = whole(groups)
    theta, z = random_values(model)
    one = lambda key: model.simulate(key, theta, batch.at_rows(z), batch)
    drawn = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, 4000)), float)
    if likelihood == "ordered":
        levels = model.adapter.expected("probability", theta, batch.at_rows(z), batch)
        drawn = np.stack([drawn == level for level in np.unique(small["rating"])], -1) * 1.0
        expected = np.asarray(levels)
    else:
        expected = np.asarray(model.adapter.expected("mean", theta, batch.at_rows(z), batch))
    if likelihood == "student_t":
        drawn, expected = (drawn < expected) * 1.0, np.full_like(expected, 0.5)
    error = np.sqrt(drawn.var(0) / len(drawn)) + 1e-3
    assert np.all(np.abs(drawn.mean(0) - expected) < 5 * error)


@pytest.mark.parametrize("likelihood, response", [("gaussian", "y"), ("bernoulli", "yes")])
def test_columns_constant_in_the_fit_may_vary_in_rows_to_condition_on(likelihood, response, table):
    formula = f"{response} ~ x + age + kind + offset(o) + (x | g)"
    model, groups = from_formula(formula, table, likelihood=likelihood)
    assert model.formula.layout.grouped
    other = {**table, "age": table["age"] + np.tile([0, 1, 3, 0, -2], N)}
    given = model.adapter.read(other, "given", outcomes=True)
    batch = whole(given)
    theta, z = random_values(model)
    values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
    effects = np.asarray(model.adapter.local_values(theta, z, batch)["effects"])
    link = DENSITIES[likelihood, model.formula.link][1]
    expected = link(other, values, predictor(other, values, effects))[given.row_order]
    found = np.asarray(model.log_lik(theta, z[batch.segment], batch))[: given.n_rows]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_sites_follow_theta_where_new_rows_bring_it_in(table):
    model, groups = from_formula("yes ~ age + (1 | g)", table, likelihood="bernoulli")
    own = solver(model, example(groups))
    given = model.adapter.read({**table, "age": table["x"]}, "given", outcomes=True)
    assert not own.follows_theta(model, example(groups))
    assert own.follows_theta(model, example(given))


def test_weights_multiply_and_offsets_add(table):
    plain, groups = from_formula("y ~ x + (1 | g)", table)
    weighted, heavy = from_formula("y | weights(w) ~ x + (1 | g)", table)
    theta, z = random_values(plain)
    terms = lambda m, g: np.asarray(m.log_lik(theta, z[whole(g).segment], whole(g)))
    found = terms(weighted, heavy) / terms(plain, groups)
    np.testing.assert_allclose(found, heavy.rows["weights"], rtol=1e-9)


@pytest.mark.parametrize("bar", ["|", "||"])
def test_group_densities_are_multivariate_normal(bar, table):
    model, groups = from_formula(f"y ~ x + age + (1 + x {bar} g)", table)
    batch = whole(groups)
    theta, z = random_values(model)
    values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
    effects = np.asarray(model.adapter.local_values(theta, z, batch)["effects"])
    correlation = values.get("cor", np.eye(2))
    assert ("cor" in values) == (bar == "|")
    covariance = correlation * np.outer(values["sd"], values["sd"])
    own = model.formula.units
    constant = np.sum(np.log(own.scale / np.asarray(own.group_unit)))
    expected = stats.multivariate_normal(np.zeros(2), covariance).logpdf(effects) + constant
    np.testing.assert_allclose(model.log_local(theta, z, batch), expected, rtol=1e-9)


def test_priors_are_those_of_the_users_scale(table):
    given = {
        "x": dist.StudentT(3, 1, 2),
        "kind": dist.Laplace(0, 2),
        "sd": dist.Gamma(2, 1),
        "sd(x | g)": dist.HalfNormal(3),
        "cor": dist.LKJ(2, 4.0),
        "sigma": dist.LogNormal(0, 1),
    }
    model, _ = from_formula("y ~ x + kind + (x | g)", table, priors=given)
    assert repr(model.priors["kind[c]"]) == repr(model.priors["kind[b]"])

    def expected(theta):
        values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
        _, log_det = model.theta.constrain(theta)
        means = {"x": table["x"].mean()} | {
            f"kind[{k}]": (table["kind"] == k).mean() for k in ("b", "c")
        }
        centred = values["Intercept"] + sum(m * values[name] for name, m in means.items())
        inside = model.theta.values(theta)
        total = stats.norm(np.mean(table["y"]), 2.5 * np.std(table["y"])).logpdf(centred)
        total += stats.t(3, 1, 2).logpdf(values["x"])
        total += sum(stats.laplace(0, 2).logpdf(values[f"kind[{k}]"]) for k in ("b", "c"))
        total += stats.gamma(2).logpdf(values["sd"][0]) + stats.halfnorm(0, 3).logpdf(
            values["sd"][1]
        )
        total += dist.LKJCholesky(2, 4.0).log_prob(inside["cor"])
        return total + stats.lognorm(1).logpdf(values["sigma"]) + log_det

    first, second = (random_values(model, seed)[0] for seed in (0, 1))
    constants = [float(model.log_prior(t) - expected(t)) for t in (first, second)]
    own = model.formula.units
    units = np.concatenate([own.unit, np.divide(own.group_unit, SD), [1.0, 1.0]])
    np.testing.assert_allclose(constants, np.sum(np.log(own.scale / units)), rtol=1e-9)


@pytest.mark.parametrize(
    "formula, likelihood, uses",
    [
        ("yes ~ x + (x | g)", "bernoulli", False),
        ("yes ~ x + age + (x | g)", "bernoulli", False),
        ("count ~ age + offset(o) + (1 | g)", "poisson", False),
        ("yes ~ 0 + x + (0 + x | g)", "bernoulli", False),
        ("yes ~ 0 + x + age + (0 + x | g)", "bernoulli", True),
        ("yes ~ x + (1 | g)", "bernoulli", True),
        ("yes ~ 1 + (0 + x | g)", "bernoulli", True),
        ("y ~ x + (x | g)", "gaussian", True),
    ],
)
def test_likelihoods_use_theta_only_where_they_must(formula, likelihood, uses, table):
    model, groups = from_formula(formula, table, likelihood=likelihood)
    assert uses_theta(model, example(groups)) == uses


@pytest.mark.parametrize(
    "formula", ["y ~ 0 + x + (1 | g)", "y ~ 1 + (0 + x | g)", "y ~ x + (0 + x | g)"]
)
def test_without_one_of_the_intercepts(formula, table):
    model, groups = from_formula(formula, table)
    batch = whole(groups)
    theta, z = random_values(model)
    values = jax.tree.map(np.asarray, model.adapter.named_theta(theta))
    effects = np.asarray(model.adapter.local_values(theta, z, batch)["effects"])[:, 0][table["g"]]
    column = 1.0 if "(1" in formula else table["x"]
    mean = values.get("Intercept", 0.0) + values.get("x", 0.0) * table["x"] + effects * column
    expected = stats.norm(mean, values["sigma"]).logpdf(table["y"])[groups.row_order]
    found = np.asarray(model.log_lik(theta, z[batch.segment], batch))
    # Without an intercept y is still standardised inside: what is taken off it is no parameter.
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize(
    "prior",
    [
        dist.LogNormal(0.5, 2),
        dist.TruncatedNormal(0.0, 2.0, low=0.5),
        dist.TruncatedNormal(1.0, 2.0, low=0.0, high=3.0),
        dist.Gamma(2.0, 0.1),
        dist.HalfCauchy(3.0),
        dist.LKJCholesky(3, 2.0),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_priors_survive_json(prior):
    again = from_plain(json.loads(json.dumps(to_plain(prior))))
    assert type(again) is type(prior) and in_words(again) == in_words(prior)
    factor = np.linalg.cholesky(0.7 * np.eye(3) + 0.3)
    value = jnp.asarray(factor) if prior.event_shape else 1.3
    np.testing.assert_allclose(again.log_prob(value), prior.log_prob(value))


def test_priors_that_json_has_no_words_for_are_refused():
    strange = dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.ExpTransform())
    with pytest.raises(TypeError, match="TransformedDistribution can't be saved"):
        to_plain(strange)


def test_messages_call_coordinates_of_theta_as_the_user_does():
    rng, g = np.random.default_rng(0), np.repeat(np.arange(6), 4)
    table = {"g": g} | {name: rng.normal(size=24) for name in "xwy"}
    model, _ = from_formula("y ~ x + (1 + x + w | g)", table)
    names = model.adapter.coordinates()
    assert names[:5] == ["Intercept", "x", "sd(Intercept | g)", "sd(x | g)", "sd(w | g)"]
    cor = lambda theta: (c := model.theta.values(theta)["cor"]) @ c.T
    slopes = jax.jacobian(cor)(jnp.zeros(model.theta.size))
    for a, first in enumerate(["Intercept", "x", "w"]):
        for b, second in enumerate(["Intercept", "x", "w"][:a]):
            moved = np.abs(slopes[a, b]) > 1e-6  # by one coordinate: that which has their name
            assert [names[k] for k in np.flatnonzero(moved)] == [f"cor({second}, {first} | g)"]


def test_a_copy_makes_its_densities_when_they_are_asked_for(table):
    """JAX takes models apart and puts them together at every call of a program."""
    model, _ = from_formula("y ~ x + (1 | g)", table, likelihood="gaussian")
    copy, other = (jax.tree.map(lambda x: x, model) for _ in range(2))
    assert {*copy.__dict__} == {"core"} and jax.tree.structure(copy) == jax.tree.structure(model)
    assert other.structure.prior is not None and other.structure.trusted
    theta = np.full(model.theta.size, 0.3, np.float32)
    assert float(copy.log_prior(theta)) == float(model.log_prior(theta))
    assert hasattr(model, "formula") and not hasattr(copy, "formula")
