"""Checks of options that public functions share: whole numbers, seconds and seeds."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

_WHOLE = ("draws", "local_draws", "max_steps", "minibatch", "simulations")
_SEEDS = 2**32


def check_options(given: Mapping[str, Any]) -> None:
    """Raises for an invalid value of an option; None is left to the function, except as a seed."""
    for name, value in given.items():
        if name == "seed":
            good, expected = _whole(value, 0, _SEEDS), "a whole number from 0 to 2^32 - 1"
        elif value is None:
            continue
        elif name in _WHOLE:
            good, expected = _whole(value, 1, math.inf), "a whole number of at least 1"
        elif name == "max_seconds":
            good = isinstance(value, Real) and float(value) >= 0  # NaN is not
            expected = "a number of seconds, zero or more"
        else:
            continue
        if not good:
            error = ValueError if isinstance(value, Real) else TypeError
            raise error(f"{name}={value!r}; expected {expected}.")


def _whole(value: Any, least: int, end: float | int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) < end
