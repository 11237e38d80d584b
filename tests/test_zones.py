"""Grouping columns of times with a zone: the same groups whatever the zone and the kind of column."""

import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ramify as rf
from ramify.data.groups import Groups
from ramify.data.levels import ABSENT, levels_of
from ramify.data.tables import zone_of

# Two of the hours have the same time on the clock.
HOURS = pd.date_range("2024-10-27 00:30", periods=6, freq="h", tz="Europe/Berlin")
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Ho_Chi_Minh", "Etc/GMT+5", "+02:00", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
def test_every_zone_is_seen(zone):
    """That of pandas with an underscore or a digit was not, and labels lost it."""
    times = pd.Series(HOURS.tz_convert(zone))
    arrow = pa.array(times.tolist(), pa.timestamp("us", zone))
    for column in (times, arrow, times.astype(pd.ArrowDtype(pa.timestamp("us", zone)))):
        assert zone_of({"t": column}, "t") == zone
    assert zone_of({"t": pd.Series(HOURS.tz_localize(None))}, "t") is None
    table = pd.DataFrame({"t": times.repeat(2), "y": np.arange(12.0), "x": np.arange(12.0) ** 2})
    model, groups = rf.from_formula("y ~ x + (1 | t)", table)
    assert len(groups) == 6 and model.formula.zone == zone
    clock = table.assign(t=table.t.dt.tz_localize(None))
    with pytest.raises(TypeError, match="has no time zone; in the fit it had the time zone"):
        model.groups(clock)


def test_an_hour_that_the_clock_shows_twice_is_two_groups():
    """Python compares times of one zone by their clock."""
    zone = ZoneInfo("Europe/Berlin")
    times = [hour.astimezone(zone) for hour in HOURS.to_pydatetime()]
    assert times[2] == times[3] and times[2].fold != times[3].fold
    utc = [time.astimezone(datetime.UTC) for time in times]
    y = np.arange(6.0)
    kinds = times, pd.Series(times, dtype=object), pd.Series(HOURS), pl.Series(utc), pa.array(utc)
    for column in kinds:
        groups = Groups.from_table({"t": column, "y": y}, by="t", rows="y")
        assert len(groups) == 6
        np.testing.assert_array_equal(groups.rows["y"], y)


def test_a_population_has_no_labels_to_be_of_a_zone():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"t": HOURS.repeat(8), "x": rng.normal(size=48)})
    table["y"] = table.x + rng.normal(size=6).repeat(8) + rng.normal(size=48)
    posterior = rf.fit("y ~ x + (1 | t)", table)
    everyone = posterior.predictions({"x": [0, 1]}, groups="average", draws=200)
    assert everyone["mean"][1] - everyone["mean"][0] == pytest.approx(1, abs=0.5)
    with pytest.raises(TypeError, match="holds integers and the data's labels are timestamps"):
        posterior.predict({"t": np.array([1, 2]), "x": [0.0, 1.0]})


def test_levels_are_not_times_without_the_zone_of_the_fit():
    plain = HOURS.tz_localize(None)
    for fitted, later in ((HOURS, plain), (plain, HOURS)):
        raw = {"t": pd.Series(fitted)}
        levels = levels_of(("t",), raw, zone_of(raw, "t"))
        new = {"t": pd.Series([None, *fitted[1:]])}  # the zone is that of rows with a label
        assert levels.codes(new, len(HOURS), "table").tolist()[0] == ABSENT
        with pytest.raises(TypeError, match='column "t" of table has .*; in the fit it had'):
            levels.codes({"t": pd.Series([None, *later])}, len(HOURS) + 1, "table")
