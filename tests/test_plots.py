"""Pictures from Python: what they show, how they are coloured, and where they are saved."""

import re
from importlib import resources

import numpy as np
import pytest

import ramify as rf
from ramify.plot import answers
from ramify.plot import picture as picture_module
from ramify.plot.numbers import Check
from ramify.plot.picture import DARK, LIGHT, Picture

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    shop, x = np.repeat(np.arange(20), 6), rng.uniform(size=120)
    sold = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=20)[shop] + 0.5 * x))
    table = {"shop": shop, "x": x, "kind": rng.choice(["a", "b"], 120), "sold": sold}
    return rf.fit("sold ~ x + kind + (1 | shop)", table, likelihood="poisson", theta="gaussian")


def test_colours_are_those_of_the_report():
    css = resources.files("ramify.report").joinpath("page.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): ([^;]+);", part)) for part in css.split("@media")[:2])
    assert all(light[name] == value for name, value in LIGHT.items())
    assert all(dark[name] == value for name, value in DARK.items())


def test_every_picture_is_a_plotly_figure(posterior, tmp_path):
    plot = posterior.plot
    found = [
        plot.effects(),
        plot.effects(exponentiate=True),
        plot.groups(),
        plot.shrinkage(),
        plot.calibration(),
        plot.predictions("x", by="kind"),
        plot.predictions("kind"),
        posterior.check(),
        posterior.check("group"),
    ]
    for picture in found:
        assert isinstance(picture, Picture) and "var(--" not in str(picture.to_plotly(dark=True))
    path = found[0].save(tmp_path / "effects.html")
    assert "Plotly.newPlot" in path.read_text()


def test_a_notebook_draws_a_picture_with_one_copy_of_plotly(posterior, monkeypatch):
    """The first picture of a process brings Plotly's script; text can't end a script early."""
    monkeypatch.setattr(picture_module, "_HELD", [])
    picture = posterior.plot.effects()
    picture.figure["layout"]["xaxis"]["title"] = {"text": "</script>"}
    first, second = picture._repr_html_(), picture._repr_html_()
    assert len(first) > 1e6 > 5e4 > len(second)
    for shown in (first, second):
        assert shown.count("</script>") == 1 and "var(--blue)" in shown
    id_of = lambda shown: re.search('id="([^"]+)"', shown)[1]
    assert id_of(first) != id_of(second) and first.count(id_of(first)) == 2


def test_curves_of_true_and_false_are_points_and_many_have_dashes():
    one = lambda i, x: answers.Curve(f"{i}", x, *(np.arange(2.0) + k for k in range(3)))
    (points,) = answers.curves([one(0, [False, True])], "x", "y")["data"]
    assert points["mode"] == "markers" and points["x"] == [0.0, 1.0]
    lines = [
        t
        for t in answers.curves([one(i, [0, 1]) for i in range(8)], "x", "y")["data"]
        if "name" in t
    ]
    assert len({(t["line"]["color"], t["line"]["dash"]) for t in lines}) == 8


def test_a_curve_has_the_numbers_of_predictions(posterior):
    picture = posterior.plot.predictions("x", by="kind", groups="average")
    lines = [t for t in picture.figure["data"] if t.get("name") == "kind b"]
    x = lines[0]["x"]
    answer = posterior.predictions({"x": x, "kind": ["b"]}, table="typical", groups="average")
    np.testing.assert_allclose(lines[0]["y"], answer["mean"], rtol=1e-3)


def test_bars_count_the_rows():
    y = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
    draws = np.array([[0.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]])
    found = Check(y, draws, np.array([0, 0, 1, 1, 1]), np.array(["g", "h"]))
    bars, dots = answers.check(found, "y")["data"]
    assert bars["customdata"] == [2, 3] and dots["y"] == [2.0, 3.0]
    predicted, observed = answers.group_check(found, "y")["data"]
    order = [list(observed["text"]).index(g) for g in ("g", "h")]
    np.testing.assert_allclose(np.asarray(observed["y"])[order], [0.0, 1.0])
    np.testing.assert_allclose(np.asarray(predicted["y"])[order], [0.25, 5 / 6], rtol=1e-4)


def test_predictions_far_beyond_the_data_do_not_hide_them():
    """As those of wide priors: the data still take up a good part of the axis."""
    rng = np.random.default_rng(0)
    y, draws = rng.normal(3, 1, 400), 3 + np.exp(rng.normal(0, 8, (60, 400)))
    found = answers.check(Check(y, draws, np.zeros(400, int), np.array(["a"])), "y")
    data, axis = found["data"][-1], found["layout"]["xaxis"]
    assert data["name"] == "observed" and (np.asarray(data["y"]) > 0).sum() > 2
    assert abs(sum(data["y"]) - 1) < 0.01
    assert len(axis["tickvals"]) == len(axis["ticktext"]) > 3
    assert float(axis["ticktext"][-1]) > 1e6 and np.all(np.diff(axis["tickvals"]) > 0)
    near = answers.check(Check(y, y + rng.normal(size=(60, 400)), np.zeros(400, int), y[:1]), "y")
    assert "tickvals" not in near["layout"]["xaxis"]


def test_refusals(posterior):
    with pytest.raises(ValueError, match='"z" is no predictor of this formula; it has "kind", "x"'):
        posterior.plot.predictions("z")
    with pytest.raises(ValueError, match='"x" does not vary by group; there are Intercept'):
        posterior.plot.groups("x")
    with pytest.raises(ValueError, match='by must be "row" or "group"'):
        posterior.check("shop")
