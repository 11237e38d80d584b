"""Declared structure: the same results as without it, and wrong declarations are refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ramify as rf
from quick import slow, slow_but
from ramify.data.batch import example
from ramify.data.resident import whole
from ramify.families.conditional import Local
from ramify.families.newton import expand_likelihood
from ramify.families.solver import solver
from ramify.fitting import fit as fitting
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from ramify.inference import curvature_check
from ramify.inference.local_integral import weigh_block
from ramify.models.densities import group_log_liks
from ramify.models.expansion import expand_local
from ramify.models.structure import BlockStructure, linear
from ramify.models.structure_check import check_structure
from ramify.models.traced import normal_prior, uses_theta
from ramify.numerics.points import group_points

N, ROWS = 6, 5


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(N), ROWS)
    n = len(group)
    trials = rng.integers(5, 9, n)
    return {
        "g": group,
        **{f"x{i}": rng.normal(size=n) for i in range(4)},
        "age": rng.normal(40, 9, N)[group],
        "o": rng.normal(1, 0.1, n),
        "y": rng.normal(10, 4, n),
        "count": np.minimum(rng.poisson(4, n), trials),
        "yes": rng.integers(0, 2, n),
        "trials": trials,
        "rating": rng.integers(1, 5, n),
        "w": rng.uniform(0.5, 2, n),
        "share": rng.uniform(0.1, 0.9, n),
        "time": rng.gamma(2.0, 1.5, n) + 0.1,
    }


COUNTS = "poisson", "negative_binomial"
RESPONSES = {
    "gaussian": "y",
    "student_t": "y",
    "skew_normal": "y",
    "bernoulli": "yes",
    "binomial": "count | trials(trials)",
    "poisson": "count",
    "negative_binomial": "count",
    "ordered": "rating",
    "categorical": "rating",
    "beta": "share",
    "beta_binomial": "count | trials(trials)",
    **dict.fromkeys(("lognormal", "gamma", "exponential", "weibull"), "time"),
    **{f"{kind}_{own}": "count" for kind in ("zero_inflated", "hurdle") for own in COUNTS},
}
ALL_LINKS = [(name, link) for name, entry in LIKELIHOODS.items() for link in entry.links]


def undeclared(model):
    """The model without its structure: densities are differentiated, programs are read."""
    model.structure = BlockStructure()
    return model


def make(formula, table, likelihood="gaussian", link=None):
    """A formula's model, the same without structure, and the data."""
    how = {"likelihood": likelihood, "link": link}
    (model, groups), (plain, _) = (rf.from_formula(formula, table, **how) for _ in range(2))
    return model, undeclared(plain), groups


def answers(model, groups, K=8):
    """What a sweep computes: modes, sites, log p^ of each group and its slope in theta."""
    batch, M = whole(groups), model.z.size
    theta = 0.3 * jnp.sin(jnp.arange(1.0, model.theta.size + 1))
    own = solver(model, example(groups), rounds=0, points=2)
    points = group_points(jax.random.key(0), batch.index, K, M)

    @jax.jit
    def run(theta):
        site = own.solve(model, batch, theta, jnp.zeros((N, M)))
        weigh = weigh_block(model, own, batch, site, Local(site.anchor, site.scale), points)
        value, slope = jax.value_and_grad(lambda t: jnp.sum(weigh.bound(t)[0]))(theta)
        return {"sites": site._replace(converged=None), "value": value, "slope": slope}

    return jax.tree.map(np.asarray, run(theta))


def pieces(model, groups):
    """Expansions of both densities, likelihoods of draws, and their slopes in theta."""
    batch, rng = whole(groups), np.random.default_rng(3)
    theta, z = (
        0.5 * jnp.asarray(rng.normal(size=s)) for s in (model.theta.size, (4, N, model.z.size))
    )

    @jax.jit
    def run(theta):
        found = lambda theta: (
            tuple(expand_local(model, batch, theta)(z[0])),
            tuple(expand_likelihood(model, batch, theta)(z[0])),
            group_log_liks(model, theta, z, batch),
        )
        total = lambda theta: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(found(theta)))
        return {"values": found(theta), "slope": jax.grad(total)(theta)}

    return jax.tree.map(np.asarray, run(theta))


def compare(found, plain, tolerance):
    """Numbers agree relative to the largest of their kind."""
    for name in found:
        for a, b in zip(jax.tree.leaves(found[name]), jax.tree.leaves(plain[name]), strict=True):
            size = 1 + np.abs(b).max()
            np.testing.assert_allclose(a / size, b / size, rtol=0, atol=tolerance, err_msg=name)


def everything(likelihood):
    """A formula with two correlated effects, a group column, an offset and weights."""
    left = RESPONSES[likelihood]
    left = f"{left} + weights(w)" if "|" in left else f"{left} | weights(w)"
    return f"{left} ~ x0 + age + offset(o) + (1 + x0 | g)"


FORMULAS = [
    ("yes ~ 1 + (1 | g)",),
    ("yes ~ x0 + x1 + (1 | g)",),
    ("yes ~ x0 + (1 + x0 || g)",),
    ("yes ~ x0 + age + (x0 + x1 + x2 + x3 | g)",),
    ("yes ~ x0 + (x0 + x1 + x2 + x3 || g)",),
    ("yes ~ 1 + (0 + x0 | g)",),
]


@pytest.mark.parametrize("likelihood, link", slow_but([("poisson", "log")], ALL_LINKS))
def test_every_likelihood_has_the_same_expansions(likelihood, link, table, x64):
    model, plain, groups = make(everything(likelihood), table, likelihood, link)
    compare(pieces(model, groups), pieces(plain, groups), 1e-10)
    assert uses_theta(model, example(groups)) == uses_theta(plain, example(groups))


@pytest.mark.slow
@pytest.mark.parametrize("likelihood, link", ALL_LINKS)
def test_every_likelihood_has_the_same_answers(likelihood, link, table, x64):
    model, plain, groups = make(everything(likelihood), table, likelihood, link)
    compare(answers(model, groups), answers(plain, groups), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("formula",), FORMULAS)
def test_any_number_of_effects_has_the_same_expansions(formula, table, x64):
    model, plain, groups = make(formula, table, "bernoulli")
    compare(pieces(model, groups), pieces(plain, groups), 1e-10)
    assert uses_theta(model, example(groups)) == uses_theta(plain, example(groups))
    assert normal_prior(plain, example(groups)) and normal_prior(model, example(groups))


@pytest.mark.slow
@pytest.mark.parametrize(("formula",), FORMULAS)
def test_any_number_of_effects_has_the_same_answers(formula, table, x64):
    model, plain, groups = make(formula, table, "bernoulli")
    compare(answers(model, groups), answers(plain, groups), 1e-10)


@pytest.mark.slow
def test_in_float32_they_differ_by_rounding(table):
    """A few hundred units in the last place, of sums over dozens of rows and draws."""
    model, plain, groups = make("count ~ x0 + (x0 + x1 | g)", table, "poisson")
    compare(answers(model, groups), answers(plain, groups), 500 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("formula", ["yes ~ age + (1 | g)", "yes ~ x0 + (x0 | g)"])
def test_columns_decide_whether_theta_is_in_the_likelihood(formula, table):
    model, plain, groups = make(formula, table, "bernoulli")
    given = model.adapter.read({**table, "age": table["x1"]}, "given", outcomes=True)
    for data, uses in ((groups, False), (given, "age" in formula)):
        assert uses_theta(model, example(data)) == uses_theta(plain, example(data)) == uses


def two_predictors(declare=True, **changes):
    """A normal outcome whose mean and log sd are both linear in z; theta in scale and offset."""
    density = lambda t, eta, row: dist.Normal(eta[0], jnp.exp(eta[1])).log_prob(row["y"])
    weights = lambda row: jnp.stack([jnp.array([1.0, 0, 0]), jnp.stack([0, 1.0, row["x"]])])
    offset = lambda t, row: jnp.stack([t["slope"] * row["x"], jnp.zeros(())])
    mean = lambda t, group: jnp.stack([t["mu"], group["u"], jnp.zeros(())])
    scale = lambda t, group: jnp.tril(jnp.full((3, 3), 0.3)) + t["tau"] * jnp.eye(3)
    known = {
        "mean": mean,
        "scale": scale,
        "weights": weights,
        "offset": offset,
        "density": density,
    } | changes
    prior = rf.NormalPrior(known["mean"], known["scale"])
    seen = rf.LinearPredictors(known["weights"], known["offset"], known["density"], True)
    flat = lambda z: jnp.stack([z["a"], *z["b"]])
    return rf.Model(
        theta={"mu": rf.real(), "slope": rf.real(), "tau": rf.positive()},
        z={"a": rf.real(), "b": rf.real(2)},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.MultivariateNormal(
            mean(t, group), scale_tril=scale(t, group)
        ).log_prob(flat(z)),
        log_lik=lambda t, z, row: density(t, weights(row) @ flat(z) + offset(t, row), row),
        structure=rf.Structure(prior, seen) if declare else None,
    )


def two_predictors_data(table):
    own = {"g": table["g"], "x": table["x0"], "y": table["x1"], "u": table["age"] / 40}
    return rf.Groups.from_table(own, by="g", rows=["x", "y"], group=["u"])


@pytest.mark.slow
def test_several_predictors_and_a_factor_for_each_group(table, x64):
    groups = two_predictors_data(table)
    model = two_predictors()
    check_structure(model, whole(groups))
    compare(pieces(model, groups), pieces(two_predictors(False), groups), 1e-10)


@pytest.mark.slow
def test_several_predictors_have_the_same_answers(table, x64):
    groups = two_predictors_data(table)
    compare(answers(two_predictors(), groups), answers(two_predictors(False), groups), 1e-10)


def test_many_local_dimensions(x64):
    """Past the number of terms that are written out."""
    rng = np.random.default_rng(0)
    weights, z = rng.normal(size=(7, 2, 11)), rng.normal(size=(7, 11, 3))
    found = linear(jnp.asarray(weights), jnp.asarray(z))
    np.testing.assert_allclose(found, weights @ z, rtol=1e-12)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mean": lambda t, group: jnp.zeros(3)}, "structure.prior disagrees with log_local"),
        ({"scale": lambda t, group: t["tau"] * jnp.ones(3)}, "structure.prior disagrees"),
        ({"mean": lambda t, group: jnp.zeros(2)}, "structure.prior.mean must return"),
        ({"weights": lambda row: jnp.ones((2, 3))}, "structure.likelihood disagrees with log_lik"),
        ({"weights": lambda row: jnp.ones(3)}, "structure.likelihood.weights must return"),
        ({"offset": lambda t, row: jnp.zeros(2)}, "structure.likelihood disagrees"),
        ({"offset": lambda t, row: jnp.zeros(())}, "structure.likelihood.offset must return"),
        ({"density": lambda t, eta, row: -(eta[0] ** 2)}, "structure.likelihood disagrees"),
    ],
)
def test_a_wrong_declaration_is_refused(changes, message, table):
    groups = two_predictors_data(table)
    with pytest.raises(ValueError, match=message):
        rf.fit(two_predictors(**changes), groups)


def test_theta_that_was_declared_absent(table):
    model = two_predictors()
    said = replace(model.structure.likelihood, uses_theta=lambda batch: False)
    model.structure = replace(model.structure, likelihood=said)
    with pytest.raises(ValueError, match="log_lik changes with theta"):
        check_structure(model, whole(two_predictors_data(table)))


@pytest.mark.slow
def test_a_fit_with_structure_is_the_fit_without(table):
    """The same method for the same reason, and theta to rounding of a float32 search."""
    density = lambda t, eta, row: dist.Bernoulli(logits=eta[0]).log_prob(row["yes"])
    weights = lambda row: jnp.stack([jnp.ones(()), row["x0"]])[None]
    structure = rf.Structure(
        rf.NormalPrior(lambda t, group: t["mu"], lambda t, group: t["tau"]),
        rf.LinearPredictors(weights, lambda t, row: jnp.zeros(1), density, uses_theta=False),
    )
    groups = rf.Groups.from_table(table, by="g", rows=["x0", "yes"])
    fits = [
        rf.fit(
            rf.Model(
                theta={"mu": rf.real(2), "tau": rf.positive(2)},
                z={"b": rf.real(2)},
                log_prior=lambda t: (
                    dist.Normal(0, 1).log_prob(t["mu"]).sum()
                    + dist.Gamma(4, 8).log_prob(t["tau"]).sum()
                ),
                log_local=lambda t, z, u: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]).sum(),
                log_lik=lambda t, z, row: density(t, weights(row) @ z["b"], row),
                structure=declared,
            ),
            groups,
        )
        for declared in (structure, None)
    ]
    assert fits[0].notes["why"] == fits[1].notes["why"]
    mean, sd = (fits[1].family.theta.mean, np.sqrt(np.diag(fits[1].family.theta.covariance)))
    assert np.abs((fits[0].family.theta.mean - mean) / sd).max() < 0.02


def test_the_curvature_of_formulas_is_not_tested(table, monkeypatch):
    """A kinked likelihood that is declared, but not as smooth, still is."""
    monkeypatch.setattr(curvature_check, "opinions", None)  # not callable: a call would raise
    model, groups = rf.from_formula("yes ~ x0 + (x0 | g)", table, likelihood="bernoulli")
    family, why = fitting.default_family(model, groups)
    assert why == "z is small (M = 2) and the likelihood smooth in it"
    with pytest.raises(TypeError):
        fitting.default_family(undeclared(model), groups)


def sites(kind):
    """A NumPyro model whose groups have two sites, and a row that sees both."""

    def model(x, y=None, *, u, g, n_g):
        mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        factor = jnp.array([[1.0, 0.0], [0.5, 0.8]]) * tau
        with numpyro.plate("groups", n_g):
            a = numpyro.sample("a", dist.Normal(mu[0] + u, tau))
            if kind == "normal":
                own = dist.MultivariateNormal(mu, scale_tril=factor)
            elif kind == "scales by group":
                own = dist.Normal(mu, tau + u[:, None] ** 2).to_event(1)
            elif kind == "on another site":
                own = dist.Normal(a[:, None] + mu, tau).to_event(1)
            else:
                own = dist.StudentT(4.0, mu, tau).to_event(1)
            b = numpyro.sample("b", own)
        with numpyro.plate("rows", x.shape[0]):
            logits = a[g] + jnp.sum(b[g] * jnp.stack([x, x**2], -1), -1)
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model


@pytest.mark.parametrize(
    "kind, declared",
    [
        ("normal", True),
        slow("scales by group", True),
        ("on another site", False),
        slow("student t", False),
    ],
)
def test_numpyros_distributions_say_what_they_are(kind, declared, table, x64):
    data = {"g": table["g"], "x": table["x0"], "y": table["yes"], "u": table["age"] / 40}
    groups = rf.Groups.from_table(data, by="g", rows=["x", "y"], group=["u"])
    model, plain = (rf.from_numpyro(sites(kind), groups) for _ in range(2))
    assert (model.structure.prior is not None) == declared
    batch, plain = whole(groups), undeclared(plain)
    rng = np.random.default_rng(0)
    theta, z = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(N, 3)))
    both = lambda t, z: [tuple(expand_local(m, batch, t)(z)) for m in (model, plain)]
    for found, exact in zip(*jax.jit(both)(theta, z), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-10)
    if kind == "normal":
        assert model.structure.prior(theta, batch).root.shape == (3, 3)  # shared by all groups


def test_a_positive_local_parameter_is_normal_on_the_log_scale(table, x64):
    """The declaration is of unconstrained values, the density of constrained ones."""
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"rate": rf.positive()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.LogNormal(t["mu"], t["tau"]).log_prob(z["rate"]),
        log_lik=lambda t, z, row: dist.Poisson(z["rate"]).log_prob(row["count"]),
        structure=rf.Structure(
            rf.NormalPrior(lambda t, group: t["mu"][None], lambda t, group: t["tau"][None]),
            rf.LinearPredictors(
                lambda row: jnp.ones((1, 1)),
                lambda t, row: jnp.zeros(1),
                lambda t, eta, row: dist.Poisson(jnp.exp(eta[0])).log_prob(row["count"]),
            ),
        ),
    )
    groups = rf.Groups.from_table(table, by="g", rows=["count"])
    batch, theta = whole(groups), jnp.array([0.3, -0.2])
    check_structure(model, batch)
    z = jnp.linspace(-1, 1, N)[:, None]
    each = [expand_likelihood, expand_local]
    expansions = lambda t, z: [tuple(expand(model, batch, t)(z)) for expand in each]
    found = jax.jit(expansions)(theta, z)
    undeclared(model)
    plain = jax.jit(lambda t, z: expansions(t, z))(theta, z)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
