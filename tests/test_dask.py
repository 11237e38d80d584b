"""Fits on the workers of a Dask client: the same bits as in one process, also after a worker died."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import distributed
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from cli_case import FORMULA, line, ramify, shops
from ramify.fitting import parts
from test_store import BLOCKS, MODEL, write_files

KILLS = 20
QUIET = {"dashboard_address": ":0", "threads_per_worker": 1, "silence_logs": 50}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A store, and its fit by one process."""
    folder = tmp_path_factory.mktemp("dask")
    write_files(folder / "files")
    store = rf.Groups.from_parquet(folder / "files", by="user", rows="y", store=folder / "s")
    return store, rf.fit(MODEL, store, **BLOCKS)


def same(a, b):
    leaves = map(jax.tree.leaves, (a.family, b.family))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_client_in_this_process(case, tmp_path):
    """Two workers, as threads; a checkpoint has what they hold."""
    store, whole = case
    with (
        distributed.LocalCluster(n_workers=2, processes=False, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(rf.fit(MODEL, store, **BLOCKS, engine=client, checkpoint=tmp_path), whole)
        with pytest.raises(ValueError, match="whose workers read the data from a store"):
            rf.fit(MODEL, store.in_memory(), engine=client)
        with pytest.raises(ValueError, match="devices= are those of this process"):
            rf.fit(MODEL, store, engine=client, devices=1)
    same(rf.fit(MODEL, store, **BLOCKS, checkpoint=tmp_path), whole)
    with pytest.raises(TypeError, match=r"expected a dask\.distributed\.Client"):
        rf.fit(MODEL, store, engine="tcp://somewhere:8786")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers(case, workers):
    store, whole = case
    with (
        distributed.LocalCluster(n_workers=workers, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(rf.fit(MODEL, store, **BLOCKS, engine=client), whole)


@pytest.mark.slow
def test_workers_that_are_killed_lose_nothing(case):
    """kill -9 of a worker twenty times, during the sweeps of several fits."""
    store, whole = case
    # By default a task is given up when the third worker dies that computes it, and a worker that is
    # not there 15 seconds after it died, since it has been killed once more, is not started again.
    patience = {
        "distributed.scheduler.allowed-failures": 30,
        "distributed.deploy.lost-worker-timeout": "10 minutes",
    }
    with (
        dask.config.set(patience),
        distributed.LocalCluster(n_workers=3, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        rf.fit(MODEL, store, **BLOCKS, engine=client)  # the workers have compiled
        over, killed, began = threading.Event(), [], time.monotonic()

        def kill():
            chance, known = np.random.default_rng(0), cluster.scheduler.workers
            while not over.wait(chance.uniform(1, 3)) and len(killed) < KILLS:
                assert time.monotonic() < began + 240, "too few workers are left to kill"
                nannies = list(cluster.workers.values())
                pids = [own.pid for own in nannies if own.worker_address in known and own.pid]
                if len(pids) > 1:
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed.append(time.monotonic())

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            while thread.is_alive():
                same(rf.fit(MODEL, store, **BLOCKS, engine=client), whole)
        finally:
            over.set()
            thread.join()
        assert len(killed) == KILLS


# A formula, from the command to the parts that it writes.


@pytest.fixture(scope="module")
def shops_case(tmp_path_factory):
    """Parquet files of a formula's rows, and a fit of them that is saved."""
    folder = tmp_path_factory.mktemp("parts")
    table = shops(N=60)
    pq.write_table(table, folder / "shops.parquet")
    posterior = rf.fit(FORMULA, folder / "shops.parquet", store=folder / "s", theta="gaussian")
    posterior.save(folder / "fit")
    new = pa.concat_tables([table.slice(0, 90), shops(N=70).slice(60 * 6)])  # some groups are new
    pq.write_table(new, folder / "new.parquet", row_group_size=40)
    return folder, new, posterior


def read(files):
    return pa.concat_tables([pq.read_table(file) for file in files])


@pytest.mark.slow
def test_parts_are_the_whole(shops_case, tmp_path, monkeypatch):
    """Here, without workers: what is there is not computed again, and other parts are refused."""
    folder, new, posterior = shops_case
    own = {"kind": "mean", "draws": 50}
    files = rf.predict_parts(folder / "fit", folder / "new.parquet", tmp_path / "p", **own)
    assert len(files) == 4
    found, whole = read(files), posterior.predict(new, **own)
    assert found.column_names == whole.column_names and found["x"].equals(whole["x"])
    known = slice(0, 80)  # rows whose groups are in the fit
    np.testing.assert_allclose(found["mean"][known], whole["mean"][known], rtol=1e-5)
    files[2].unlink()
    times = [file.stat().st_mtime_ns for file in files if file.exists()]
    rf.predict_parts(folder / "fit", folder / "new.parquet", tmp_path / "p", **own)
    assert times == [file.stat().st_mtime_ns for k, file in enumerate(files) if k != 2]
    assert read(files).equals(found)
    with pytest.raises(FileExistsError, match="parts of another fit, source or options"):
        rf.predict_parts(folder / "fit", folder / "new.parquet", tmp_path / "p", kind="link")
    monkeypatch.setattr(parts, "GROUPS", 25)
    files = rf.effects_parts(folder / "fit", tmp_path / "e", draws=50)
    effects = posterior.group_effects(draws=50)
    assert len(files) == 3 and read(files)["shop"].equals(effects["shop"])
    np.testing.assert_allclose(read(files)["Intercept_mean"], effects["Intercept_mean"], rtol=1e-4)


@pytest.mark.slow
def test_parts_of_a_file_that_was_written_again_are_refused(shops_case, tmp_path):
    """Yesterday's predictions were returned for today's file, without a word."""
    folder, new, _ = shops_case
    own = {"kind": "mean", "draws": 50}
    pq.write_table(new.slice(0, 40), tmp_path / "new.parquet")
    old = read(rf.predict_parts(folder / "fit", tmp_path / "new.parquet", tmp_path / "p", **own))
    pq.write_table(new.slice(40, 40), tmp_path / "new.parquet")
    with pytest.raises(FileExistsError, match="parts of another fit, source or options"):
        rf.predict_parts(folder / "fit", tmp_path / "new.parquet", tmp_path / "p", **own)
    again = read(rf.predict_parts(folder / "fit", tmp_path / "new.parquet", tmp_path / "q", **own))
    assert again["x"].equals(new["x"].slice(40, 40)) and not again["x"].equals(old["x"])


def command(*words):
    """The command in a process of its own: functions that tests check types of can't be sent."""
    own = {**os.environ, "PYTHONPATH": str(Path(rf.__file__).parents[1])}
    words = [sys.executable, "-m", "ramify", *map(str, words)]
    return subprocess.run(words, env=own, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_command_computes_on_workers(shops_case, tmp_path):
    """Fit, predictions, group effects and the verdict: those of one process."""
    folder, _, posterior = shops_case
    with distributed.LocalCluster(n_workers=2, **QUIET) as cluster:
        there = ["--scheduler", cluster.scheduler_address]
        words = ["fit", folder / "shops.parquet", FORMULA, "--out", tmp_path / "fit"]
        done = command(*words, "--theta", "gaussian", *there)
        assert done.returncode == 0, done.stderr
        same(rf.load(tmp_path / "fit"), posterior)
        new = [folder / "fit", folder / "new.parquet", "--draws", 50, "--kind", "mean"]
        done = command("predict", *new, "--out", tmp_path / "p", *there)
        assert done.returncode == 0 and "in 4 parts" in done.stderr, done.stderr
        own = {"kind": "mean", "draws": 50}
        files = rf.predict_parts(folder / "fit", folder / "new.parquet", tmp_path / "here", **own)
        assert read(sorted((tmp_path / "p").glob("*.parquet"))).equals(read(files))
        done = command("summary", folder / "fit", "--groups", tmp_path / "e", *there)
        assert done.returncode == 0 and pq.read_table(tmp_path / "e").num_rows == 60, done.stderr
        done = command("diagnose", folder / "fit", *there)
        assert done.stdout.startswith("Verdict: "), done.stderr
        bad = ramify("predict", *new, "--out", tmp_path / "p.csv", *there)
        assert "expected a folder" in line(bad)
    done = command("diagnose", folder / "fit", "--scheduler", "tcp://127.0.0.1:9")
    assert done.returncode == 1 and "no Dask scheduler answers there" in done.stderr
