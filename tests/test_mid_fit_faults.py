"""Fits of stores whose files, client or disk fail meanwhile: real processes, all of them slow."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from test_dask import QUIET
from test_store import BLOCKS, MODEL, write_files

pytestmark = pytest.mark.slow

FIT = """
import sys; sys.path.insert(0, sys.argv[3])
import numpy as np, jax, ramify as rf
from ramify.fitting import checkpoints
from test_store import BLOCKS, MODEL
checkpoints.SECONDS = 0
engine = None
if len(sys.argv) > 4:
    from distributed import Client
    engine = Client(sys.argv[4])
groups = rf.Groups.from_store(sys.argv[1])
own = {"engine": engine} if engine else {"streamed": True}
posterior = rf.fit(MODEL, groups, **BLOCKS, checkpoint=sys.argv[2], **own)
np.savez(sys.argv[2] + ".npz", *jax.tree.leaves(posterior.family))
"""
BUILD = """
import sys, ramify as rf
from ramify.data import building
building.ROOM = 0  # the disk looks large enough before
groups = rf.Groups.from_parquet(sys.argv[1], by="user", rows=["x", "y", "pair"], store=sys.argv[2])
print(groups.n_rows)
"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Files, their store and the arrays of its fit."""
    folder = tmp_path_factory.mktemp("mid")
    write_files(folder / "files")
    store = rf.Groups.from_parquet(folder / "files", by="user", rows="y", store=folder / "s")
    return folder, jax.tree.leaves(rf.fit(MODEL, store, **BLOCKS).family)


def start(program, *words):
    tests = Path(__file__).parent
    own = {**os.environ, "PYTHONPATH": str(Path(rf.__file__).parents[1])}
    words = [*map(str, words[:2]), str(tests), *words[2:]] if program is FIT else map(str, words)
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], env=own,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def in_its_search(running, kept):
    """Waits until a fit has written a checkpoint."""
    until = time.monotonic() + 500
    while running.poll() is None and not list(Path(kept).glob("search-*")):
        assert time.monotonic() < until
        time.sleep(0.005)


def last_line(running):
    out, err = running.communicate(timeout=500)
    return err.splitlines()[-1] if err else out


def same(path, whole):
    found = np.load(path)
    for a, b in zip(found.values(), whole, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("what", ["removed", "cut", "of another type"])
def test_a_file_of_the_store_in_mid_fit(case, tmp_path, what):
    shutil.copytree(case[0] / "s", tmp_path / "s")
    running = start(FIT, tmp_path / "s", tmp_path / "kept")
    in_its_search(running, tmp_path / "kept")
    (column,) = (tmp_path / "s").glob("*/row-0.npy")
    if what == "removed":
        column.unlink()
    else:
        os.truncate(column, 5000)
        if what == "of another type":
            pq.write_table(pa.table({"y": ["a"]}), column)
    said = last_line(running)
    assert running.returncode == 1, "it was over before: make the data larger"
    # Whichever is seen first: that the file is another one, or what is in it.
    sentences = "can't be read any more", "was cut short while it was read", "was changed after it"
    assert any(sentence in said for sentence in sentences), said
    assert list((tmp_path / "kept").glob("search-*")), "what was found is kept"


def overwrite(column, what):
    """Other values in a column of as many bytes."""
    values = bytearray(column.read_bytes())
    values[-8000:] = bytes(8000)
    if what == "in place":
        with column.open("r+b") as file:
            file.write(values)
        return
    new, was = column.with_name("new"), column.stat()
    new.write_bytes(values)
    os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))  # as tools that copy folders do
    new.replace(column)


@pytest.mark.parametrize("what", ["in place", "by another file"])
def test_a_store_overwritten_in_mid_fit(case, tmp_path, what):
    shutil.copytree(case[0] / "s", tmp_path / "s")
    running = start(FIT, tmp_path / "s", tmp_path / "kept")
    in_its_search(running, tmp_path / "kept")
    overwrite(next(tmp_path.glob("s/*/row-0.npy")), what)
    said = last_line(running)
    assert running.returncode == 1, "it was over before: make the data larger"
    assert "row-0.npy was changed after it had been opened" in said, said


def test_a_store_overwritten_in_mid_fit_on_workers(case, tmp_path):
    shutil.copytree(case[0] / "s", tmp_path / "s")
    with distributed.LocalCluster(n_workers=1, **QUIET) as cluster:
        running = start(FIT, tmp_path / "s", tmp_path / "kept", cluster.scheduler_address)
        in_its_search(running, tmp_path / "kept")
        overwrite(next(tmp_path.glob("s/*/row-0.npy")), "in place")
        said = last_line(running)
    assert running.returncode == 1, "it was over before: make the data larger"
    assert "row-0.npy was changed after it had been opened" in said, said


@pytest.mark.parametrize("what", ["removed", "changed"])
def test_a_parquet_file_in_mid_fit_does_not_matter(case, tmp_path, what):
    """The fit reads its store; only the next build sees the source."""
    folder, whole = case
    shutil.copytree(folder / "files", tmp_path / "files")
    rf.Groups.from_parquet(tmp_path / "files", by="user", rows="y", store=tmp_path / "s")
    running = start(FIT, tmp_path / "s", tmp_path / "kept")
    in_its_search(running, tmp_path / "kept")
    (tmp_path / "files/0.parquet").unlink()
    if what == "changed":
        pq.write_table(pa.table({"user": ["a"], "y": ["text"]}), tmp_path / "files/0.parquet")
    assert last_line(running) == "" and running.returncode == 0
    same(f"{tmp_path / 'kept'}.npz", whole)
    if what == "changed":
        with pytest.raises((ValueError, TypeError), match="does not go with the files before it|y"):
            rf.Groups.from_parquet(tmp_path / "files", by="user", rows="y", store=tmp_path / "s")


@pytest.mark.parametrize("what", ["removed", "of another type"])
def test_a_parquet_file_in_mid_sort(tmp_path, what):
    write_files(tmp_path / "files", rows=400_000)
    running = start(BUILD, tmp_path / "files", tmp_path / "s")
    while not list(tmp_path.glob("s/*/sort")) and running.poll() is None:
        time.sleep(0.002)
    last = tmp_path / "files/3.parquet"
    last.unlink()
    if what == "of another type":
        pq.write_table(pa.table({"user": [1], "x": ["a"]}), last)
    said = last_line(running)
    assert running.returncode == 1 and ("changed while" in said or "3.parquet" in said), said
    assert not list((tmp_path / "s").iterdir())


def test_a_disk_that_fills_up(tmp_path):
    """A small file system of its own, where it may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        write_files(tmp_path / "files", rows=400_000)
        running = start(BUILD, tmp_path / "files", disk / "s")
        said = last_line(running)
        assert running.returncode == 1 and "can't be written: No space left on device" in said
        assert not list((disk / "s").iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_client_is_killed_and_goes_on(case, tmp_path):
    """The workers stay; another client goes on from the checkpoint."""
    folder, whole = case
    with distributed.LocalCluster(n_workers=2, **QUIET) as cluster:
        words = folder / "s", tmp_path / "kept", cluster.scheduler_address
        running = start(FIT, *words)
        in_its_search(running, tmp_path / "kept")
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert running.returncode == -signal.SIGKILL
        again = start(FIT, *words)
        said = last_line(again)
        assert again.returncode == 0, said
    same(f"{tmp_path / 'kept'}.npz", whole)
