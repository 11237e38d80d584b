"""Contrasts, slopes and predictions: against `predict`, exact formulas, quadrature and NUTS."""

from copy import copy

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import norm

import ramify as rf
from ramify.posterior.interpret import _sample

FORMULA = "bought ~ x + kind + age + (1 + x | user)"
S = 40


def simulated(users=20, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    n = users * rows
    user = np.repeat([f"u{i:02}" for i in range(users)], rows)
    x, kind = rng.normal(size=n), rng.choice(["a", "b", "c"], n)
    age = np.repeat(rng.uniform(20, 60, users).round(), rows)
    own = rng.normal(size=(users, 2)).repeat(rows, 0) * [1.0, 0.5]
    eta = own[:, 0] + (0.8 + own[:, 1]) * x - 0.5 * (kind == "b") + 0.02 * (age - 40)
    bought = rng.random(n) < expit(eta)
    return pd.DataFrame({"user": user, "x": x, "kind": kind, "age": age, "bought": bought})


@pytest.fixture(scope="module")
def table():
    return simulated()


@pytest.fixture(scope="module")
def posterior(table):
    return rf.fit(FORMULA, table, likelihood="bernoulli", theta="gaussian")


def means(posterior, table, **columns):
    changed = table.assign(**columns)
    return posterior.predict(changed, draws=S, kind="mean", summary=False).astype(np.float64)


def test_odds_are_those_of_probabilities(posterior):
    """A mean of counts has none: m / (1 - m) was a number without meaning."""
    with pytest.raises(ValueError, match=r'probabilities or shares.*use compare="ratio"'):
        posterior.comparisons("kind", compare="odds_ratio", kind="link")
    y = {"bernoulli": [0, 1], "beta": [0.2, 0.4], "poisson": [0, 3], "binomial": [1, 2]}
    for likelihood, own in y.items():
        left = "y | trials(5)" if likelihood == "binomial" else "y"
        data = {"g": np.repeat(np.arange(4), 2), "x": np.arange(8.0), "y": own * 4}
        model, _ = rf.from_formula(f"{left} ~ x + (1 | g)", data, likelihood=likelihood)
        assert model.adapter.has_odds("mean") == (likelihood in ("bernoulli", "beta"))


@pytest.mark.slow
def test_predictions_are_those_of_predict(posterior, table):
    by_row = posterior.predictions(average=False, draws=S)
    np.testing.assert_allclose(by_row.draws, means(posterior, table), atol=1e-6)
    everyone = posterior.predictions(draws=S)
    np.testing.assert_allclose(everyone.draws[:, 0], by_row.draws.mean(1), rtol=1e-6)
    grid = posterior.predictions({"x": [0, 1]}, by="kind", draws=S)
    assert [*zip(grid["x"], grid["kind"], strict=True)][:4] == [
        (0, "a"),
        (0, "b"),
        (0, "c"),
        (1, "a"),
    ]
    exact = means(posterior, table, x=1.0)[:, table.kind == "b"].mean(1)
    np.testing.assert_allclose(grid.draws[:, 4], exact, rtol=1e-5)
    np.testing.assert_allclose(grid["mean"][4], exact.mean(), rtol=1e-5)
    np.testing.assert_allclose(grid["q95"][4], np.quantile(exact, 0.95), rtol=1e-5)
    assert isinstance(grid.table, pd.DataFrame) and list(grid.table.kind) == list(grid["kind"])


def test_contrasts_are_differences_and_ratios_of_averages(posterior, table):
    a, b = (means(posterior, table, kind=level).mean(1) for level in "ab")
    found = posterior.comparisons("kind", draws=S)
    assert list(found["contrast"]) == ["b - a", "c - a"]
    np.testing.assert_allclose(found.draws[:, 0], b - a, atol=1e-6)
    ratio = posterior.comparisons({"kind": ["a", "b"]}, compare="ratio", draws=S)
    assert list(ratio["contrast"]) == ["b / a"]
    np.testing.assert_allclose(ratio.draws[:, 0], b / a, rtol=1e-5)
    odds = posterior.comparisons({"kind": ["a", "b"]}, compare="odds_ratio", draws=S)
    np.testing.assert_allclose(odds.draws[:, 0], b / (1 - b) * (1 - a) / a, rtol=1e-4)
    raised = means(posterior, table, x=table.x + 1).mean(1) - means(posterior, table).mean(1)
    np.testing.assert_allclose(posterior.comparisons("x", draws=S).draws[:, 0], raised, atol=1e-6)
    old = posterior.comparisons("kind", {"age": 60}, draws=S)
    exact = means(posterior, table, kind="b", age=60).mean(1) - means(
        posterior, table, kind="a", age=60
    ).mean(1)
    np.testing.assert_allclose(old.draws[:, 0], exact, atol=1e-6)


@pytest.mark.slow
def test_slopes_are_finite_differences(posterior, table):
    step = 0.05
    high, low = (means(posterior, table, x=table.x + h) for h in (step / 2, -step / 2))
    slope = posterior.slopes("x", draws=S)
    np.testing.assert_allclose(slope.draws[:, 0], ((high - low) / step).mean(1), atol=2e-4)
    link = posterior.slopes("age", kind="link", groups="average", draws=S)
    exact = posterior.sample_theta(S)["age"]
    np.testing.assert_allclose(link.draws[:, 0], exact, atol=1e-5)
    by_user = posterior.slopes("x", by="user", kind="link", draws=S)
    effects = posterior.sample(S)
    own = effects["x"][:, None] + effects["effects"][:, :, 1]
    np.testing.assert_allclose(by_user.draws, own, atol=2e-3)


@pytest.mark.slow
def test_groups_of_the_population(posterior):
    theta = posterior.sample_theta(S)
    at = {"x": 0.7, "kind": "b", "age": 30.0}
    eta = theta["Intercept"] + 0.7 * theta["x"] + theta["kind[b]"] + 30 * theta["age"]
    ask = lambda who, draws=S: posterior.predictions(at, table="typical", groups=who, draws=draws)
    np.testing.assert_allclose(ask("average").draws[:, 0], expit(eta), atol=1e-5)
    a, b, c = theta["sd"][:, 0], theta["sd"][:, 1], theta["cor"][:, 0, 1]
    sd = np.sqrt(a**2 + 2 * 0.7 * a * b * c + (0.7 * b) ** 2)
    level = norm.ppf((np.arange(2000) + 0.5) / 2000)
    exact = expit(eta[:, None] + sd[:, None] * level).mean(1)
    np.testing.assert_allclose(ask("population").draws[:, 0], exact, atol=2e-3)  # sds to 5
    np.testing.assert_allclose(ask("population")["mean"][0], exact.mean(), atol=1e-4)
    new = ask("new", 4000)
    se = new["sd"][0] / np.sqrt(4000)
    np.testing.assert_allclose(new["mean"][0], ask("population", 4000)["mean"][0], atol=4 * se)
    assert new["sd"][0] > 2 * ask("population")["sd"][0]


def test_a_table_of_ones_own_and_levels_of_an_ordered_response(posterior, table):
    some = table.iloc[[3, 90]]
    found = posterior.predictions(table=some, average=False, draws=S)
    np.testing.assert_allclose(found.draws, means(posterior, some), atol=1e-6)
    with pytest.raises(ValueError, match='kind="probability" is for'):
        posterior.predictions(kind="probability")


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda p: p.comparisons("z"),
            '"z" is no predictor of this formula; it has "age", "kind", "x"',
        ),
        (lambda p: p.slopes("kind"), '"kind" has categories and so no slope'),
        (lambda p: p.predictions({"z": 1}), 'at= sets "z", which is no predictor'),
        (lambda p: p.predictions(table="typical"), 'add groups="average", "new" or "population"'),
        (lambda p: p.comparisons({"x": [1]}), "expected two or more values"),
        (lambda p: p.predictions({"x": 1}, by="x"), 'at= sets "x" .* leave it out of one'),
        (lambda p: p.slopes("x", {"kind": "a"}, by=["kind"]), 'at= sets "kind" .* leave it out'),
    ],
)
def test_refusals(posterior, call, message):
    with pytest.raises(ValueError, match=message):
        call(posterior)


def test_columns_are_not_called_as_those_of_the_answer(posterior, table):
    """A column "row" or "category" was overwritten by the answer's own."""
    some = table[:20].assign(row=["upper"] * 10 + ["lower"] * 10, category="new")
    assert list(posterior.predictions(table=some, by="row", draws=S)["row"]) == ["lower", "upper"]
    with pytest.raises(ValueError, match='two columns "row", yours and one of its own: rename'):
        posterior.predictions(table=some, by="row", average=False, draws=S)
    rows = {"g": [0, 0, 1, 1] * 5, "category": [1.0, 2.0] * 10, "y": [1, 2, 3, 1, 2] * 4}
    model, groups = rf.from_formula("y ~ category + (1 | g)", rows, likelihood="ordered")
    ordered = rf.Posterior(model, rf.solved(model, groups), groups)
    for ask in (ordered.predictions, ordered.comparisons):
        with pytest.raises(ValueError, match='two columns "category"'):
            ask(at={"category": 1}, kind="probability", average=False)


def test_a_loaded_fit_needs_its_table(posterior, table, tmp_path):
    posterior.save(tmp_path / "fit")
    again = rf.load(tmp_path / "fit")
    with pytest.raises(ValueError, match="which holds no table: pass table="):
        again.comparisons("kind")
    found = again.comparisons("kind", table=table, draws=S)
    np.testing.assert_allclose(found.draws, posterior.comparisons("kind", draws=S).draws, atol=1e-4)
    slope = again.slopes("x", table=table, draws=S)
    np.testing.assert_allclose(slope.draws, posterior.slopes("x", draws=S).draws, atol=1e-4)


@pytest.mark.slow
def test_contrasts_and_slopes_are_those_of_nuts():
    """Average contrasts by NUTS on the same model, flat, with the same priors."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    table = simulated(users=40, rows=15, seed=1)
    priors = {"b": dist.Normal(0, 1), "sd": dist.HalfNormal(1), "cor": dist.LKJ(2, 1.0)}
    model, groups = rf.from_formula(FORMULA, table, likelihood="bernoulli", priors=priors)
    posterior = rf.fit(model, groups)
    user = pd.factorize(table.user, sort=True)[0]
    columns = lambda t: np.column_stack([t.x, t.kind == "b", t.kind == "c", t.age])
    centred = lambda t: columns(t) - columns(table).mean(0)

    def flat(X, x, y):
        intercept = numpyro.sample("intercept", dist.Normal(0, 2.5))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([4]))
        sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]))
        factor = numpyro.sample("factor", dist.LKJCholesky(2, 1.0))
        with numpyro.plate("users", 40):
            e = numpyro.sample("e", dist.Normal(0, 1).expand([2]).to_event(1))
        u = numpyro.deterministic("u", e @ (sd[:, None] * factor).T)
        eta = intercept + X @ b + u[user, 0] + u[user, 1] * x
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    mcmc = MCMC(NUTS(flat), num_warmup=1000, num_samples=4000, num_chains=2, progress_bar=False)
    y = jnp.asarray(table.bought.to_numpy(float))
    mcmc.run(jax.random.key(0), jnp.asarray(centred(table)), jnp.asarray(table.x.to_numpy()), y)
    draws = {name: np.asarray(v)[::4] for name, v in mcmc.get_samples().items()}

    def expected(t):
        u = draws["u"][:, user]
        eta = draws["intercept"][:, None] + draws["b"] @ centred(t).T
        return expit(eta + u[:, :, 0] + u[:, :, 1] * t.x.to_numpy()).mean(1)

    kind = expected(table.assign(kind="b")) - expected(table.assign(kind="a"))
    step = 0.02
    slope = (
        expected(table.assign(x=table.x + step)) - expected(table.assign(x=table.x - step))
    ) / (2 * step)
    ours = (
        posterior.comparisons({"kind": ["a", "b"]}, draws=4000),
        posterior.slopes("x", draws=4000),
    )
    for found, exact in zip(ours, (kind, slope), strict=True):
        assert abs(found["mean"][0] - exact.mean()) < 0.15 * exact.std()
        assert abs(found["sd"][0] / exact.std() - 1) < 0.05, (found["sd"][0], exact.std())


def test_answers_for_each_row_have_the_columns_of_by(posterior, table):
    """They were dropped."""
    some = table[:6].assign(part=["n", "s", None, "n", "s", "s"])
    found = posterior.predictions(
        {"x": [0.0, 1.0]}, ["kind", "part"], table=some, average=False, draws=S
    )
    assert list(found)[:4] == ["x", "row", "kind", "part"] and len(found) == 12
    assert list(found["kind"]) == 2 * list(some["kind"]) and list(found["row"]) == 2 * [*range(6)]
    assert list(found["part"]) == 2 * ["n", "s", None, "n", "s", "s"]
    alone = posterior.predictions({"x": [0.0, 1.0]}, table=some, average=False, draws=S)
    np.testing.assert_array_equal(found["mean"], alone["mean"])
    changed = posterior.comparisons("x", by="kind", table=some, average=False, draws=S)
    assert list(changed["kind"]) == list(some["kind"])


def test_a_doubt_goes_with_every_answer(posterior):
    """Theta's sds were changed since the fit: `print` said so, and answers did not."""
    changed = copy(posterior)
    changed.notes = posterior.notes | {"theta_sd": 2 * posterior.notes["theta_sd"]}
    cells = {"user": ["u00"], "x": [0.0], "kind": ["a"], "age": [40.0], "n": [1]}
    answers = [
        lambda fit: fit.summary(draws=S),
        lambda fit: fit.predictions({"x": 0.0}, draws=S),
        lambda fit: fit.comparisons("x", draws=S),
        lambda fit: fit.poststratify(cells, draws=S),
    ]
    for ask in answers:
        assert "0.5 times those that the fit found" in " ".join(ask(changed).doubts)
        assert "times those" not in " ".join(ask(posterior).doubts)


def test_poststratification_weights_the_cells(posterior):
    cells = {"user": ["u00", "u01", "u01", "nobody"], "x": [0.0, 1.0, 0.5, 0.0], "n": [10, 1, 5, 5]}
    cells |= {"kind": ["a", "b", "a", "c"], "age": [30.0, 40.0, 50.0, 30.0]}
    own = means(posterior, pd.DataFrame(cells))
    found = posterior.poststratify(cells, by="kind", draws=S)
    assert list(found["kind"]) == ["a", "b", "c"] and list(found["n"]) == [15, 1, 5]
    np.testing.assert_allclose(found.draws[:, 0], (10 * own[:, 0] + 5 * own[:, 2]) / 15, rtol=1e-6)
    np.testing.assert_allclose(found.draws[:, 2], own[:, 3], rtol=1e-6)
    whole = posterior.poststratify(pd.DataFrame(cells), draws=S)
    np.testing.assert_allclose(whole.draws[:, 0], own @ [10, 1, 5, 5] / 21, rtol=1e-6)
    equal = posterior.poststratify(cells, weights=None, draws=S)
    np.testing.assert_allclose(equal.draws[:, 0], own.mean(1), rtol=1e-6)


@pytest.mark.parametrize(
    "change, options, said",
    [
        ({"n": [1, -1]}, {}, "has -1 in row 1"),
        ({"n": [1, 0]}, {"by": "kind"}, "of kind b are zero"),
        ({}, {"weights": "size"}, 'no column "size"'),
        ({}, {"by": "state"}, "state"),
        ({}, {"kind": "probability"}, "ordered"),
    ],
)
def test_poststratification_says_what_is_wrong(posterior, change, options, said):
    cells = {"user": ["u00", "u01"], "x": [0.0, 1.0], "kind": ["a", "b"], "age": [30.0, 40.0]}
    with pytest.raises(ValueError, match=said):
        posterior.poststratify({**cells, "n": [1, 1], **change}, **options)


def test_groups_may_be_set(posterior, table):
    """Every row as if it were of one user, or of a new one; alone and beside others."""
    among = posterior.predictions({"user": ["u01", "u02", "nobody"]}, by="kind", draws=S)
    assert len({*among["mean"]}) == 9
    for i, user in enumerate(("u01", "u02")):
        exact = means(posterior, table, user=user)[:, table.kind == "a"].mean(1)
        np.testing.assert_allclose(among.draws[:, 3 * i], exact, rtol=1e-5)
    lower, higher = (means(posterior, table, user="u02", x=x).mean(1) for x in (0.0, 1.0))
    found = posterior.comparisons({"x": [0, 1]}, {"user": ["u01", "u02"]}, draws=S)
    np.testing.assert_allclose(found.draws[:, 1], higher - lower, rtol=1e-4)


def test_columns_of_an_answer_have_one_meaning(posterior, table):
    other = table.assign(mean=table.kind, term=table.kind, region="west")
    with pytest.raises(ValueError, match=r'two columns "mean".*rename yours'):
        posterior.predictions(by="mean", table=other, draws=S)
    with pytest.raises(ValueError, match='two columns "term"'):
        posterior.comparisons("x", by="term", table=other, draws=S)
    with pytest.raises(ValueError, match=r'by="region" is no column of the formula.*pass table='):
        posterior.predictions(by="region", draws=S)
    assert posterior.predictions(by=["term", "region"], table=other, draws=S)["term"][0] == "a"
    with pytest.raises(ValueError, match='"user" is no predictor'):
        posterior.plot.predictions("x", by="user")


def test_none_is_no_value_and_not_that_of_the_row(posterior):
    """The rows kept their own groups, and their own x, where at= set them to None."""
    with pytest.raises(ValueError, match='"user" says which group .* is null in 160 of 320 rows'):
        posterior.predictions({"user": [None, "u03"]})
    with pytest.raises(ValueError, match='"x" of the table has no value in 160 rows'):
        posterior.predictions({"x": [1.0, None]})


def test_large_tables_are_sampled_with_what_is_set(posterior, table, monkeypatch):
    """Columns that a scenario sets had as many rows as the table before it was sampled."""
    monkeypatch.setattr("ramify.posterior.interpret._WORK", 0)
    many = pd.concat([table] * 10)
    found = posterior.comparisons("x", table=many, draws=S)
    assert found.said == ("averaged over a random sample of 1,000 of 1,600 rows",)
    exact = posterior.comparisons("x", draws=S)
    np.testing.assert_allclose(found["mean"], exact["mean"], atol=0.01)


def test_a_sample_of_rows_has_all_cells():
    """Each has its share, and a rare one no fewer than a hundred rows, or all that it has."""
    rng = np.random.default_rng(0)
    cell = rng.permutation(np.repeat(np.arange(4), [90_000, 9_000, 300, 3]))
    some = _sample(1, cell, 10_000)
    assert np.all(np.diff(some) > 0) and not np.array_equal(some, _sample(2, cell, 10_000))
    np.testing.assert_array_equal(np.bincount(cell[some]), [9063, 906, 100, 3])
    # Rows of a cell are equally likely.
    share = np.searchsorted(np.flatnonzero(cell == 0), some[cell[some] == 0]) / 90_000
    assert abs(share.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 9063)
    assert len(_sample(0, np.zeros(1600, int), 1000)) == 1000


def test_categories_have_the_levels_of_the_fit(posterior, table):
    """Also in a table that has other levels, or in another order."""
    for other in (table[table.kind != "a"], table[table.kind == "c"]):
        assert [*posterior.comparisons("kind", table=other, draws=S)["contrast"]] == [
            "b - a",
            "c - a",
        ]
    counts = table.assign(n=np.arange(len(table)) % 3)
    numbers = rf.fit("bought ~ x + C(n) + (1 | user)", counts, likelihood="bernoulli")
    found = numbers.comparisons(draws=S)
    assert [*found["contrast"]] == ["1 - 0", "2 - 0", "+1"]
    assert [*numbers.slopes(draws=S)["term"]] == ["x"]
    numbers.predictions(table="typical", groups="average", draws=S)


def test_rows_without_a_value_of_by_are_a_cell(posterior, table):
    part = np.where(np.arange(len(table)) % 4 == 0, None, "p")
    found = posterior.predictions(table=table.assign(part=part), by="part", draws=S)
    assert [*found["part"]] == ["p", None]
    cells = posterior.poststratify(table.assign(part=part), None, "part", draws=S)
    assert [*cells["part"]] == ["p", None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, t: p.predictions("x"), "at is 'x'; expected a dict"),
        (lambda p, t: p.predictions({"x": []}), 'at sets "x" to \\[\\]; expected a value'),
        (lambda p, t: p.predictions(by=3), "by is 3; expected the name of a column"),
        (lambda p, t: p.predictions(quantiles=0.5), "quantiles is 0.5; expected a list"),
        (lambda p, t: p.predictions(table=t[:0]), "table has no rows"),
        (lambda p, t: p.slopes("x", {"x": 1}), 'at= sets "x", which is what changes'),
        (lambda p, t: p.poststratify(t, None, kind="link"), 'kind must be "mean" or'),
        (lambda p, t: p.poststratify(t.assign(mean=1), "mean"), 'two columns "mean"'),
        (lambda p, t: p.poststratify(t.assign(n="1")), '"n" of cells holds .*; expected sizes'),
        (lambda p, t: p.poststratify(t.assign(n=1).drop(columns="x")), 'cells has no column "x"'),
    ],
)
def test_arguments_are_named_where_they_are_wrong(posterior, table, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(posterior, table)
