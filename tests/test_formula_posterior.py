"""Results of a formula fit: names, tables of groups, predictions from raw columns, files."""

import json

import equinox as eqx
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file
from scipy import stats

import ramify as rf
from quick import slow
from ramify.data.tables import column_names
from ramify.posterior.prediction import categories_of
from ramify.report.page import worst_of
from tampering import resealed

S = 50  # draws, always as many: another number would be compiled again
FORMULA = "sold ~ scale(x) + poly(w, 2) + kind*size + age + (x | shop)"
PRIORS = {"age": dist.Normal(0, 0.5), "cor": dist.LKJ(2, 2.0), "sd": dist.HalfNormal(2)}
NAMES = [
    *["Intercept", "scale(x)", "poly(w, 2)[0]", "poly(w, 2)[1]", "kind[b]", "size[small]"],
    *["kind[b]:size[small]", "age", "sd(Intercept | shop)", "sd(x | shop)", "cor(Intercept, x | shop)"],
]  # fmt: skip


def data(N=30, seed=0):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(N), rng.integers(3, 9, N))
    n = len(shop)
    table = {
        "shop": np.array([f"s{i}" for i in shop]),
        "x": rng.normal(2, 1, n),
        "w": rng.uniform(0, 3, n),
        "kind": rng.choice(["a", "b"], n),
        "size": rng.choice(["small", "large"], n),
        "age": rng.normal(0, 1, N).round(2)[shop],
    }
    own = rng.normal(0, [0.7, 0.3], (N, 2))[shop]
    rate = 0.5 + 0.3 * table["x"] + 0.4 * table["age"] + own[:, 0] + own[:, 1] * table["x"]
    table["sold"] = rng.poisson(np.exp(rate + 0.3 * (table["kind"] == "b")))
    return pd.DataFrame(table)


@pytest.fixture(scope="module")
def table():
    return data()


@pytest.fixture(scope="module")
def made(table):
    return rf.from_formula(FORMULA, table, likelihood="poisson", priors=PRIORS)


@pytest.fixture(scope="module")
def fitted(made):
    return rf.fit(*made, local_draws=16, seed=0)  # few: it is not about accuracy


@pytest.fixture(scope="module", params=["as it starts", slow("fitted")])
def posterior(request, made):
    """The default run takes the family as it starts, and fits nothing."""
    if request.param == "fitted":
        return request.getfixturevalue("fitted")
    model, groups = made
    return rf.Posterior(model, rf.solved(model, groups), groups, local_draws=16)


@pytest.fixture(scope="module")
def at(table):
    """Rows of two known shops and of a new one, without the outcome."""
    rows = table.drop(columns="sold").iloc[[0, 20, 40, 0]].reset_index(drop=True)
    return rows.assign(shop=[rows.shop[0], rows.shop[1], "new", rows.shop[0]])


def test_summary_has_a_statisticians_names(posterior):
    summary = posterior.summary(draws=2000)
    assert summary.names == NAMES
    assert {"mean", "sd", "q5", "q50", "q95"} <= set(summary.columns)
    assert np.all(summary["q5"] < summary["q95"])
    draws = posterior.sample_theta(2000)
    np.testing.assert_allclose(draws["age"].mean(), summary["age"]["mean"], atol=0.02)


@pytest.mark.slow
def test_a_fit_finds_the_effect_of_a_covariate(fitted):
    assert 0.1 < fitted.summary(draws=2000)["age"]["mean"] < 0.7


@pytest.mark.slow
def test_intervals_periods_and_dates_are_saved_as_their_texts(tmp_path):
    table = data(8)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(len(table)) % 3, "D")
    period = pd.Categorical(pd.PeriodIndex(day, freq="D"))
    table = table.assign(band=pd.cut(table.x, 3), day=period, part=pd.qcut(table.w, 4))
    posterior = rf.fit(*rf.from_formula("x ~ band + day + (1 | shop)", table), local_draws=16)
    bands = [str(level) for level in table.band.cat.categories[1:]]
    assert posterior.summary().names[1:3] == [f"band[{band}]" for band in bands]
    posterior.save(tmp_path / "fit")
    again = rf.load(tmp_path / "fit")
    found = again.predict(table[:3], draws=S)["mean"]
    texts = table[:3].astype({"band": str, "day": str})
    np.testing.assert_array_equal(again.predict(texts, draws=S)["mean"], found)
    ordered, _ = rf.from_formula("part ~ x + (1 | shop)", table, likelihood="ordered")
    assert ordered.formula.levels == [str(level) for level in table.part.cat.categories]


@pytest.mark.parametrize("zone", ["Europe/Rome", "+02:00", None])
@pytest.mark.parametrize("kind", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])
def test_times_that_label_groups_keep_their_zone(kind, zone):
    table = data(4)
    day = pd.date_range("2024-03-30", periods=4, tz=zone)
    table = kind(table.assign(shop=day[pd.factorize(table.shop)[0]]))
    model, groups = rf.from_formula("x ~ w + (1 | shop)", table)
    draws = {"effects": np.zeros((2, 4, 1)), "Intercept": np.zeros(2), "sd": np.ones((2, 1))}
    found = model.adapter.group_effects([(groups.labels, draws)], groups.sizes, False, (0.5,))
    arrow = [pa.table(t).column("shop") for t in (found, table)]
    assert arrow[0].type == arrow[1].type
    assert arrow[0].to_pylist() == sorted(set(arrow[1].to_pylist()))


@pytest.mark.slow
def test_a_grouping_column_named_as_one_of_the_results():
    table = data(8).rename(columns={"shop": "n"})
    posterior = rf.fit(*rf.from_formula("x ~ w + (1 | n)", table), local_draws=16)
    effects = posterior.group_effects(draws=S)
    assert effects.columns[:2].tolist() == ["n", "group_n"]
    assert dict(zip(effects.n, effects.group_n, strict=True)) == table.groupby("n").size().to_dict()
    found = rf.diagnose(posterior)
    sizes = {row[0]["text"]: row[1]["value"] for row in worst_of(found)["rows"]}
    worst = found.worst()
    assert sizes == dict(zip(worst["n"].tolist(), worst["group_n"].tolist(), strict=True))


@pytest.fixture(scope="module")
def link(posterior, at):
    return posterior.predict(at, draws=S, kind="link", summary=False)


def test_group_effects_are_deviations_or_totals(posterior, table):
    deviations = posterior.group_effects(draws=S)
    totals = posterior.group_effects(totals=True, draws=S)
    assert isinstance(deviations, pd.DataFrame) and len(deviations) == 30
    assert deviations.shop.tolist() == sorted(set(table.shop))
    sizes = table.shop.value_counts()
    assert deviations.n.tolist() == [sizes[label] for label in deviations.shop]
    effect = posterior.sample_theta(S)
    # x varies by shop, and the common column is scale(x): (x - mean) / sd
    slope = effect["scale(x)"].mean() / table.x.std(ddof=0)
    common = effect["Intercept"].mean() - slope * table.x.mean()
    np.testing.assert_allclose(totals.Intercept_mean - deviations.Intercept_mean, common, rtol=1e-4)
    np.testing.assert_allclose(totals.x_mean - deviations.x_mean, slope, atol=1e-6)
    draws = posterior.sample(S)["effects"]
    np.testing.assert_allclose(draws[:, :, 1].std(0), deviations.x_sd, rtol=1e-5)


def test_predictions_come_back_as_the_table_that_went_in(posterior, at, link):
    found = posterior.predict(at, draws=S, kind="link")
    assert list(found.columns) == [*at.columns, "mean", "sd", "q5", "q50", "q95"]
    pd.testing.assert_frame_equal(found[at.columns], at)
    np.testing.assert_allclose(found["mean"], link.mean(0), rtol=1e-5)  # from the seed alone
    assert not np.allclose(
        found["mean"], posterior.predict(at, draws=S, seed=1, kind="link")["mean"]
    )
    for kind in (pl.from_pandas, pa.Table.from_pandas):
        other = posterior.predict(kind(at), draws=S, kind="link")
        assert type(other) is type(kind(at))
        np.testing.assert_array_equal(np.asarray(other["mean"]), found["mean"])


def test_known_groups_use_their_rows_and_new_ones_none(link):
    spread = link.std(0)
    assert spread[2] > 2 * spread[:2].max()
    np.testing.assert_array_equal(link[:, 0], link[:, 3])  # the same shop and row


def test_a_known_group_may_be_asked_about_another_value_of_its_covariate(posterior, at, link):
    older = posterior.predict(at.assign(age=at.age + 1), draws=S, kind="link", summary=False)
    effect = posterior.sample_theta(S)["age"]
    np.testing.assert_allclose(older - link, np.repeat(effect[:, None], 4, 1), atol=1e-4)


@pytest.mark.slow
def test_kinds_of_prediction(posterior, at, link):
    mean = posterior.predict(at, draws=S, kind="mean", summary=False)
    np.testing.assert_allclose(mean, np.exp(link), rtol=1e-4)
    outcome = posterior.predict(at, draws=S, summary=False)
    assert outcome.dtype.kind == "i" and outcome.min() >= 0
    np.testing.assert_allclose(outcome.mean(0), mean.mean(0), rtol=0.5)


@pytest.mark.slow
def test_new_groups_are_conditioned_on_what_is_given(posterior, table, at):
    given = table[table.shop == at.shop[0]].assign(shop="new")
    twin = at.iloc[[0, 0]].assign(shop=[at.shop[0], "new"])
    known = posterior.predict(twin, given, draws=400, kind="link")
    np.testing.assert_allclose(known["mean"].iloc[0], known["mean"].iloc[1], atol=0.15)
    np.testing.assert_allclose(known["sd"].iloc[0], known["sd"].iloc[1], rtol=0.3)
    few = posterior.group_effects(table[table.shop.isin(["s1", "s7"])], draws=400)
    assert few.shop.tolist() == ["s1", "s7"]


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "dict"])
def test_no_rows_are_predicted_as_none(posterior, at, library):
    make = {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas, "dict": pd.DataFrame.to_dict}
    none = at.head(0) if library == "pandas" else make[library](at.head(0))
    found = posterior.predict(none)
    assert column_names(found) == [*at.columns, "mean", "sd", "q5", "q50", "q95"]
    assert len(found["mean"]) == 0 and type(found) is type(none)
    assert posterior.predict(none, draws=S, summary=False).shape == (S, 0)


@pytest.mark.slow
def test_no_rows_given_are_none(posterior, table, at):
    alone = posterior.predict(at, draws=S)
    pd.testing.assert_frame_equal(posterior.predict(at, table.head(0), draws=S), alone)


def test_predictions_refuse_bad_rows(posterior, table, at):
    with pytest.raises(ValueError, match="\"kind\" of at is 'z' in row 2, a category that the fit"):
        posterior.predict(at.assign(kind=["a", "a", "z", "b"]))
    with pytest.raises(ValueError, match='column "w" of at has no value in row 1'):
        posterior.predict(at.assign(w=[1.0, None, 2.0, 1.0]))
    with pytest.raises(ValueError, match='at has no column "w"'):
        posterior.predict(at.drop(columns="w"))
    with pytest.raises(ValueError, match='no column "sold"'):
        posterior.predict(at, given=at)


@pytest.mark.slow
def test_given_rows_may_vary_where_those_of_the_fit_did_not(fitted, table, at):
    """Each row counts with its own age, so that their order says nothing."""
    given = table.iloc[:6].assign(shop="new", age=np.linspace(-1, 1, 6))
    found = fitted.predict(at, given, draws=400, kind="link")
    again = fitted.predict(at, given[::-1], draws=400, kind="link")
    noise = found["sd"] / np.sqrt(400)
    assert np.all(np.abs(again["mean"] - found["mean"]) < 4 * noise)
    alike = fitted.predict(at, given.assign(age=-1.0), draws=400, kind="link")
    assert alike["mean"][2] - found["mean"][2] > 0.15  # then their shop has to explain what age did
    judged = rf.diagnose(fitted, fitted.model.groups(given), draws=50)
    assert judged.labels.tolist() == ["new"] and judged.group_k_hat[0] < 0.7


@pytest.mark.slow
def test_test_rows_may_differ_where_those_of_the_fit_did_not(posterior, table):
    """Their density is that of the outcomes that predict says they have."""
    test = table[table.shop.isin(["s1", "s2", "s3"])]
    test = test.assign(age=test.age + np.arange(len(test)) % 2 + 0.5)
    link = posterior.predict(test, draws=400, kind="link", summary=False)
    rows = stats.poisson(np.exp(link)).logpmf(test.sold)
    expected = np.sum(np.logaddexp.reduce(rows, 0) - np.log(400))
    found = posterior.log_predictive(None, test, draws=400, form="per_row")
    assert found == pytest.approx(expected, abs=0.01)  # of the same draws
    by_rule = posterior.log_predictive(None, test, draws=400, form="per_group")
    drawn = posterior.log_predictive(None, test, draws=2000, form="per_group", local_draws=64)
    assert abs(by_rule - drawn) < 4 * np.hypot(by_rule.se, drawn.se)
    same = posterior.log_predictive(None, test.assign(age=table.age[test.index]), form="per_group")
    if posterior.notes:  # a fit, whose theta is known: the age of test rows does matter
        assert abs(same - drawn) > 8 * drawn.se


def test_a_saved_fit_predicts_the_same_without_a_model(posterior, at, link, tmp_path):
    posterior.save(tmp_path / "fit")
    again = rf.load(tmp_path / "fit")
    assert eqx.tree_equal(again.model, posterior.model)
    assert repr(again.model) == repr(posterior.model)
    assert repr(again.model.priors) == repr(posterior.model.priors)
    np.testing.assert_array_equal(again.predict(at, draws=S, kind="link", summary=False), link)
    pd.testing.assert_frame_equal(again.group_effects(draws=S), posterior.group_effects(draws=S))
    assert repr(again.summary(draws=2000)) == repr(posterior.summary(draws=2000))
    config = json.loads((tmp_path / "fit/config.json").read_text())
    assert config["formula"] == FORMULA and config["likelihood"] == "poisson"
    assert config["priors"]["age"] == {
        "distribution": "Normal",
        "parameters": {"loc": 0.0, "scale": 0.5},
    }
    again.save(tmp_path / "again")  # and what was loaded can be saved
    assert repr(rf.load(tmp_path / "again")) == repr(posterior)


def test_rows_of_another_fit_are_refused(posterior, tmp_path):
    posterior.save(tmp_path / "fit")
    path = tmp_path / "fit/rows.safetensors"
    arrays = load_file(path)
    one, sizes = next(n for n in arrays if n.startswith("rows/")), arrays["sizes"].copy()
    sizes[-1] -= 1
    cut = lambda *kinds: {n: a[:-1] if n.startswith(kinds) else a for n, a in arrays.items()}
    for other in (
        cut("sizes", "number"),
        {**arrays, "sizes": sizes},
        {**cut("rows/", "row_order"), "sizes": sizes},  # in itself as it should be
        {n: a for n, a in arrays.items() if n != one},
        {**arrays, "rows/another": arrays["row_order"]},
    ):
        save_file(other, path)
        resealed(tmp_path / "fit")
        with pytest.raises(ValueError, match="rows.safetensors does not have the .* not belong"):
            rf.load(tmp_path / "fit")
    save_file({n: a for n, a in arrays.items() if n != "sizes"}, path)
    resealed(tmp_path / "fit")
    with pytest.raises(ValueError, match="rows.safetensors is .*damaged|does not have the groups"):
        rf.load(tmp_path / "fit")


def test_damaged_formula_fits_are_refused(posterior, tmp_path):
    posterior.save(tmp_path / "fit")
    config = tmp_path / "fit/config.json"
    text = config.read_text()
    config.write_text(text[:500])
    with pytest.raises(ValueError, match="config.json is damaged"):
        rf.load(tmp_path / "fit")
    config.write_text(text.replace("poly(w, 2)", "np.save(w, 2)"))
    resealed(tmp_path / "fit")
    with pytest.raises(ValueError, match="unknown function|config.json is damaged or not"):
        rf.load(tmp_path / "fit")
    config.unlink()
    resealed(tmp_path / "fit")
    with pytest.raises(ValueError, match="was not made from a formula: bring its model"):
        rf.load(tmp_path / "fit")


@pytest.mark.slow
def test_metrics_and_arviz_take_a_formula_fit(posterior, table):
    held = posterior.log_predictive(None, table.iloc[:20], draws=50, form="per_row")
    assert np.isfinite(held)
    tree = posterior.to_arviz(draws=5)
    np.testing.assert_allclose(
        np.sort(tree["observed_data"]["sold"].values), np.sort(table.sold.to_numpy())
    )
    assert tree["posterior"]["effects"].shape == (1, 5, 30, 2)


def test_probabilities_are_for_ordered_levels_only(posterior, at):
    with pytest.raises(
        ValueError, match="is for likelihood='ordered' and 'categorical'; for 'poisson'"
    ):
        posterior.predict(at, kind="probability")
    with pytest.raises(ValueError, match="kind to be one of .*; got 'probabilities'"):
        categories_of(posterior.adapter, "probabilities")
