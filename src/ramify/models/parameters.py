"""Named, constrained parameters, and the map between them and one flat unconstrained vector."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints

from ramify.models.correlation import CorrelationFactor

Named = dict[str, Array]


class Parameter(NamedTuple):
    """A named value's shape and support; made by `real`, `positive`, ... or `constrained`."""

    shape: tuple[int, ...]
    constraint: Any

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """Shape of the unconstrained value that the bijection maps to this one."""
        return tuple(biject_to(self.constraint).inverse_shape(self.shape))

    @property
    def support(self) -> str:
        """The name of the constraint."""
        return type(self.constraint).__name__.strip("_").lower()


def constrained(constraint: Any, *shape: int) -> Parameter:
    """A parameter with any NumPyro constraint that has a bijection.

    Example:
        >>> from numpyro.distributions import constraints
        >>> constrained(constraints.interval(0.0, 5.0), 3).shape
        (3,)
    """
    return Parameter(tuple(int(n) for n in shape), constraint)


def real(*shape: int) -> Parameter:
    """Real numbers of the given shape; `real()` is a scalar, `real(5)` a vector."""
    return constrained(constraints.real, *shape)


def positive(*shape: int) -> Parameter:
    """Positive numbers: scales, rates, dispersions."""
    return constrained(constraints.positive, *shape)


def unit(*shape: int) -> Parameter:
    """Numbers between zero and one: probabilities."""
    return constrained(constraints.unit_interval, *shape)


def ordered(n: int) -> Parameter:
    """An increasing vector of length n: cutpoints."""
    return constrained(constraints.ordered_vector, n)


def simplex(n: int) -> Parameter:
    """Positive numbers that sum to one."""
    return constrained(constraints.simplex, n)


def cholesky(n: int) -> Parameter:
    """A lower triangular n x n matrix with positive diagonal: the factor of a covariance."""
    return constrained(constraints.lower_cholesky, n, n)


def correlation_cholesky(n: int) -> Parameter:
    """The Cholesky factor of an n x n correlation matrix, as NumPyro's `LKJCholesky` draws it."""
    return constrained(constraints.corr_cholesky, n, n)


def correlation(n: int) -> Parameter:
    """An n x n correlation matrix."""
    return constrained(constraints.corr_matrix, n, n)


def _bijection(constraint: Any) -> Any:
    """NumPyro's map to this support; for correlations a form that compiles faster."""
    if constraint is constraints.corr_cholesky:
        return CorrelationFactor()
    return biject_to(constraint)


class Space:
    """Named constrained values <-> one flat unconstrained vector.

    Example:
        >>> space = Space({"mu": real(2), "tau": positive()})
        >>> space.size
        3
        >>> {name: value.shape for name, value in space.constrain(jnp.zeros(3))[0].items()}
        {'mu': (2,), 'tau': ()}
    """

    def __init__(self, parameters: Mapping[str, Parameter]):
        self.parameters = dict(parameters)
        self._bijections = {n: _bijection(p.constraint) for n, p in self.parameters.items()}
        self._shapes = {n: p.unconstrained_shape for n, p in self.parameters.items()}
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        self._offsets = dict(zip(self.parameters, np.cumsum([0, *sizes[:-1]]), strict=True))
        self.size = int(sum(sizes))

    def _raw(self, flat: Float[Array, " size"]) -> Named:
        """The flat vector cut into unconstrained values by name."""
        cut = lambda start, shape: flat[start : start + math.prod(shape)].reshape(shape)
        return {name: cut(start, self._shapes[name]) for name, start in self._offsets.items()}

    def constrain(self, flat: Float[Array, " size"]) -> tuple[Named, Float[Array, ""]]:
        """Named constrained values, and log |d values / d flat|, the Jacobian of the map."""
        values, log_det = {}, jnp.zeros((), flat.dtype)
        for name, raw in self._raw(flat).items():
            bijection = self._bijections[name]
            values[name] = bijection(raw)
            log_det += jnp.sum(bijection.log_abs_det_jacobian(raw, values[name]))
        return values, log_det

    def values(self, flat: Float[Array, " size"]) -> Named:
        """Named constrained values of a flat vector."""
        return {name: self._bijections[name](raw) for name, raw in self._raw(flat).items()}

    def unconstrain(self, values: Mapping[str, Any]) -> Float[Array, " size"]:
        """The flat vector of named constrained values: the inverse of `values`.

        Example:
            >>> Space({"mu": real(2), "tau": positive()}).unconstrain({"tau": 1.0, "mu": [2.0, 3.0]})
            Array([2., 3., 0.], dtype=float32)
        """
        value = lambda name: jnp.asarray(values[name], jnp.result_type(float))
        flat = lambda name: self._bijections[name].inv(value(name)).reshape(-1)
        return jnp.concatenate([flat(name) for name in self.parameters])

    def coordinates(self) -> list[str]:
        """A name for each entry of the flat vector: `mu[0]`, `tau`, ..."""
        return [entry for name, shape in self._shapes.items() for entry in entry_names(name, shape)]


def entry_names(name: str, shape: Sequence[int]) -> list[str]:
    """A name for each entry of an array.

    Example:
        >>> entry_names("mu", [2]), entry_names("tau", [])
        (['mu[0]', 'mu[1]'], ['tau'])
    """
    return [f"{name}[{','.join(map(str, p))}]" if p else name for p in np.ndindex(*shape)]
