"""Groups: numbering, iteration, split, subset, renumbering, and the order of the user's rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.data.groups import Groups
from ramify.data.merging import with_groups


def make(sizes, seed=0, **columns):
    """A shuffled table with these group sizes, y unique in every row; empty groups declared."""
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    table = {"g": g, "y": np.arange(len(g)), "x": rng.normal(size=(len(g), 2))}
    group_table = {"g": np.arange(len(sizes)), "u": 10.0 * np.arange(len(sizes))}
    return table, Groups.from_table(
        table, by="g", rows=["x", "y"], group="u", group_table=group_table
    )


sizes_lists = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@given(sizes_lists)
def test_rows_come_back_in_the_users_order(sizes):
    table, groups = make(sizes)
    back = np.empty_like(groups.rows["x"])
    back[groups.row_order] = groups.rows["x"]
    np.testing.assert_array_equal(back, table["x"])
    owner = np.repeat(groups.labels, groups.sizes)
    np.testing.assert_array_equal(table["g"][groups.row_order], owner)
    # Stable: within a group, rows keep their order.
    assert (np.diff(groups.row_order)[np.diff(owner) == 0] > 0).all()


def test_iteration():
    table, groups = make([2, 0, 3])
    seen = list(groups)
    assert [label for label, _ in seen] == [0, 1, 2]
    for label, columns in seen:
        np.testing.assert_array_equal(columns["y"], np.flatnonzero(table["g"] == label))
        assert columns["u"] == 10.0 * label
    assert seen[1][1]["x"].shape == (0, 2)


def test_groups_without_rows_come_from_the_group_table():
    groups = Groups.from_table(
        {"g": ["b"], "y": [1.0]},
        by="g",
        rows="y",
        group=["u"],
        group_table=pd.DataFrame({"g": ["c", "b", "a"], "u": [3, 2, 1]}),
    )
    assert groups.labels.tolist() == ["a", "b", "c"]
    assert groups.sizes.tolist() == [0, 1, 0]
    assert groups.group["u"].tolist() == [1, 2, 3]


def test_no_rows_at_all():
    groups = Groups.from_table({"g": [], "y": []}, by="g", rows="y", group_table={"g": ["a", "b"]})
    assert groups.sizes.tolist() == [0, 0] and groups.rows["y"].shape == (0,)
    assert "2 groups, 0 rows (0 / 0 / 0 per group: min / median / max; 2 without" in repr(groups)


def test_repr():
    _, groups = make([2, 0, 3, 1200])
    assert repr(groups).splitlines() == [
        'Groups by "g": 4 groups, 1,205 rows (0 / 2.5 / 1,200 per group: min / median / max; 1 '
        "without rows)",
        "  rows   x  [2] float64",
        "         y  [] int32",
        "  group  u  [] float64",
    ]


@given(sizes_lists, st.floats(0.01, 0.99), st.integers(0, 5))
def test_split(sizes, fraction, seed):
    _, groups = make(sizes)
    train, test = groups.split(fraction, seed)
    n = np.array(sizes)
    assert (train.sizes + test.sizes == n).all()
    assert (train.sizes[n > 0] >= 1).all()
    share = np.maximum(np.minimum(n * fraction, n - 1), 0)
    assert (np.abs(test.sizes - share) < 1 + 1e-9).all()
    assert abs(test.n_rows - share.sum()) < 1 + 1e-9
    for part in (train, test):
        assert part.labels is groups.labels and part.number is groups.number
        np.testing.assert_array_equal(part.rows["y"], part.row_order)
        owner = np.repeat(np.arange(len(n)), part.sizes)
        whole = np.repeat(np.arange(len(n)), n)
        place = np.argsort(groups.row_order)[part.row_order]
        np.testing.assert_array_equal(whole[place], owner)
    both = np.concatenate([train.row_order, test.row_order])
    assert sorted(both) == list(range(groups.n_rows))


def test_split_is_random_fair_and_reproducible():
    _, groups = make([5] * 400)
    first, again, other = (groups.split(0.3, seed)[1] for seed in (0, 0, 1))
    assert first.row_order.tolist() == again.row_order.tolist()
    assert first.row_order.tolist() != other.row_order.tolist()
    assert first.n_rows in (600, 601)
    # Each place within its group is held out equally often: 120 expected, sd below 10.
    places = np.concatenate(
        [np.flatnonzero(np.isin(columns["y"], first.rows["y"])) for _, columns in groups]
    )
    assert (np.abs(np.bincount(places, minlength=5) - 120) < 40).all()


def test_split_wants_a_fraction():
    _, groups = make([5])
    for fraction in (0.0, 1.0, -0.1, 10.0):
        with pytest.raises(ValueError, match="expected a number between 0 and 1"):
            groups.split(fraction)


@given(sizes_lists, st.randoms(use_true_random=False))
def test_subset_takes_exactly_those_groups(sizes, random):
    _, groups = make(sizes)
    chosen = random.sample(range(len(sizes)), random.randint(1, len(sizes)))
    part = groups.subset(positions=chosen)
    assert part.labels.tolist() == part.number.tolist() == chosen
    everyone = list(groups)
    for (label, columns), position in zip(part, chosen, strict=True):
        assert label == groups.labels[position]
        for name, column in columns.items():
            np.testing.assert_array_equal(column, everyone[position][1][name])
    assert (part.rows["y"] == part.row_order).all()
    same = groups.subset(labels=groups.labels[chosen])
    assert same.row_order.tolist() == part.row_order.tolist()


def test_subset_by_mask_and_of_a_subset():
    _, groups = make([1, 2, 3, 4])
    part = groups.subset(positions=groups.sizes > 1)
    assert part.number.tolist() == [1, 2, 3]
    assert part.subset(positions=[2, 0]).number.tolist() == [3, 1]
    assert part.subset(labels=[3, 2]).sizes.tolist() == [4, 3]


def test_subset_by_timestamps_and_strings():
    days = pd.to_datetime(["2024-01-03", "2024-01-01", "2024-01-02"])
    groups = Groups.from_table(pd.DataFrame({"day": days, "y": [3, 1, 2]}), by="day", rows="y")
    for labels in (["2024-01-02"], [pd.Timestamp("2024-01-02")], [np.datetime64("2024-01-02")]):
        assert groups.subset(labels=labels).rows["y"].tolist() == [2]
    with pytest.raises(ValueError, match="are not among the 3 groups"):
        groups.subset(labels=["2024-01-02T12:00"])


def test_subset_refuses():
    _, groups = make([1, 2, 3])
    with pytest.raises(ValueError, match="either labels= or positions=, and not both"):
        groups.subset()
    with pytest.raises(ValueError, match="1 of the 2 labels asked for.*the first of them 7"):
        groups.subset(labels=[1, 7])
    with pytest.raises(TypeError, match="labels holds strings and the data's labels are integers"):
        groups.subset(labels=["a"])
    with pytest.raises(TypeError, match="expected a list of labels"):
        groups.subset(labels="a")
    with pytest.raises(ValueError, match="positions run from 1 to 3; there are 3 groups"):
        groups.subset(positions=[1, 3])
    with pytest.raises(ValueError, match=r"boolean array of shape \(2,\); expected one entry"):
        groups.subset(positions=np.array([True, False]))
    with pytest.raises(ValueError, match="names group 1 more than once"):
        groups.subset(positions=[1, 0, 1])
    with pytest.raises(ValueError, match="chose none of the 3 groups"):
        groups.subset(positions=[])
    with pytest.raises(TypeError, match="must be integers"):
        groups.subset(positions=[0.5])


def test_renumbered_finds_groups_in_another_data_set():
    groups = Groups.from_table({"g": list("dbxa"), "y": [1, 2, 3, 4]}, by="g", rows="y")
    fitted = np.array(["a", "b", "c"])
    there = groups.renumbered(fitted)
    assert there.labels.tolist() == ["a", "b", "d", "x"]
    assert there.number.tolist() == [0, 1, 3, 4]
    assert groups.number.tolist() == [0, 1, 2, 3]
    assert groups.renumbered(fitted[::-1]).number.tolist() == [2, 1, 3, 4]
    with pytest.raises(TypeError, match=r'column "\w+" holds strings'):
        groups.renumbered([1, 2])


def test_groups_that_replace_others_have_the_sparse_columns_of_either():
    of = lambda labels, **more: Groups.from_table(
        {"g": labels, "y": np.arange(4.0), **more}, by="g", rows=["y", *more]
    )
    plain, apart = of([0, 0, 1, 1]), of([1, 1, 2, 2], U_apart=np.arange(1.0, 5.0))
    assert with_groups(plain, apart).rows["U_apart"].tolist() == [0, 0, 1, 2, 3, 4]
    assert with_groups(apart, plain).rows["U_apart"].tolist() == [0, 0, 0, 0, 3, 4]
    assert "z" not in with_groups(plain, of([1, 1, 2, 2], z=np.ones(4))).rows
