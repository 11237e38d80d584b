"""`update`: new and changed groups enter a fit, whose answer is then that of a fit to all data."""

from pathlib import Path

import numpy as np
import pytest

import ramify as rf
from cli_case import FORMULA, ramify, shops
from ramify.cli import growing  # noqa: F401  # the command
from ramify.cli.files import write_table
from ramify.posterior.posterior import Posterior
from test_store import logistic

N = 2200


def table(rng, users, rows, more=0.0):
    """Rows of some users, whose levels depend on their numbers, and are `more` than they were."""
    user = np.repeat(users, rows)
    level = np.random.default_rng(1).normal(0.3, 0.8, N)[user] + more
    return {"user": user, "y": (rng.random(len(user)) < 1 / (1 + np.exp(-level))).astype(int)}


def groups_of(*tables):
    both = {name: np.concatenate([t[name] for t in tables]) for name in ("user", "y")}
    return rf.Groups.from_table(both, by="user", rows="y")


CHANGED = np.random.default_rng(2).permutation(2120)[:60]  # of users 0 to 2119
SAME = np.setdiff1d(np.arange(2120), CHANGED)


@pytest.fixture(scope="module")
def case():
    """60 users with other rows, some more and some fewer than before; 80 new ones; and the fit of all."""
    rng = np.random.default_rng(0)
    same, was = table(rng, SAME, 20), table(rng, CHANGED, 20)
    now = table(rng, CHANGED, rng.integers(3, 60, 60), 0.2)
    new, model = table(rng, np.arange(2120, N), 20, 0.2), logistic()
    before = rf.fit(model, groups_of(same, was), theta="gaussian")
    whole = rf.fit(model, groups_of(same, now, new), theta="gaussian")
    return before, groups_of(now, new), whole


def check_same(updated, whole):
    """The data, theta and the modes of z of an update are those of a fit of all."""
    np.testing.assert_array_equal(updated.labels, whole.labels)
    np.testing.assert_array_equal(updated.groups.sizes, whole.groups.sizes)
    np.testing.assert_array_equal(updated.groups.rows["y"], whole.groups.rows["y"])
    a, b = updated.family.theta, whole.family.theta
    sds = np.sqrt(np.diag(b.covariance))
    np.testing.assert_allclose(np.asarray(a.mean - b.mean) / sds, 0, atol=0.03)
    np.testing.assert_allclose(np.sqrt(np.diag(a.covariance)) / sds, 1, atol=0.01)
    # Those of groups that did not change are where theta was before.
    np.testing.assert_allclose(updated.family.local.modes, whole.family.local.modes, atol=0.03)


def test_an_update_is_a_fit_of_all(case):
    before, changed, whole = case
    updated = rf.update(before, changed)
    check_same(updated, whole)
    a, b, first = (p.family.theta for p in (updated, whole, before))
    sds = np.sqrt(np.diag(b.covariance))
    # The old and the new answer are farther apart than that.
    assert np.max(np.abs(np.asarray(b.mean - first.mean)) / sds) > 0.2
    moved = np.asarray(a.mean - first.mean) / np.sqrt(np.diag(first.covariance))
    np.testing.assert_allclose(list(updated.notes["moved_sds"].values()), moved, atol=1e-5)
    assert "updated by 140 groups, 80 of them new" in updated.notes["why"]


def test_several_updates_in_a_row(case):
    """Users that change twice, and users that come after others did: each counts as it is at the end."""
    before, changed, whole = case
    rng, some = np.random.default_rng(3), CHANGED[:30]
    first = rf.update(before, groups_of(table(rng, np.concatenate([some, [2125, 2130]]), 30)))
    second = rf.update(first, changed.subset(labels=changed.labels[::-1]))
    check_same(second, whole)
    back = before.groups.subset(labels=CHANGED)  # as they were at the very first
    third = rf.update(rf.update(second, back), changed.subset(labels=CHANGED))
    check_same(third, whole)


@pytest.mark.slow
def test_groups_are_those_of_a_fit_of_all(case):
    before, changed, whole = case
    a, b = (p.sample(200)["b"] for p in (rf.update(before, changed), whole))
    # The noise of both is the same, but for a few draws, one of some chosen by weight, that differ.
    apart = (a.mean(0) - b.mean(0)) / (b.std(0) / np.sqrt(200))  # standard errors
    assert np.sqrt(np.mean(apart**2)) < 0.05 and np.max(np.abs(apart)) < 1
    np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.1)


def test_a_group_that_comes_again_changes_nothing(case):
    """Its old share is taken off: it does not count twice."""
    before = case[0]
    again = rf.update(before, before.groups.subset(positions=range(100)))
    np.testing.assert_allclose(again.family.theta.mean, before.family.theta.mean, atol=1e-3)
    np.testing.assert_allclose(
        again.family.theta.covariance, before.family.theta.covariance, rtol=0.01
    )


def test_what_is_refused(case):
    before, _, _ = case
    other = {"user": np.repeat(np.arange(1000), 20), "y": np.ones(20_000, int)}
    with pytest.raises(ValueError, match=r"the new groups move .* posterior sds; .* Fit all data"):
        rf.update(before, rf.Groups.from_table(other, by="user", rows="y"))
    with pytest.raises(ValueError, match='row column of groups "y" is missing'):
        rf.update(before, rf.Groups.from_table({"user": [1], "x": [1]}, by="user", rows="x"))
    branch = rf.fit(before.model, before.groups, family=rf.branch(before.model, before.groups),
                    max_steps=1)  # fmt: skip
    with pytest.raises(ValueError, match=r"needs a solved\(\) fit"):
        rf.update(branch, before.groups)


def test_new_rows_alone_are_warned_of(case):
    """A group's rows are replaced by those of the update, which is to have all of them."""
    rng = np.random.default_rng(3)
    today = rf.Groups.from_table(table(rng, SAME[:10], 2), by="user", rows="y")
    with pytest.warns(UserWarning, match="10 of the groups .* have 200 rows; 20 replace them"):
        assert rf.update(case[0], today).groups.n_rows == case[0].groups.n_rows - 180


@pytest.mark.slow
def test_the_command(tmp_path):
    """A formula's fit, its rows included, is updated from two files in turn, and loaded again."""
    everything = shops(N=400)
    names = np.asarray(everything["shop"])
    late = np.isin(names, [f"s{i}" for i in range(380, 400)])
    fewer, odd = np.isin(names, ["s250", "s7", "s30", "s385"]), np.arange(len(names)) % 2 == 1
    write_table(everything.filter(~late), tmp_path / "first.parquet")
    write_table(everything.filter(late), tmp_path / "late.parquet")
    write_table(everything.filter(fewer & odd), tmp_path / "fewer.parquet")  # rows were deleted
    write_table(everything.filter(~fewer | odd), tmp_path / "all.parquet")
    for data, out in (("first", "fit"), ("all", "whole")):
        done = ramify("fit", tmp_path / f"{data}.parquet", FORMULA, "--out", tmp_path / out,
                      "--theta", "gaussian")  # fmt: skip
        assert done.exit_code == 0, done.output
    for fit, data, out, said in (
        ("fit", "late", "between", "Updated by 20 groups, 20 of them new. Moved, in sds"),
        ("between", "fewer", "new", "Updated by 4 groups, 0 of them new. Moved, in sds"),
    ):
        done = ramify(
            "update", tmp_path / fit, tmp_path / f"{data}.parquet", "--out", tmp_path / out
        )
        assert done.exit_code == 0, done.output
        assert said in done.stderr
    updated, whole = rf.load(tmp_path / "new"), rf.load(tmp_path / "whole")
    assert updated.groups.n_rows == whole.groups.n_rows and len(updated.labels) == 400
    a, b = (p.summary().columns for p in (updated, whole))
    np.testing.assert_allclose((a["mean"] - b["mean"]) / b["sd"], 0, atol=0.1)
    np.testing.assert_allclose(a["sd"] / b["sd"], 1, atol=0.03)


def few(rng, schools):
    """Rows of some schools, of which there are few: theta's posterior is skewed."""
    school = np.repeat(schools, 12)
    level = np.random.default_rng(5).normal(0.3, 0.6, 40)[school]
    return {"user": school, "y": (rng.random(len(school)) < 1 / (1 + np.exp(-level))).astype(int)}


@pytest.mark.slow
def test_draws_of_theta_are_weighted_anew():
    """With few groups: equal to a fit of all data, which a Gaussian is not."""
    rng = np.random.default_rng(0)
    same, was, now = few(rng, range(4, 34)), few(rng, range(4)), few(rng, range(4))
    new, model = few(rng, range(34, 40)), logistic()
    before = rf.fit(model, groups_of(same, was), theta="weighted")
    whole = rf.fit(model, groups_of(same, now, new), theta="weighted")
    updated = rf.update(before, groups_of(now, new))
    assert updated.family.weighted is not None and updated.notes["theta_effective_draws"] > 100
    first, a, b = (p.summary().columns for p in (before, updated, whole))
    assert np.max(np.abs(first["mean"] - b["mean"]) / b["sd"]) > 0.2
    np.testing.assert_allclose((a["mean"] - b["mean"]) / b["sd"], 0, atol=0.1)
    np.testing.assert_allclose(a["sd"] / b["sd"], 1, atol=0.08)
    moved = np.array(list(updated.notes["moved_sds"].values()))
    cloud = lambda p: (p.family.weighted.mean, np.sqrt(np.diag(p.family.weighted.covariance)))
    (m0, sd), (m1, _) = cloud(before), cloud(updated)
    np.testing.assert_allclose(moved, (m1 - m0) / sd, atol=1e-5)


def test_yesterdays_posterior_as_the_prior(case):
    """Groups that are all new: the same theta whether the others' rows are kept or not."""
    before, changed, _ = case
    new = changed.subset(labels=np.arange(2120, N))
    both = (rf.update(before, new, as_prior=prior) for prior in (False, True))
    kept, alone = both
    np.testing.assert_array_equal(kept.family.theta.mean, alone.family.theta.mean)
    assert len(alone.labels) == 80 and np.isfinite(alone.family.local.modes).all()
    assert "of 80 groups, 80 of them new, the fit before as the prior" in alone.notes["why"]
    known = changed.subset(labels=CHANGED)  # nothing is taken off for them
    assert rf.update(before, known, as_prior=True).notes["moved_sds"] != pytest.approx(
        rf.update(before, known).notes["moved_sds"], abs=0.05
    )


def test_doubts_about_other_groups_stay(case):
    """Groups without a mode that are not part of an update; those that are, are judged anew."""
    before = case[0]
    names = [str(label) for label in before.labels[[0, 1, 100]]]
    notes = before.notes | {"unconverged": 3, "unconverged_groups": names, "theta_r_hat": 1.0}
    how = {"history": before.history, "local_draws": before.local_draws, "notes": notes}
    doubted = Posterior(before.model, before.family, before.groups, **how)
    found = rf.update(doubted, before.groups.subset(positions=[100])).notes
    assert found["unconverged"] == 2 and found["unconverged_groups"] == names[:2]
    assert "theta_r_hat" not in found  # its draws are weighted now, not those of chains


def test_a_fit_of_the_first_release_is_updated():
    """It has no note on the points of its rule: K local draws are not the order of one."""
    saved = rf.load(Path(__file__).parent / "saved" / "formula_weighted")
    again = rf.update(saved, saved.groups.subset(positions=[5]))
    np.testing.assert_allclose(list(again.notes["moved_sds"].values()), 0, atol=0.05)


def test_a_predictor_that_varies_only_in_the_new_groups():
    """It is a group column of the fit; the rows' differences from it are a column of their own."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(124), 12)
    x = rng.normal(size=124)[user] + np.where(user < 120, 0, 2 * rng.normal(size=user.size))
    level = 1.5 * x + rng.normal(size=124)[user]
    rows = {"user": user, "x": x, "y": (rng.random(user.size) < 1 / (1 + np.exp(-level))) * 1}
    some = lambda a, b: {n: c[(user >= a) & (user < b)] for n, c in rows.items()}
    model, groups = rf.from_formula("y ~ x + (1 | user)", some(0, 116), likelihood="bernoulli")
    later = rf.update(rf.fit(model, groups, theta="gaussian"), some(116, 122))
    both = model.adapter.read(some(0, 122), "table", outcomes=True)
    whole = rf.fit(model, both, theta="gaussian")
    np.testing.assert_array_equal(later.groups.rows["U_apart"], both.rows["U_apart"])
    a, b = later.family.theta, whole.family.theta
    sds = np.sqrt(np.diag(b.covariance))
    np.testing.assert_allclose(np.asarray(a.mean - b.mean) / sds, 0, atol=0.1)
    np.testing.assert_allclose(later.family.local.modes, whole.family.local.modes, atol=0.05)
    again = rf.update(later, some(0, 3))  # x does not vary in these
    np.testing.assert_array_equal(again.groups.rows["U_apart"], both.rows["U_apart"])
