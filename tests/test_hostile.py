"""Hostile input, the cases that need no fit (`python -m tests.hostile` runs all); threads."""

import subprocess
import sys
from pathlib import Path

import pytest

from hostile import formulas, responses, threads
from hostile.case import judge, python

KINDS = "environments", "files", "formulas", "models", "options", "responses", "tables"
TELLING = {
    "y ~ y + (1 | g)", "y ~ poly(x, 300) + (1 | g)", "y ~ C(x) + (1 | g)", "y ~ log(x) + (1 | g)",
    "y ~ x % 2 + (1 | g)", "y ~ __import__('os') + (1 | g)", "300 predictors", "y - x ~", "y / u ~",
    "y**2 ~", "(y - x) ~", "booleans without likelihood=", "two texts without likelihood=",
}  # fmt: skip


def test_formulas_and_responses_are_answered_clearly():
    cases = [*formulas.cases(), *responses.cases()]
    found = {case.name: judge(case) for case in cases if case.name in TELLING}
    assert found.keys() == TELLING
    assert not {name: v for name, v in found.items() if v.word != "clear"}


TWO_AT_ONCE = """
import sys, threading, numpy
from concurrent.futures import ThreadPoolExecutor
from formulae.terms.call_resolver import LazyCall
from threadpoolctl import threadpool_info
from ramify.numerics.precision import computing
import ramify as rf

threads = lambda: {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}
both, left, own, stdout = threading.Barrier(2), threading.Event(), LazyCall.__eq__, sys.stdout
inside = []

@computing
def compute(last):
    both.wait(10)
    if last:
        left.wait(10)
        inside.append(threads())

def run(last):
    compute(last)
    left.set()

table = {"y": numpy.arange(8.0) ** 2, "u": numpy.arange(1.0, 9), "g": list("aabbccdd")}
build = lambda i: rf.from_formula("y ~ scale(u) + log(u) + (1 | g)", table)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(run, [False, True]))
    sys.setswitchinterval(1e-5)  # threads change places in the middle of short things too
    list(pool.map(build, range(40)))
assert inside == [{1}], inside
assert threads() == {2}, threads()
assert sys.stdout is stdout and LazyCall.__eq__ is own
"""


@pytest.mark.slow
def test_threads_leave_stdout_formulae_and_blas_as_they_were():
    python(TWO_AT_ONCE, {"OPENBLAS_NUM_THREADS": "2", "JAX_PLATFORMS": "cpu"})


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.slow
def test_kinds(kind):
    """In a process of their own, without the type checker of these tests."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.hostile", "--kind", kind]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [60])
def test_eight_threads_predict_and_two_fit(seconds):
    """Right numbers, stdout and BLAS as before, no growth of memory."""
    assert "predictions" in threads.apart(seconds)
