"""Leaving out rows and groups by importance weights: against ArviZ, refits, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import ramify as rf
from ramify.numerics.psis import smoothed
from ramify.posterior.loo import Loo, refitted

FORMULA = "y ~ x + (1 | user)"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(15), 6)
    x = rng.normal(size=user.size)
    y = 1.0 * rng.normal(size=15)[user] + 0.5 * x + rng.normal(size=user.size)
    order = rng.permutation(user.size)
    return {"user": user[order], "x": x[order], "y": y[order]}


@pytest.fixture(scope="module")
def posterior(table):
    return rf.fit(FORMULA, table)


def test_smoothed_weights_are_those_of_arviz():
    stats = pytest.importorskip("arviz_stats.base").array_stats
    log_weights = np.random.default_rng(0).standard_t(3, size=(400, 4))
    log_weights[:, 3] = 0.0  # even
    ours, k = smoothed(log_weights)
    for i in range(3):
        theirs, shape = stats.psislw(-log_weights[:, i])
        np.testing.assert_allclose(ours[:, i], theirs, atol=1e-10)
        assert k[i] == pytest.approx(float(shape))
    np.testing.assert_allclose(ours[:, 3], -np.log(400))


def test_groups_left_out_by_weights_and_by_refits(posterior, table):
    found = posterior.loo("group", draws=2000)
    assert found.by == "group" and list(found.labels) == list(range(15))
    assert (found.k_hat < 0.7).all() and found.total < found.lpd.sum()
    k_hat = np.where(np.arange(15) < 3, 1.0, 0.1)  # as if the first three were bad
    asked = Loo("group", found.labels, found.elpd, k_hat, found.lpd, "user")
    again = refitted(asked, posterior.groups, posterior.again, 2000)
    assert np.isnan(again.k_hat[:3]).all() and "3 fitted again" in repr(again)
    np.testing.assert_allclose(again.elpd[:3], found.elpd[:3], atol=0.15)
    assert np.abs(again.elpd[:3] - found.lpd[:3]).max() > 0.02  # leaving out matters


@pytest.mark.slow
def test_rows_left_out_are_in_the_order_of_the_table(posterior, table):
    found = posterior.loo(draws=500)
    np.testing.assert_array_equal(found.labels, np.arange(90))
    density = posterior.predict(table, draws=4000, kind="mean")
    apart = np.abs(table["y"] - np.asarray(density["mean"]))
    assert np.corrcoef(apart, found.elpd)[0, 1] < -0.8  # rows that are far off are improbable
    assert "no k-hat above 0.7" in repr(found) or "k-hat above 0.7 in" in repr(found)
    assert 5 < found.p < 25  # two effects, an sd, and most of 15 intercepts


@pytest.mark.slow
def test_models_are_compared_by_differences_of_their_terms(posterior, table):
    without = rf.fit("y ~ 1 + (1 | user)", table)
    loos = {"x": posterior.loo(draws=500), "none": without.loo(draws=500)}
    found = rf.compare(loos)
    assert found.names == ["x", "none"] and found["difference"][0] == 0
    apart = loos["none"].elpd - loos["x"].elpd
    assert found["none"]["difference"] == pytest.approx(apart.sum())
    assert found["none"]["difference_se"] == pytest.approx(np.sqrt(90) * apart.std())
    assert found["x"]["elpd"] == pytest.approx(loos["x"].total)
    with pytest.raises(ValueError, match="left out other groups"):
        rf.compare({"rows": loos["x"], "groups": posterior.loo("group", draws=100)})
    with pytest.raises(ValueError, match="two models or more"):
        rf.compare({"x": posterior})


def test_bad_weights_are_told(posterior):
    k = np.array([0.1, 0.9, 1.2])
    found = Loo("group", np.array(["a", "b", "c"]), np.zeros(3), k, np.zeros(3), "user")
    assert list(found.bad) == ["b", "c"]
    assert "k-hat above 0.7 in 2 of 3 (b, c)" in repr(found) and "refit=True" in repr(found)


@pytest.mark.slow
def test_groups_of_real_data_against_refits():
    """30 aircraft of the demo's flights, late or not, left out one by one."""
    from ramify.demo import flights

    data = flights()
    tails, sizes = np.unique(np.asarray(data["tailnum"]), return_counts=True)
    chosen = tails[(sizes > 20) & (sizes < 120)][::20][:30]
    keep = np.isin(np.asarray(data["tailnum"]), chosen)
    names = ["tailnum", "late", "hour"]
    table = {name: np.asarray(data[name])[keep] for name in names}
    posterior = rf.fit("late ~ hour + (1 | tailnum)", table, likelihood="bernoulli")
    found = posterior.loo("group", draws=4000)
    asked = Loo("group", found.labels, found.elpd, np.full(30, 1.0), found.lpd, "tailnum")
    again = refitted(asked, posterior.groups, posterior.again, 4000)
    np.testing.assert_allclose(found.elpd, again.elpd, atol=0.1)
    assert abs(found.total - again.total) < 0.3


def test_other_outcomes_are_not_compared(posterior):
    one = posterior.loo(draws=50)
    with pytest.raises(ValueError, match='"other" has other outcomes than "one" in the same'):
        rf.compare({"one": one, "other": replace(one, outcomes=one.outcomes / 10)})


@pytest.mark.slow
def test_models_of_other_outcomes_are_not_compared(posterior, table):
    """Outcomes in another unit, and rows in another order, have as many densities."""
    unit = rf.fit("z ~ x + (1 | user)", {**table, "z": table["y"] / 10})
    turned = rf.fit(FORMULA, {name: column[::-1] for name, column in table.items()})
    cases = [(posterior, unit, "row"), (posterior, unit, "group"), (posterior, turned, "row")]
    for one, other, by in cases:
        loos = {"one": one.loo(by, draws=50), "other": other.loo(by, draws=50)}
        with pytest.raises(ValueError, match='"other" has other outcomes than "one" in the same'):
            rf.compare(loos)
    assert rf.compare({"one": posterior, "same": posterior})["difference"][1] == 0


def test_what_was_left_out_is_the_same_for_all(posterior):
    """`by=` is not ignored where models were asked before."""
    rows, groups = posterior.loo(draws=50), posterior.loo("group", draws=50)
    assert rf.compare({"one": groups, "same": groups}, by="group").names == ["one", "same"]
    for by, one in [("group", rows), ("row", groups)]:
        with pytest.raises(ValueError, match=f'by="{by}", but "one" left out {one.by}s: pass its'):
            rf.compare({"one": one, "other": posterior}, by=by)
    with pytest.raises(Exception, match="columns"):  # of ours, or of the check of types
        rf.compare({"one": rows, "other": rows}, by="columns")
    other = replace(groups, column="shop")
    with pytest.raises(ValueError, match='"other" left out groups by "shop", "one" by "user"'):
        rf.compare({"one": groups, "other": other})
