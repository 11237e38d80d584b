"""The data of pictures, as arrays."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Shaped

FEW = 200  # groups that a caterpillar plot shows


class Effects(NamedTuple):
    """Effects of the groups: a rough centre for all, statistics of draws for those shown."""

    names: list[str]  # of the effects
    labels: Shaped[np.ndarray, " N"]  # of the groups
    sizes: Int64[np.ndarray, " N"]  # their rows
    centre: Float64[np.ndarray, "N E"]  # posterior means at the centre of q(theta), for ranking
    drawn: Int64[np.ndarray, " G"]  # positions of the groups that were drawn, in order
    mean: Float64[np.ndarray, "G E"]  # of their draws
    low: Float64[np.ndarray, "G E"]  # 5% quantile
    high: Float64[np.ndarray, "G E"]  # 95% quantile


class Shrinkage(NamedTuple):
    """For some groups, the mean of their rows and the posterior mean for the same rows."""

    labels: Shaped[np.ndarray, " G"]
    sizes: Int64[np.ndarray, " G"]
    raw: Float64[np.ndarray, " G"]
    posterior: Float64[np.ndarray, " G"]
    everyone: float

    @property
    def alike(self) -> bool:
        """Whether all groups have about the same size."""
        return bool(self.sizes.max() < 1.5 * self.sizes.min())


class Calibration(NamedTuple):
    """Rows with their predicted draws."""

    observed: Float64[np.ndarray, " n"]
    draws: Float64[np.ndarray, "S n"]  # of outcomes; for binary outcomes possibly of probabilities
    held_out: bool  # whether each group was conditioned on its other rows only
    binary: bool  # whether outcomes are 0 or 1


class CategoryCalibration(NamedTuple):
    """Rows whose outcome is a category, with the probability of each level."""

    observed: Int64[np.ndarray, " n"]  # numbers of levels
    probability: Float64[np.ndarray, "n levels"]
    held_out: bool  # whether each group was conditioned on its other rows only
    levels: tuple[str, ...]


class Check(NamedTuple):
    """Outcomes of rows, and outcomes that were predicted for the same rows."""

    observed: Float64[np.ndarray, " n"]
    draws: Float64[np.ndarray, "S n"]
    owner: Int64[np.ndarray, " n"]  # number of each row's group
    labels: Shaped[np.ndarray, " G"]  # of the groups
    levels: tuple[str, ...] = ()  # of categories: outcomes are their numbers, from 0


def chosen(centre: Float64[np.ndarray, " N"]) -> Int64[np.ndarray, " G"]:
    """Positions of the groups in a caterpillar plot: a fifth from each end, others evenly between."""
    order = np.argsort(centre, kind="stable")
    if len(order) <= FEW:
        return order
    ends = FEW // 5
    between = np.linspace(ends, len(order) - ends - 1, FEW - 2 * ends).round().astype(int)
    ranks = np.concatenate([np.arange(ends), between, np.arange(len(order) - ends, len(order))])
    return order[np.unique(ranks)]
