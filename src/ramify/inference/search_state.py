"""The state of the search for q(theta), and what its phases derive from it."""

from typing import Any, NamedTuple

import numpy as np

from ramify.inference.marginal import Expansion, Marginal, Tilt
from ramify.numerics import budgets

LONGEST = 1.0  # longest Newton step in any coordinate: theta's scales are logarithms


class Search(NamedTuple):
    """All that the next step of a search needs: arrays, numbers and the name of the phase."""

    phase: str  # what the next step does, a key of `PHASES`; "done" at the end
    local_draws: int  # K of the F that the next step evaluates
    most_draws: int  # largest K
    points: int  # points of q(theta) that F is averaged over; 1 is Laplace's approximation
    mean: np.ndarray  # of q(theta)
    precision: np.ndarray  # of q(theta)
    value: float  # F at the mean, or its average over q(theta)
    slope: np.ndarray  # the gradient of F at the mean, or its average over q(theta)
    bias: np.ndarray  # how far K draws move each mean, in posterior sds; NaN while unknown
    stage: int = 0  # which part of the data is searched: an index of `stages`, -1 for all blocks
    tries: int = 0  # steps tried in this phase
    calm: int = 0  # steps of this phase with next to nothing to gain ("average": in a row)
    length: float = 1.0  # longest step ("climb"), or the fraction to try ("newton", "average")
    measured: bool = True  # whether the precision was measured at this mean ("climb")
    target: np.ndarray | None = None  # the precision measured at this mean ("average")
    cut: bool = False  # whether the last step failed and was cut ("average")
    rounds: int = 0  # how often the curvature at the mode was measured ("laplace", "newton")
    steady: bool = False  # whether the curvature changed little the last time
    hessian_every: int = 1  # steps of a climb for each Hessian
    settled: int = 0  # K that the precision was found with, if K was raised only against noise
    slopes: np.ndarray = np.zeros((0, 1, 1))  # around the mean, by one set of draws each ("noise")
    tilt: Tilt | None = None  # what the average over all of these draws adds to F
    noise: np.ndarray | None = (
        None  # sd of each mean over seeds, in posterior sds; None while unknown
    )
    sd_noise: np.ndarray | None = None  # relative noise of each sd; None if unknown
    by_draws: bool = False  # whether a turned rule has failed to replace the draws
    reach: np.ndarray | None = None  # longest step in each coordinate, if some have larger scales
    memory: Any = None  # what F keeps from sweep to sweep: the modes of all groups


def reach_of(s: Search) -> np.ndarray:
    """How far a step may go in each coordinate."""
    return np.full(len(s.mean), LONGEST) if s.reach is None else s.reach


def stages(groups_upto: np.ndarray, D: int) -> list[int]:
    """How many blocks each stage of Newton sees: enough groups for theta, then four times more."""
    found, wanted = [], max(400, 10 * D)
    while 4 * wanted < groups_upto[-1]:
        found.append(int(np.searchsorted(groups_upto, wanted)) + 1)
        wanted *= 4
    return sorted({*found, len(groups_upto)})


def blocks_of(s: Search, F: Marginal) -> int:
    """How many blocks the stage of a search sees."""
    return stages(F.groups_upto, len(s.mean))[s.stage]


def curvature_blocks(s: Search, F: Marginal) -> int:
    """How many of these blocks the curvature is measured on."""
    return min(blocks_of(s, F), F.blocks_with(budgets.CURVATURE_GROUPS))


def moved(s: Search, mean: np.ndarray, precision: np.ndarray, there: Expansion) -> Search:
    """The state at another mean, with F there."""
    return s._replace(mean=mean, precision=precision, value=there.value, slope=there.slope)
