"""Polynomials of theta as control variates: a result as exact with fewer draws of theta.

Draws of theta from a Gaussian q(theta) have standardised coordinates e, and Hermite polynomials of e have
mean zero. A sum of log means over draws moves with the mean of each draw's influence on it. Influences
are smooth functions of theta: the mean of what a regression on the polynomials explains of them is known,
and only the rest is left to chance.
"""

from collections.abc import Callable
from itertools import combinations_with_replacement
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.families.build import Family
from ramify.families.joint import Joint
from ramify.posterior.draws import Draws

FIRST_DRAWS = 1000  # of theta, where fewer than the default may be enough
FEWEST_PER_TERM = 10  # draws for each coefficient of the regression
HIGHEST_DEGREE = 3  # of the polynomials
ROUNDED = 0.01  # largest step between numbers near theta, in sds given the coordinates before
EVEN = 1 / 4  # share of the draws that have to be effective in every mean


class LogMeans(NamedTuple):
    """A sum of log means over draws."""

    total: float
    influence: Float64[np.ndarray, " T"]  # of each distinct draw
    share: Float64[np.ndarray, " T"]  # of the draws that are equal to it
    effective: Float64[np.ndarray, " n"]  # draws, of each mean

    def error(self) -> float:
        """The standard error, from distinct draws that are independent."""
        # A value has one error, however many of the draws it has.
        T = len(self.share)
        whole = float(np.linalg.norm(self.share * self.influence))
        return whole * (T / (T - 1)) ** 0.5 if T > 1 else np.nan


class Few(NamedTuple):
    """A sum of log means by few draws."""

    value: float
    se: float
    ess: float  # of the mean with fewest effective draws
    draws: int


def standardised(family: Family, draws: Draws) -> Float64[np.ndarray, "S D"] | None:
    """The coordinates e of draws from q(theta); None where these come from elsewhere or are rounded."""
    if isinstance(family, Joint) or family.weighted is not None:
        return None
    if np.isnan(draws.log_q).any():  # weighted draws of a fit have no log q
        return None
    apart = np.asarray(draws.theta, np.float64) - np.asarray(family.theta.mean, np.float64)
    scale = np.asarray(family.theta.scale, np.float64)
    own = scale if scale.ndim == 1 else np.diag(scale)
    if not (np.spacing(np.abs(draws.theta)).max(0) < ROUNDED * own).all():
        return None
    return apart / scale if scale.ndim == 1 else np.linalg.solve(scale, apart.T).T


def by_few(of_first: Callable[[int], LogMeans], e: Float64[np.ndarray, "S D"]) -> Few | None:
    """A sum of log means over the first of S draws, if its standard error is at most that of all S.

    None if that takes most of them, or if any mean is that of too few effective draws. The standard
    error reported is that of all S: a smaller one would be less than the errors of the values.
    """
    S, count = len(e), FIRST_DRAWS
    while count <= S // 2:
        found = of_first(count)
        ess = float(found.effective.min(initial=count))
        shift, se = _controlled(found.influence, e[:count])
        wanted = found.error() * (count / S) ** 0.5
        if not (np.isfinite(se) and ess >= EVEN * count):
            return None
        if se <= wanted:
            # The log of a mean is low by half of its relative variance, more so with fewer draws.
            bias = 0.5 * float(np.sum(1 / found.effective - 1 / count))
            return Few(found.total + shift + bias, wanted, ess, count)
        count = max(2 * count, int(min(S, 1.1 * count * (se / wanted) ** 2)))
    return None


def _controlled(
    influence: Float64[np.ndarray, " S"], e: Float64[np.ndarray, "S D"]
) -> tuple[float, float]:
    """What to add to a sum of log means, and its standard error then."""
    terms = _polynomials(e)
    design = np.column_stack([np.ones(len(e)), terms])
    solve = np.linalg.pinv(design)
    found = solve @ influence
    # Each draw is corrected by the regression on all others: by its own it would be corrected too far
    # where polynomials fit badly, far out, and the result would be off by a share of the parameters.
    leverage = np.einsum("sp,ps->s", design, solve)
    rest = (influence - design @ found) / (1 - leverage)
    explained = terms @ found[1:] - (leverage - solve[0]) * rest
    return -float(explained.mean()), float(np.linalg.norm(rest) / (len(e) - 1))


def _polynomials(e: Float64[np.ndarray, "S D"]) -> Float64[np.ndarray, "S p"]:
    """Hermite polynomials up to the highest degree for which there are enough draws.

    Example:
        >>> _polynomials(np.tile([[2.0, 3.0]], (200, 1)))[0].tolist()
        [2.0, 3.0, 3.0, 6.0, 8.0, 2.0, 9.0, 16.0, 18.0]
    """
    S, D = e.shape
    along = [np.ones_like(e), e, e**2 - 1, e**3 - 3 * e]
    terms = [np.empty((S, 0))]
    for degree in range(1, HIGHEST_DEGREE + 1):
        if comb(D + degree, degree) * FEWEST_PER_TERM > S:
            break
        powers = [
            np.bincount(c, minlength=D) for c in combinations_with_replacement(range(D), degree)
        ]
        terms += [np.prod([along[n][:, j] for j, n in enumerate(p)], 0)[:, None] for p in powers]
    return np.concatenate(terms, 1)
