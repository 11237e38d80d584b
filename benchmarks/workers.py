"""What a fit on Dask workers costs: bytes that move in a sweep, and seconds of a sweep.

    python -m benchmarks workers --stores /disk/large/s --workers 1 2

Fits stores of `python -m benchmarks store`, with the scheduler and the workers as processes of their
own. A sweep is one over all rows: those over parts of them are added up to as many. Bytes are counted as
they go through the connections of the client, which send theta and receive sums, and by the workers,
between which the modes of groups move if a piece goes to another worker.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.store import Counted, logistic
from ramify.engine.dask import DaskEngine

DASK = [sys.executable, "-m", "dask"]


@contextmanager
def started(workers: int) -> Iterator[str]:
    """A scheduler and workers; the file with the scheduler's address."""
    with TemporaryDirectory() as folder:
        file = f"{folder}/scheduler.json"
        own = ["--scheduler-file", file]
        words = [[*DASK, "scheduler", "--port", "0", "--no-dashboard", *own]]
        words += [[*DASK, "worker", "--nthreads", "1", "--no-dashboard", *own]] * workers
        running = [subprocess.Popen(w, stderr=subprocess.DEVNULL) for w in words]
        try:
            while not Path(file).exists():
                time.sleep(0.1)
            yield file
        finally:
            for process in running:
                process.terminate()
                process.wait()


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes through the connections of this process."""
    from distributed.comm import tcp

    moved, write, read = {"sent": 0, "received": 0}, tcp.TCP.write, tcp.from_frames

    async def counted_write(self: Any, *args: Any, **options: Any) -> int:
        count = await write(self, *args, **options)
        moved["sent"] += count
        return count

    async def counted_read(frames: Any, *args: Any, **options: Any) -> Any:
        moved["received"] += sum(memoryview(frame).nbytes for frame in frames)
        return await read(frames, *args, **options)

    tcp.TCP.write, tcp.from_frames = counted_write, counted_read
    try:
        yield moved
    finally:
        tcp.TCP.write, tcp.from_frames = write, read


def _between(dask_worker: Any) -> int:
    """Bytes that a worker has sent: to other workers, and results to the client."""
    return dask_worker.transfer_outgoing_bytes_total


class CountedDask(Counted, DaskEngine):
    """A Dask engine, to whoever asks what it is, that counts."""


def main(words: list[str]) -> int:
    """Fits each store with each number of workers, and prints what moved and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=Path, nargs="+", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    own = parser.parse_args(words)
    for store, count in product(own.stores, own.workers):
        print(json.dumps(fitted(store, count)), flush=True)
    return 0


def fitted(store: Path, count: int) -> dict[str, Any]:
    """What a fit of a store by so many workers takes."""
    from distributed import Client

    import ramify as rf

    groups, model = rf.Groups.from_store(store), logistic()
    with started(count) as file, Client(scheduler_file=file) as client, counted() as moved:
        client.wait_for_workers(count)
        total = lambda function: sum(client.run(function).values())
        rf.fit(model, groups, engine=client, max_steps=1, theta="gaussian")  # compiles
        before, engine = (
            (total(_between), total(time.process_time)),
            CountedDask(DaskEngine(client)),
        )
        moved.update(sent=0, received=0)
        rf.fit(model, groups, engine=engine, theta="gaussian")
        moved["sent by workers"] = total(_between) - before[0]
        busy = total(time.process_time) - before[1]
    sweeps = engine.sweeps
    found = {"workers": count, "rows": groups.n_rows, "groups": len(groups), "sweeps": sweeps}
    found |= {"seconds per sweep": engine.seconds / sweeps}
    found |= {"CPU seconds per sweep, all workers": busy / sweeps}
    found |= {f"bytes {way} per sweep": n / sweeps for way, n in moved.items()}
    return {name: float(f"{value:.4g}") for name, value in found.items()}
