"""Stores whose building is killed, raced or finds the disk full: real processes, all of them slow."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ramify as rf
from ramify.data.store import STORE
from test_store import write_files

pytestmark = pytest.mark.slow

BUILD = (
    "import sys, ramify as rf\n"
    "groups = rf.Groups.from_parquet(sys.argv[1], by='user', rows=['x', 'y', 'pair'], group=['age'],\n"
    "                                store=sys.argv[2])\n"
    "print(groups.store.content)"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files that take a while to sort."""
    folder = tmp_path_factory.mktemp("faults") / "files"
    write_files(folder, rows=400_000)
    return folder


def start(*words, before=()):
    """A process that builds a store."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rf.__file__).parents[1])}
    return subprocess.Popen(
        [*before, sys.executable, "-c", BUILD, *map(str, words)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_kill_9_during_the_sort(files, tmp_path):
    """What is there is a whole store or none, and the next process removes what is left."""
    chance, store, killed = random.Random(0), tmp_path / "s", []
    for _ in range(10):
        shutil.rmtree(store, ignore_errors=True) if (store / STORE).exists() else None
        running = start(files, store)
        while not list(store.glob("*/*")) and running.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1.5))
        running.kill()
        running.communicate()
        killed.append(running.returncode != 0)
        if (store / STORE).exists():
            assert rf.Groups.from_store(store).n_rows == 400_000
    assert sum(killed) > 3
    out, err = start(files, store).communicate(timeout=300)
    assert out.strip() == rf.Groups.from_store(store).store.content, err
    assert len(list(store.iterdir())) == 2


def test_two_processes_build_the_same_store(files, tmp_path):
    both = [start(files, tmp_path / "s") for _ in range(2)]
    said = [running.communicate(timeout=300) for running in both]
    assert said[0][0] == said[1][0] != "", said
    assert len(list((tmp_path / "s").iterdir())) == 2


def test_a_full_disk(files, tmp_path):
    """The disk's free room is told before; a disk that fills meanwhile leaves nothing."""
    # A limit on the size of files stands for a disk that is full when the columns are written.
    limited = start(files, tmp_path / "s", before=["bash", "-c", 'ulimit -f 1000; exec "$@"', "-"])
    _, err = limited.communicate(timeout=300)
    assert limited.returncode and "can't be written" in err.splitlines()[-1], err
    assert not list((tmp_path / "s").iterdir())


def test_a_source_that_changes_meanwhile(files, tmp_path):
    shutil.copytree(files, tmp_path / "files")
    running = start(tmp_path / "files", tmp_path / "s")
    while not list(tmp_path.glob("s/*/sort")) and running.poll() is None:
        time.sleep(0.01)
    os.utime(tmp_path / "files/0.parquet")
    _, err = running.communicate(timeout=300)
    assert "was changed while it was being read" in err, err
    assert not list((tmp_path / "s").iterdir())


def test_the_order_does_not_depend_on_memory(files, tmp_path):
    """Sorted in little memory, and so on disk."""
    little = "import ramify.data.sorting as s; s.MEMORY = '60MB'\n" + BUILD
    said = []
    for program, name in ((BUILD, "a"), (little, "b")):
        words = [sys.executable, "-c", program, str(files), str(tmp_path / name)]
        said.append(subprocess.run(words, capture_output=True, text=True, timeout=300))
    assert said[0].stdout == said[1].stdout != "", said
