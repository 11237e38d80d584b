"""Formulas on Parquet files that are sorted on disk: the model and the answers of a table in memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from cli_case import line, ramify
from quick import slow
from ramify.cli import modelling
from ramify.data import derived
from ramify.frontends.formula import tables
from ramify.frontends.formula.saving import of_columns

N, ROWS = 300, 4000


def columns(rng):
    """Rows of every kind of column, those of a group spread over the files."""
    shop = rng.integers(0, N, ROWS)
    x, kind = rng.normal(3, 2, ROWS), rng.integers(0, 4, ROWS)
    eta = 0.3 * x - 0.5 * (kind == 2) + rng.normal(size=N)[shop]
    grade = pa.DictionaryArray.from_arrays(
        pa.array(kind.astype(np.int32)), ["low", "mid", "high", "top"], ordered=True
    )
    return pa.table(
        {
            "shop": [f"s{i}" for i in shop],
            "x": x,
            "day": rng.integers(0, 3000, ROWS),
            "size": np.sqrt(shop).astype(np.float32),  # constant within shops
            "kind": np.array(["tea", "bread", "milk", "Apples"])[kind],
            "grade": grade,
            "code": (kind + 3).astype(np.int8),
            "y": eta + rng.normal(size=ROWS),
            "count": rng.poisson(np.exp(np.clip(eta - 1, -9, 3))),
            "yes": rng.random(ROWS) < 1 / (1 + np.exp(-eta)),
            "word": np.where(rng.random(ROWS) < 0.4, "won", "lost"),
            "stars": rng.integers(1, 6, ROWS),
            "n": rng.integers(20, 30, ROWS),
            "w": rng.random(ROWS),
            "late": rng.random(ROWS) < 0.2,
        }
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The table, and a folder of it in five files."""
    folder, table = tmp_path_factory.mktemp("formula"), columns(np.random.default_rng(0))
    for k in range(5):
        pq.write_table(table.slice(k * 800, 800), folder / f"{k}.parquet")
    return table, folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts and samples of a few hundred rows, so that there are many, and none has all levels."""
    monkeypatch.setattr(derived, "ROWS", 300)
    monkeypatch.setattr(tables, "FIRST", 50)
    monkeypatch.setattr(tables, "MOST", 20)  # else the sample has every row


FORMULAS = [
    slow("y ~ x + (1 | shop)", {}),
    slow("y ~ x * kind + size + grade + (1 + x | shop)", {}),
    slow("y ~ scale(x) + center(day) + log(size + 1) + C(code) + (1 || shop)", {}),
    slow("y ~ bs(day, df=5) + poly(x, 2) + offset(w) + (0 + x | shop); sigma ~ x + (1 | shop)", {}),
    slow("count ~ x + kind + (1 | shop)", {"likelihood": "poisson"}),
    ("yes ~ scale(x) + grade + C(code) + bs(day, df=4) + (1 + x | shop)", {"likelihood": "bernoulli"}),
    slow("word ~ x + size + (1 | shop)", {"likelihood": "bernoulli"}),
    slow("word[lost] ~ x + (1 | shop)", {"likelihood": "bernoulli", "weights": "w"}),
    slow("stars ~ x + (1 | shop)", {"likelihood": "ordered"}),
    slow("grade ~ x + (1 | shop)", {"likelihood": "ordered"}),
    slow("kind ~ x + (1 | shop)", {"likelihood": "categorical"}),
    slow("code | trials(n) ~ x + (1 | shop)", {"likelihood": "binomial"}),
    slow("exp(y) | cens(late) ~ x + (1 | shop)", {"likelihood": "weibull"}),
    slow("exp(y) ~ x + (1 | shop)", {"likelihood": "lognormal"}),
]  # fmt: skip


def near(a, b):
    """Whether two values of JSON are the same up to rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            near(a[name], b[name])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            near(x, y)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-10)
    else:
        assert a == b


@pytest.mark.filterwarnings("ignore:columns .* are combinations")  # grade and code
@pytest.mark.parametrize(("formula", "options"), FORMULAS)
def test_coding_units_priors_and_rows_are_those_of_a_table(case, tmp_path, formula, options):
    table, folder = case
    model, groups = rf.from_formula(formula, folder, store=tmp_path / "s", **options)
    whole, rows = rf.from_formula(formula, table, **options)
    plain = lambda m: json.loads(json.dumps(of_columns(m.formula)))
    near(plain(model), plain(whole))
    assert repr(model.priors) == repr(whole.priors) and model.formula.table == "pyarrow"
    assert groups.store is not None and groups.store.folder.parent == tmp_path / "s"
    again = groups.subset(labels=rows.labels)  # in the other order
    np.testing.assert_array_equal(again.sizes, rows.sizes)
    np.testing.assert_array_equal(again.row_order, rows.row_order)
    assert again.rows.keys() == rows.rows.keys() and again.group.keys() == rows.group.keys()
    for name, column in {**rows.rows, **rows.group}.items():
        own = {**again.rows, **again.group}[name]
        np.testing.assert_allclose(own, column, rtol=2e-6, atol=2e-6)


FORMULA = "yes ~ x + kind + size + (1 | shop)"
FIT = {"likelihood": "bernoulli", "theta": "gaussian", "rows": 200}


@pytest.fixture(scope="module")
def fits(case, tmp_path_factory):
    """The same fit from memory, from a store that stays on the disk, and from one that does not."""
    table, folder = case
    store, patch = tmp_path_factory.mktemp("fits") / "s", pytest.MonkeyPatch()
    patch.setattr(derived, "ROWS", 300)
    streamed = rf.fit(FORMULA, str(folder / "*.parquet"), **FIT, store=store, streamed=True)
    resident = rf.fit(FORMULA, str(folder / "*.parquet"), **FIT, store=store, streamed=False)
    patch.undo()
    return rf.fit(FORMULA, table, **FIT), streamed, resident


def same(a, b):
    for one, other in zip(*map(jax.tree.leaves, (a.family, b.family)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_of_a_store_is_that_of_a_table(fits):
    """Bit for bit, streamed or resident; blocks in memory are others, so up to rounding there."""
    whole, streamed, resident = fits
    same(streamed, resident)
    assert streamed.notes["streamed"] and "streamed" not in resident.notes
    a, b = whole.summary(), streamed.summary()
    assert a.names == b.names
    sds = a.columns["sd"]
    np.testing.assert_allclose((a.columns["mean"] - b.columns["mean"]) / sds, 0, atol=0.01)
    np.testing.assert_allclose(a.columns["sd"] / b.columns["sd"], 1, atol=0.01)


@pytest.mark.slow
@pytest.mark.slow
def test_it_is_saved_without_its_rows_and_predicts(case, fits, tmp_path):
    whole, streamed, _ = fits
    streamed.save(tmp_path / "fit")
    assert not list((tmp_path / "fit").glob("rows*"))
    loaded = rf.load(tmp_path / "fit")
    assert loaded.groups.store == streamed.groups.store
    new = case[0].slice(0, 20)
    mean = lambda p: np.asarray(p.predict(new, kind="mean", draws=200)["mean"])
    np.testing.assert_array_equal(mean(loaded), mean(streamed))
    np.testing.assert_allclose(mean(loaded), mean(whole), atol=0.05)
    moved = streamed.groups.store.folder.rename(tmp_path / "moved")
    with pytest.warns(UserWarning, match="which is gone or another one now"):
        assert rf.load(tmp_path / "fit").groups is None
    moved.rename(streamed.groups.store.folder)


def test_a_store_of_numbers_takes_a_formula(case, tmp_path):
    table, folder = case
    columns = {"by": "shop", "rows": ["x", "y", "stars"], "group": ["size"]}
    groups = rf.Groups.from_parquet(folder, **columns, store=tmp_path / "s")
    model, rows = rf.from_formula("y ~ x + size + C(stars) + (1 | shop)", groups)
    whole, _ = rf.from_formula("y ~ x + size + C(stars) + (1 | shop)", table)
    assert repr(model.priors) == repr(whole.priors) and list(rows.group) == ["U"]
    with pytest.raises(ValueError, match='has no column "word"'):
        rf.from_formula("y ~ word + (1 | shop)", groups)
    with pytest.raises(ValueError, match='sorted by "shop"; the formula groups by "kind"'):
        rf.from_formula("y ~ x + (1 | kind)", groups)
    with pytest.raises(TypeError, match="rf.Groups in memory; expected a table"):
        rf.from_formula("y ~ x + (1 | shop)", groups.in_memory())
    with pytest.raises(ValueError, match="one with several is fitted in memory"):
        rf.from_formula("y ~ x + (1 | shop) + (1 | kind)", groups)


def test_a_store_is_used_again(case, tmp_path):
    made = lambda: rf.from_formula("y ~ x + (1 | shop)", case[1], store=tmp_path / "s")[1]
    first = made()
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*") if p.is_file()}
    assert made().store == first.store
    assert times == {p: p.stat().st_mtime_ns for p in times}
    other = rf.from_formula("y ~ x + (1 + x | shop)", case[1], store=tmp_path / "s")[1]
    assert other.store.folder != first.store.folder and first.subset(positions=[0]).n_rows


@pytest.fixture(scope="module")
def with_gaps(case, tmp_path_factory):
    """The rows with missing values and a zero, whose numbers are known."""
    x, kind = (case[0].column(name).to_pylist() for name in ("x", "kind"))
    x[7], x[3999], kind[1234] = None, float("nan"), None
    table = case[0].set_column(1, "x", [x]).set_column(4, "kind", [pa.array(kind)])
    path = tmp_path_factory.mktemp("gaps") / "gaps.parquet"
    pq.write_table(table, path, row_group_size=500)
    return table, path


def test_bad_rows_are_named_by_their_numbers(case, with_gaps, tmp_path):
    table, path = with_gaps
    fit = lambda formula, **own: rf.from_formula(formula, path, store=tmp_path / "s", **own)
    with pytest.raises(ValueError, match='column "x" of table has no value in row 7: impute'):
        fit("y ~ x + (1 | shop)")
    with pytest.raises(ValueError, match="no value in row 234: .* Row 0 here is row 1,000 of"):
        fit("y ~ kind + (1 | shop)")
    size = np.asarray(table["size"])
    first = np.flatnonzero(size == 0)
    with pytest.raises(ValueError, match=r"log\(size\) is -inf in .*row") as caught:
        fit("y ~ log(size) + (1 | shop)")
    assert str(path) in str(caught.value) and "may be more" in str(caught.value)
    assert any(f"in row {k} column" in str(caught.value) for k in first)
    with pytest.raises(ValueError, match=r"the response y is .* takes numbers above zero"):
        fit("y ~ size + (1 | shop)", likelihood="gamma")


def test_rows_with_missing_values_are_dropped(with_gaps, tmp_path):
    table, path = with_gaps
    own = {"missing": "drop", "store": tmp_path / "s"}
    said = 'dropped 3 of 4,000 rows, in which a value is missing: "kind" in 1, "x" in 2'
    with pytest.warns(UserWarning, match=said):
        model, groups = rf.from_formula("y ~ x + kind + (1 | shop)", path, **own)
    with pytest.warns(UserWarning, match=said):
        whole, rows = rf.from_formula("y ~ x + kind + (1 | shop)", table, missing="drop")
    assert groups.n_rows == rows.n_rows == ROWS - 3
    assert repr(model.priors) == repr(whole.priors)


@pytest.mark.slow
def test_the_command_sorts_what_memory_can_not_hold(case, tmp_path, monkeypatch):
    table, folder = case
    monkeypatch.setattr(modelling, "COPIES", 10**9)  # no memory is large enough
    words = [folder / "*.parquet", FORMULA, "--likelihood", "bernoulli", "--theta", "gaussian"]
    done = ramify("fit", *words, "--out", tmp_path / "fit")
    assert done.exit_code == 0, done.output
    assert f"sorted on disk, into the store {tmp_path / 'fit.store'}" in done.stderr
    assert rf.load(tmp_path / "fit").groups.n_rows == ROWS
    pq.write_table(table.slice(0, 10), tmp_path / "new.parquet")
    done = ramify(
        "predict", tmp_path / "fit", tmp_path / "new.parquet", "--out", tmp_path / "p.csv"
    )
    assert done.exit_code == 0 and "all" not in done.stderr, done.output


@pytest.mark.slow
def test_a_fit_of_a_store_is_killed_and_resumed(case, tmp_path):
    """kill -9 of the command in its search; the answer is that of one that was not stopped."""
    program = (
        "from ramify.fitting import checkpoints as c; c.SECONDS = 0; from ramify.cli import main\n"
    )
    program += "main()"
    own = {**os.environ, "PYTHONPATH": str(Path(rf.__file__).parents[1])}
    words = ["fit", str(case[1]), FORMULA, "--likelihood", "bernoulli", "--store", "s"]
    run = lambda *more: subprocess.Popen(
        [sys.executable, "-c", program, *more], cwd=tmp_path, env=own
    )
    assert run(*words, "--out", "whole").wait(300) == 0
    running = run(*words, "--out", "killed", "--checkpoint")
    while running.poll() is None and not list(tmp_path.glob("killed.checkpoint/search-*")):
        time.sleep(0.002)
    running.kill()
    assert running.wait() == -9, "it was over before"
    assert run("fit", "--resume", "killed").wait(300) == 0
    same(rf.load(tmp_path / "whole"), rf.load(tmp_path / "killed"))


def test_what_the_command_refuses(case, tmp_path):
    (tmp_path / "a.csv").write_text("shop,y\n1,2\n")
    done = ramify("fit", tmp_path / "a.csv", "y ~ (1 | shop)", "--store", tmp_path / "s")
    assert "--store is for Parquet" in line(done)
    done = ramify("fit", case[1], "y ~ nope + (1 | shop)", "--out", tmp_path / "no")
    assert 'has no column "nope"' in line(done)
