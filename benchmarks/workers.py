"""What a fit on Dask workers costs: bytes that move in a sweep, and seconds of a sweep.

    python -m benchmarks workers --store /disk/large/s --workers 1 2

Fits the store of `python -m benchmarks store`, with the scheduler and the workers as processes of their
own. Bytes are counted as they go through the connections of the client, which send theta and receive
sums, and by the workers, between which the modes of groups move if a piece goes to another worker.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.store import logistic

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


def main(words: list[str]) -> int:
    """Fits with each number of workers, and prints what moved."""
    from distributed import Client

    import ramify as rf

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    own = parser.parse_args(words)
    groups, model = rf.Groups.from_store(own.store), logistic()
    for count in own.workers:
        with started(count) as file, Client(scheduler_file=file) as client, counted() as moved:
            client.wait_for_workers(count)
            rf.fit(model, groups, engine=client, max_steps=1, theta="gaussian")  # compiles
            before, began = sum(client.run(_between).values()), time.perf_counter()
            moved.update(sent=0, received=0)
            posterior = rf.fit(model, groups, engine=client, theta="gaussian")
            seconds = time.perf_counter() - began
            moved["sent by workers"] = sum(client.run(_between).values()) - before
        sweeps = posterior.notes["sweeps"]
        found = {
            "workers": count,
            "sweeps": sweeps,
            "seconds per sweep": round(seconds / sweeps, 2),
        }
        found |= {"rows": groups.n_rows, "groups": len(groups)}
        found |= {f"bytes {way} per sweep": round(n / sweeps) for way, n in moved.items()}
        print(json.dumps(found), flush=True)
    return 0
