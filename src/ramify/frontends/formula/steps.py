"""Steps for derivatives in a column: so short that the design is nearly straight, not for rounding.

A step is measured by what it does to the columns of the design, in units of their sds in the fit. So it
is the same for every table, a loaded fit has it too, and it is short where a function like log(x) bends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.frontends.formula.design import Coding

_FIRST = 1e-6  # of a number: the first step
_AGAIN = 2  # times that steps are corrected for what the design did over them
# A coding, and the units of its columns by their names.
Measured = tuple[Coding, Mapping[str, float]]


def steps(
    measured: Sequence[Measured], scale: float, frame: Any, name: str, share: float
) -> Float64[np.ndarray, " n"]:
    """For each row how far a column goes until one of the design has changed by this share of its sd.

    `scale` is the unit of offsets. Where the design does not change, the step is a tiny one.
    """
    x = np.asarray(frame[name], np.float64)
    first = _FIRST * np.where(x == 0, np.abs(x).max(initial=0.0) or 1.0, np.abs(x))
    rates = lambda step: _rates(measured, scale, frame.assign(**{name: x}), name, step)
    rate = rates(first)
    found = np.where((0 < rate) & (rate < np.inf), share / rate, 0.0)
    for _ in range(_AGAIN):
        rate = np.where(found > 0, rates(np.where(found > 0, found / 2, first)), 0.0)
        found = np.where(rate > 0, np.sqrt(found * share / rate), 0.0)
    return np.where(found > 0, found, first)


def _rates(
    measured: Sequence[Measured],
    scale: float,
    frame: Any,
    name: str,
    step: Float64[np.ndarray, " n"],
) -> Float64[np.ndarray, " n"]:
    """The largest change of a column of the design, in its unit, for each unit of the step."""
    low, here, high = (
        _columns(measured, scale, frame.assign(**{name: frame[name] + sign * step}))
        for sign in (-1, 0, 1)
    )
    with np.errstate(all="ignore"):
        found = np.maximum(np.abs(high - here), np.abs(here - low)).max(1, initial=0.0) / step
    return np.where(np.isnan(found), np.inf, found)


def _columns(measured: Sequence[Measured], scale: float, frame: Any) -> Float64[np.ndarray, "n P"]:
    """The columns of the design in their units."""
    found = [np.zeros((len(frame), 0))]
    for coding, units in measured:
        X = coding.unchecked(frame)
        own = [units[name] for name in coding.names if name != "Intercept"]
        found.append(X / np.array([*own, *[scale] * (X.shape[1] - len(own))]))
    return np.concatenate(found, 1)
