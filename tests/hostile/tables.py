"""Tables: kinds of columns, labels and values that people have."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import ramify as rf

from . import models
from .case import Case
from .data import EACH, FORMULA, GROUPS, N, build, changed, fitted, means, same_design, table

KINDS = {
    "dict": dict,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "arrow batch": lambda t: pa.RecordBatch.from_pydict({n: pa.array(c) for n, c in t.items()}),
}
LABELS = np.repeat(np.arange(GROUPS), EACH)
DAYS = np.datetime64("2024-01-01") + LABELS


def good_labels():
    """Labels that must give the twelve groups in their order."""
    utc = pd.to_datetime(DAYS).tz_localize("UTC")
    return {
        "int64": LABELS,
        "int8": LABELS.astype(np.int8),
        "uint64": LABELS.astype(np.uint64),
        "big-endian": LABELS.astype(">i4"),
        "huge ids": LABELS + 2**62,
        "negative": LABELS - 6,
        "days": DAYS,
        "nanoseconds": DAYS.astype("M8[ns]"),
        "times with a zone": pd.Series(utc),
        "times in Tokyo": pd.Series(utc.tz_convert("Asia/Tokyo")),
        "categorical": pd.Categorical(LABELS),
        "strings": [f"s{i:02d}" for i in LABELS],
        "unicode": [f"é{i:02d}" for i in LABELS],
        "with spaces": [f" s {i:02d} " for i in LABELS],
        "with newlines": [f"{i:02d}\n" for i in LABELS],
        "case differs": [("AB" if i < 6 else "ab") + f"{i % 6}" for i in LABELS],
        "booleans and integers": [bool(i) if i < 2 else i for i in LABELS.tolist()],
        "Arrow strings": pa.array([f"s{i:02d}" for i in LABELS]),
        "Arrow large strings": pa.array([f"s{i:02d}" for i in LABELS], pa.large_string()),
        "Arrow dictionary": pa.array([f"s{i:02d}" for i in LABELS]).dictionary_encode(),
        "polars": pl.Series([f"s{i:02d}" for i in LABELS]),
        "polars categorical": pl.Series([f"s{i:02d}" for i in LABELS], dtype=pl.Categorical),
        "pandas strings": pd.array([f"s{i:02d}" for i in LABELS], "string"),
        "pandas Int64": pd.array(LABELS, "Int64"),
        "zero bytes inside": [f"\0{i:02d}" for i in LABELS],
    }


BAD_LABELS = {
    "trailing zero bytes": (["a" * (i // 2 + 1) + "\0" * (i % 2) for i in LABELS], ["zero"]),
    "floats": (LABELS.astype(float), ["floating", "integers or strings"]),
    "floats in objects": (LABELS.astype(float).astype(object), ["floating"]),
    "complex": (LABELS * 1j, ["complex"]),
    "missing text": ([None if i == 3 else f"s{i}" for i in LABELS], ["null in 20"]),
    "missing number": (pd.array([None, *LABELS[1:].tolist()], "Int64"), ["null in 1"]),
    "NaT": (np.where(LABELS == 2, np.datetime64("NaT"), DAYS), ["null in 20"]),
    "mixed": ([f"s{i}" if i % 2 else i for i in LABELS.tolist()], ["mixes", "int and str"]),
    "lists": ([[i] for i in LABELS.tolist()], ["labels"]),
    "dicts": ([{"a": i} for i in LABELS.tolist()], ["labels"]),
    "two columns": (np.stack([LABELS, LABELS], 1), ["one label per row"]),
    "one label": ("a", ["single value"]),
    "a number": (3, ["single value"]),
    "wrong length": (LABELS[:-1], ["length", "239"]),
    "times with and without zone": (
        [datetime.datetime(2024, 1, 1 + i, tzinfo=datetime.UTC if i % 2 else None) for i in LABELS.tolist()],
        ["zone"],
    ),
}  # fmt: skip

X = table()["x"]
GOOD_X = {
    "float32": X.astype(np.float32),
    "longdouble": X.astype(np.longdouble),
    "big-endian": X.astype(">f8"),
    "list": X.tolist(),
    "tuple": tuple(X.tolist()),
    "decimals": [Decimal(repr(v)) for v in X.tolist()],
    "objects": X.astype(object),
    "pandas": pd.Series(X),
    "pandas with another index": pd.Series(X, index=np.arange(N)[::-1]),
    "pandas Float64": pd.array(X, "Float64"),
    "polars": pl.Series(X),
    "arrow": pa.array(X),
    "arrow chunks": pa.chunked_array([X[:7], X[7:]]),
    "strided": np.repeat(X, 2)[::2],
    "reversed view": X[::-1].copy()[::-1],
    "read-only": X.copy(),
    "masked, nothing masked": np.ma.masked_array(X, np.zeros(N, bool)),
}
BAD_X = {
    "NaN once": (np.where(np.arange(N) == 3, np.nan, X), ['"x"', "row 3"]),
    "infinite once": (np.where(np.arange(N) == 3, np.inf, X), ['"x"', "row 3"]),
    "None once": ([None, *X[1:].tolist()], ['"x"', "row 0"]),
    "masked once": (np.ma.masked_array(X, np.arange(N) == 5), ['"x"', "row 5"]),
    "null in Arrow": (pa.array([None, *X[1:].tolist()]), ['"x"', "row 0"]),
    "null in polars": (pl.Series([None, *X[1:].tolist()]), ['"x"', "row 0"]),
    "all NaN": (np.full(N, np.nan), ['"x"', "no value"]),
    "one typing error": (np.where(np.arange(N) == 3, "oops", X.astype(str)), ['"x"', "oops", "row 3"]),
    "decimal commas": ([str(v).replace(".", ",") for v in X], ['"x"', "categories"]),
    "constant": (np.ones(N), ['"x"', "constant"]),
    "nearly constant": (1 + 1e-17 * X, ['"x"', "constant"]),
    "two dimensions": (np.stack([X, X], 1), ['"x"', "shape"]),
    "ragged": ([[1.0], [1.0, 2.0]] * (N // 2), ['"x"']),
    "dates": (np.datetime64("2024-01-01") + np.arange(N), ['"x"', "numbers", "convert"]),
    "durations": (np.arange(N).astype("m8[h]"), ['"x"', "convert"]),
    "bytes": ([b"a", b"b"] * (N // 2), ['"x"', "convert"]),
    "complex": (X * 1j, ['"x"', "numbers"]),
    "objects": ([object()] * N, ['"x"', "numbers"]),
    "functions": ([abs] * N, ['"x"', "numbers"]),
    "mixed categories": (pd.Categorical([1, "b"] * (N // 2)), ['"x"', "int", "str"]),
    "mixed objects": ([1, "b"] * (N // 2), ['"x"', "int", "str"]),
    "mixed, with None": ([1.5, "b", None, 2] * (N // 4), ['"x"', "row"]),
    "too short": (X[:-1], ['"x"', "239"]),
    "too long": (np.r_[X, 0], ['"x"', "241"]),
    "empty": ([], ['"x"', "0"]),
    "a single number": (1.0, ['"x"', "single value"]),
    "a single text": ("abc", ['"x"', "single value"]),
    "None": (None, ['"x"', "single value"]),
    "a generator": ((v for v in X), ['"x"']),
    "a set": ({1.0, 2.0}, ['"x"']),
    "a different name for each row": ([f"row {i}" for i in range(N)], ['"x"', "240"]),
    "at 1e20": (1e20 * X, ['"x"', "scale"]),
    "at 1e30": (1e30 * X, ['"x"', "scale"]),
    "at 1e300": (1e300 * X, ['"x"', "scale"]),
    "at 1e-300": (1e-300 * X, ['"x"', "scale"]),
    "at 1e-30": (1e-30 * X, ['"x"', "scale"]),
    "one value at 1e30": (np.where(np.arange(N) == 3, 1e30, X), ['"x"', "scale"]),
}  # fmt: skip
NO_TABLES = [None, 3, "data.csv", b"abc", [1, 2], [{"x": 1}], np.ones((3, 3)), (), set(), abs]


def cases():
    for name, make in KINDS.items():
        yield Case(
            f"a table of {name}", lambda make=make: build(data=make(table())), right=same_design
        )
        none = lambda make=make: build(data=make({n: c[:0] for n, c in table().items()}))
        yield Case(f"{name} without rows", none, ["no rows"])
    for name, column in good_labels().items():
        run = lambda column=column: build(data=table(g=column))
        yield Case(f"labels: {name}", run, right=same_design)
    for name, (column, says) in BAD_LABELS.items():
        run = lambda column=column: build(data=table(g=column))
        yield Case(f"labels: {name}", run, ['"g"', *says])
    for name, column in GOOD_X.items():
        yield Case(
            f"x: {name}", lambda column=column: build(data=table(x=column)), right=same_design
        )
    for name, (column, says) in BAD_X.items():
        yield Case(f"x: {name}", lambda column=column: rf.fit(*build(data=table(x=column))), says)
    for thing in NO_TABLES:
        run = lambda thing=thing: rf.from_formula(FORMULA, thing)
        yield Case(f"table {thing!r:.20}", run, ["table", "expected a dict of arrays"])
    yield Case("a lazy frame", lambda: build(data=pl.LazyFrame(table())), [".collect()"])
    frame = pd.DataFrame(table())
    twice = pd.concat([frame, frame[["x"]]], axis=1)
    yield Case("two columns x", lambda: build(data=twice), ['"x"', "2 columns"])
    shuffled = frame.sample(frac=1, random_state=0)
    sums = lambda groups: np.add.reduceat(groups.rows["y"], np.arange(GROUPS) * EACH)
    same = lambda out: np.testing.assert_allclose(sums(out[1]), sums(build()[1]), atol=1e-4)
    yield Case("rows in another order", lambda: build(data=shuffled), right=same)
    multi = frame.set_index("g")
    yield Case("labels in the index", lambda: build(data=multi), ['"g"', "index"])
    columns = pd.MultiIndex.from_product([["a"], frame.columns])
    yield Case(
        "names in levels", lambda: build(data=frame.set_axis(columns, axis=1)), ["no column"]
    )
    yield Case("names that are numbers", lambda: build(data={0: [1], 1: [2]}), ["no column"])
    yield from _groups()
    yield from _predicted()


def _groups():
    one = lambda t: np.arange(len(t)) == 0
    yield Case("one row", lambda: build(data={n: c[:1] for n, c in table().items()}), ["y", "same"])
    yield Case(
        "one group",
        lambda: build(data=table(g=np.full(N, "a"))),
        ["one group"],
        lambda out: out[1].sizes.tolist() == [N],
    )
    yield Case("a group for each row", lambda: build(data=table(g=np.arange(N))), ["group"], lambda out: len(out[1]) == N)  # fmt: skip
    yield Case("y NaN in a row", lambda: build(data=changed("y", one(LABELS), np.nan)), ['"y"', "row 0"])  # fmt: skip
    from_table = lambda data=None, **own: rf.Groups.from_table(
        table() if data is None else data, **{"by": "g", "rows": ["x", "y"], **own}
    )
    yield Case("Groups: by an unknown factor", lambda: from_table(by=["g", "zz"]), ['"zz"'])
    yield Case("Groups: by is a row", lambda: from_table(rows=["g", "y"]), ['"g"'])
    yield Case("Groups: rows of text", lambda: from_table(rows=["k"]), ['"k"', "numbers"])
    yield Case("Groups: unknown row", lambda: from_table(rows=["zz"]), ['"zz"'])
    yield Case("Groups: rows=3", lambda: from_table(rows=3), ["rows"])
    yield Case("Groups: rows=None", lambda: from_table(rows=None), ["rows"])
    yield Case("Groups: group column varies", lambda: from_table(rows="y", group="x"), ['"x"', "one value per group"])  # fmt: skip
    yield Case("Groups: named twice", lambda: from_table(rows=["x", "x"]), ['"x"', "twice"])
    big = table(x=np.arange(N) * 2**40)
    yield Case("Groups: integers of 64 bits", lambda: from_table(big), ['"x"', "32 bits"])
    groups = from_table()
    for fraction in (-0.1, 1.5, float("nan"), "a", None):
        yield Case(f"split({fraction!r})", lambda f=fraction: groups.split(f), ["fraction"])
    yield Case("an unknown label", lambda: groups.subset(labels=["zz"]), ["zz"])
    yield Case("a label of another kind", lambda: groups.subset(labels=[3]), ["strings"])


def _predicted():
    """Tables to predict: the fit's columns in other dress."""
    at = {"g": ["g00", "g01", "new"], "x": [0.0, 1.0, 2.0]}
    predict = lambda data, **own: fitted().predict(data, draws=50, **own)
    means_at = lambda out: np.asarray(out["mean"], float)
    same = lambda out: np.testing.assert_allclose(means_at(out), means_at(predict(at)), rtol=1e-5)
    for name, make in KINDS.items():
        yield Case(f"predict at {name}", lambda make=make: predict(make(at)), right=same)
    change = lambda **own: {**at, **own}
    yield Case("predict: no x", lambda: predict({"g": ["g00"]}), ['"x"'])
    new = lambda found: len(found["mean"]) == 1
    yield Case("predict: no g", lambda: predict({"x": [1.0]}), right=new, warns="one new group")
    yield Case("predict: x is text", lambda: predict(change(x=["a", "b", "c"])), ['"x"', "numbers"])
    yield Case("predict: x is NaN", lambda: predict(change(x=[0.0, np.nan, 1.0])), ['"x"', "row 1"])
    far = lambda out: abs(out["mean"][1] / 1e30 - means(fitted())["x"]) < 0.05
    yield Case("predict: x is 1e30", lambda: predict(change(x=[0.0, 1e30, 1.0])), ['"x"'], far)
    yield Case("predict: x is 1e300", lambda: predict(change(x=[0.0, 1e300, 1.0])), ['"x"'])
    yield Case("predict: g is a number", lambda: predict(change(g=[1, 2, 3])), ["integers", "strings"])  # fmt: skip
    yield Case("predict: lengths", lambda: predict(change(x=[0.0])), ["length"])
    yield Case("predict: a list", lambda: predict([1, 2]), ["at", "dict of arrays"])
    yield Case("predict: mean is taken", lambda: predict(change(mean=[0, 0, 0])), ['"mean"'])
    yield Case("predict: given without y", lambda: predict(at, given=at), ['"y"'])
    yield Case("predict: given of other kind", lambda: predict(at, given={"g": [1], "x": [0.0], "y": [1.0]}), ["integers", "strings"])  # fmt: skip
    yield Case("predict: no rows", lambda: predict({"g": [], "x": []}), right=lambda out: len(out["mean"]) == 0)  # fmt: skip
    yield from _times()


def _times():
    """Known groups stay known whether their times have a zone or not, or it is told."""
    naive = pd.DataFrame(table(g=DAYS.astype("M8[ns]")))
    aware = naive.assign(g=naive["g"].dt.tz_localize("UTC"))
    known = lambda model_groups, data: model_groups[0].adapter.read(data, "at", outcomes=True).renumbered(model_groups[1].labels)  # fmt: skip

    def match(first, second):
        own = build(data=first)
        found = known(own, second)
        return (found.number < GROUPS).all()

    yield Case("zone in both", lambda: match(aware, aware), right=bool)
    yield Case("zone in the fit only", lambda: match(aware, naive), ["zone"], bool)
    yield Case("zone in the new rows only", lambda: match(naive, aware), ["zone"], bool)
    tokyo = aware.assign(g=aware["g"].dt.tz_convert("Asia/Tokyo"))
    yield Case("another zone", lambda: match(aware, tokyo), right=bool)
    local = naive.assign(g=naive["g"].dt.tz_localize("Asia/Tokyo"))
    yield Case("zone in the new rows only, not UTC", lambda: match(naive, local), ["zone"])
    yield Case("zone in the fit only, not UTC", lambda: match(local, naive), ["zone"])
    yield from _times_of_groups(naive, aware)


def _times_of_groups(naive, aware):
    """The same for a custom model, whose fit keeps no table."""
    read = lambda data: rf.Groups.from_table(data, by="g", rows=["y"])
    fitted_to = lambda data: rf.fit(models.make(), read(data), max_steps=2, progress=False)
    draws = lambda first, second: fitted_to(first).sample(10, read(second))["b"].shape[1]
    known = lambda count: count == GROUPS
    yield Case("Groups: zone in both", lambda: draws(aware, aware), right=known)
    yield Case("Groups: zone in the fit only", lambda: draws(aware, naive), ["zone", '"g"'])
    yield Case("Groups: zone in the new rows only", lambda: draws(naive, aware), ["zone", '"g"'])
