"""Means, sds and ranges of columns, also of columns that are read part by part."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64


class Moments(NamedTuple):
    """Moments of the columns of a matrix [n, P], each [P], or of a vector, each a number."""

    n: int
    mean: Any
    variance: Any
    low: Any
    high: Any

    @property
    def sd(self) -> Any:
        """The standard deviations."""
        return np.sqrt(self.variance)

    def and_of(self, other: "Moments") -> "Moments":
        """The moments of the rows of both.

        Example:
            >>> x = np.arange(5.0)
            >>> both = moments(x[:2]).and_of(moments(x[2:]))
            >>> both.n, float(both.mean), float(both.variance), float(both.high)
            (5, 2.0, 2.0, 4.0)
        """
        if not (self.n and other.n):
            return self if self.n else other
        n = self.n + other.n
        share, apart = other.n / n, other.mean - self.mean
        within = self.variance + share * (other.variance - self.variance)
        return Moments(
            n,
            self.mean + share * apart,
            within + share * (1 - share) * apart**2,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )


class Facts(NamedTuple):
    """Facts about the predictors of all rows."""

    X: Moments
    W: Moments
    offset: Moments | None
    by_outcome: tuple[Moments, ...]  # of X in rows whose binary response is 0, and is 1
    same: Bool[np.ndarray, " P"]  # whether a column of X is the one of W that has its name
    constant: Bool[np.ndarray, " P"]  # whether a column of X is constant within groups

    def and_of(self, other: "Facts") -> "Facts":
        """The facts about the rows of both."""
        both = lambda a, b: None if a is None or b is None else a.and_of(b)
        return Facts(
            self.X.and_of(other.X),
            self.W.and_of(other.W),
            both(self.offset, other.offset),
            tuple(map(Moments.and_of, self.by_outcome, other.by_outcome)),
            self.same & other.same,
            self.constant & other.constant,
        )


def moments(values: Float64[np.ndarray, "n *P"]) -> Moments:
    """The moments of some rows."""
    if not len(values):
        none = np.zeros(values.shape[1:])
        return Moments(0, none, none, none + np.inf, none - np.inf)
    low, high = values.min(0), values.max(0)
    return Moments(len(values), values.mean(0), values.var(0), low, high)
