"""Threads, as in a web service: eight predict and two fit at once, for some seconds.

python -m tests.hostile.threads 60
"""

import sys
import threading
import time
from resource import RUSAGE_SELF, getrusage

from .case import Case, python

PROGRAM = """
import sys; sys.path.insert(0, {folder!r})
from hostile.threads import run
run({seconds})
"""


def run(seconds: float) -> None:
    """Raises if a number is wrong, or if stdout, BLAS or the memory are not as before."""
    import numpy as np
    from threadpoolctl import threadpool_info

    import ramify as rf

    from .data import build, fitted

    blas = lambda: {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}
    memory = lambda: getrusage(RUSAGE_SELF).ru_maxrss / 1024  # MiB at most so far
    at = {"g": ["g00", "g01", "new"], "x": [0.0, 1.0, 2.0]}
    predict = lambda seed: fitted().predict(at, draws=100, seed=seed)["mean"]
    # By default it depends on the time left which form theta gets.
    fit = lambda: rf.fit(*build(), theta="gaussian", progress=False)
    globals_ = lambda seed: fit().sample_theta(100, seed)["x"]
    expected = {work: [work(seed) for seed in range(3)] for work in (predict, globals_)}
    before, stdout, wrong, done = blas(), sys.stdout, [], []
    sys.setswitchinterval(1e-5)  # threads change places in the middle of short things too
    end = time.monotonic() + seconds

    def repeat(work):
        while time.monotonic() < end and not wrong:
            seed = len(done) % 3
            try:
                np.testing.assert_array_equal(work(seed), expected[work][seed])
                for _ in range(10):
                    build("y ~ scale(x) + log(u) + (1 | g)")
            except Exception as error:
                wrong.append(error)
            done.append(work)

    threads = [
        threading.Thread(target=repeat, args=[work]) for work in [predict] * 8 + [globals_] * 2
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    early = memory()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    assert done.count(predict) >= 8 and done.count(globals_) >= 2, "nothing was done"
    assert blas() == before and sys.stdout is stdout, (blas(), before, sys.stdout)
    assert memory() < 1.1 * early + 20, f"memory grew from {early:.0f} to {memory():.0f} MiB"
    print(
        f"{done.count(predict)} predictions, {done.count(globals_)} fits, {memory() - early:+.0f} MiB"
    )


def apart(seconds: float) -> str:
    """The same in a process of its own, whose BLAS has two threads."""
    from pathlib import Path

    folder = str(Path(__file__).parents[1])
    code = PROGRAM.format(folder=folder, seconds=seconds)
    return python(code, {"OPENBLAS_NUM_THREADS": "2"}, seconds=seconds + 240)


def cases():
    works = lambda out: "predictions" in out
    yield Case("eight threads predict, two fit", lambda: apart(10.0), right=works)


if __name__ == "__main__":
    print(apart(float(sys.argv[1])))
