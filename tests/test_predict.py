"""Predictions of known and never-seen groups, and the tables they come back in."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import oracle
from exact_fits import exact_fit, gaussian, read, regression
from quick import slow
from ramify.data.groups import Groups
from ramify.families.build import amortized, branch, solved
from ramify.models.model import Model
from ramify.models.parameters import real
from ramify.numerics import budgets
from ramify.posterior import prediction as _predict
from ramify.posterior.posterior import Posterior

SIZES = np.array([4, 0, 3, 6, 1])
N, DIM, DRAWS = len(SIZES), 2, 4000


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(3, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def fits(table):
    return {method: exact_fit(method, table, N) for method in ("joint", "branch", "solved")}


@pytest.fixture(scope="module")
def at():
    """Rows of four known groups, not in order, without y."""
    x = np.random.default_rng(5).normal(size=(6, DIM))
    return {"group": np.array([3, 0, 3, 1, 4, 0]), "x": x}


def check(found, mean, var):
    """Mean and sd of normal draws are within 4.5 standard errors of the exact ones."""
    sd = np.sqrt(var)
    assert np.all(np.abs(found["mean"] - mean) < 4.5 * sd / DRAWS**0.5)
    assert np.all(np.abs(found["sd"] - sd) < 4.5 * sd / (2 * DRAWS) ** 0.5)
    density = np.exp(-(1.645**2) / 2) / np.sqrt(2 * np.pi)
    error = np.sqrt(0.05 * 0.95 / DRAWS) / density * sd
    assert np.all(np.abs(found["q5"] - (mean - 1.645 * sd)) < 4.5 * error)
    assert np.all(np.abs(found["q95"] - (mean + 1.645 * sd)) < 4.5 * error)


@pytest.mark.parametrize("method", [slow("joint"), slow("branch"), "solved"])
def test_known_groups(fits, table, at, method):
    found = fits[method].predict(at, draws=DRAWS)
    assert list(found) == ["group", "x", "mean", "sd", "q5", "q50", "q95"]
    exact, g = oracle.exact(table, N), at["group"]
    mean = np.einsum("rd,rd->r", at["x"], exact.z_mean[g])
    check(found, mean, 1 + np.einsum("rd,rde,re->r", at["x"], exact.z_cov[g], at["x"]))


def test_new_groups_are_conditioned_on_given(fits, table):
    """Group 50 with three rows, group 60 with none, group 3 with its rows in the fit."""
    fit, exact = fits["solved"], oracle.exact(table, N)
    rng = np.random.default_rng(6)
    given = {"group": [50] * 3, "x": rng.normal(size=(3, DIM)), "y": rng.normal(size=3)}
    x = rng.normal(size=(3, DIM))
    found = fit.predict({"group": [60, 50, 3], "x": x}, given, draws=DRAWS)
    cov = np.linalg.inv(np.eye(DIM) + given["x"].T @ given["x"])
    means = [
        exact.theta_mean,
        cov @ (given["x"].T @ given["y"] + exact.theta_mean),
        exact.z_mean[3],
    ]
    covs = [np.eye(DIM) + exact.theta_cov, cov + cov @ exact.theta_cov @ cov, exact.z_cov[3]]
    check(found, np.sum(x * means, 1), 1 + np.einsum("rd,rde,re->r", x, np.array(covs), x))


def test_given_replaces_the_rows_of_the_fit(fits, table):
    fit, exact = fits["solved"], oracle.exact(table, N)
    given = {"group": np.array([3]), "x": np.array([[1.0, 0.0]]), "y": np.array([30.0])}
    found = fit.predict({"group": [3], "x": [[1.0, 0.0]]}, given, draws=DRAWS)
    mean = (30 + exact.theta_mean[0]) / 2
    check(found, np.array([mean]), np.array([1 + 0.5 + exact.theta_cov[0, 0] / 4]))


def test_rows_without_a_finite_density_are_refused(fits):
    given = {
        "group": [50, 50, 60],
        "x": [[1.0, 0.0]] * 3,
        "y": [0.0, 1e30, 0.0],
    }  # squared: infinite
    with pytest.raises(ValueError, match="of the rows of group 50 is -inf: nothing follows"):
        fits["solved"].predict({"group": [60, 50], "x": [[1.0, 0.0]] * 2}, given, draws=50)


@pytest.mark.slow
def test_amortized_and_new_groups(table):
    """The network, untrained, is asked about new rows; without any rows it is not asked."""
    model, groups = regression(DIM), read(table, N)
    family = amortized(model, groups)
    fit = Posterior(model, family, groups)
    at = {"group": [99], "x": [[1.0, 2.0]]}
    found = fit.predict(at, draws=DRAWS)
    x, var = np.array([1.0, 2.0]), np.asarray(family.theta.covariance)
    check(found, np.zeros(1), np.array([1 + x @ (np.eye(DIM) + var) @ x]))
    given = {"group": [99, 99], "x": [[1.0, 2.0]] * 2, "y": [50.0, 50.0]}
    new = Groups.from_table(given, by="group", rows=["x", "y"])
    z = fit.sample(DRAWS, new)["beta"][:, 0]
    conditioned = fit.predict(at, given, draws=DRAWS)
    check(conditioned, (z @ x).mean(keepdims=True), 1 + (z @ x).var(keepdims=True))


@pytest.mark.parametrize("library", ["dict", "pandas", "polars", "arrow", "batch"])
def test_same_kind_of_table_comes_back(fits, at, library):
    fit = fits["branch"]
    columns = {"group": at["group"], "x": list(at["x"]), "note": list("abcdef")}
    expected = fit.predict({**columns, "x": at["x"]}, draws=20)
    if library == "dict":
        assert expected["note"] is columns["note"] and "mean" not in columns
        return
    make = pytest.importorskip({"arrow": "pyarrow", "batch": "pyarrow"}.get(library, library))
    if library == "batch":
        frame = make.RecordBatch.from_pydict(columns)
    else:
        frame = make.table(columns) if library == "arrow" else make.DataFrame(columns)
    if library == "pandas":
        frame.index = list("zyxwvu")
    found = fit.predict(frame, draws=20)
    assert type(found) is type(frame)
    if library == "pandas":
        assert list(found.index) == list("zyxwvu")
    for name in ("mean", "sd", "q5", "q50", "q95"):
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name])
    assert np.asarray(found["note"]).tolist() == list("abcdef")
    assert len(frame.columns) == 3


def test_groups_come_back_as_columns(fits, table):
    train, test = read(table, N).split(0.4, seed=1)
    found = fits["branch"].predict(test, draws=20)
    assert list(found) == ["group", "x", "y", "mean", "sd", "q5", "q50", "q95"]
    np.testing.assert_array_equal(found["group"], np.repeat(np.arange(N), test.sizes))
    rows = {"group": found["group"], "x": test.rows["x"]}
    np.testing.assert_array_equal(found["mean"], fits["branch"].predict(rows, draws=20)["mean"])
    assert train.n_rows > test.n_rows > 2


def test_draws_in_the_order_of_the_table(fits, at):
    fit = fits["branch"]
    draws = fit.predict(at, draws=20, summary=False)
    assert draws.shape == (20, 6)
    summary = fit.predict(at, draws=20)
    np.testing.assert_allclose(draws.mean(0), summary["mean"], rtol=1e-5)
    np.testing.assert_allclose(np.quantile(draws, 0.05, 0), summary["q5"], rtol=1e-5)
    one = {"group": at["group"][4:5], "x": at["x"][4:5]}
    alone = fit.predict(one, draws=DRAWS, summary=False)[:, 0]
    together = fit.predict(at, draws=DRAWS)
    assert abs(alone.mean() - together["mean"][4]) < 5 * alone.std() * (2 / DRAWS) ** 0.5


def test_blocks_have_noise_of_their_own(fits, monkeypatch):
    """The same row for every group, one group a block: outcomes are not copies of one another."""
    monkeypatch.setattr(budgets, "PREDICTED_NUMBERS", 1)
    same = {"group": np.array([0, 2, 3, 3]), "x": np.zeros((4, DIM))}
    draws = fits["branch"].predict(same, draws=DRAWS, summary=False)
    off = np.corrcoef(draws.T) - np.eye(4)
    assert np.abs(off).max() < 4.5 / DRAWS**0.5
    assert np.abs(draws.std(0) - 1).max() < 0.1


@pytest.mark.slow
def test_few_compilations_for_many_sizes(table):
    """One trace of the likelihood for all tables of some hundred rows, another for larger groups."""
    traces = []

    def log_lik(t, z, row):
        traces.append(1)
        return dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"])

    base = regression(DIM)
    model = Model(
        theta={"mu": real(DIM)},
        z={"beta": real(DIM)},
        log_prior=base._log_prior,
        log_local=base._log_local,
        log_lik=log_lik,
        simulate=base._simulate,
    )
    fit = Posterior(model, solved(model, read(table, N), rounds=0), read(table, N))
    predict = lambda n, m: fit.predict(
        {"group": [7] * m, "x": np.ones((m, DIM))},
        {"group": [7] * n, "x": np.ones((n, DIM)), "y": np.ones(n)},
        draws=10,
    )
    predict(1, 1)
    once = len(traces)
    for n, m in ((2, 8), (5, 3), (30, 1)):
        predict(n, m)
    assert len(traces) == once
    predict(600, 1)
    assert len(traces) > once


@pytest.fixture(scope="module")
def clinics():
    """A logistic model with a group column, string labels, and outcomes that are booleans."""
    rng = np.random.default_rng(2)
    table = {"clinic": np.repeat(["a", "b", "c"], 4), "size": np.repeat([1.0, 2.0, 3.0], 4)}
    table["y"] = rng.integers(0, 2, 12)
    groups = Groups.from_table(table, by="clinic", rows="y", group="size")
    chance = lambda z, row: dist.Bernoulli(logits=z["b"] + 0.0 * row["size"])
    model = Model(
        theta={"mu": real()},
        z={"b": real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
        log_local=lambda t, z, group: dist.Normal(t["mu"] * group["size"], 1).log_prob(z["b"]),
        log_lik=lambda t, z, row: chance(z, row).log_prob(row["y"]),
        simulate=lambda key, t, z, row: chance(z, row).sample(key),
    )
    return table, Posterior(model, solved(model, groups, rounds=0), groups)


@pytest.mark.slow
def test_group_columns_come_from_where_they_are(clinics):
    table, fit = clinics
    known = fit.predict({"clinic": ["c", "a"]}, draws=DRAWS)
    assert set(np.unique(known["q50"])) <= {0, 1}
    assert np.all((known["mean"] > 0) & (known["mean"] < 1))
    new = {"clinic": ["new", "c"], "size": [9.0, 3.0]}
    assert fit.predict(new, draws=DRAWS)["mean"][1] == pytest.approx(known["mean"][0], abs=0.15)
    with pytest.raises(ValueError, match="the group column \"size\" of group 'new' is missing"):
        fit.predict({"clinic": ["new"]}, draws=10)
    rows = {"clinic": ["new"], "y": [1], "size": [9.0]}
    assert 0 < fit.predict({"clinic": ["new"]}, given=rows, draws=DRAWS)["mean"][0] < 1


def test_quantiles_of_counts_are_counts():
    values = np.array([[0, 0], [1, 0], [1, 5], [2, 9]], np.int32)
    found = _predict.summarise(values, [0.25, 0.5])
    assert found["q25"].tolist() == [0, 0] and found["q50"].tolist() == [1, 0]
    assert found["mean"].tolist() == [1, 3.5]
    assert _predict.summarise(values > 0, [0.5])["mean"].tolist() == [0.75, 0.5]


@pytest.mark.parametrize("library", ["dict", "pandas", "polars", "pyarrow"])
def test_outcomes_may_be_arrays(table, library):
    base = regression(DIM)
    model = Model(
        theta={"mu": real(DIM)},
        z={"beta": real(DIM)},
        log_prior=base._log_prior,
        log_local=base._log_local,
        log_lik=base._log_lik,
        simulate=lambda key, t, z, row: z["beta"] + jnp.array([0.0, 100.0]),
    )
    groups = read(table, N)
    fit = Posterior(model, branch(model, groups), groups)
    at = {"group": [0, 3, 0]}
    if library == "dict":
        found = fit.predict(at, draws=20)["mean"]
        assert found.shape == (3, 2) and np.all(found[:, 1] > 90)
        assert fit.predict(at, draws=20, summary=False).shape == (20, 3, 2)
        return
    make = pytest.importorskip(library)
    frame = make.table(at) if library == "pyarrow" else make.DataFrame(at)
    found = fit.predict(frame, draws=20)["mean"]
    assert np.array(found.to_pylist() if library == "pyarrow" else list(found)).shape == (3, 2)


def test_refusals(fits, at, table):
    fit = fits["branch"]
    with pytest.raises(ValueError, match=r"branch\(\) has parameters for the 5 .* group 77 is new"):
        fit.predict({"group": [77], "x": np.ones((1, DIM))})
    with pytest.raises(
        ValueError, match=r"branch\(\) knows its groups by the rows it was fitted to"
    ):
        fit.predict(at, given={"group": [3], "x": np.ones((1, DIM)), "y": [1.0]})
    turned = {name: column[::-1] for name, column in table.items()}
    for same in (table, turned):  # the rows of the fit, once more
        fit.predict(at, given=same, draws=5)
    for other in ({"y": table["y"] + 1}, {"x": 2 * table["x"]}):  # as many rows for each group
        with pytest.raises(ValueError, match=r"branch\(\) knows .* leave given= \(or train=\) out"):
            fit.predict(at, given=table | other, draws=5)
        with pytest.raises(ValueError, match=r"branch\(\) knows its groups"):
            fit.log_predictive(table | other, table, draws=5)
    with pytest.raises(ValueError, match=r'simulate\(.*\) asks for "x", and the table .* add it'):
        fit.predict({"group": [3]})
    with pytest.raises(ValueError, match='has a column "sd", which is what predict calls'):
        fit.predict({**at, "sd": np.ones(6)})
    with pytest.raises(ValueError, match='at has no column "group"'):
        fit.predict({"x": np.ones((1, DIM))})
    with pytest.raises(ValueError, match="quantiles must be between 0 and 1"):
        fit.predict(at, quantiles=[5.0])
    with pytest.raises(ValueError, match='row column of given "y" is missing'):
        fits["solved"].predict(at, given=at)
    with pytest.raises(ValueError, match=r"elements of shape \[3\]; expected \[2\]"):
        fit.predict({"group": [3], "x": np.ones((1, 3))})
    with pytest.raises(TypeError, match="expected a dict of arrays"):
        fit.predict([1, 2])


def test_a_model_that_cannot_simulate(table):
    base = regression(DIM)
    model = Model(
        theta={"mu": real(DIM)},
        z={"beta": real(DIM)},
        log_prior=base._log_prior,
        log_local=base._log_local,
        log_lik=base._log_lik,
    )
    groups = read(table, N)
    fit = Posterior(model, branch(model, groups), groups)
    with pytest.raises(ValueError, match="predict needs a model that can make new outcomes"):
        fit.predict({"group": [0], "x": np.ones((1, DIM))})


@pytest.mark.slow
def test_local_draws_change_predictions(table):
    """A poor q: weights bring the predictions of a known group back to the exact ones."""
    model, groups = regression(DIM), read(table, N)
    exact = oracle.exact(table, N)
    family = branch(model, groups, "block")
    q = gaussian(exact.theta_mean, exact.theta_cov)
    family = eqx.tree_at(lambda f: f.theta, family, q)
    x = np.eye(DIM)
    at = {"group": [3] * DIM, "x": x}
    poor = Posterior(model, family, groups).predict(at, draws=DRAWS)
    good = Posterior(model, family, groups).predict(at, draws=DRAWS, local_draws=128)
    assert np.abs(poor["mean"] - exact.z_mean[3]).max() > 0.3
    check(good, exact.z_mean[3], 1 + np.diagonal(exact.z_cov[3]))
