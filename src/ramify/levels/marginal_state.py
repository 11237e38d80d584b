"""F at some values of the kept effects."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.integral import Integral


class Effects(NamedTuple):
    """Values of all effects: common effects, kept effects, and z of every group."""

    beta: Float64[np.ndarray, " P"]
    u: Float64[np.ndarray, " q"]
    z: Float64[np.ndarray, "N M"]


class State(NamedTuple):
    """F at some b: its value, its slope, and the integral behind it."""

    value: float
    slope_beta: Float64[np.ndarray, " P"]
    slope_u: Float64[np.ndarray, " q"]
    common: Float64[np.ndarray, " P"]  # minus the curvature of the common effects' prior
    integral: Integral
    effects: Effects
    base: Float64[np.ndarray, " n"]  # the linear predictor without z
