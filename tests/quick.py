"""Which cases of a test the default run keeps; the others are marked slow."""

import pytest


def slow_but(kept, cases):
    """The cases as parameters, all but those kept marked slow."""
    values = lambda case: case if isinstance(case, tuple) else (case,)
    return [
        pytest.param(*values(case), marks=() if case in kept else pytest.mark.slow)
        for case in cases
    ]


def slow(*case):
    """One case that only the slow run has."""
    return pytest.param(*case, marks=pytest.mark.slow)
