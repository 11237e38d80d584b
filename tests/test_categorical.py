"""Categorical responses: their density, probabilities, formulas of single levels, and what is refused."""

import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.data.resident import whole
from ramify.families.build import solved
from ramify.posterior.posterior import Posterior

RNG = np.random.default_rng(0)
N = 8
TABLE = {"g": np.repeat(np.arange(N), 6), "x": RNG.normal(size=48)}
TABLE["way"] = RNG.choice(["by bus", "car", "walk"], 48)
TABLE["way"][:3] = ["by bus", "car", "walk"]


@pytest.fixture(scope="module")
def fit():
    """A family as it is before any fit."""
    made = rf.from_formula("way ~ x + (1 | g)", TABLE, likelihood="categorical")
    return Posterior(made[0], solved(*made), made[1], local_draws=4)


def test_the_density_is_a_softmax_against_the_first_level(fit):
    rng, model, batch = np.random.default_rng(1), fit.model, whole(fit.groups)
    theta = 0.5 * rng.normal(size=model.theta.size).astype(np.float32)
    z = rng.normal(size=(N, 2)).astype(np.float32)
    named = {n: v[0] for n, v in fit.adapter.global_values(theta[None]).items()}
    effects = np.asarray(fit.adapter.local_values(theta, z, batch)["effects"])[TABLE["g"]]
    x, eta = TABLE["x"], [np.zeros(48)]
    for k, level in enumerate(("car", "walk")):
        common = named[f"mu{level}_Intercept"] + named[f"mu{level}_x"] * x
        eta.append(common + effects[:, k])
    code = np.searchsorted(["by bus", "car", "walk"], TABLE["way"])
    expected = dist.Categorical(logits=np.stack(eta, 1)).log_prob(code)
    found = model.log_lik(theta, batch.at_rows(z), batch)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_probabilities_are_those_of_the_outcomes(fit):
    at = {"g": [0, 3], "x": [0.5, -1.0]}
    table = fit.predict(at, draws=2000, kind="probability")
    levels = ["by bus", "car", "walk"]
    mean = np.stack([table[f"{level}_mean"] for level in levels])
    np.testing.assert_allclose(mean.sum(0), 1, rtol=1e-5)
    drawn = fit.predict(at, draws=2000, summary=False)
    share = np.stack([(drawn == k).mean(0) for k in range(3)])
    assert np.abs(share - mean).max() < 5 * np.sqrt(0.25 / 2000)


@pytest.mark.slow
def test_probabilities_of_a_loaded_fit_contrasts_and_pictures(fit, tmp_path):
    at, levels = {"g": [0, 3], "x": [0.5, -1.0]}, ["by bus", "car", "walk"]
    fit.save(tmp_path / "fit")
    again = rf.load(tmp_path / "fit").predict(at, draws=100, kind="probability")
    first = fit.predict(at, draws=100, kind="probability")
    np.testing.assert_allclose(again["walk_mean"], first["walk_mean"], rtol=1e-5)
    answer = fit.comparisons({"x": [0.0, 1.0]}, kind="probability", groups="average", draws=100)
    assert list(answer["category"]) == levels and abs(answer["mean"].sum()) < 1e-5
    assert len(fit.plot.predictions("x", kind="probability").figure["data"]) == 9


def test_levels_may_have_formulas_of_their_own():
    text = "way ~ x + (1 | g); muwalk ~ 1"
    model, groups = rf.from_formula(text, TABLE, likelihood="categorical")
    assert [*model.priors] == [
        *("mucar_Intercept", "mucar_x", "sd(mucar_Intercept | g)", "muwalk_Intercept")
    ]
    assert model.z.size == 1 and set(groups.rows) >= {"y", "mucar_X", "mucar_W"}
    with pytest.raises(ValueError, match="expected a level before ~, one of mucar, muwalk"):
        rf.from_formula("way ~ x + (1 | g); mubus ~ 1", TABLE, likelihood="categorical")


def test_what_categories_do_not_have_is_told(fit):
    with pytest.raises(ValueError, match='categories have none: use kind="probability"'):
        fit.predictions()
    with pytest.raises(ValueError, match='no mean makes sense: use kind="probability"'):
        fit.predict({"g": [0], "x": [0.5]}, draws=10)
    with pytest.raises(
        ValueError, match="has 2 levels; .* three or more: use likelihood='bernoulli'"
    ):
        two = TABLE | {"way": np.where(TABLE["x"] > 0, "a", "b")}
        rf.from_formula("way ~ x + (1 | g)", two, likelihood="categorical")
    with pytest.raises(TypeError, match="for others 'categorical'"):
        rf.from_formula("way ~ x + (1 | g)", TABLE)
    with pytest.raises(ValueError, match="takes one grouping factor"):
        several = TABLE | {"h": TABLE["g"] % 3}
        rf.from_formula("way ~ x + (1 | g) + (1 | h)", several, likelihood="categorical")
    alike = TABLE | {"way": np.resize(["a", "b c", "bc"], 48)}
    with pytest.raises(ValueError, match="would be called alike"):
        rf.from_formula("way ~ x + (1 | g)", alike, likelihood="categorical")


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [False, True])
def test_pictures_of_categories_count_levels(fit, numbers, tmp_path):
    """Bars are the rows of each level, and bins of probabilities hold all rows."""
    pytest.importorskip("plotly")
    if numbers:  # levels that are numbers, not in steps of one
        table = TABLE | {
            "way": np.array([1, 5, 7])[np.unique(TABLE["way"], return_inverse=True)[1]]
        }
        made = rf.from_formula("way ~ x + (1 | g)", table, likelihood="categorical")
        fit = Posterior(made[0], solved(*made), made[1], local_draws=4)
    levels, counts = np.unique(fit.groups.rows["y"], return_counts=True)
    shown = fit.check(draws=50).figure
    bars, dots = shown["data"]
    assert bars["customdata"] == counts.tolist()
    assert shown["layout"]["xaxis"]["ticktext"] == fit.adapter.categories("probability")
    assert abs(sum(dots["customdata"]) - 48) < 0.01  # predicted rows
    _, *each = fit.plot.calibration().figure["data"]
    assert len(each) == 3
    rows = [np.array(own["customdata"]) for own in each]
    happened = sum(np.array(own["y"]) @ n for own, n in zip(each, rows, strict=True))
    predicted = sum(np.array(own["x"]) @ n for own, n in zip(each, rows, strict=True))
    np.testing.assert_allclose([happened, predicted], rows[0].sum(), rtol=1e-3)
    by_group = fit.check("group", draws=50).figure
    seen = [own for own in by_group["data"] if own["name"] == "observed"]
    np.testing.assert_allclose(sum(np.sort(own["y"]).sum() for own in seen), N, rtol=1e-3)
    assert len(fit.plot.predictions("x").figure["data"]) == 9  # probabilities, without being asked
    with pytest.raises(ValueError, match="categories have none"):
        fit.plot.shrinkage()
    page = rf.write_report(fit, path=tmp_path / "page.html", draws=20).read_text()
    assert "<h1>way ~ x + (1 | g)</h1>" in page
    assert "of each level against its predicted probability" in page and "Shrinkage" not in page


def test_prior_predictive_data_of_categories_are_told_by_level():
    drawn = rf.prior_predictive("way ~ x + (1 | g)", TABLE, 20, likelihood="categorical")
    share = np.mean(TABLE["way"] == "walk")
    assert f"walk {share:.0%}" in repr(drawn) and len(drawn.check().figure["data"]) == 2
