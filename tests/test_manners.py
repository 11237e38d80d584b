"""What an analyst expects of tables: kinds, names, missing columns, and what a notebook shows."""

import copy
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import numpyro_models
import ramify as rf
from ramify.cli.words import files
from ramify.inference.progress import Progress
from ramify.posterior.posterior import Posterior


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    user = np.repeat([f"u{i:02}" for i in range(20)], 8)
    x, kind = rng.normal(size=160), rng.choice(["a", "b"], 160)
    age = np.repeat(rng.uniform(20, 60, 20).round(), 8)
    eta = np.repeat(rng.normal(size=20), 8) + 0.8 * x - 0.5 * (kind == "b") + 0.02 * (age - 40)
    bought = rng.random(160) < 1 / (1 + np.exp(-eta))
    return pd.DataFrame({"user": user, "x": x, "kind": kind, "age": age, "bought": bought})


@pytest.fixture(scope="module")
def posterior(table):
    formula = "bought ~ x + kind + age + (1 | user)"
    return rf.fit(formula, table, likelihood="bernoulli", theta="gaussian")


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_rows_without_a_group_are_those_of_a_new_one(posterior, kind):
    at = {"x": np.zeros(3), "kind": ["a"] * 3, "age": np.array([30.0, 30.0, 50.0])}
    with pytest.warns(UserWarning, match='no column "user": predicted for one new group'):
        out = posterior.predict(kind(at), draws=50, kind="mean")
    new = posterior.predict({**at, "user": ["(new)"] * 3}, draws=50, kind="mean")
    assert list(getattr(out, "columns", out)) == [*at, "mean", "sd", "q5", "q50", "q95"]
    np.testing.assert_array_equal(out["mean"], new["mean"])
    assert out["mean"][0] == out["mean"][1] != out["mean"][2]  # one group for all rows


def test_a_misspelt_group_is_no_new_group(posterior):
    with pytest.raises(ValueError, match='no column "user".*Did you mean "usr"'):
        posterior.predict({"usr": ["u01"], "x": [0.0], "kind": ["a"], "age": [30.0]})
    with pytest.raises(ValueError, match='no column "user"'):
        posterior.predict({})
    empty = {"x": np.zeros(0), "kind": np.zeros(0, str), "age": np.zeros(0)}
    assert len(posterior.predict(empty)["mean"]) == 0


def test_a_summary_is_like_a_frame(posterior):
    summary = posterior.summary()
    frame = summary.to_pandas()
    assert list(summary) == list(frame) == summary.keys() and len(summary) == len(frame)
    assert summary.index == list(frame.index)
    assert summary.loc["x", "mean"] == frame.loc["x", "mean"] == summary["x"]["mean"]
    assert summary.loc[["x", "age"]].names == ["x", "age"] == summary[["x", "age"]].names
    np.testing.assert_array_equal(summary.loc[["x", "age"], "sd"], frame.loc[["x", "age"], "sd"])
    assert summary.to_frame("polars")["parameter"].to_list() == summary.names
    with pytest.raises(KeyError, match="'z' is neither a column nor a parameter.*Intercept"):
        summary["z"]


def test_a_summary_has_what_a_frame_has(posterior):
    summary = posterior.summary()
    frame = summary.to_pandas()
    assert summary.shape == frame.shape and summary.to_dict() == frame.to_dict()
    assert summary.sort_values("sd").index[0] == frame["sd"].idxmin()
    assert np.array_equal(np.asarray(summary), frame.to_numpy())
    assert pd.DataFrame(summary).shape == frame.shape
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        summary.nothing_of_that_name  # noqa: B018
    assert copy.deepcopy(summary).names == summary.names


def test_odds_ratios_are_those_of_the_draws(posterior):
    plain, ratios = posterior.summary(), posterior.summary(exponentiate=True)
    levels = ["q5", "q50", "q95"]
    for name in ("Intercept", "x", "kind[b]", "age"):
        exact = [np.exp(plain.loc[name, q]) for q in levels]
        np.testing.assert_allclose([ratios.loc[name, q] for q in levels], exact, rtol=1e-3)
    assert ratios["sd(Intercept | user)"] == plain["sd(Intercept | user)"]
    assert "odds ratios: exp of Intercept, x, kind[b], age" in repr(ratios)


def test_arviz_has_the_users_names(posterior, table):
    pytest.importorskip("arviz_base")
    tree = posterior.to_arviz(draws=10)
    draws = tree["posterior"]
    assert draws["effects"].dims == ("chain", "draw", "user", "effect")
    assert draws["sd"].sel(effect="Intercept").shape == (1, 10)
    assert tree["observed_data"]["bought"].sel(row=3) == table.bought[3]
    assert set(tree["posterior_predictive"].data_vars) == {"bought"}
    constant = tree["constant_data"]
    np.testing.assert_allclose(constant["x"].sel(row=[5, 80]), table.x[[5, 80]], rtol=1e-5)
    assert set(np.unique(constant["kind[b]"])) == {0.0, 1.0}
    ages = table.groupby("user").age.first()
    np.testing.assert_allclose(constant["age"].sel(user="u07"), ages["u07"], rtol=1e-5)
    assert draws["x"].dims == ("chain", "draw") and constant["x"].dims == ("row",)


def test_group_effects_of_a_numpyro_model():
    case = numpyro_models.radon()
    groups, model = case.groups(), case.make()
    posterior = Posterior(model, rf.branch(model, groups), groups)
    effects = posterior.group_effects(draws=100, seed=3)
    assert list(effects)[:5] == ["group", "n", "a_mean", "a_sd", "a_q5"]
    np.testing.assert_array_equal(effects["n"], groups.sizes)
    draws = posterior.sample(100, seed=3)["a"]
    np.testing.assert_allclose(effects["a_mean"], draws.mean(0), rtol=1e-5)
    np.testing.assert_allclose(effects["a_sd"], draws.std(0), rtol=1e-4)
    with pytest.raises(ValueError, match="totals=True is for models from formulas"):
        posterior.group_effects(totals=True)


@pytest.mark.slow
def test_notebooks_show_tables(posterior):
    shown = posterior.summary()._repr_html_()
    assert "<table" in shown and "sd(Intercept | user)" in shown
    assert posterior._repr_html_().startswith("<div><b>Posterior by solved")
    diagnosis = rf.diagnose(posterior, draws=50)
    assert f"Verdict: {diagnosis.verdict}" in diagnosis._repr_html_()
    assert all(name in diagnosis._repr_html_() for name in map(str, diagnosis.worst(5)["user"]))


def test_rows_of_a_csv_are_lines(tmp_path):
    text = 'column "x" of table has no value in row 3: impute it.'
    for name, said in (("a.csv", "a.csv has no value in line 5"), ("a.parquet", "in row 3")):
        with pytest.raises(ValueError, match=said), files(table=tmp_path / name):
            raise ValueError(text)


def test_nothing_warns_where_labels_are_there(posterior, table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(table.iloc[:2], draws=10)


@pytest.mark.parametrize(
    "formula, options, said",
    [
        ("age ~ x + (1 | user id)", {}, "backticks: `user id`"),
        ("age ~ X + (1 | user)", {}, r'Did you mean "x"\?\n'),
        ("age ~ x + (1 | user)", {"likelihood": "negbinomial"}, 'Did you mean "negative_binomial"'),
        (
            "age ~ x + (1 | user)",
            {"likelihood": "tweedie"},
            "ordered. For another .* rf.from_numpyro",
        ),
        ("age ~ x + (1 | user)", {"family": "poisson"}, "is likelihood= here"),
    ],
)
def test_names_of_other_packages_are_understood(table, formula, options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        rf.fit(formula, table, **options)


def test_doubts_go_with_loo(posterior):
    doubted = replace(posterior.loo("group", draws=100), doubts=("Verdict: check", "  - why"))
    assert repr(doubted).endswith("Verdict: check\n  - why") and "why" in doubted._repr_html_()
    other = replace(doubted, doubts=())
    assert "a: why" in repr(rf.compare({"a": doubted, "b": other}))


def test_effects_on_a_logarithm_are_ratios(table):
    model, _ = rf.from_formula("age ~ x + (1 | user)", table, likelihood="lognormal")
    assert model.adapter.ratios() == ("ratios of means", ["Intercept", "x"])


def test_a_notebook_shows_a_bar_and_takes_it_away(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(
        HTML=str, display=lambda html, display_id: shown.append(html) or handle
    )
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with Progress(None, 10, 100, None) as bar:
        bar.update(25, -30.0, None)
        bar.update(26, -30.0, None)  # too soon to be shown
    first, second, last = shown
    assert "compiling<" in first and "value=" not in first  # no seconds that stand still
    assert 'value="0.250"' in second and "step 25, ELBO" in second and last == ""
