"""Which groups each step sees: everyone equally often, whatever the chunks."""

import numpy as np
import pytest

import ramify as rf
from ramify.data.groups import Groups
from ramify.inference.minibatches import Minibatches, Place
from ramify.numerics import budgets

SIZES = np.array([5, 1, 0, 7, 3, 2, 2, 6, 1, 4, 3, 5])
N = len(SIZES)


@pytest.fixture(scope="module")
def groups():
    table = {"g": np.repeat(np.arange(N), SIZES), "y": np.zeros(SIZES.sum())}
    return Groups.from_table(table, by="g", rows="y", group_table={"g": np.arange(N)})


def make(groups, *, seed=0, whole=False, rows=None, minibatch=None):
    return Minibatches(groups, seed, whole=whole, rows=rows, minibatch=minibatch)


def first(source, steps):
    """The first steps."""
    return source.take(Place(), steps)[0]


def in_chunks(source, *lengths):
    """Members and scales of all steps, taken in chunks of these lengths."""
    chunks, place = [], Place()
    for length in lengths:
        chunk, place = source.take(place, length)
        chunks.append(chunk)
    assert [len(c.members) for c in chunks] == [len(c.scales) for c in chunks] == list(lengths)
    return np.concatenate([c.members for c in chunks]), np.concatenate([c.scales for c in chunks])


def test_small_data_are_seen_whole(groups):
    everyone = make(groups)
    assert everyone.whole and everyone.rows_per_step == SIZES.sum()
    members, scales = in_chunks(everyone, 3)
    np.testing.assert_array_equal(members, np.tile(np.arange(N), (3, 1)))
    np.testing.assert_array_equal(scales, 1)


def test_an_epoch_of_blocks_holds_every_group_once(groups):
    blocks = make(groups, rows=10)
    assert not blocks.whole and blocks.rows_per_step == 10
    place = Place()
    for epoch in range(20):
        assert place == Place(epoch, 0)
        one, place = blocks.take(place, 1)
        J = int(one.scales[0])
        rest, place = blocks.take(place, J - 1)
        members = np.concatenate([one.members, rest.members])
        assert set(rest.scales) <= {J} and J >= SIZES.sum() / 10
        assert sorted(members[members >= 0]) == list(range(N))
        assert np.where(members >= 0, SIZES[members], 0).sum(1).max() <= one.rows == 10


def test_blocks_are_permuted_anew(groups):
    members, _ = in_chunks(make(groups, rows=10), 40)
    assert len({tuple(sorted(m)) for m in members}) > 20
    # A group is in each place of the epoch about as often: the first block is not special.
    early = np.bincount(members[0::5][members[0::5] >= 0], minlength=N)
    assert early.max() < len(members[0::5])


@pytest.mark.parametrize("how", [dict(rows=10), dict(minibatch=4)], ids=["blocks", "minibatches"])
def test_chunks_do_not_matter(groups, how):
    """A function of the seed and the step alone: a fit may be cut anywhere and go on."""
    one, other = make(groups, **how), make(groups, **how)
    for a, b in zip(in_chunks(one, 60), in_chunks(other, 1, 7, 32, 20), strict=True):
        np.testing.assert_array_equal(a, b)
    different = make(groups, seed=1, **how)
    same = first(make(groups, **how), 60).members
    assert not np.array_equal(first(different, 60).members, same)


@pytest.mark.parametrize("how", [dict(rows=10), dict(minibatch=4)], ids=["blocks", "minibatches"])
def test_a_place_is_all_that_is_needed_to_go_on(groups, how):
    """Another object, asked for the steps after a place only, gives the same."""
    place = make(groups, **how).take(Place(), 17)[1]
    rest = make(groups, **how).take(Place(*map(int, place)), 20)[0]
    whole = first(make(groups, **how), 37)
    np.testing.assert_array_equal(rest.members, whole.members[17:])
    np.testing.assert_array_equal(rest.scales, whole.scales[17:])


def test_minibatches_are_uniform(groups):
    uniform = make(groups, minibatch=3)
    assert not uniform.whole and uniform.rows_per_step == int(3 * SIZES.mean())
    members, scales = in_chunks(uniform, 2000, 2000)
    np.testing.assert_array_equal(scales, N / 3)
    assert members.shape == (4000, 3) and all(len(set(m)) == 3 for m in members)
    count = np.bincount(members.ravel(), minlength=N)
    assert np.all(np.abs(count - 1000) < 4.5 * np.sqrt(4000 * 0.25 * 0.75))


def test_minibatches_fit_their_rows(groups):
    chunk = first(make(groups, minibatch=3), 50)
    assert SIZES[chunk.members].sum(1).max() <= chunk.rows


def test_a_minibatch_of_everyone(groups):
    chunk = first(make(groups, minibatch=N), 2)
    assert np.array_equal(np.sort(chunk.members, 1), np.tile(np.arange(N), (2, 1)))
    np.testing.assert_array_equal(chunk.scales, 1)
    assert make(groups, minibatch=N, whole=True).whole


@pytest.mark.parametrize("minibatch", [0, -1, N + 1])
def test_impossible_minibatches(groups, minibatch):
    with pytest.raises(ValueError, match=f"between 1 and the {N} groups; got {minibatch}"):
        make(groups, minibatch=minibatch)


@pytest.mark.parametrize("how", [dict(minibatch=4), dict(rows=10)], ids=str)
def test_who_needs_everyone_refuses_to_subsample(groups, how):
    with pytest.raises(ValueError, match=rf"all {N} groups .* (minibatch=4|10 rows).* branch\(\)"):
        make(groups, whole=True, **how)


@pytest.mark.slow
def test_blocks_are_laid_out_before_a_scan_or_in_it(monkeypatch):
    """One huge group makes rows of filler for every step: they are then not all made ahead."""
    group = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 60])
    table = {"g": group, "y": np.sin(np.arange(75.0))}
    groups = rf.Groups.from_table(table, by="g", rows=["y"])
    found = []
    for most in (budgets.ROWS_AHEAD, 0):
        monkeypatch.setattr(budgets, "ROWS_AHEAD", most)
        model = rf.Model(  # anew, so that it is compiled anew
            theta={"mu": rf.real()},
            z={"b": rf.real()},
            log_prior=lambda t: -0.5 * t["mu"] ** 2,
            log_local=lambda t, z, group: -0.5 * (z["b"] - t["mu"]) ** 2,
            log_lik=lambda t, z, row: -0.5 * (row["y"] - z["b"]) ** 2,
        )
        family = rf.branch(model, groups)
        fit = rf.fit(model, groups, family=family, minibatch=2, max_steps=30, progress=False)
        found.append(fit.history["elbo"])
    np.testing.assert_allclose(*found, rtol=1e-6)
