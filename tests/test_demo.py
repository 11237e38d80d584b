"""The demo: its data, its split, its scores, and (slow) the whole of it."""

import numpy as np
import pyarrow as pa
import pytest

from ramify import demo


@pytest.fixture(scope="module")
def flights():
    return demo.flights()


def test_flights_are_what_their_readme_says(flights):
    assert flights.num_rows == 327_346
    assert len(flights["tailnum"].unique()) == 4_037
    assert set(flights["late"].unique().to_pylist()) == {0, 1}
    assert 0.23 < np.mean(flights["late"]) < 0.24
    assert all(column.null_count == 0 for column in flights.columns)
    assert (np.min(flights["day"]), np.max(flights["day"])) == (1, 365)


def test_split_holds_aircraft_out_whole(flights):
    split = demo.split(flights, seed=1)
    fitted, first, later = (set(part["tailnum"].unique().to_pylist()) for part in split)
    assert first == later
    assert not fitted & later
    assert 0.05 < len(later) / len(fitted) < 0.12
    assert split.first.num_rows == demo.FIRST * len(first)
    name = split.later["tailnum"][0].as_py()
    own = lambda table: table.filter(pa.compute.equal(table["tailnum"], name))["day"].to_pylist()
    assert own(split.first) + own(split.later) == own(flights)
    assert own(split.first)[-1] <= own(split.later)[0]


def later(late):
    return pa.table({"tailnum": ["a"] * 50 + ["b"] * 50, "late": np.repeat(late, 50)})


def test_scores_know_good_chances_from_bad():
    rng = np.random.default_rng(0)
    chance = np.repeat([0.1, 0.6], 50).astype(np.float32)
    table = pa.table({"tailnum": ["a"] * 50 + ["b"] * 50, "late": (rng.random(100) < chance) * 1})
    good, shares = demo.judge(np.tile(chance, (200, 1)), table)
    bad, _ = demo.judge(np.full((200, 100), 0.35, np.float32), table)
    assert good.log_score > bad.log_score
    assert good.brier < bad.brier
    assert good.error < bad.error
    np.testing.assert_allclose(shares.mean, [0.1, 0.6], atol=0.02)
    np.testing.assert_allclose(shares.observed, np.reshape(table["late"], (2, 50)).mean(1))
    exact = np.where(np.asarray(table["late"]), chance, 1 - chance)
    assert good.log_score == pytest.approx(np.log(exact).mean(), rel=1e-5)


def test_scores_count_intervals_that_miss():
    sure = np.full((200, 100), 0.5, np.float32)
    score, shares = demo.judge(sure, later([0, 1]))
    assert score.inside == 0
    assert shares.observed.tolist() == [0, 1]


@pytest.mark.slow
def test_demo_runs(tmp_path, capsys, flights):
    """All of it, on the first 50 flights of 40 aircraft."""
    _, number = demo._numbered(flights)
    flown = np.bincount(number)
    chosen = np.isin(np.arange(len(flown)), np.flatnonzero(flown >= 50)[::40][:40])
    place = np.arange(len(number)) - (np.cumsum(flown) - flown)[number]
    few = flights.filter(pa.array(chosen[number] & (place < 50)))
    demo.run(tmp_path / "demo", table=few)
    said = capsys.readouterr().out
    assert "sd(scale(hour) | tailnum)" in said
    assert "the population alone" in said
    assert (tmp_path / "demo/report.html").stat().st_size > 10_000
    assert (tmp_path / "demo/fit/fit.json").is_file()
