"""The numbers behind a report's figures, and the figures as data."""

import json

import jax
import numpy as np
import pytest

import oracle
from exact_fits import exact_fit, read, regression
from ramify.models.model import Model
from ramify.plot import figures as _figures
from ramify.plot import numbers
from ramify.posterior import facts as _facts
from ramify.posterior.posterior import Posterior

N, SIZES, DIM = 30, np.arange(30) % 7 + (np.arange(30) > 3), 2


@pytest.fixture(scope="module")
def table():
    return oracle.simulate(5, N, SIZES, DIM)[0]


@pytest.fixture(scope="module")
def fit(table):
    return exact_fit("solved", table, N)


def test_effects_are_the_posterior_of_each_group(fit, table):
    found = _facts.effects_of(fit, fit.groups, 300, 0)
    exact = oracle.exact(table, N)
    assert found.names == ["beta[0]", "beta[1]"] and found.labels.tolist() == list(range(N))
    assert found.drawn.tolist() == list(range(N)) and found.centre is found.mean
    sd = np.sqrt(np.diagonal(exact.z_cov, axis1=1, axis2=2))
    assert np.abs((found.mean - exact.z_mean) / sd).max() < 4 / 300**0.5
    wide = (found.high - found.low) / (2 * 1.645 * sd)
    assert 0.7 < wide.min() and wide.max() < 1.35 and abs(wide.mean() - 1) < 0.05


@pytest.mark.slow
def test_of_many_groups_only_those_shown_are_drawn(fit, table, monkeypatch):
    monkeypatch.setattr(_facts, "FEW", 10)
    monkeypatch.setattr(numbers, "FEW", 10)
    everyone = _facts.effects_of(fit, fit.groups, 100, 0)  # drawing all is little work here
    assert len(everyone.drawn) == len(everyone.mean) == N and everyone.centre is everyone.mean
    monkeypatch.setattr(_facts, "EVERYONE", 0)
    found = _facts.effects_of(fit, fit.groups, 100, 0)
    exact = oracle.exact(table, N)
    np.testing.assert_allclose(found.centre, exact.z_mean, atol=1e-4)  # theta at its exact centre
    for e in range(DIM):
        own = _facts.chosen(found.centre[:, e])
        assert len(own) == 10 and set(own) <= set(found.drawn)
        dots = [t for t in _figures.caterpillar(found, e, "b", 0.0)["data"] if t["x"]]
        shown = {int(label) for t in dots for label in t["text"]}
        assert shown == set(own.tolist())
        ranks = {int(lab): c[1] for t in dots for lab, c in zip(t["text"], t["customdata"])}
        order = np.argsort(exact.z_mean[:, e])
        assert ranks[order[0]] == 1 and ranks[order[-1]] == N
    assert 10 <= len(found.drawn) <= 20 and len(found.mean) == len(found.drawn)


def test_the_outcome_is_found_by_what_asks_for_it(fit, table):
    """`y` by its name; under another name, as what the likelihood needs and simulate does not."""
    np.testing.assert_array_equal(_facts.outcome_of(fit, fit.groups), fit.groups.rows["y"])
    own = regression(DIM)
    hidden = Model(
        own.theta.parameters,
        own.z.parameters,
        own._log_prior,
        own._log_local,
        lambda t, z, row: own._log_lik(t, z, {"x": row["x"], "y": row["sold"]}),
        lambda key, t, z, row: row["x"] @ z["beta"] + jax.random.normal(key),
    )
    rows = {"group": table["group"], "x": table["x"], "sold": table["y"], "spare": table["y"]}
    every = {"group": np.arange(N)}
    groups = type(fit.groups).from_table(
        rows, by="group", rows=["x", "sold", "spare"], group_table=every
    )
    other = Posterior(hidden, fit.family, groups)
    np.testing.assert_array_equal(_facts.outcome_of(other, groups), groups.rows["sold"])
    silent = Model(
        own.theta.parameters, own.z.parameters, own._log_prior, own._log_local, own._log_lik
    )
    assert _facts.outcome_of(Posterior(silent, fit.family, fit.groups), fit.groups) is None


def test_shrinkage_moves_raw_means_to_the_posterior(fit, table):
    observed = _facts.outcome_of(fit, fit.groups)
    found = _facts.shrinkage_of(fit, fit.groups, observed, 400, 0)
    exact = oracle.exact(table, N)
    assert 0 not in found.sizes and len(found.labels) == (SIZES > 0).sum()
    for label, raw, post in zip(found.labels, found.raw, found.posterior):
        own = table["group"] == label
        assert raw == pytest.approx(table["y"][own].mean(), rel=1e-5)
        expected = table["x"][own].mean(0) @ exact.z_mean[label]
        spread = np.sqrt(1 / own.sum() + np.trace(exact.z_cov[label]))
        assert abs(post - expected) < 5 * spread / 400**0.5 * max(1, np.abs(table["x"][own]).max())
    assert found.everyone == pytest.approx(table["y"].mean(), rel=1e-5)


def test_groups_of_one_size_stand_in_order():
    sizes, raw = np.array([8, 8, 9]), np.array([0.4, 0.1, 0.9])
    found = _facts.Shrinkage(np.arange(3), sizes, raw, raw, 0.5)
    assert found.alike and _figures.shrinkage(found, "y")["data"][1]["x"] == [1.0, 0.0, 2.0]
    found = found._replace(sizes=np.array([1, 8, 90]))
    assert not found.alike and _figures.shrinkage(found, "y")["layout"]["xaxis"]["type"] == "log"


def test_calibration_holds_rows_out(fit):
    observed = _facts.outcome_of(fit, fit.groups)
    found = _facts.calibration_of(fit, fit.groups, observed, 200, 0)
    assert found.held_out and not found.binary
    n = len(found.observed)
    assert found.draws.shape == (200, n) and n < fit.groups.n_rows
    # Exact predictions of held-out rows: standardised errors have unit variance.
    error = (found.observed - found.draws.mean(0)) / found.draws.std(0)
    assert abs(np.mean(error**2) - 1) < 4 * (2 / n) ** 0.5
    assert abs(error.mean()) < 4 / n**0.5


def test_families_with_tables_are_checked_on_their_own_rows(table):
    fit = exact_fit("branch", table, N)
    found = _facts.calibration_of(fit, fit.groups, fit.groups.rows["y"].astype(float), 20, 0)
    assert not found.held_out and found.draws.shape == (20, fit.groups.n_rows)


def test_pit_is_flat_where_predictions_are_right():
    rng = np.random.default_rng(0)
    for draw in (lambda *s: rng.normal(size=s), lambda *s: rng.poisson(3.0, s).astype(float)):
        right = _facts.Calibration(draw(4000), draw(400, 4000), True, False)
        share, band = _figures.pit_shares(right, 0, 20)
        assert share.sum() == pytest.approx(1)
        bars = _figures.pit(right)["data"][0]
        assert len(bars["y"]) == 20 and json.dumps(bars, allow_nan=False)
        assert np.abs(share - 0.05).max() < 3 * band
        wide = right._replace(draws=2 * right.draws - 2 * right.draws.mean())
        assert np.abs(_figures.pit_shares(wide, 0, 20)[0] - 0.05).max() > 6 * band


def test_reliability_of_known_probabilities():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=3000)
    found = _facts.Calibration(
        (rng.uniform(size=3000) < p).astype(float),
        (rng.uniform(size=(200, 3000)) < p).astype(float),
        True,
        True,
    )
    *_, dots = _figures.reliability(found)["data"]
    x, y, n = (np.array(dots[k]) for k in ("x", "y", "customdata"))
    assert n.sum() == 3000
    assert np.abs(x - y).max() < 4 * 0.5 / n.min() ** 0.5


def test_parameters_of_other_sizes_have_axes_of_their_own():
    mean = np.array([2.0, 0.01, 1.0, -3e-5])
    columns = {"mean": mean, "sd": np.abs(mean) / 4}
    columns |= {f"q{q}": mean + (q - 50) / 100 * np.abs(mean) for q in (5, 25, 75, 95)}
    names = ["Intercept", "age", "sex", "income"]
    found = _figures.forest(names, columns, "line")
    layout = found["layout"]
    axes = [name for name in layout if name.startswith("xaxis")]
    assert axes == ["xaxis", "xaxis2", "xaxis3"]
    said = {t["xaxis"]: t["text"] for t in found["data"] if "text" in t}
    assert said == {"x": ["Intercept", "sex"], "x2": ["age"], "x3": ["income"]}
    for trace in (t for t in found["data"] if "text" in t):
        low, high = layout[trace["xaxis"].replace("x", "xaxis")]["range"]
        ends = [end for row in trace["customdata"] for end in row[1:]]
        # Every interval is seen: a tenth of its axis at least, and within it.
        assert low < min(ends) and max(ends) < high
        assert all((b - a) > 0.1 * (high - low) for _, a, b in trace["customdata"])
    domains = [layout[axis.replace("x", "y", 1)]["domain"] for axis in axes]
    assert all(a[0] > b[1] for a, b in zip(domains, domains[1:], strict=False))
    assert domains[0][1] == 1 and domains[-1][0] == 0


def test_a_caterpillar_keeps_both_ends():
    mean = np.random.default_rng(0).normal(size=5000)
    own = _facts.chosen(mean)
    order = np.argsort(mean)
    assert len(own) == _facts.FEW and len(set(own.tolist())) == len(own)
    assert own[:40].tolist() == order[:40].tolist() and own[-40:].tolist() == order[-40:].tolist()
    assert (np.diff(mean[own]) >= 0).all()
    assert len(_facts.chosen(mean[:50])) == 50


def test_labels_are_escaped_and_numbers_short():
    effects = _facts.Effects(
        ["a"],
        np.array(["<b>", "x"]),
        np.array([3, 4]),
        np.array([[1 / 3], [4 / 3]]),
        np.arange(2),
        *(np.array([[v], [v + 1.0]]) for v in (1 / 3, 0.0, 0.5)),
    )
    text = json.dumps(_figures.caterpillar(effects, 0, "<i>", 0.0), allow_nan=False)
    assert "<b>" not in text.replace("<b>%{text}</b>", "") and "&lt;b&gt;" in text
    assert "&lt;i&gt;" in text and "0.33333" in text and "0.333333" not in text


@pytest.mark.parametrize("sizes", [[5, 6, 5], [0, 1, 2], [1, 2, 3, 4000], [0, 900_000]])
def test_sizes_are_all_counted(sizes):
    assert _figures.sizes(np.array([5, 5, 5]), "g") is None
    bars = _figures.sizes(np.array(sizes), "g")["data"][0]
    assert sum(bars["y"]) == len(sizes)


def test_traces_are_thinned():
    elbo = np.linspace(-1e6, -10, 50_000)
    figure = _figures.trace({"elbo": elbo, "step": np.arange(50_000)})
    assert len(figure["data"][0]["x"]) == _figures.POINTS
    assert _figures.trace({}) is None and _figures.trace({"elbo": np.zeros(1)}) is None
    low, high = _figures.trace({"elbo": np.array([-1e9, -5, -4, -3, -3])})["layout"]["yaxis"][
        "range"
    ]
    assert -10 < low < -5 and high > -3


def test_groups_are_matched(fit, table):
    assert _facts.check(fit, None) is not None
    with pytest.raises(ValueError, match='"x" is missing'):
        bad = read({"group": table["group"], "y": table["y"], "x": table["x"]}, N)
        _facts.check(fit, type(bad)(**{**vars(bad), "rows": {"y": bad.rows["y"]}}))
