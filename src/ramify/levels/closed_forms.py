"""The usual likelihoods and their derivatives in closed form, on the host: nothing to compile.

Each takes parameters, the columns of rows and linear predictors [n] or [n, K]; columns are [n] or [n, 1].
It returns values, and a function that computes slopes and minus curvatures. A test compares them with the
derivatives of the densities themselves.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import gammaln

Form = tuple[np.ndarray, Callable[[], tuple[np.ndarray, np.ndarray]]]
Columns = Mapping[str, np.ndarray]


def normal(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Form:
    """A normal response of mean eta and sd sigma."""
    precision = float(values["sigma"]) ** -2
    apart = columns["y"] - eta
    slope = precision * apart
    height = 0.5 * np.log(precision / (2 * np.pi))
    value = height - 0.5 * apart * slope + columns["constant"]
    return value, lambda: (slope, np.full(eta.shape, precision))


def logit(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Form:
    """Successes in trials (one by default) with log odds eta."""
    y, trials = columns["y"], columns.get("trials", 1.0)
    small = np.exp(-np.abs(eta))
    whole = 1 + small
    value = y * eta - trials * (np.maximum(eta, 0) + np.log(whole)) + columns["constant"]

    def derivatives() -> tuple[np.ndarray, np.ndarray]:
        share = 1 / whole
        likely = 0.5 + np.copysign(share - 0.5, eta)
        return y - trials * likely, trials * small * share**2

    return value, derivatives


def poisson(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Form:
    """Poisson counts with log mean eta."""
    y, mean = columns["y"], np.exp(np.minimum(eta, 300.0))
    return y * eta - mean + columns["constant"], lambda: (y - mean, mean)


def constant(form: str, columns: Columns) -> np.ndarray:
    """The terms of a row's log density that do not involve eta."""
    y = columns["y"]
    if "log_y" in columns:  # y is the logarithm of the response
        return -columns["log_y"]
    if form == "poisson":
        return -gammaln(y + 1)
    if form == "logit" and "trials" in columns:
        trials = columns["trials"]
        return gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)
    return np.zeros(len(y))


FORMS: dict[str, Callable[[Mapping[str, Any], Columns, np.ndarray], Form]] = {
    "normal": normal,
    "logit": logit,
    "poisson": poisson,
}
