"""`update`: new and changed groups enter a fit, whose answer is then that of a fit to all data."""

import numpy as np
import pytest

import ramify as rf
from cli_case import FORMULA, ramify, shops
from ramify.cli import growing  # noqa: F401  # the command
from ramify.cli.files import write_table
from test_store import logistic

N = 2200


def table(rng, users, rows):
    """Rows of some users, whose levels depend on their numbers alone."""
    user = np.repeat(users, rows)
    level = np.random.default_rng(1).normal(0.3, 0.8, N)[user]
    return {"user": user, "y": (rng.random(len(user)) < 1 / (1 + np.exp(-level))).astype(int)}


def groups_of(*tables):
    both = {name: np.concatenate([t[name] for t in tables]) for name in ("user", "y")}
    return rf.Groups.from_table(both, by="user", rows="y")


@pytest.fixture(scope="module")
def case():
    """Users 0 to 2119; of 60 of them other rows come, and 80 are new; and the fit of all."""
    rng = np.random.default_rng(0)
    same, was = table(rng, np.arange(60, 2120), 20), table(rng, np.arange(60), 20)
    now, new = table(rng, np.arange(60), 35), table(rng, np.arange(2120, N), 20)
    model = logistic()
    before = rf.fit(model, groups_of(same, was), theta="gaussian")
    whole = rf.fit(model, groups_of(same, now, new), theta="gaussian")
    return before, groups_of(now, new), whole


def test_an_update_is_a_fit_of_all(case):
    before, changed, whole = case
    updated = rf.update(before, changed)
    np.testing.assert_array_equal(updated.labels, whole.labels)
    np.testing.assert_array_equal(updated.groups.sizes, whole.groups.sizes)
    np.testing.assert_array_equal(updated.groups.rows["y"], whole.groups.rows["y"])
    a, b, first = (p.family.theta for p in (updated, whole, before))
    sds = np.sqrt(np.diag(b.covariance))
    # The old and the new answer are farther apart than that.
    assert np.max(np.abs(np.asarray(b.mean - first.mean)) / sds) > 0.2
    np.testing.assert_allclose(np.asarray(a.mean - b.mean) / sds, 0, atol=0.03)
    np.testing.assert_allclose(np.sqrt(np.diag(a.covariance)) / sds, 1, atol=0.01)
    moved = np.asarray(a.mean - first.mean) / np.sqrt(np.diag(first.covariance))
    np.testing.assert_allclose(list(updated.notes["moved_sds"].values()), moved, atol=1e-5)
    assert np.isfinite(updated.family.local.modes).all()
    assert "updated by 140 groups, 80 of them new" in updated.notes["why"]


@pytest.mark.slow
def test_groups_are_those_of_a_fit_of_all(case):
    before, changed, whole = case
    both = (p.sample(200)["b"].mean(0) for p in (rf.update(before, changed), whole))
    np.testing.assert_allclose(*both, atol=0.01)


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


@pytest.mark.slow
def test_the_command(tmp_path):
    """A formula's fit, its rows included, is updated from a file and loaded again."""
    everything = shops(N=400)
    names = np.asarray(everything["shop"])
    late = np.isin(names, [f"s{i}" for i in range(380, 400)])
    write_table(everything.filter(~late), tmp_path / "first.parquet")
    write_table(everything.filter(late), tmp_path / "late.parquet")
    write_table(everything, tmp_path / "all.parquet")
    for data, out in (("first", "fit"), ("all", "whole")):
        done = ramify("fit", tmp_path / f"{data}.parquet", FORMULA, "--out", tmp_path / out,
                      "--theta", "gaussian")  # fmt: skip
        assert done.exit_code == 0, done.output
    done = ramify("update", tmp_path / "fit", tmp_path / "late.parquet", "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert "Updated by 20 groups, 20 of them new. Moved, in sds" in done.stderr
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
    known = changed.subset(labels=np.arange(60))  # nothing is taken off for them
    assert rf.update(before, known, as_prior=True).notes["moved_sds"] != pytest.approx(
        rf.update(before, known).notes["moved_sds"], abs=0.05
    )
