"""Skewed margins: a monotone map of each coordinate that makes its distribution about symmetric.

The log of an sd near zero has a long tail on one side. With x = y cosh(e) + sqrt(1 + y^2) sinh(e), that
is asinh(x) = asinh(y) + e, a symmetric y becomes an x whose tails have lengths in the ratio 1 to
exp(2 e) (Jones and Pewsey, "Sinh-arcsinh distributions", 2009).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

LEVELS = [0.05, 0.5, 0.95]  # quantiles from which the skew is found
_NORMAL = 1.6448536269514722  # the standard normal quantile at the last level
LEAST, MOST = 0.15, 0.85  # of tanh(e): below the first it is noise, above the second it is cut


class Margins(NamedTuple):
    """The map theta = centre + scale x(y) of every coordinate; where the skew is 0, theta = y.

    All methods take arrays of NumPy or JAX, [..., D].
    """

    centre: Any
    scale: Any
    cosh: Any
    sinh: Any

    @classmethod
    def none(cls, dim: int) -> "Margins":
        """No skew."""
        zero, one = np.zeros(dim), np.ones(dim)
        return cls(zero, one, one, zero)

    @classmethod
    def of_quantiles(cls, levels: Float64[np.ndarray, "3 D"]) -> "Margins":
        """The margins that have these quantiles at LEVELS, if y is normal.

        Example:
            >>> margins = Margins.of_quantiles(np.array([[-2.769], [-0.394], [0.673]]))
            >>> bool(np.allclose(margins.spread(np.array([-1.645, 0, 1.645])[:, None]).ravel(),
            ...                  [-2.769, -0.394, 0.673], atol=1e-3))
            True
        """
        low, middle, high = levels
        half = np.maximum((high - low) / 2, 1e-300) / _NORMAL
        bulge = (np.sqrt(1 + _NORMAL**2) - 1) * half
        tanh = np.clip(((high + low) / 2 - middle) / bulge, -MOST, MOST)
        skewed = np.abs(tanh) > LEAST
        cosh = np.where(skewed, 1 / np.sqrt(1 - tanh**2), 1.0)
        sinh = np.where(skewed, tanh * cosh, 0.0)
        scale = np.where(skewed, half / cosh, 1.0)
        return cls(np.where(skewed, middle - scale * sinh, 0.0), scale, cosh, sinh)

    def spread(self, y: Any) -> Any:
        """Theta at y."""
        return self.centre + self.scale * (y * self.cosh + (1 + y**2) ** 0.5 * self.sinh)

    def gather(self, theta: np.ndarray) -> np.ndarray:
        """Y at theta."""
        return np.sinh(np.arcsinh((theta - self.centre) / self.scale) - np.arcsinh(self.sinh))

    def stretch(self, y: Any) -> Any:
        """The slope of theta in y, which is positive."""
        return self.scale * (self.cosh + self.sinh * y / (1 + y**2) ** 0.5)

    def bend(self, y: Any) -> Any:
        """The slope of log stretch in y."""
        return self.scale * self.sinh / (1 + y**2) ** 1.5 / self.stretch(y)
