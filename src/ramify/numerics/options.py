"""Checks of options that public functions share: whole numbers, seconds and seeds."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

_WHOLE = ("draws", "local_draws", "max_steps", "minibatch")
_SEEDS = 2**32


def check_options(given: Mapping[str, Any]) -> None:
    """Raises if an option has a value that it can't have; None is left to the function."""
    for name, value in given.items():
        if name in _WHOLE and value is not None:
            _check(name, value, _whole(value) and value >= 1, "a whole number of at least 1")
        elif name == "seed":
            _check(
                name,
                value,
                _whole(value) and 0 <= value < _SEEDS,
                "a whole number from 0 to 2^32 - 1",
            )
        elif name == "max_seconds" and value is not None:
            good = isinstance(value, Real) and not math.isnan(value) and value >= 0
            _check(name, value, good, "a number of seconds, zero or more")


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check(name: str, value: Any, good: bool, expected: str) -> None:
    if not good:
        error = ValueError if isinstance(value, Real) else TypeError
        raise error(f"{name}={value!r}; expected {expected}.")
