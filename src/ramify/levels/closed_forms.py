"""Derivatives of the usual likelihoods in closed form, on the host: nothing to compile, and no dispatch.

Each takes parameters, the columns of rows and linear predictors [n] or [n, K]; columns are [n] or [n, 1].
A test compares them with the derivatives of the densities themselves.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import gammaln

Three = tuple[np.ndarray, np.ndarray, np.ndarray]  # value, slope and minus curvature
Columns = Mapping[str, np.ndarray]


def normal(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Three:
    """Of mean eta and sd sigma."""
    precision = float(values["sigma"]) ** -2
    apart = columns["y"] - eta
    slope = precision * apart
    height = 0.5 * np.log(precision / (2 * np.pi))
    value = height - 0.5 * apart * slope + columns["constant"]
    return value, slope, np.full(eta.shape, precision)


def logit(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Three:
    """Successes in trials, one by default, of log odds eta."""
    y, trials = columns["y"], columns.get("trials", 1.0)
    small = np.exp(-np.abs(eta))
    share = 1 / (1 + small)
    likely = np.where(eta >= 0, share, small * share)
    value = y * eta - trials * (np.maximum(eta, 0) + np.log1p(small)) + columns["constant"]
    return value, y - trials * likely, trials * small * share**2


def poisson(values: Mapping[str, Any], columns: Columns, eta: np.ndarray) -> Three:
    """Counts of log mean eta."""
    y, mean = columns["y"], np.exp(np.minimum(eta, 300.0))
    return y * eta - mean + columns["constant"], y - mean, mean


def constant(form: str, columns: Columns) -> np.ndarray:
    """What a row's log density has beside terms in eta."""
    y = columns["y"]
    if "log_y" in columns:  # y is the logarithm of the response
        return -columns["log_y"]
    if form == "poisson":
        return -gammaln(y + 1)
    if form == "logit" and "trials" in columns:
        trials = columns["trials"]
        return gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)
    return np.zeros(len(y))


FORMS: dict[str, Callable[[Mapping[str, Any], Columns, np.ndarray], Three]] = {
    "normal": normal,
    "logit": logit,
    "poisson": poisson,
}
