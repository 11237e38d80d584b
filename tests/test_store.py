"""Stores: rows of Parquet files sorted by group on disk, and fits that stream them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from ramify.data import building
from ramify.data.host import pack
from ramify.data.resident import to_device
from ramify.data.sources import streamed
from ramify.data.store import STORE
from ramify.numerics import budgets

N, ROWS = 3000, 40_000


def write_files(folder, count=4, rows=ROWS, **columns):
    """Parquet files over which the rows of every group are spread."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, N, rows)
    table = pa.table(
        {
            "user": [f"user {u}" for u in user],
            "x": rng.normal(size=rows).astype(np.float32),
            "y": (rng.random(rows) < 1 / (1 + np.exp(-rng.normal(size=N)[user]))).astype(np.int64),
            "age": (user % 50).astype(np.float64),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=2 * rows)), 2),
            **columns,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        pq.write_table(table.slice(k * rows // count, rows // count), folder / f"{k}.parquet")
    return table


COLUMNS = {"by": "user", "rows": ["x", "y", "pair"], "group": ["age"]}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The files, their table, and a store of it."""
    folder = tmp_path_factory.mktemp("store")
    table = write_files(folder / "files")
    store = rf.Groups.from_parquet(str(folder / "files/*.parquet"), **COLUMNS, store=folder / "s")
    return folder, table, store


def test_a_store_has_every_row_once(case):
    _, table, store = case
    whole = rf.Groups.from_table(table, **COLUMNS)
    assert len(store) == len(whole) and store.n_rows == whole.n_rows and store.store
    again = store.subset(labels=whole.labels)  # in the other order, in memory
    np.testing.assert_array_equal(again.sizes, whole.sizes)
    np.testing.assert_array_equal(again.row_order, whole.row_order)
    for name in (*COLUMNS["rows"], "age"):
        both = ({**g.rows, **g.group}[name] for g in (again, whole))
        a, b = both
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    near = store.subset(positions=range(50, 150))  # neighbours are read from the file
    part = slice(store.starts[50], store.starts[150])
    np.testing.assert_array_equal(near.rows["pair"], store.rows["pair"][part])
    assert again.store is None and isinstance(store.rows["pair"], np.memmap)


def test_groups_are_in_no_order(case):
    """The first thousand are a random sample: their numbers are not the smallest, nor sorted."""
    numbers = np.array([int(label.split()[1]) for label in case[2].labels])
    assert abs(numbers[:1000].mean() - (N - 1) / 2) < 5 * N / np.sqrt(12 * 1000)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / np.sqrt(N)


def test_a_store_is_used_again_until_its_source_changes(case, tmp_path):
    shutil.copytree(case[0] / "files", tmp_path / "files")
    open_it = lambda: rf.Groups.from_parquet(tmp_path / "files", **COLUMNS, store=tmp_path / "s")
    build = lambda: json.loads((tmp_path / "s" / STORE).read_text())["build"]
    first, was = open_it(), build()
    assert open_it().store == first.store and build() == was
    (tmp_path / "files/3.parquet").unlink()
    assert open_it().n_rows == 0.75 * ROWS and build() != was
    assert len(list((tmp_path / "s").iterdir())) == 2  # the old build is gone
    pq.write_table(case[1].slice(0, 10), tmp_path / "files/0.parquet")
    assert open_it().n_rows == ROWS // 2 + 10
    other = rf.Groups.from_parquet(tmp_path / "files", by="user", rows="y", store=tmp_path / "s")
    assert list(rf.Groups.from_store(tmp_path / "s").rows) == list(other.rows) == ["y"]


def test_what_can_not_be_a_store_is_refused(case, tmp_path):
    files = case[0] / "files"
    made = lambda **own: rf.Groups.from_parquet(files, **{**COLUMNS, **own}, store=tmp_path / "s")
    with pytest.raises(ValueError, match='group column "x" must have one value per group'):
        made(rows=["y"], group=["x"])
    with pytest.raises(TypeError, match="do not make good labels"):
        made(by="x", rows=["y"])
    with pytest.raises(ValueError, match="does not go with group_table"):
        made(group_table=case[1])
    assert not list((tmp_path / "s").iterdir())
    for k, bad in enumerate([{"x": [np.nan] * ROWS}, {"user": [None] * ROWS}]):
        write_files(tmp_path / f"bad{k}", **bad)
        with pytest.raises(ValueError, match="is NaN, infinite or null|is null in row 0"):
            rf.Groups.from_parquet(tmp_path / f"bad{k}", **COLUMNS, store=tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    with pytest.raises(FileExistsError, match=r"letter\.txt.*not a store"):
        rf.Groups.from_parquet(files, **COLUMNS, store=tmp_path / "mine")
    with pytest.raises(OSError, match=r"letter\.txt/s can't be written: Not a directory"):
        rf.Groups.from_parquet(files, **COLUMNS, store=tmp_path / "mine/letter.txt/s")
    with pytest.raises(FileNotFoundError, match="there is no store"):
        rf.Groups.from_store(tmp_path / "none")


def test_files_that_do_not_go_together(tmp_path):
    """One lacks a column; one is named twice; none has the name; a row of a late one has no value."""
    first = {"user": [1, 2], "x": [0.0, 1.0]}
    pq.write_table(pa.table(first), tmp_path / "0.parquet")
    pq.write_table(pa.table({"user": [3]}), tmp_path / "1.parquet")
    made = lambda source: rf.Groups.from_parquet(source, by="user", rows="x", store=tmp_path / "s")
    with pytest.raises(ValueError, match=r'1\.parquet has no column "x", which other files have'):
        made(tmp_path)
    with pytest.raises(ValueError, match=r"1\.parquet has no column"):
        rf.from_formula("x ~ 1 + (1 | user)", tmp_path, store=tmp_path / "s")
    with pytest.raises(ValueError, match=r"0\.parquet is in the list twice"):
        made([tmp_path / "0.parquet", tmp_path / ".." / tmp_path.name / "0.parquet"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        made(str(tmp_path / "2*.parquet"))
    pq.write_table(pa.table({"user": [3, 4], "x": [0.0, np.nan]}), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"first of them row 1, .* Row 0 here is row 2 of"):
        made(tmp_path)
    (tmp_path / "day=5").mkdir()
    (tmp_path / "0.parquet").replace(tmp_path / "day=5/0.parquet")  # its day is in its path
    (tmp_path / "1.parquet").unlink()
    dated = rf.Groups.from_parquet(tmp_path, by="user", rows=["x", "day"], store=tmp_path / "s")
    assert dated.rows["day"].tolist() == [5, 5]


def test_a_store_of_another_version_or_damaged(case, tmp_path):
    shutil.copytree(case[0] / "s", tmp_path / "s")
    said = json.loads((tmp_path / "s" / STORE).read_text())
    (tmp_path / "s" / STORE).write_text(json.dumps({**said, "format_version": 2}))
    with pytest.raises(ValueError, match="a store of format 2, by ramify .*reads format 1"):
        rf.Groups.from_store(tmp_path / "s")
    (tmp_path / "s" / STORE).write_text(json.dumps(said))
    column = tmp_path / "s" / said["build"] / "row-0.npy"
    open_one = rf.Groups.from_store(tmp_path / "s")
    os.truncate(column, 1000)
    with pytest.raises(OSError, match="was cut short while it was read"):
        open_one.subset(positions=range(N - 2, N))
    with pytest.raises(ValueError, match="is damaged"):
        rf.Groups.from_store(tmp_path / "s")
    column.unlink()
    with pytest.raises(OSError, match="can't be read any more: No such file"):
        open_one.subset(positions=range(2))


@pytest.mark.parametrize("name", ["row-1", "group-0", "row_order"])
def test_a_store_that_is_overwritten_is_not_read_on(case, tmp_path, name):
    """Whatever reads it says so; opened again, it is read as it is now."""
    shutil.copytree(case[0] / "s", tmp_path / "s")
    store = rf.Groups.from_store(tmp_path / "s")
    (column,) = tmp_path.glob(f"s/*/{name}.npy")
    with column.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    members = np.arange(10)
    for read in (
        lambda: store.subset(positions=members),
        lambda: store.in_memory(),
        lambda: pack(store, members, 1000),
        lambda: next(streamed(store, members[None], 1000).blocks([0])),
        lambda: to_device(store),
        lambda: store.split(),
    ):
        with pytest.raises(OSError, match=f"{name}.npy was changed after it had been opened"):
            read()
    rf.Groups.from_store(tmp_path / "s").subset(positions=members)


def test_too_little_disk_is_said_before(case, monkeypatch):
    monkeypatch.setattr(building, "ROOM", 1e9)
    with pytest.raises(OSError, match="GB of disk; .* GB free. Put the store on a larger disk"):
        rf.Groups.from_parquet(case[0] / "files", by="user", rows="x", store=case[0] / "other")


def logistic():
    """A level for each user."""
    return rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]) - t["tau"],
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.Bernoulli(logits=z["b"]).log_prob(row["y"]),
    )


MODEL = logistic()
BLOCKS = {"theta": "gaussian", "rows": 1000}  # some forty blocks, three pieces


@pytest.fixture(scope="module")
def fits(case):
    store = rf.Groups.from_parquet(case[0] / "files", by="user", rows="y", store=case[0] / "y")
    how = {"resident": {"streamed": False}, "streamed": {"streamed": True}, "by size": {}}
    return store, {name: rf.fit(MODEL, store, **BLOCKS, **own) for name, own in how.items()}


def same(a, b):
    leaves = map(jax.tree.leaves, (a.family, b.family))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_streamed_is_resident_bit_for_bit(fits):
    store, found = fits
    assert found["streamed"].notes["streamed"] and "streamed" not in found["resident"].notes
    assert "streamed" not in found["by size"].notes
    same(found["resident"], found["streamed"])


def test_a_store_gives_the_answer_of_memory(case, fits):
    """Blocks are others: the same up to rounding and the errors that the search stops at."""
    whole = rf.fit(MODEL, rf.Groups.from_table(case[1], by="user", rows=["y"]), **BLOCKS)
    a, b = whole.summary(), fits[1]["streamed"].summary()
    np.testing.assert_allclose(
        a.columns["mean"], b.columns["mean"], atol=0.01 * max(a.columns["sd"])
    )


def test_theta_is_judged_by_a_part_of_many_groups(fits, monkeypatch):
    """The answer is the same to the last bit, what is said of it nearly: a sixth of the groups tell."""
    store, found = fits
    monkeypatch.setattr(budgets, "JUDGING_GROUPS", 500)
    part = rf.fit(MODEL, store, **BLOCKS, streamed=True)
    for a, b in zip(*(jax.tree.leaves(f.family.theta) for f in (part, found["streamed"]))):
        np.testing.assert_array_equal(a, b)
    own, whole = part.notes, found["streamed"].notes
    assert own["bias_sds"] < 0.001 > whole["bias_sds"] and own["bias_sds"] != whole["bias_sds"]
    assert own["theta_width"] == pytest.approx(whole["theta_width"], abs=0.1)


@pytest.mark.slow
def test_what_follows_a_fit_goes_by_blocks(fits):
    store, found = fits
    posterior = found["streamed"]
    means = {}
    for labels, block in posterior.sample_blocks(20):
        means |= dict(zip(labels, block["b"].mean(0), strict=True))
    assert len(means) == len(store)
    few = store.subset(positions=range(5))
    np.testing.assert_array_equal(
        posterior.sample(20, few)["b"].mean(0), [means[label] for label in few.labels]
    )
    assert np.isfinite(posterior.elbo(draws=16))


@pytest.mark.slow
def test_devices_give_the_same_bits(fits):
    """The tests run with two simulated devices."""
    if len(jax.local_devices()) < 2:
        pytest.skip("one device")
    store, found = fits
    same(found["resident"], rf.fit(MODEL, store, **BLOCKS, devices=2))
    with pytest.raises(ValueError, match="devices=99; expected 1 to"):
        rf.fit(MODEL, store, devices=99)


DEVICES = """
import sys; sys.path.insert(0, sys.argv[2])
import jax, numpy as np, ramify as rf
from test_store import BLOCKS, MODEL
store = rf.Groups.from_store(sys.argv[1])
found = [rf.fit(MODEL, store, **BLOCKS, devices=n).family for n in (1, 2, 4, 8)]
for other in found[1:]:
    for a, b in zip(*map(jax.tree.leaves, (found[0], other)), strict=True):
        np.testing.assert_array_equal(a, b)
print(len(jax.devices()), "devices")
"""


@pytest.mark.slow
def test_eight_devices_give_the_same_bits(fits):
    """In a process of its own, which simulates eight."""
    words = [sys.executable, "-c", DEVICES, fits[0].store.folder, Path(__file__).parent]
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    own = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(Path(rf.__file__).parents[1])}
    ended = subprocess.run(words, env=own, capture_output=True, text=True, timeout=900)
    assert "8 devices" in ended.stdout, ended.stderr
