"""Bad input: every message says what was expected, what came, and what to do."""

import re

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramify.data.groups import Groups
from ramify.data.resident import to_device


def table(**changes):
    return {"user": ["bo", "al", "bo"], "x": [1.0, 2.0, 3.0], "age": [30, 41, 30]} | changes


def refuses(error, *parts, by="user", rows="x", group=(), group_table=None, **changes):
    """Asserts that reading the changed table raises this error with these texts in it."""
    with pytest.raises(error) as caught:
        Groups.from_table(table(**changes), by=by, rows=rows, group=group, group_table=group_table)
    for part in parts:
        assert part in str(caught.value)


def test_missing_column():
    refuses(ValueError, 'no column "usr"', '"user", "x", "age"', 'Did you mean "user"?', by="usr")
    refuses(ValueError, 'table has no column "z"', rows=["x", "z"])
    with pytest.raises(ValueError, match='no column "aeg".*Did you mean "age"'):
        Groups.from_table(pd.DataFrame(table()), by="user", rows="x", group="aeg")
    with pytest.raises(ValueError, match='group_table has no column "age"; its columns are "user"'):
        Groups.from_table(
            table(), by="user", rows="x", group="age", group_table={"user": ["al", "bo"]}
        )


def test_missing_column_in_parquet(tmp_path):
    pq.write_table(pa.table(table()), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r't\.parquet.* has no column "ages".*Did you mean "age"'):
        Groups.from_parquet(tmp_path / "t.parquet", by="user", rows="x", group="ages")


def test_parquet_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Groups.from_parquet(tmp_path / "nowhere.parquet", by="user", rows="x")
    with pytest.raises(ValueError, match="holds no Parquet file"):
        Groups.from_parquet(tmp_path, by="user", rows="x")


def test_column_with_two_roles():
    refuses(ValueError, 'column "x" is named twice in rows=; a column has one', rows=["x", "x"])
    refuses(ValueError, 'column "user" is named in by= and rows=', rows=["user", "x"])
    refuses(ValueError, 'column "x" is named in rows= and group=', group="x")


def test_column_twice_in_the_table():
    twice = pd.DataFrame([["bo", 1.0, 2.0]], columns=["user", "x", "x"])
    with pytest.raises(ValueError, match='table has 2 columns named "x": rename all but one'):
        Groups.from_table(twice, by="user", rows="x")


def test_empty_table():
    empty = {"user": [], "x": [], "age": []}
    refuses(ValueError, "the table is empty: expected at least one row", **empty)
    with pytest.raises(ValueError, match="the table is empty"):
        Groups.from_table(pd.DataFrame(table()).iloc[:0], by="user", rows="x")
    refuses(ValueError, "group_table is empty", group_table={"user": []})


def test_columns_of_different_lengths():
    refuses(ValueError, 'differ in length: "user" 3, "x" 2; expected one', x=[1.0, 2.0])
    refuses(ValueError, 'column "x" is a single value, 2.0; expected one value per row', x=2.0)
    refuses(ValueError, 'column "x" is a single value', x=np.float32(2))


@pytest.mark.parametrize(
    "labels",
    [
        ["bo", None, None],
        pa.array(["bo", None, None]),
        pd.Series(["bo", None, None]),
        pd.Series(["bo", None, None], dtype="category"),
        pd.Series([4, None, None], dtype="Int64"),
        np.array(["2024-01-01", "NaT", "NaT"], "M8[s]"),
        [np.datetime64("2024-01-01"), np.datetime64("NaT"), np.datetime64("NaT")],
        np.array([1.0, np.nan, np.nan]),
        np.ma.masked_array([1, 2, 3], [False, True, True]),
        [1, float("nan"), pd.NA],
    ],
)
def test_nulls_among_labels(labels):
    refuses(
        ValueError, 'column "user" says which group', "null in 2 of 3 rows (rows 1, 2)", user=labels
    )


def test_many_nulls_name_only_the_first_rows():
    with pytest.raises(ValueError, match=r"null in 9 of 9 rows \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        Groups.from_table({"g": [None] * 9, "x": np.ones(9)}, by="g", rows="x")


@pytest.mark.parametrize(
    "x",
    [
        np.array([1.0, np.nan, np.inf]),
        [1.0, None, None],
        [1.0, float("nan"), -float("inf")],
        pa.array([1, None, None]),
        pd.Series([1, None, None], dtype="Int64"),
        pd.Series([1.0, np.nan, np.inf]),
        pd.Series([1.0, None, np.inf], dtype="Float64"),
        pd.Series([1.0, None, np.inf], dtype=pd.ArrowDtype(pa.float64())),
        pa.array([1.0, None, np.inf]),
        np.array([[1.0, 2.0], [3.0, np.nan], [np.inf, np.nan]]),
        pa.array([[1.0, 2.0], None, None]),
        pa.array([[1.0, 2.0], [3.0, None], [None, 4.0]]),
        pa.array([[1.0, 2.0], [3.0, None], [None, 4.0]], pa.list_(pa.float64(), 2)),
        np.ma.masked_array([1, 2, 3], [False, True, True]),
    ],
)
def test_nan_infinity_and_null(x):
    refuses(
        ValueError,
        'column "x" is NaN, infinite or null in 2 of 3 rows, the first of them row 1, in group '
        '"al"; expected finite numbers: drop or impute these rows.',
        "mask it by a boolean column and numpyro.handlers.mask",
        x=x,
    )


def test_nan_in_a_group_table():
    groups = {"user": ["bo", "al"], "age": [1.0, np.nan]}
    refuses(ValueError, '"age" is NaN', 'row 1, in group "al"', group="age", group_table=groups)


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (["a", "b", "c"], ('"x" holds strings', 'the first is "a", in group "bo"', "from 0")),
        (pd.Series(["a", "b", "c"]), ("holds strings", "encode its categories as integers")),
        (pa.array(["a", "b", "c"]), ("holds strings",)),
        (pd.Series(["a", "b", "c"], dtype="category"), ("holds strings",)),
        (np.array(["2024", "2025", "2026"], "M8[Y]"), ("holds timestamps", "days since")),
        ([1j, 2j, 3j], ("holds complex numbers", "expected numbers or booleans")),
        (pa.array([1, 2, 3], pa.duration("s")), ("holds durations", "such as seconds")),
    ],
)
def test_wrong_dtype(x, parts):
    refuses(TypeError, *parts, x=x)


def test_integers_that_do_not_fit():
    refuses(
        ValueError,
        'column "x" holds integers that do not fit 32 bits in 1 of 3 rows',
        'row 2, in group "bo": 4294967296',
        "cast the column to floating point",
        x=np.array([1, 2, 2**32]),
    )
    refuses(ValueError, "do not fit 32 bits", x=np.array([0, 1, 2**63], np.uint64))


def test_rows_of_several_shapes():
    message = 'rows of column "x" differ in shape: row 0 has (2,), row 2 has (1,)'
    refuses(ValueError, message, "give each its row", x=[[1, 2], [3, 4], [5]])
    refuses(ValueError, message, x=pd.Series([np.ones(2), np.ones(2), np.ones(1)]))
    refuses(ValueError, "differ in shape", x=pa.array([[1, 2], [3, 4], [5]]))


def test_labels_that_make_no_groups():
    refuses(TypeError, 'column "user" holds floating-point', "cast", user=[1.0, 2.0, 1.0])
    refuses(TypeError, "float64, the first 1.0", user=np.array([1.0, 2.0, 1.0]))
    refuses(TypeError, "mixes labels of types int and str", user=[1, "a", 1])
    refuses(TypeError, "cannot hold labels", user=[[1], [2], [1]])
    refuses(TypeError, "type type", "convert them to strings", user=[int, str, int])
    refuses(ValueError, "has shape (3, 1); expected one label per row", user=np.ones((3, 1), int))


def test_group_column_that_varies():
    refuses(
        ValueError,
        'group column "age" must have one value per group; in group "bo" row 0 has 30 and row 2 '
        "has 31.",
        "name it in rows= instead",
        group="age",
        age=[30, 41, 31],
    )
    refuses(ValueError, "row 0 has [0. 1.] and row 2 has [4. 5.]", group="age",
            age=np.arange(6.0).reshape(3, 2))  # fmt: skip


def test_group_table_that_does_not_match():
    refuses(
        ValueError,
        "1 of the 2 groups in table are not in group_table",
        'the first of them "bo": add a row',
        group_table={"user": ["al", "cy"]},
    )
    refuses(
        ValueError,
        'one row per group; group "al" is in rows 0 and 2',
        group_table={"user": ["al", "bo", "al"]},
    )
    refuses(
        TypeError,
        'column "user" of table holds strings and the data\'s labels are integers (the first 1)',
        group_table={"user": [1, 2]},
    )


def test_things_that_are_no_table():
    for thing in ([1, 2], np.ones(3), "ratings.csv", None):
        with pytest.raises(TypeError, match="expected a dict of arrays, a pandas or polars"):
            Groups.from_table(thing, by="user", rows="x")


def test_lazy_polars_frame():
    pl = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=re.escape("LazyFrame; expected a dict")) as caught:
        Groups.from_table(pl.LazyFrame(table()), by="user", rows="x")
    assert "call .collect() on it first" in str(caught.value)


def test_values_too_large_for_the_device():
    groups = Groups.from_table(table(x=[1.0, 1e39, 2.0]), by="user", rows="x")
    with pytest.raises(ValueError, match=r'"x" has values too large for float32 \(up to 1e\+39\)'):
        to_device(groups)
    with jax.enable_x64(True):
        assert to_device(groups).rows["x"].max() == 1e39
