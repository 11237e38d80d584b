"""What comes out of a fit of a NumPyro model: its own names, its outcomes, ArviZ's groups."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.reparam import LocScaleReparam

import numpyro_models
import ramify as rf
from quick import slow_but
from ramify.data.resident import whole
from ramify.posterior.posterior import Posterior
from spaces import unconstrained


def unfitted(case, method=rf.branch):
    """A posterior as good as any to look at results with: the family as it starts."""
    model, groups = case.make(), case.groups()
    return Posterior(model, method(model, groups), groups)


def test_deterministic_sites_are_in_the_sample():
    case = numpyro_models.lkj_non_centred()
    posterior = unfitted(case)
    draws = posterior.sample(30)
    assert set(draws) == {"tau", "chol", "corr", "eps", "beta"}
    factor = draws["tau"][:, :, None] * draws["chol"]
    expected = np.einsum("snj,sij->sni", draws["eps"], factor)
    np.testing.assert_allclose(draws["beta"], expected, rtol=1e-4, atol=1e-6)
    corr = draws["chol"] @ draws["chol"].swapaxes(1, 2)
    np.testing.assert_allclose(draws["corr"], corr, rtol=1e-4, atol=1e-6)
    assert set(posterior.sample_theta(3)) == {"tau", "chol", "corr"}
    assert repr(posterior.model).endswith("deterministic: beta, corr; left out: mean)")


@pytest.mark.slow
def test_reparametrised_site_is_told_as_itself():
    draws = unfitted(numpyro_models.eight_schools_non_centred()).sample(20)
    expected = draws["mu"][:, None] + draws["tau"][:, None] * draws["effect_decentered"]
    np.testing.assert_allclose(draws["effect"], expected, rtol=1e-4, atol=1e-5)


def _schools(error, y=None, shift=0.0, within=False, *, group, n_group):
    inside = {"effect": LocScaleReparam(0)} if within else {}
    mu = numpyro.sample("mu", dist.Normal(shift, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("groups", n_group), handlers.reparam(config=inside):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(effect[group], error), obs=y)


def _wrapped(config):
    return partial(handlers.scale(handlers.reparam(_schools, config=config), 1.0), shift=1.0)


BOTH = {"mu": LocScaleReparam(0), "effect": LocScaleReparam(0)}
NON_CENTRED = {
    "around": _wrapped(BOTH),
    "by a function": _wrapped(lambda site: BOTH.get(site["name"])),
    "within": partial(
        handlers.reparam(_schools, config={"mu": LocScaleReparam(0)}), shift=1.0, within=True
    ),
}


@pytest.mark.parametrize("name", slow_but(["around", "by a function"], NON_CENTRED))
def test_centring_takes_the_samplers_handler_off(name):
    """However it is written, and off the groups' sites alone; as three lines of algebra have it."""
    groups, written = numpyro_models.eight_schools().groups(), NON_CENTRED[name]
    model = rf.from_numpyro(written, groups)
    assert list(model.theta.parameters) == ["mu_decentered", "tau"]
    assert list(model.z.parameters) == ["effect"]
    kept = rf.from_numpyro(written, groups, centre=False)
    assert list(kept.z.parameters) == ["effect_decentered"]
    batch, theta = whole(groups), jnp.array([0.3, -0.2])
    mu, tau = 1 + 5 * 0.3, np.exp(-0.2)
    e = jnp.linspace(-1, 1, 8)[:, None]
    centred = model.log_local(theta, mu + tau * e, batch)
    plain = kept.log_local(theta, e, batch) - np.log(tau)
    np.testing.assert_allclose(centred, plain, rtol=1e-5)
    rows = model.log_lik(theta, (mu + tau * e)[batch.segment], batch)
    np.testing.assert_allclose(rows, kept.log_lik(theta, e[batch.segment], batch), rtol=1e-5)


def test_deterministic_sites_that_mix_groups_are_left_out():
    def model(y=None, *, group, n_group):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("groups", n_group):
            a = numpyro.sample("a", dist.Normal(mu, 1))
            numpyro.deterministic("own", a**2)
            numpyro.deterministic("relative", a - a.mean())
        numpyro.deterministic("mean", a.mean())
        numpyro.deterministic("double", 2 * mu)
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    groups = numpyro_models.observed_group().groups()
    layout = rf.from_numpyro(model, groups).layout
    assert set(layout.deterministics) == {"own", "double"}
    assert set(layout.left_out) == {"relative", "mean"}


def test_group_columns_of_deterministic_sites():
    """A site that needs a group column asks for the data; a fit that has none says so."""

    def model(y=None, *, measured, group, n_group):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("groups", n_group):
            a = numpyro.sample("a", dist.Normal(mu, 1))
            numpyro.deterministic("shifted", a + measured)
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    groups = numpyro_models.observed_group().groups()
    made = rf.from_numpyro(model, groups)
    posterior = Posterior(made, rf.branch(made, groups), groups)
    draws = posterior.sample(10)
    expected = draws["a"] + groups.group["measured"]
    np.testing.assert_allclose(draws["shifted"], expected, rtol=1e-5, atol=1e-6)
    loaded = Posterior(made, posterior.family, None, schema=posterior._schema)
    with pytest.raises(ValueError, match='needs the column "measured".*pass groups='):
        loaded.sample(10)
    np.testing.assert_array_equal(loaded.sample(10, groups)["shifted"], draws["shifted"])


DRAWN = [
    "eight_schools_in_one_plate",
    "radon",
    "movielens",
    "poisson_exposure",
    "two_outcomes",
    "item_response",
    "masks_and_scales",
    "vector_outcome",
    "simplex_locals",
]


@pytest.mark.parametrize("name", slow_but(["radon"], DRAWN))
def test_simulate_draws_what_predictive_draws(name):
    """Given theta and z each row's outcome has the mean and spread of NumPyro's own draws."""
    case = numpyro_models.CASES[name]()
    model, groups = case.make(), case.groups()
    batch = whole(groups)
    rng = np.random.default_rng(3)
    theta = jnp.asarray(0.3 * rng.normal(size=model.theta.size), jnp.float32)
    z = jnp.asarray(0.3 * rng.normal(size=(len(groups), model.z.size)), jnp.float32)
    outcomes = {column for columns in model.layout.outcomes.values() for column in columns}
    hidden = batch._replace(rows={n: c for n, c in batch.rows.items() if n not in outcomes})

    @jax.jit
    def draws(batch):
        run = lambda key: model.simulate(key, theta, z[batch.segment], batch)  # noqa: E731
        return jax.vmap(run)(jax.random.split(jax.random.key(0), 2000))

    found, expected = np.asarray(draws(hidden)), by_numpyro(case, model, theta, z, outcomes)
    np.testing.assert_array_equal(found, draws(batch))  # outcomes in the data make no difference
    assert found.shape == expected.shape
    logs = np.log if model.outcome == "spent" else np.float64  # a heavy tail is compared in logs
    found, expected = logs(found), logs(expected)
    se = np.sqrt((found.var(0) + expected.var(0)) / 2000)
    assert np.all(np.abs(found.mean(0) - expected.mean(0)) < 5 * se + 1e-9)
    np.testing.assert_allclose(found.std(0), expected.std(0), rtol=0.2, atol=0.03)


def by_numpyro(case, model, theta, z, outcomes):
    """The same outcome through numpyro.infer.Predictive on the whole data."""
    wanted = inspect.signature(case.model).parameters
    kwargs = {n: v for n, v in case.arguments().items() if n in wanted}
    kwargs |= {column: None for column in outcomes}
    values = model.evaluator.latent_values(theta, z)
    many = {n: jnp.broadcast_to(v, (2000, *v.shape)) for n, v in values.items()}
    site = model.outcome
    return np.asarray(
        Predictive(case.model, many, return_sites=[site])(jax.random.key(1), **kwargs)[site]
    )


@pytest.mark.slow
def test_predict_where_the_outcome_must_be_given():
    """A model without y=None: its own data stand in, and are drawn again."""

    def model(y, x, *, group, n_group):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("groups", n_group):
            a = numpyro.sample("a", dist.Normal(mu, 1))
        numpyro.sample("log_y", dist.Normal(a[group] + x, 0.1), obs=jnp.log(y))

    table = {"group": [0, 0, 1], "x": [0.0, 1.0, 2.0], "y": [1.0, 2.0, 3.0]}
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y"])
    made = rf.from_numpyro(model, groups)
    assert made.layout.outcomes == {"log_y": ("y",)}
    posterior = Posterior(made, rf.branch(made, groups), groups)
    at = {"group": [1, 0], "x": [50.0, -50.0]}
    found = posterior.predict(at, draws=50)
    np.testing.assert_allclose(found["mean"], [50, -50], atol=5)
    with pytest.raises(ValueError, match='asks for "x".*no such column: add it'):
        posterior.predict({"group": [1, 0]})


@pytest.mark.slow
def test_a_model_with_a_seed_of_its_own_draws_anew_each_time():
    case = numpyro_models.eight_schools()
    groups = case.groups()
    seeded = rf.from_numpyro(handlers.seed(case.model, 0), groups)
    theta, z, batch = jnp.zeros(2), jnp.zeros((8, 1)), whole(groups)
    draws = [seeded.simulate(jax.random.key(k), theta, z, batch) for k in (0, 1, 1)]
    assert np.all(draws[0] != draws[1])
    np.testing.assert_array_equal(draws[1], draws[2])
    plain = case.make()
    np.testing.assert_array_equal(seeded.log_lik(theta, z, batch), plain.log_lik(theta, z, batch))


def test_several_outcomes_need_a_name():
    case = numpyro_models.two_outcomes()
    groups = case.groups()
    model = rf.from_numpyro(case.model, groups)
    posterior = Posterior(model, rf.branch(model, groups), groups)
    with pytest.raises(ValueError, match=r"observes bought, spent in its rows.*outcome="):
        posterior.predict(groups, draws=5)
    with pytest.raises(ValueError, match='outcome="sold" is not a site observed .*: bought, spent'):
        rf.from_numpyro(case.model, groups, outcome="sold")
    assert rf.from_numpyro(case.model, groups, outcome="bought").outcome == "bought"


def test_factors_have_nothing_to_draw():
    def model(y, *, group, n_group):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("groups", n_group):
            a = numpyro.sample("a", dist.Normal(mu, 1))
        numpyro.factor("likelihood", dist.Normal(a[group], 1.0).log_prob(y))

    groups = rf.Groups.from_table({"group": [0, 0, 1], "y": [1.0, 2.0, 3.0]}, by="group", rows="y")
    made = rf.from_numpyro(model, groups)
    posterior = Posterior(made, rf.branch(made, groups), groups)
    with pytest.raises(ValueError, match=r"numpyro.factor has a density and nothing to draw from"):
        posterior.predict(groups, draws=5)


@pytest.mark.slow
def test_to_arviz_has_everything():
    pytest.importorskip("arviz_base")
    case = numpyro_models.radon()
    posterior = unfitted(case, rf.solved)
    groups, model = case.groups(), posterior.model
    tree = posterior.to_arviz(draws=25, seed=2)
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "constant_data",
    }
    assert tree["posterior"]["a"].dims == ("chain", "draw", "group")
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert tree["posterior_predictive"]["y"].shape == (1, 25, groups.n_rows)
    np.testing.assert_array_equal(tree["observed_data"]["row"], groups.row_order)
    np.testing.assert_allclose(tree["observed_data"]["y"], groups.rows["y"], rtol=1e-6)
    constant = tree["constant_data"]
    assert set(constant.data_vars) == {"floor", "uranium", "group_index"}
    np.testing.assert_array_equal(constant["uranium"].sel(group=3), groups.group["uranium"][3])
    batch, draws = whole(groups), posterior.sample(25, seed=2)

    def by_hand(s):
        theta = unconstrained(model.theta, {n: v[s] for n, v in draws.items()})
        z = jnp.asarray(draws["a"][s][:, None])
        return model.log_lik(theta, z[batch.segment], batch)

    for s in (0, 24):
        np.testing.assert_allclose(tree["log_likelihood"]["y"][0, s], by_hand(s), rtol=1e-4)
    plain = posterior.to_arviz(draws=25, seed=2, rows=False)
    assert set(plain.children) == {"posterior", "observed_data", "constant_data"}
    part = posterior.to_arviz(groups.subset(labels=[4, 1]), draws=25, seed=2)
    picked = part["log_likelihood"]["y"]
    both = tree["log_likelihood"]["y"].sel(row=picked["row"])
    np.testing.assert_allclose(picked, both, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_arviz_works_on_it():
    pytest.importorskip("xarray_einstats")
    from arviz_stats import loo, summary

    tree = unfitted(numpyro_models.radon(), rf.solved).to_arviz(draws=200)
    with np.errstate(all="ignore"):
        table = summary(tree, var_names=["gamma", "a"])
    assert {"gamma[0]", "a[0]"} <= set(table.index)
    assert np.isfinite(loo(tree).elpd)


@pytest.mark.slow
def test_to_arviz_of_several_outcomes_and_of_plain_densities():
    pytest.importorskip("arviz_base")
    tree = unfitted(numpyro_models.two_outcomes()).to_arviz(draws=5)
    assert set(tree["log_likelihood"].data_vars) == {"bought", "spent"}
    assert set(tree["observed_data"].data_vars) == {"bought", "spent"}
    assert set(tree["posterior_predictive"].data_vars) == {"spent"}
    vectors = unfitted(numpyro_models.vector_outcome()).to_arviz(draws=5)
    assert vectors["posterior_predictive"]["y"].dims == ("chain", "draw", "row", "y_dim_0")
    assert vectors["log_likelihood"]["y"].dims == ("chain", "draw", "row")
