"""Hostile input, the cases that need no fit (`python -m tests.hostile` runs all); threads."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_info

from hostile import formulas, responses
from hostile.case import judge
from hostile.data import build
from ramify.numerics.precision import computing

QUICK = [
    *(c for c in formulas.cases() if not c.name.startswith("formula ")),
    *(c for c in responses.cases() if c.name.removesuffix(" ~") in responses.ARITHMETIC),
    *(c for c in responses.cases() if "without likelihood=" in c.name),
]


def test_formulas_and_responses_are_answered_clearly():
    found = {case.name: judge(case) for case in QUICK}
    assert not {name: v for name, v in found.items() if v.word != "clear"}


def _blas():
    return [(x["filepath"], x["num_threads"]) for x in threadpool_info() if x["user_api"] == "blas"]


def test_threads_leave_stdout_formulae_and_blas_as_they_were():
    from formulae.terms.call_resolver import LazyCall

    meet, own = threading.Barrier(2), LazyCall.__eq__
    second = threading.Event()

    @computing
    def first_in_first_out(turn):
        meet.wait(10)
        return second.wait(10) if turn else None

    def leave(turn):
        first_in_first_out(turn)
        second.set()

    computing(lambda: None)()  # loads the BLAS of SciPy, which reads the environment
    before, stdout = _blas(), sys.stdout
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, [0, 1]))
        list(pool.map(lambda i: build("y ~ scale(x) + log(u) + (1 | g)"), range(8)))
    assert _blas() == before and sys.stdout is stdout and LazyCall.__eq__ is own


@pytest.mark.parametrize("kind", ["options", "models", "tables", "responses"])
@pytest.mark.slow
def test_the_other_kinds(kind):
    import importlib

    found = {c.name: judge(c) for c in importlib.import_module(f"hostile.{kind}").cases()}
    assert not {name: v for name, v in found.items() if v.word != "clear"}
