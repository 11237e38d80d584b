"""Groups from every kind of table: the same rows, labels and columns come out."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramify.data import tables
from ramify.data.groups import Groups
from ramify.data.labels import find
from ramify.data.tables import append_columns, column_names, missing_in
from ramify.frontends.formula.frame import read_frame

USER = ["bo", "al", "bo", "cy", "al", "bo"]
X = np.arange(12.0).reshape(6, 2)
Y = np.array([1, 0, 1, 1, 0, 0])
AGE = np.array([30.5, 41.0, 30.5, 22.0, 41.0, 30.5])


def as_dict():
    return {"user": USER, "x": X, "y": Y, "age": AGE}


def as_pandas():
    return pd.DataFrame({"user": USER, "x": list(X), "y": Y, "age": AGE}, index=range(6, 0, -1))


def as_polars():
    pl = pytest.importorskip("polars")
    return pl.DataFrame({"user": USER, "x": X, "y": Y, "age": AGE})


def as_polars_lists():
    pl = pytest.importorskip("polars")
    lists = pl.Series("x", X.tolist(), dtype=pl.List(pl.Float64))
    return as_polars().with_columns(lists, pl.col("user").cast(pl.Categorical))


def as_arrow():
    x = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 2)
    return pa.table({"user": USER, "x": x, "y": Y, "age": AGE})


def as_batch():
    x = pa.array(X.tolist(), pa.list_(pa.float64()))
    return pa.RecordBatch.from_pydict({"user": pa.array(USER), "x": x, "y": Y, "age": AGE})


def as_tensors():
    x = pa.FixedShapeTensorArray.from_numpy_ndarray(X)
    return pa.table({"user": pa.array(USER).dictionary_encode(), "x": x, "y": Y, "age": AGE})


def as_chunks():
    table = as_arrow()
    return pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])


def as_series():
    table = as_pandas()
    return {"user": table["user"].astype("category"), "x": table["x"], "y": pa.array(Y), "age": AGE}


def as_nullable():
    return as_pandas().astype({"y": "Int64", "age": "Float64"})


def as_arrow_pandas():
    types = {"user": pd.ArrowDtype(pa.string()), "y": pd.ArrowDtype(pa.int64())}
    return as_pandas().astype(types)


KINDS = [
    as_dict,
    as_pandas,
    as_polars,
    as_polars_lists,
    as_arrow,
    as_batch,
    as_tensors,
    as_chunks,
    as_series,
    as_nullable,
    as_arrow_pandas,
]


@pytest.mark.parametrize("table", KINDS)
def test_same_groups_from_every_kind_of_table(table):
    groups = Groups.from_table(table(), by="user", rows=["x", "y"], group=["age"])
    order = [1, 4, 0, 2, 5, 3]
    assert groups.by == "user"
    assert groups.labels.tolist() == ["al", "bo", "cy"]
    assert groups.sizes.tolist() == [2, 3, 1]
    assert groups.starts.tolist() == [0, 2, 5]
    assert groups.row_order.tolist() == order
    assert groups.number.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(groups.rows["x"], X[order])
    np.testing.assert_array_equal(groups.rows["y"], Y[order])
    np.testing.assert_array_equal(groups.group["age"], [41.0, 30.5, 22.0])
    assert [c.dtype for c in groups.rows.values()] == [np.float64, np.int32]
    assert len(groups) == 3 and groups.n_rows == 6


def test_parquet_file_folder_and_list(tmp_path):
    table = as_arrow()
    pq.write_table(table.slice(0, 3), tmp_path / "a.parquet")
    pq.write_table(table.slice(3), tmp_path / "b.parquet")
    whole = Groups.from_table(table, by="user", rows="x", group="age")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in (tmp_path, str(tmp_path), files):
        read = Groups.from_parquet(path, by="user", rows="x", group="age")
        np.testing.assert_array_equal(read.rows["x"], whole.rows["x"])
        assert read.group["age"].tolist() == whole.group["age"].tolist()
    one = Groups.from_parquet(files[0], by="user", rows="y")
    assert one.sizes.tolist() == [1, 2]


def test_parquet_group_table_and_folders_as_columns(tmp_path):
    (tmp_path / "users").mkdir()
    pq.write_table(pa.table({"shop": [5, 6, 7], "size": [1, 2, 3]}), tmp_path / "shops.parquet")
    for shop in (5, 7):
        folder = tmp_path / "sales" / f"shop={shop}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"y": [1.0, 2.0]}), folder / "part.parquet")
    groups = Groups.from_parquet(
        tmp_path / "sales",
        by="shop",
        rows="y",
        group="size",
        group_table=tmp_path / "shops.parquet",
    )
    assert groups.labels.tolist() == [5, 6, 7]
    assert groups.sizes.tolist() == [2, 0, 2]
    assert groups.group["size"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("store", [None, "store"])
@pytest.mark.parametrize(
    "values, labels",
    [
        (["01", "1"], ["01", "1"]),
        (["-1", "3000000000"], [-1, 3000000000]),
        (["1", "9999999999999999999"], ["1", "9999999999999999999"]),
        (["a%20b", "a=b"], ["a b", "a=b"]),
    ],
)
def test_folders_are_read_as_they_are_written(values, labels, store, tmp_path):
    """As integers only where no two of them could be the same integer."""
    for value in values:
        (tmp_path / f"rows/shop={value}").mkdir(parents=True)
        pq.write_table(pa.table({"y": [1.0]}), tmp_path / f"rows/shop={value}/a.parquet")
    where = {} if store is None else {"store": tmp_path / store}
    groups = Groups.from_parquet(tmp_path / "rows", by="shop", rows="y", **where)
    assert sorted(groups.labels.tolist()) == labels


def test_a_column_of_the_files_comes_before_that_of_their_folder(tmp_path):
    (tmp_path / "shop=3").mkdir()
    table = pa.table({"shop": np.array([5, 7]), "y": [1.0, 2.0]})  # polars writes both
    pq.write_table(table, tmp_path / "shop=3/a.parquet")
    assert Groups.from_parquet(tmp_path, by="shop", rows="y").labels.tolist() == [5, 7]


def test_parquet_file_in_a_folder_named_like_a_column_keeps_its_own(tmp_path):
    (tmp_path / "x=3").mkdir()
    pq.write_table(pa.table({"user": ["a", "b"], "x": [1, 2]}), tmp_path / "x=3/a.parquet")
    read = Groups.from_parquet(tmp_path / "x=3/a.parquet", by="user", rows="x")
    assert read.rows["x"].tolist() == [1, 2]


STAMPS = ["2024-03-01T10:00", "2024-01-01T09:30", "2024-03-01T10:00"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([3, -1, 3], np.int16), [-1, 3]),
        (np.array([2**63, 3, 2**63], np.uint64), [3, 2**63]),
        (np.array(["b", "a", "b"]), ["a", "b"]),
        (np.array([b"b", b"a", b"b"]), [b"a", b"b"]),
        ([True, False, True], [False, True]),
        (np.array(STAMPS, "M8[m]"), np.unique(np.array(STAMPS, "M8[m]")).tolist()),
        (np.array([5, 1, 5], "m8[s]"), np.array([1, 5], "m8[s]").tolist()),
        (pd.Series(pd.to_datetime(STAMPS)), np.unique(np.array(STAMPS, "M8[us]")).tolist()),
        (pa.array(STAMPS).cast(pa.timestamp("s")), np.unique(np.array(STAMPS, "M8[s]")).tolist()),
        ([datetime.date(2024, 2, 1), datetime.date(2024, 1, 1), datetime.date(2024, 2, 1)], None),
        ([np.datetime64("2024-02"), np.datetime64("2024-01"), np.datetime64("2024-02")], None),
        (pd.Categorical(["lo", "hi", "lo"], categories=["lo", "hi", "unused"]), ["hi", "lo"]),
        (pd.Series(pd.Categorical([7, 5, 7])), [5, 7]),
        ([decimal.Decimal("1.5"), decimal.Decimal("0.5"), decimal.Decimal("1.5")], None),
        (np.array([7, 5, 7], ">i4"), [5, 7]),
    ],
)
def test_labels_of_any_dtype(labels, expected):
    groups = Groups.from_table({"g": labels, "y": [1.0, 2.0, 3.0]}, by="g", rows="y")
    assert groups.sizes.tolist() == [1, 2]
    assert groups.rows["y"].tolist() == [2.0, 1.0, 3.0]
    assert groups.labels.tolist() == (expected or sorted(set(np.asarray(labels).tolist())))


def test_large_ids_are_found_whatever_the_batch_has_beside_them():
    ids = 2**63 - 3 + np.arange(6, dtype=np.uint64)  # half of them need the 64th bit
    assert find(ids, ids[:3]).tolist() == find(ids, ids[:3].astype(np.int64)).tolist() == [0, 1, 2]
    assert find(ids, [int(i) for i in ids[::-1]]).tolist() == [5, 4, 3, 2, 1, 0]
    assert find(ids, [-1, 2**63 - 1, 7]).tolist() == [-1, 2, -1]
    # -1 and 2 ** 64 - 1 are the same bits.
    assert find(np.array([2**64 - 1], np.uint64), [-1]).tolist() == [-1]
    assert find(np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64)).tolist() == [-1, 1]
    groups = Groups.from_table({"g": ids, "y": np.zeros(6)}, by="g", rows="y")
    assert groups.subset(labels=ids[:3]).labels.tolist() == ids[:3].tolist()


def test_labels_with_a_time_zone_are_kept_in_utc():
    stamps = pd.Series(pd.to_datetime(STAMPS).tz_localize("Europe/Paris"))
    from_pandas = Groups.from_table(pd.DataFrame({"t": stamps, "y": Y[:3]}), by="t", rows="y")
    arrow = pa.Table.from_pandas(pd.DataFrame({"t": stamps, "y": Y[:3]}))
    from_arrow = Groups.from_table(arrow, by="t", rows="y")
    assert str(from_pandas.labels[0]).startswith("2024-01-01T08:30")
    assert (from_pandas.labels == from_arrow.labels).all()


def test_dtypes_and_trailing_shapes():
    table = {
        "g": [0, 1],
        "flag": np.array([True, False]),
        "byte": np.array([1, 255], np.uint8),
        "half": np.array([1, 2], np.float16),
        "single": np.array([1, 2], np.float32),
        "image": np.zeros((2, 3, 4)),
        "numbers": [[1, 2], [3, 4]],
        "nothing": np.zeros((2, 0)),
    }
    rows = Groups.from_table(table, by="g", rows=list(table)[1:]).rows
    kept = {name: (column.shape[1:], str(column.dtype)) for name, column in rows.items()}
    assert kept == {
        "flag": ((), "bool"),
        "byte": ((), "int32"),
        "half": ((), "float32"),
        "single": ((), "float32"),
        "image": ((3, 4), "float64"),
        "numbers": ((2,), "int32"),
        "nothing": ((0,), "float64"),
    }


def test_nested_lists_and_arrays_in_cells():
    deep = np.arange(24.0).reshape(2, 3, 4)
    tables = [
        pa.table({"g": [1, 0], "x": pa.array(deep.tolist())}),
        pd.DataFrame({"g": [1, 0], "x": list(deep)}),
        {"g": [1, 0], "x": list(deep)},
    ]
    for table in tables:
        groups = Groups.from_table(table, by="g", rows="x")
        np.testing.assert_array_equal(groups.rows["x"], deep[::-1])


def test_polars_arrays_of_two_dimensions():
    pl = pytest.importorskip("polars")
    deep = np.arange(24.0).reshape(2, 3, 4)
    groups = Groups.from_table(pl.DataFrame({"g": [1, 0], "x": deep}), by="g", rows="x")
    np.testing.assert_array_equal(groups.rows["x"], deep[::-1])


def test_reading_copies():
    y = np.array([1.0, 2.0])
    groups = Groups.from_table({"g": [0, 1], "y": y}, by="g", rows="y")
    y[0] = 9.0
    assert groups.rows["y"].tolist() == [1.0, 2.0] and y.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        groups.rows["y"][0] = 3.0


def test_anything_with_an_arrow_stream():
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return as_arrow().__arrow_c_stream__(requested_schema)

    assert Groups.from_table(Stream(), by="user", rows="x").sizes.tolist() == [2, 3, 1]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "batch"])
def test_unused_columns_may_share_a_name(kind):
    """A spreadsheet often leaves columns without a name at its end."""
    columns, names = [["b", "a"], [1.0, 2.0], [3, 4], [5, 6]], ["g", "y", "", ""]
    table = {
        "pandas": lambda: pd.DataFrame(dict(enumerate(columns))).set_axis(names, axis=1),
        "arrow": lambda: pa.table(columns, names),
        "batch": lambda: pa.RecordBatch.from_arrays([pa.array(c) for c in columns], names),
    }[kind]()
    assert Groups.from_table(table, by="g", rows="y").rows["y"].tolist() == [2.0, 1.0]
    more = append_columns(table, {"mean": np.arange(2.0), "draws": np.eye(2)})
    assert type(more) is type(table) and column_names(more) == [*names, "mean", "draws"]
    read = Groups.from_table(more, by="g", rows=["mean", "draws"]).rows
    assert read["mean"].tolist() == [1, 0] and read["draws"].tolist() == [[0, 1], [1, 0]]


def test_rows_without_columns_still_count():
    groups = Groups.from_table({"g": ["a", "b", "a"]}, by="g", rows=())
    assert groups.sizes.tolist() == [2, 1] and groups.n_rows == 3 and groups.rows == {}


def test_dictionaries_of_arrow_may_have_entries_twice_and_null_entries():
    """pandas refused both, and a row that refers to a null entry was taken for one with a value."""
    entries = pa.array(["c", None, "b", "a", "a"])
    codes = pa.array([4, 0, 1, 3, None, 2], pa.int8())
    column = pa.DictionaryArray.from_arrays(codes, entries)
    assert missing_in(column).tolist() == [False, False, True, False, True, False]
    series = tables.as_series(column)
    assert series is not None
    assert series.to_list() == column.to_pylist() == ["a", "c", None, "a", None, "b"]
    full = column.take(pa.array([0, 1, 3, 5]))
    frame = read_frame(pa.table({"k": pa.chunked_array([full, full[:2]])}), ["k"])
    assert frame["k"].tolist() == ["a", "c", "a", "b", "a", "c"]
    ordered = pa.DictionaryArray.from_arrays(full.indices, entries, ordered=True)
    assert [*read_frame({"k": ordered}, ["k"])["k"].cat.categories] == ["c", "b", "a"]
