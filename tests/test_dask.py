"""Fits on the workers of a Dask client: the same bits as in one process, also after a worker died."""

import os
import signal
import threading
import time

import distributed
import jax
import numpy as np
import pytest

import ramify as rf
from test_store import BLOCKS, MODEL, write_files

QUIET = {"dashboard_address": None, "threads_per_worker": 1, "silence_logs": 50}


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
    """kill -9 of a worker every few seconds, during the sweeps of several fits."""
    store, whole = case
    with (
        distributed.LocalCluster(n_workers=3, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        rf.fit(MODEL, store, **BLOCKS, engine=client)  # the workers have compiled
        over, killed = threading.Event(), []

        def kill():
            chance = np.random.default_rng(0)
            while not over.wait(chance.uniform(1, 3)):
                pids = [worker.pid for worker in cluster.workers.values() if worker.pid]
                if len(pids) > 1:
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed.append(time.monotonic())

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            while len(killed) < 5:
                same(rf.fit(MODEL, store, **BLOCKS, engine=client), whole)
        finally:
            over.set()
            thread.join()
