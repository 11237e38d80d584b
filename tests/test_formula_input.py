"""What users get wrong with formulas, and the one sentence that they get for it."""

import warnings
from decimal import Decimal

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from ramify.frontends.formula.build import from_formula
from ramify.frontends.formula.priors import in_words

N = 40


def table(**columns):
    rng = np.random.default_rng(0)
    own = {
        "user": np.repeat([f"u{i}" for i in range(8)], 5),
        "x": rng.normal(size=N),
        "kind": np.tile(["a", "b", "c", "b"], 10),
        "y": rng.normal(size=N),
        "count": rng.poisson(3, N),
        "yes": rng.integers(0, 2, N),
        "n": np.full(N, 5),
    }
    return {**own, **columns}


def fails(error, message, formula="y ~ x + (1 | user)", data=None, **arguments):
    with pytest.raises(error, match=message) as found:
        from_formula(formula, table() if data is None else data, **arguments)
    return str(found.value)


def test_unknown_columns_suggest_near_names():
    text = fails(ValueError, 'no column "knd".*Did you mean "kind"', "y ~ knd + (1 | user)")
    assert text.splitlines()[1:] == ["  y ~ knd + (1 | user)", "      ^"]
    fails(ValueError, 'no column "usr".*Did you mean "user"', "y ~ x + (1 | usr)")
    fails(ValueError, 'no column "Y"', "Y ~ x + (1 | user)")
    fails(ValueError, 'no column "m"', "count | trials(m) ~ x + (1 | user)", likelihood="binomial")


def test_a_table_without_rows():
    none = {name: column[:0] for name, column in table().items()}
    fails(ValueError, "the table has no rows: expected one for each observation", data=none)


def test_unknown_functions_suggest_near_names():
    fails(ValueError, "unknown function 'sclae': did you mean scale", "y ~ sclae(x) + (1 | user)")
    fails(ValueError, "unknown function 'np.fromfile'", "y ~ np.fromfile(x) + (1 | user)")


@pytest.mark.parametrize("response", ["scale(y)", "center(y)", "log(standardize(y))", "poly(y, 2)"])
def test_responses_are_functions_of_their_own_row(response):
    name = response.removeprefix("log(").split("(")[0]
    formula = f"{response} ~ x + (1 | user)"
    text = fails(ValueError, rf"{name}\(\) can't be applied to the response: make a col", formula)
    assert text.splitlines()[-1].index("^") == 2 + formula.index(name)
    _, groups = from_formula("I(exp(y) + 1) ~ x + (1 | user)", table())
    np.testing.assert_allclose(groups.rows["y"], np.exp(table()["y"][groups.row_order]) + 1)


def test_what_the_grammar_has_not_points_at_the_part():
    text = fails(ValueError, "can't read 'exp", "y ~ exp(x) > 1 + (1 | user)")
    assert text.splitlines()[-1] == "      ^"
    fails(ValueError, "can't read 'bs", "y ~ bs(x, df=4):kind + (1 | user)")
    fails(ValueError, "can't be evaluated: df=2 is too small", "y ~ bs(x, df=2) + (1 | user)")


def test_missing_values_name_the_rows():
    x = table()["x"].copy()
    x[[3, 7]] = np.nan
    fails(
        ValueError,
        'column "x" of table has no value in rows 3 and 7: impute',
        data=table(x=x),
    )
    frame = pd.DataFrame(table())
    frame.loc[5, "kind"] = None
    fails(ValueError, '"kind" of table has no value in row 5', "y ~ kind + (1 | user)", frame)
    y = pl.Series([None] * 7 + [1.0] * 33)
    many = r"7 rows \(0, 1, 2, 3, 4, ...\)"
    fails(ValueError, f'column "y" of table has no value in {many}', data=pl.DataFrame(table(y=y)))
    user = table()["user"].astype(object)
    user[2] = None
    fails(ValueError, "null in 1 of 40 rows .rows 2.: drop", data=pd.DataFrame(table(user=user)))


def test_a_typing_error_in_a_column_of_numbers():
    x = table()["x"].astype(str)
    x[[3, 7]] = "oops", "n/a"
    says = "column \"x\" of table is text: 40 different values, and all are numbers but 'n/a', 'oops' in "
    fails(ValueError, says + "rows 3 and 7. Correct", data=table(x=x))
    fails(ValueError, 'column "y" of table is text', data=table(y=x))
    grade = np.tile([*map(str, range(1, 13)), "K", "1"], 3)[:N]
    from_formula("y ~ grade + (1 | user)", table(grade=grade))
    from_formula("y ~ x + (1 | user)", pd.DataFrame(table(x=pd.Categorical(x))))


def test_categories_that_are_none():
    n = 110
    rows = {"g": np.arange(n) % 9, "y": np.arange(n), "x": [f"row {i}" for i in range(n)]}
    says = 'column "x" has 110 different categories in 110 rows.*let effects vary by it, .1 . x.'
    fails(ValueError, says, "y ~ x + (1 | g)", rows)
    from_formula("y ~ x + (1 | g)", {name: column[:100] for name, column in rows.items()})


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table, dict])
def test_decimals_and_other_objects_that_are_numbers(kind):
    cents = np.round(100 * table()["x"])
    expected = from_formula("y ~ x + (1 | user)", table(x=cents / 100))[1]
    x = [Decimal(int(c)) / 100 for c in cents]
    found = from_formula("y ~ x + (1 | user)", kind(table(x=x, y=table()["y"].tolist())))[1]
    np.testing.assert_allclose(found.rows["X"], expected.rows["X"], rtol=1e-6)
    if kind is pd.DataFrame:
        mixed = pd.Series([*map(int, cents[:9]), *cents[9:]], dtype=object)
        from_formula("y ~ x + (1 | user)", kind(table(x=mixed, y=x)))
        mixed[[2, 5]] = None, Decimal("NaN")
        fails(ValueError, "no value in rows 2 and 5", data=kind(table(x=mixed)))


def test_infinite_and_strange_columns():
    x = table()["x"].copy()
    x[4] = np.inf
    fails(ValueError, 'column "x" of table is infinite in row 4', data=table(x=x))
    days = np.datetime64("2024-01-01") + np.arange(N)
    fails(
        TypeError,
        'column "x" of table holds Timestamp values; expected numbers',
        data=table(x=days),
    )
    fails(ValueError, r"values of shape \[2\]", data=table(x=np.zeros((N, 2))))


def test_a_column_that_the_formula_does_not_name_is_not_read():
    model, groups = from_formula("y ~ x + (1 | user)", table(other=[object()] * N))
    assert groups.n_rows == N and len(groups) == 8


def test_responses_outside_the_support_name_the_rows():
    bad = table()["count"].copy()
    bad[[1, 6]] = -2
    counts = "count ~ x + (1 | user)"
    says = "response count is -2 in rows 1 and 6; likelihood='poisson' takes whole numbers"
    fails(ValueError, says, counts, table(count=bad), likelihood="poisson")
    fails(ValueError, "negative_binomial", counts, table(count=bad), likelihood="negative_binomial")
    halves = table()["count"] + 0.5
    fails(ValueError, "whole numbers", counts, table(count=halves), likelihood="poisson")
    fails(ValueError, "response count is .* takes 0 or 1", counts, likelihood="bernoulli")
    over = table()["n"].copy()
    over[9] = 6
    says = "response n is 6 in row 9; likelihood='binomial' takes whole numbers between zero and"
    fails(ValueError, says, "n | trials(5) ~ (1 | user)", table(n=over), likelihood="binomial")
    fails(TypeError, "response kind holds text", "kind ~ x + (1 | user)")
    fails(ValueError, "kind has 3 levels", "kind ~ x + (1 | user)", likelihood="bernoulli")
    fails(ValueError, "yes has 2 levels", "yes ~ x + (1 | user)", likelihood="ordered")


def test_one_level_of_a_response():
    own = "kind[b] ~ x + (1 | user)"
    model, groups = from_formula(own, table(), likelihood="bernoulli")
    np.testing.assert_array_equal(groups.rows["y"], (table()["kind"] == "b")[groups.row_order])
    few = {name: column[[0, 2]] for name, column in table().items()}
    assert model.adapter.read(few, "given", outcomes=True).rows["y"].tolist() == [0, 0]
    says = "kind.z. is the same, 0, in every row.*Is the level misspelt"
    fails(ValueError, says, "kind[z] ~ x + (1 | user)", likelihood="bernoulli")


def test_too_many_levels():
    rows = {"g": np.repeat(np.arange(40), 5), "y": np.arange(200)}
    fails(ValueError, "200 different values", "y ~ (1 | g)", rows, likelihood="ordered")


def test_trials_and_weights():
    fails(ValueError, "needs the number of trials", "count ~ (1 | user)", likelihood="binomial")
    fails(ValueError, "trials are for likelihood='binomial'", "count | trials(n) ~ (1 | user)")
    w = np.ones(N)
    w[8] = -1
    fails(ValueError, '"w", the weights, is -1 in row 8', "y | weights(w) ~ (1 | user)", table(w=w))


def test_a_constant_column():
    fails(ValueError, r'"x" is constant \(2 in every row\)', data=table(x=np.full(N, 2.0)))
    one = np.full(N, "a")
    fails(ValueError, "kind", "y ~ kind + (1 | user)", table(kind=one))
    fails(ValueError, "response y is the same, 1, in every row", data=table(y=np.ones(N)))


def test_a_group_column_of_floats():
    user = np.repeat(np.arange(8.0), 5)
    fails(TypeError, 'column "user".*float', data=table(user=user))


def test_the_grouping_column_is_no_predictor():
    fails(ValueError, "'user' can't be a predictor", "y ~ user + (1 | user)")


@pytest.mark.parametrize(
    "effects",
    ["Intercept + (1 | user)", "0 + Intercept + (1 | user)", "x + (1 + Intercept | user)"],
)
def test_predictors_named_as_parameters(effects):
    says = 'predictor "Intercept" has the name of a parameter: rename the column'
    fails(ValueError, says, f"y ~ {effects}", table(Intercept=table()["x"]))


def test_perfect_separation_warns():
    x = np.linspace(-1, 1, N)
    with pytest.warns(UserWarning, match='"x" separates the response'):
        from_formula("yes ~ x + (1 | user)", table(x=x, yes=x > 0), likelihood="bernoulli")
    kind = table()["kind"]
    with pytest.warns(UserWarning, match=r'"kind\[b\]" separates'):
        yes = np.where(kind == "b", 1, table()["yes"])
        from_formula("yes ~ kind + (1 | user)", table(yes=yes), likelihood="bernoulli")


def test_unknown_likelihoods_and_links():
    fails(ValueError, "likelihood='normal' is unknown; there are gaussian", likelihood="normal")
    fails(
        ValueError,
        "link='log' does not go with likelihood='bernoulli'",
        "yes ~ (1 | user)",
        likelihood="bernoulli",
        link="log",
    )


def answers(column) -> pa.Table:
    return pa.table({"user": np.arange(6) % 2, "answer": column})


def test_text_levels_are_sorted_with_a_word_of_warning():
    text = ["low", "mid", "high"] * 2
    with pytest.warns(
        UserWarning, match="order of the alphabet: high < low < mid. Give an ordered"
    ):
        model, _ = from_formula("answer ~ (1 | user)", answers(text), likelihood="ordered")
    assert model.formula.levels == ["high", "low", "mid"]


def test_levels_of_an_ordered_arrow_type_keep_their_order(tmp_path):
    """As Parquet gives them back."""
    places = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2] * 2, pa.int8()), ["low", "mid", "high"], ordered=True
    )
    pq.write_table(answers(places), tmp_path / "answers.parquet")
    table = pq.read_table(tmp_path / "answers.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = from_formula("answer ~ (1 | user)", table, likelihood="ordered")
    assert model.formula.levels == ["low", "mid", "high"]


def test_ordered_has_no_place_for_a_missing_intercept():
    fails(
        ValueError,
        "cutpoints in place of an intercept",
        "count ~ 0 + x + (1 | user)",
        likelihood="ordered",
    )


@pytest.mark.parametrize(
    "priors, error, says",
    [
        ({"z": dist.Normal(0, 1)}, ValueError, "priors names 'z'"),
        ({"sd(Intercpt | user)": dist.HalfNormal(1)}, ValueError, "Did you mean sd\\(Intercept"),
        ({"x": 2.0}, TypeError, "expected a NumPyro distribution"),
        ({"x": dist.Normal(np.zeros(2), 1)}, ValueError, "has shape \\[2\\]"),
        ({"sd": dist.Normal(0, 1)}, ValueError, "allows negative numbers"),
        ({"sigma": dist.Cauchy(0, 1)}, ValueError, "sigma is positive"),
        ({"sd": dist.Uniform(-1, 5)}, ValueError, "allows negative numbers"),
        ({"x": dist.HalfNormal(1)}, ValueError, "numbers above 0 only; x may be any real number"),
        ({"x": dist.LogNormal(0, 1)}, ValueError, "use one such as dist.Normal\\(0, 1\\)"),
        ({"x": dist.Uniform(0, 1)}, ValueError, "= Uniform\\(0, 1\\) allows numbers from 0 to 1 only"),
        ({"b": dist.TruncatedNormal(0, 1, high=2.0)}, ValueError, "numbers below 2 only; x may be"),
        ({"Intercept": dist.Beta(2.0, 2.0)}, ValueError, "Intercept may be any real number"),
        ({"sd": dist.Uniform(0, 0.3)}, ValueError, "any positive number: use one such as dist.Half"),
        ({"sigma": dist.TruncatedNormal(0, 1, low=0.1)}, ValueError, "numbers above 0.1 only"),
        ({"x": dist.Poisson(2.0)}, ValueError, "Poisson\\(2\\) has no density; expected one such as"),
        ({"sigma": dist.Delta(1.0)}, ValueError, "has no density; .* dist.HalfNormal\\(1\\)"),
    ],
)  # fmt: skip
def test_priors_that_can_not_be(priors, error, says):
    fails(error, says, priors=priors)


def test_priors_may_be_text():
    given = {"x": "StudentT(3, loc=-0.5, scale=2)", "sd": "HalfNormal(1)", "cor": "LKJ(4)"}
    model, _ = from_formula("y ~ x + (x | user)", table(), priors=given)
    assert in_words(model.priors["x"]) == "StudentT(3, -0.5, 2)"
    assert in_words(model.priors["sd(x | user)"]) == "HalfNormal(1)"
    assert in_words(model.priors["cor"]) == "LKJCholesky(4)"
    for text, says in {
        "Normal(0, 1": "expected a distribution such as",
        "Normal": "expected a distribution such as",
        "Normal(0, x)": "expected a distribution such as",
        "__import__('os').system('true')": "expected a distribution such as",
        "Norml(0, 1)": "no such distribution of numbers. Did you mean Normal",
        "Normal(0, -1)": "NumPyro says",
        "Normal(0, 1, 2, 3)": "NumPyro says",
        "HalfNormal(1)": "x may be any real number",
    }.items():
        fails(ValueError, says, priors={"x": text})
    for text in ("LKJ(eta=4)", "LKJ(2, 4, 1)"):
        with pytest.raises(ValueError, match="expected the concentration alone, as in 'LKJ"):
            from_formula("y ~ x + (x | user)", table(), priors={"cor": text})


def test_priors_of_cutpoints_are_on_all_numbers():
    formula, ordered = "count ~ x + (1 | user)", {"likelihood": "ordered"}
    given = {"cutpoints": dist.HalfNormal(1)}
    fails(ValueError, "cutpoints may be any real number", formula, priors=given, **ordered)


def test_priors_on_the_whole_range_are_taken():
    positive = [
        *[
            dist.Exponential(1.0),
            dist.Gamma(2.0, 1.0),
            dist.LogNormal(0.0, 1.0),
            dist.HalfCauchy(1.0),
        ],
        *[
            dist.InverseGamma(1.0, 1.0),
            dist.TruncatedNormal(0.0, 1.0, low=0.0),
            dist.Weibull(1.0, 2.0),
        ],
        dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 1.0)),
    ]
    real = [dist.StudentT(3.0, 0.0, 1.0), dist.Laplace(0.0, 1.0), dist.Cauchy(0.0, 1.0)]
    given = [{"sigma": p, "sd": p} for p in positive] + [{"x": p, "Intercept": p} for p in real]
    for priors in given:
        model, _ = from_formula("y ~ x + (1 | user)", table(), priors=priors)
        assert all(prior in model.priors.values() for prior in priors.values())


@pytest.mark.parametrize(
    "name, kind",
    [("dict", dict), ("pandas", pd.DataFrame), ("polars", pl.DataFrame), ("pyarrow", pa.table)],
)
def test_every_kind_of_table_gives_the_same_columns(name, kind):
    formula = "y ~ x + kind + (x | user)"
    expected = from_formula(formula, table())[1]
    model, found = from_formula(formula, kind(table()))
    assert (
        model.formula.table
        == {"dict": "dict", "DataFrame": kind.__module__.split(".")[0], "table": "pyarrow"}[
            kind.__name__
        ]
    )
    assert found.labels.tolist() == expected.labels.tolist()
    for column, values in expected.rows.items():
        np.testing.assert_allclose(found.rows[column], values, rtol=1e-6)


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame, pa.table])
def test_rows_with_missing_values_are_dropped_if_asked(kind):
    x, user = table()["x"].copy(), table()["user"].astype(object)
    x[[3, 7]], user[7] = np.nan, None
    data = kind(table(x=x, user=user))
    with pytest.warns(UserWarning, match='dropped 2 of 40 rows.*"x" in 2, "user" in 1'):
        model, groups = from_formula("y ~ x + (1 | user)", data, missing="drop")
    with pytest.warns(UserWarning, match="numbered without them") as said:
        prior = rf.prior_predictive("y ~ x + (1 | user)", data, 2, missing="drop")
    assert prior.outcomes.shape == (2, 38)
    assert said[0].filename == __file__  # the line that called, not one of ours
    kept = np.setdiff1d(np.arange(N), [3, 7])
    np.testing.assert_allclose(np.sort(groups.rows["y"]), np.sort(table()["y"][kept]), rtol=1e-6)
    assert model.formula.table == ("dict" if kind is dict else kind.__module__.split(".")[0])


def test_nothing_is_dropped_where_nothing_is_missing():
    assert from_formula("y ~ x + (1 | user)", table(), missing="drop")[1].n_rows == N


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"priors": "Normal(0, 1)"},
            "priors is 'Normal.*expected a dict of names and distributions",
        ),
        ({"priors": {1: "Normal(0, 1)"}}, "expected a dict of names and distributions"),
        ({"weights": np.ones(4)}, "weights is a ndarray; expected the name of a column"),
        ({"trials": 3}, "trials is a int; expected the name of a column"),
    ],
)
def test_options_of_another_type(options, said):
    rows = {"g": [0, 0, 1, 1], "x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 0.0, 2.0, 1.0]}
    with pytest.raises(TypeError, match=said):
        rf.from_formula("y ~ x + (1 | g)", rows, **options)
