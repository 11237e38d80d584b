"""Results of a fit with several grouping factors, by the names of its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import ramify as rf
from levels_oracle import exact
from levels_tables import pretended, problem, table
from oracle import gaussian_log_density
from ramify.fitting.levels import start
from ramify.levels import shape
from ramify.levels.marginal import Marginal
from ramify.levels.search import search
from ramify.models.model import check_model_and_groups
from ramify.posterior.levels import LevelsPosterior


@pytest.fixture(scope="module")
def fitted():
    model, groups = rf.from_formula("y ~ x + (1 + x | a) + (1 | b) + (1 | c)", table())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape, "POINTS", 120)  # fewer than a fit has, to save time
        return rf.fit(model, groups)


def test_results_have_the_names_of_the_formula(fitted):
    names = "Intercept x sd(Intercept | a)|sd(x | a)|sd(Intercept | b)|sd(Intercept | c)|cor"
    assert fitted.summary().names == [
        "Intercept", "x", "sd(Intercept | a)", "sd(x | a)", "sd(Intercept | b)", "sd(Intercept | c)",
        "cor(Intercept, x | a)", "sigma",
    ], names  # fmt: skip
    effects = fitted.group_effects("b")
    assert list(effects["b"]) == list(range(7)) and effects["n"].sum() == 160
    S = len(fitted.pool.theta)
    totals, apart = (fitted.group_effects("a", totals=own, draws=S) for own in (True, False))
    assert set(totals) >= {"a", "n", "Intercept_mean", "x_q95"}
    np.testing.assert_allclose(totals["x_mean"] - apart["x_mean"], fitted.summary()["x"]["mean"])
    drawn = fitted.sample(50)
    assert drawn["effects(a)"].shape == (50, 20, 2) and drawn["effects(c)"].shape == (50, 4, 1)
    with pytest.raises(ValueError, match="no factor 'd'"):
        fitted.group_effects("d")


def test_effects_are_those_of_the_exact_posterior_at_its_mean(fitted):
    theta = np.mean(fitted.pool.theta, 0)
    truth = exact(fitted.model, fitted.design, theta)
    ours, sd = np.mean(fitted.pool.u, 0), np.sqrt(np.diag(truth.covariance_u))
    assert np.abs(ours - truth.u).max() < 0.25 * sd.max()  # theta's own spread is in ours
    z = fitted.sample(400)["effects(a)"].mean(0) / fitted.adapter.deviations(0, np.ones(2))
    assert np.sqrt(np.mean((z - truth.z) ** 2)) < 0.15 * np.std(truth.z)


def test_predictions_take_known_new_and_absent_levels(fitted):
    known = {"a": [0, 0], "b": [1, 1], "c": [0, 0], "x": [0.0, 1.0]}
    sd = lambda rows: np.asarray(fitted.predict(rows, kind="mean", draws=200)["sd"])
    new = {**known, "b": [100, 101]}
    none = {**known, "b": [1, None]}
    assert (sd(new) > 1.3 * sd(known)).all()
    assert sd(none)[1] > 1.3 * sd(none)[0]
    # Rows of one new level share its effect; those without a label do not.
    link = lambda rows: fitted.predict(rows, None, 200, kind="link", summary=False)
    shared = link({"a": [0, 0], "b": [100, 100], "c": [0, 0], "x": [0.0, 0.0]})
    np.testing.assert_allclose(shared[:, 0], shared[:, 1])
    own = link({"a": [0, 0], "b": [None, None], "c": [0, 0], "x": [0.0, 0.0]})
    assert np.corrcoef(own.T)[0, 1] < 0.95


def test_a_table_without_the_column_of_a_factor_is_warned_of(fitted):
    none = {"a": [0, 0], "b": [None, None], "c": [0, 0], "x": [0.0, 1.0], "y": [1.0, 2.0]}
    absent = {name: column for name, column in none.items() if name != "b"}
    with pytest.warns(
        UserWarning, match='at has no column "b": each of its rows gets a level of "b"'
    ):
        found = fitted.predict(absent, draws=50)
    np.testing.assert_array_equal(found["mean"], fitted.predict(none, draws=50)["mean"])
    with pytest.warns(UserWarning, match='at has no column "b"'):
        fitted.poststratify(absent, weights=None, draws=50)
    with pytest.warns(UserWarning, match='test has no column "b"'):
        fitted.log_predictive(None, absent, 50)


def test_a_row_without_a_label_has_one_level_in_all_scenarios(fitted):
    rows = {"a": [0, None, None], "b": [None] * 3, "c": [0, 1, 2], "x": [0.0] * 3, "y": [1.0] * 3}
    new = {**rows, "a": [0, 900, 901], "b": [900, 901, 902]}
    slope = fitted.comparisons({"x": [0, 1]}, table=new, draws=50).draws
    found = fitted.comparisons({"x": [0, 1]}, table=rows, draws=50).draws
    assert found.std() < 2 * slope.std()
    # Two rows without a label are of two groups.
    one = {**new, "a": [0, 900, 900]}
    each = [fitted.log_predictive(None, table, 50, "per_group") for table in (rows, new, one)]
    assert each[0] == pytest.approx(each[1], abs=1e-9)
    assert abs(each[0] - each[2]) > 0.01


def test_a_level_set_to_none_is_some_level(fitted):
    """The rows kept their own."""
    some = fitted.predictions({"b": [None, 1]}, draws=50)
    rows = {**table(), "b": np.full(160, None)}
    none = fitted.predict(rows, kind="mean", draws=50, summary=False)
    np.testing.assert_allclose(some["sd"][0], none.mean(1).std(), rtol=0.5)
    assert some["sd"][0] > 2 * fitted.predictions(draws=50)["sd"][0]


def test_no_rows_in_no_rows_out(fitted):
    rows = {name: column[:3] for name, column in table().items()}
    nothing = {name: column[:0] for name, column in rows.items()}
    assert len(fitted.predict(nothing, draws=20)["q95"]) == 0
    assert fitted.predict(nothing, draws=20, summary=False).shape == (20, 0)
    given = fitted.predict(rows, nothing, draws=20)
    np.testing.assert_array_equal(given["mean"], fitted.predict(rows, draws=20)["mean"])


def test_poststratification_weights_known_and_new_cells(fitted):
    cells = {"a": [0, 1, 77], "b": [1, 1, 99], "c": [0, 3, 0], "x": [0.0, 1.0, 0.0], "n": [3, 1, 2]}
    own = fitted.predict(cells, None, 40, kind="mean", summary=False)
    found = fitted.poststratify(cells, by="c", draws=40)
    assert list(found["c"]) == [0, 3] and list(found["n"]) == [5, 1]
    np.testing.assert_allclose(found.draws[:, 0], (3 * own[:, 0] + 2 * own[:, 2]) / 5)


def test_of_binomial_outcomes_poststratification_is_the_probability():
    rows = table()
    rows["tried"] = np.full(160, 20)
    for response in ("p(count, 20)", "p(count, tried)"):
        text = f"{response} ~ x + (1 | b) + (1 | c)"
        posterior = pretended(*rf.from_formula(text, rows, likelihood="binomial"))
        cells = {"b": [1, 2], "c": [0, 1], "x": [0.0, 1.0], "n": [3, 1]}
        link = posterior.predict({**cells, "tried": [1, 1]}, None, 40, kind="link", summary=False)
        probability = (1 / (1 + np.exp(-link))) @ [0.75, 0.25]
        found = posterior.poststratify(cells, draws=40).draws[:, 0]
        np.testing.assert_allclose(found, probability)


@pytest.mark.slow
def test_new_levels_are_conditioned_on_given_rows(fitted):
    at = {"a": [77], "b": [1], "c": [0], "x": [0.0]}
    given = {"a": [77] * 30, "b": [1] * 30, "c": [0] * 30, "x": [0.0] * 30, "y": [9.0] * 30}
    before, after = fitted.predict(at, kind="mean"), fitted.predict(at, given, kind="mean")
    assert after["sd"][0] < 0.5 * before["sd"][0] and abs(after["mean"][0] - 9.0) < 0.8
    with pytest.raises(ValueError, match='level of "b" is not one of the fit'):
        fitted.predict(at, {**given, "b": [55] * 30})


def test_a_saved_fit_says_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    loaded = rf.load(tmp_path / "fit")
    for name, column in fitted.summary().columns.items():
        np.testing.assert_allclose(loaded.summary().columns[name], column, rtol=1e-4, atol=1e-4)
    at = {"a": [0, 99], "b": [1, 1], "c": [0, 3], "x": [0.0, 1.0]}
    np.testing.assert_allclose(loaded.predict(at)["mean"], fitted.predict(at)["mean"], atol=1e-2)
    assert repr(loaded) == repr(fitted)


def test_what_is_not_there_yet_says_so(fitted):
    for method in ("elbo", "refine"):
        with pytest.raises(NotImplementedError, match="several grouping factors"):
            getattr(fitted, method)()
    for option in ({"local_draws": 4}, {"max_seconds": 1.0}, {"theta": "nuts"}):
        with pytest.raises(ValueError, match="= is for models with one grouping factor"):
            rf.fit(fitted.model, fitted.groups, **option)
    with pytest.raises(
        ValueError, match="rf.calibrate is not there yet .* several grouping factors"
    ):
        check_model_and_groups(fitted.model, fitted.groups, "rf.calibrate")
    with pytest.raises(ValueError, match="several"):
        rf.update(fitted, fitted.groups)
    with pytest.raises(Exception, match="algebra"):  # tests check types before
        rf.fit(fitted.model, fitted.groups, algebra="cholesky")


def test_questions_are_averages_of_predictions(fitted):
    rows = dict(fitted.adapter.table)
    mean = lambda **set_: fitted.predict({**rows, **set_}, kind="mean", summary=False, draws=50)
    own = fitted.comparisons({"x": [0, 1]}, draws=50)
    exact = (mean(x=np.ones(160)) - mean(x=np.zeros(160))).mean(1)
    np.testing.assert_allclose(own.draws[:, 0], exact, atol=1e-9)
    by = fitted.predictions(by="c", draws=50)
    np.testing.assert_allclose(by.draws[:, 1], mean()[:, rows["c"] == 1].mean(1), atol=1e-9)
    slope = fitted.sample_theta(50)["x"]
    for groups in ("average", "population"):
        found = fitted.slopes("x", groups=groups, draws=50).draws[:, 0]
        np.testing.assert_allclose(found, slope, atol=1e-6)
    new = fitted.predictions({"x": [0.0]}, table="typical", groups="new", draws=500)
    average = fitted.predictions({"x": [0.0]}, table="typical", groups="average", draws=500)
    assert new["sd"][0] > 1.5 * average["sd"][0]


def test_a_population_of_levels_is_averaged_over():
    model, groups = rf.from_formula(
        "yes ~ x + (1 + x | a) + (1 | b)", table(), likelihood="bernoulli"
    )
    posterior = pretended(model, groups)
    found = posterior.predictions({"x": [1.5]}, groups="population", draws=1).draws[0, 0]
    row = posterior._rows(1, 0)
    theta, effects = posterior.sample_theta(1), np.random.default_rng(0)
    sd = [theta[f"sd({name})"][0] for name in ("Intercept | a", "x | a", "Intercept | b")]
    cor = theta["cor(Intercept, x | a)"][0]
    noise = effects.normal(size=(3, 400_000))
    slope = sd[1] * (cor * noise[0] + np.sqrt(1 - cor**2) * noise[1])
    eta = (
        theta["Intercept"][0] + 1.5 * (theta["x"][0] + slope) + sd[0] * noise[0] + sd[2] * noise[2]
    )
    assert found == pytest.approx(np.mean(1 / (1 + np.exp(-eta))), abs=0.003) and len(row) == 1


def test_to_arviz_names_the_levels_of_every_factor(fitted):
    tree = fitted.to_arviz(draws=20)
    effects = tree["posterior"]["effects(a)"]
    assert effects.dims == ("chain", "draw", "a", "a_effect")
    assert list(effects["a_effect"].values) == ["Intercept", "x"]
    assert list(tree["posterior"]["effects(c)"]["c"].values) == [0, 1, 2, 3]
    assert tree["log_likelihood"]["y"].shape == (1, 20, 160)
    np.testing.assert_allclose(
        tree["observed_data"]["y"].values, fitted.adapter.observed(fitted.groups)
    )
    sigma = tree["posterior"]["sigma"].values[0]
    apart = tree["posterior_predictive"]["y"].values[0] - tree["observed_data"]["y"].values
    assert np.sqrt(np.mean(apart**2)) == pytest.approx(np.sqrt(2) * sigma.mean(), rel=0.15)


def test_log_densities_are_exact(fitted):
    from scipy.stats import norm

    rows, draws = table(), 40
    at = {name: rows[name][:5] for name in ("a", "b", "c", "x", "y")}
    eta = fitted.predict(at, kind="link", summary=False, draws=draws)
    sigma = fitted.sample_theta(draws)["sigma"]
    own = norm.logpdf(at["y"], eta, sigma[:, None])
    found = fitted.log_predictive(None, at, draws, "per_row")
    assert found == pytest.approx(np.log(np.exp(own).mean(0)).sum(), abs=1e-6)
    found = fitted.log_predictive(None, at, draws)
    assert found == pytest.approx(np.log(np.exp(own.sum(1)).mean()), abs=1e-6)
    whole = fitted.log_predictive(None, rows, 400, "per_row")
    left = fitted.loo(draws=400)
    assert left.total < whole and left.lpd.sum() == pytest.approx(whole, abs=2.0)
    groups = fitted.loo("group", draws=400)
    assert list(groups.labels) == list(range(20)) and (groups.elpd < groups.lpd).all()


def test_new_levels_of_the_integrated_factor_are_integrated_out(fitted):
    """Draws of their effects from the population are off by many nats."""
    rng, draws, n = np.random.default_rng(0), 400, 20
    rows = {"a": np.repeat([70, 71], 10), "b": np.arange(n) % 7, "c": np.arange(n) % 4}
    rows |= {"x": rng.normal(size=n)}
    rows["y"] = 3 + 0.5 * rows["x"] + np.where(rows["a"] == 70, 2, -rows["x"]) + rng.normal(size=n)
    none = [{} for _ in fitted.adapter.factors]
    design = fitted.adapter.read(rows, "test", none, outcomes=True).design
    pool, own = fitted.pool, fitted._rows(draws, 0)
    values, sigma = fitted.model.values(pool.theta[own]), fitted.sample_theta(draws)["sigma"]
    exact = np.empty((draws, 2))
    for s, k in enumerate(own):
        root = values["sd_0"][s][:, None] * values["cor_0"][s]
        apart = design.columns["y"] - design.without_z(pool.beta[k], pool.u[k])
        unit = np.log(sigma[s] / values["sigma"][s])
        for g in (0, 1):
            at = slice(10 * g, 10 * g + 10)
            cov = design.W[at] @ root @ root.T @ design.W[at].T
            cov += values["sigma"][s] ** 2 * np.eye(10)
            exact[s, g] = gaussian_log_density(apart[at], 0, cov) - 10 * unit
    found = fitted.log_predictive(None, rows, draws, "per_group")
    assert found == pytest.approx(np.log(np.exp(exact).mean(0)).sum(), abs=1e-6)
    found = fitted.log_predictive(None, rows, draws, "joint")
    assert found == pytest.approx(np.log(np.exp(exact.sum(1)).mean()), abs=1e-6)


def test_predictions_far_from_zero_are_exact():
    """Neighbours in float32 are 0.06 apart at a million."""
    rows = table()
    rows["far"] = 1e6 + 0.1 * rows["y"]
    posterior = pretended(*rf.from_formula("far ~ x + (1 | a) + (1 | b)", rows))
    drawn = posterior.predict(rows, summary=False, draws=60)
    found = posterior.predict(rows, draws=60)
    for name, column in [("mean", drawn.mean(0)), ("q5", np.quantile(drawn, 0.05, axis=0))]:
        np.testing.assert_allclose(found[name] - 1e6, column - 1e6, atol=1e-6)
    assert 0.05 < drawn.std() < 0.5


def test_a_saved_fit_refuses_another_formulas_model(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    text = "y ~ x + (1 + x | a) + (1 | b) + (1 | c)"
    rf.load(tmp_path / "fit", rf.from_formula(text, table())[0])
    others = {
        'and this model is of "y ~ w': rf.from_formula(text.replace("~ x", "~ w"), table()),
        "made from another table": rf.from_formula(text, table(seed=1)),
        "and this FormulaModel is not": rf.from_formula("y ~ x + (1 | a)", table()),
    }
    for message, (other, _) in others.items():
        with pytest.raises(ValueError, match=message):
            rf.load(tmp_path / "fit", other)


def test_few_effective_draws_are_warned_of(fitted):
    """Many later rows of a known level, of which the fit has few."""
    n = 400
    rows = {"a": np.zeros(n, int), "b": np.arange(n) % 7, "c": np.arange(n) % 4, "x": np.zeros(n)}
    rows["y"] = 6 + np.random.default_rng(0).normal(size=n)
    with pytest.warns(UserWarning, match=r"of 100 draws fewer than 10 are effective in 1 group,"):
        fitted.log_predictive(None, rows, 100, "per_group")


def test_a_report_has_a_section_for_every_factor(fitted, tmp_path):
    pytest.importorskip("plotly")
    page = rf.write_report(fitted, path=tmp_path / "report.html", draws=20).read_text()
    for name in ("Groups: a", "Groups: b", "Groups: c", "caterpillar.2-0", "sd(Intercept | b)"):
        assert name in page
    with pytest.raises(ValueError, match="leave groups out"):
        rf.write_report(fitted, {"y": [1.0]}, tmp_path / "other.html")


def test_pictures_are_by_factor(fitted):
    pytest.importorskip("plotly")
    plot = fitted.plot
    assert len(plot.groups("c").figure["data"]) and "by c" in plot.groups("c").caption
    for picture in (plot.effects(), plot.shrinkage(), plot.calibration(), fitted.check()):
        assert picture.figure["data"]
    with pytest.raises(ValueError, match='"x" does not vary by b'):
        plot.groups("b", "x")


def test_no_method_of_one_factor_is_inherited():
    # Those that ask other methods only.
    shared = {"poststratify", "predictions", "comparisons", "slopes", "check"}
    for name in {name for name in dir(rf.Posterior) if not name.startswith("_")} - shared:
        owner = next(one for one in LevelsPosterior.__mro__ if name in vars(one))
        assert owner.__name__.startswith("Levels"), name


def test_x64_is_as_it_was(fitted):
    fitted.predict({"a": [0], "b": [1], "c": [0], "x": [0.0]})
    assert jnp.zeros(1).dtype == jnp.float32 and not jax.config.jax_enable_x64


FAMILIES = {
    "skew_normal": {"sigma": 0.8, "alpha": 3.0},
    "gamma": {"shape": 3.0},
    "exponential": {},
    "weibull": {"shape": 1.5},
    "beta": {"phi": 8.0},
    "beta_binomial": {"phi": 8.0},
    "zero_inflated_poisson": {"zi": 0.3},
    "hurdle_poisson": {"hu": 0.3},
    "hurdle_negative_binomial": {"hu": 0.3, "shape": 2.0},
    "zero_inflated_negative_binomial": {"zi": 0.3, "shape": 2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", FAMILIES)
def test_all_likelihoods_find_the_truth(likelihood):
    from ramify.frontends.formula.likelihoods import LIKELIHOODS

    rng, n = np.random.default_rng(1), 3000
    a, b, x = rng.integers(0, 60, n), rng.integers(0, 40, n), rng.normal(size=n)
    eta = 0.6 + 0.4 * x + 0.5 * rng.normal(size=60)[a] + 0.4 * rng.normal(size=40)[b]
    family, own = LIKELIHOODS[likelihood], FAMILIES[likelihood]
    link = family.links[0]
    inverse = {"identity": lambda eta: eta, "log": np.exp, "logit": expit}
    mean = inverse[link](eta)
    y = family.draw(rng, eta, mean, {**own, "trials": np.full(n, 10)})
    rows = {
        "a": a,
        "b": b,
        "x": x,
        "y": np.clip(y, 1e-6, 1 - 1e-6) if link == "logit" and y.max() < 1 else y,
    }
    response = "p(y, 10)" if likelihood == "beta_binomial" else "y"
    posterior = rf.fit(f"{response} ~ x + (1 | a) + (1 | b)", rows, likelihood=likelihood)
    truth = {"x": 0.4, "sd(Intercept | a)": 0.5, "sd(Intercept | b)": 0.4, **own}
    summary = posterior.summary()
    for name, value in truth.items():
        assert abs(summary[name]["mean"] - value) < 4 * summary[name]["sd"], name
    expected = posterior.predict(rows, kind="mean", draws=100)["mean"]
    assert np.mean(expected) == pytest.approx(np.mean(rows["y"]), rel=0.1)


@pytest.mark.slow
def test_a_profile_is_moved_to_the_means_of_the_marginal(monkeypatch):
    model, design = problem("y ~ x + (1 + x | a) + (1 | b)")
    G = Marginal(model, design)
    found = search(G, start(model))
    direct = shape.cloud(G, found, 0)
    monkeypatch.setattr(shape, "CHEAP", 0.0)
    monkeypatch.setattr(shape, "CHEAP_WIDE", 0.0)
    moved = shape.cloud(G, found, 0)
    assert "theta_corrected" in moved.notes
    mean, own = (cloud.weight @ cloud.points for cloud in (direct, moved))
    sd = np.sqrt(direct.weight @ (direct.points - mean) ** 2)
    known = sd < 1  # the log of one sd has no left end, and its mean is noisy in both
    assert known.sum() == 4
    assert (np.abs(own - mean) < 0.12 * sd)[known].all()  # 0.19 without the correction


def test_a_fit_is_not_judged_by_draws_or_other_data(fitted):
    for options in ({"draws": 100}, {"groups": fitted.groups.subset(positions=[0, 1])}):
        with pytest.raises(ValueError, match="judged by its own notes.*without groups= and draws="):
            rf.diagnose(fitted, **options)
