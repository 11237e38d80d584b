"""DensityLevels: a model of log densities with several factors, as the engine of this room needs it.

Derivatives of a row in its vector v are by JAX: one program for values, slopes and curvatures of all
rows, and one for values alone, whatever theta is. Points of a rule are taken one after the other.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from ramify.levels.density_design import DATA, DensityDesign, Part
from ramify.levels.integral import Solved, root_of
from ramify.levels.model import CHUNK, Derivatives, Given, LevelsModel
from ramify.models.degree import degree
from ramify.models.several import Order, SeveralModel
from ramify.numerics.programs import program

STEPS = 40  # of Newton to the mode of a level that nothing is known of
TRIED = 16  # draws of such a level, of which one is chosen by importance weight


class DensityLevels(LevelsModel):
    """A `SeveralModel` and the order of its factors, the integrated one first.

    Attributes:
        several: the model as its author wrote it.
        order: its factors by their places.
    """

    def __init__(self, several: SeveralModel, order: Order, linear: bool):  # pyright: ignore[reportMissingSuperCall]
        self.several, self.order, self.linear = several, order, linear
        self.terms = tuple(space.size for space in several.z.values())
        self.correlated = (False,) * len(self.terms)
        self.integrated, self.kept = (order[0],), order[1:]
        self.theta, self.normal_common = several.theta, True

    def __repr__(self) -> str:
        return repr(self.several)

    @property
    def transformed(self) -> np.ndarray:
        """Which entries of theta are not on the scale of their parameters."""
        parameters = self.theta.parameters.values()
        each = [np.full(p.unconstrained_shape, p.support != "real").ravel() for p in parameters]
        return np.concatenate(each)

    def values(self, thetas: Float64[np.ndarray, "n D"]) -> dict[str, np.ndarray]:
        """Named, constrained values of thetas, [n, ...] each, and the thetas themselves."""
        return {**self._evaluated(np.asarray(thetas, np.float64))[0], "": np.asarray(thetas)}

    def _evaluated(self, thetas: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        found = []
        for start in range(0, len(thetas), CHUNK):
            chunk = thetas[start : start + CHUNK]
            with jax.enable_x64(True):
                own = _priors(self.several, np.resize(chunk, (CHUNK, chunk.shape[1])))
                found.append(jax.tree.map(np.asarray, own))
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(thetas)], *found)

    def at_each(self, thetas: Float64[np.ndarray, "n D"]) -> Iterator[Given]:
        """What the model says at many thetas; priors of effects are among the rows."""
        thetas = np.asarray(thetas, np.float64)
        M, log_volume = self.terms[self.order[0]], np.log(2 * np.pi)
        kept = [self.terms[f] for f in self.kept]
        for theta, log_prior in zip(thetas, self._evaluated(thetas)[1], strict=True):
            yield Given(
                float(log_prior),
                np.zeros((M, M)),
                M * log_volume,  # of a normal density without its exponent: nothing is added
                [np.zeros((m, m)) for m in kept],
                [m * log_volume for m in kept],
                {"theta": theta},
            )

    def common_prior(self, beta: Float64[np.ndarray, " 0"]) -> tuple[float, np.ndarray, np.ndarray]:
        """Nothing: common effects are in theta."""
        return 0.0, beta, beta

    def convex(self, rows: Derivatives) -> Derivatives:
        """The rows as they are: the sum of their curvatures counts."""
        return rows

    def cautious(self, design: Any, solved: Solved) -> tuple[np.ndarray, np.ndarray]:
        """Curvatures with their negative parts left out: then so is that of all of F."""
        values, vectors = np.linalg.eigh(solved.rows.curvature)
        own = np.einsum("rij,rj,rkj->rik", vectors, np.maximum(values, 1e-9), vectors)
        return own, design.shared(own, root_of(design.products(own)))

    def derivatives(self, given: Given, design: Any, eta: np.ndarray) -> Derivatives:
        """Values [n], slopes [n, V] and minus curvatures [n, V, V] of rows at v [n, V], or [n, K, V]."""
        if eta.ndim == 3:
            each = [self.derivatives(given, design, own) for own in np.moveaxis(eta, 1, 0)]
            return Derivatives(*(np.stack(own, 1) for own in zip(*each, strict=True)))
        return Derivatives(*self._run(_derivatives, given, design, eta))

    def log_lik(self, given: Given, design: Any, eta: np.ndarray) -> np.ndarray:
        """Values alone, [n] or [n, K]."""
        if eta.ndim == 3:
            each = [self.log_lik(given, design, own) for own in np.moveaxis(eta, 1, 0)]
            return np.stack(each, 1)
        return self._run(_values, given, design, eta)[0]

    def _run(
        self, function: Any, given: Given, design: DensityDesign, eta: np.ndarray
    ) -> list[Any]:
        """What a program returns for the rows of all parts, one after the other."""
        kinds, vs, columns = blocks(design, eta)
        with jax.enable_x64(True):
            each = function(self.several, self.order, kinds, given.values["theta"], vs, columns)
            counts = [part.count for part in design.parts]
            found = [[np.asarray(x)[:n] for x in own] for own, n in zip(each, counts, strict=True)]
        return [np.concatenate(own) for own in zip(*found, strict=True)]

    def expectation(
        self, theta: np.ndarray, design: DensityDesign, etas: list[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        """Log p(theta) plus the mean over draws of v of all rows' log densities; and its slope."""
        value, slope = 0.0, np.zeros(len(theta))
        for eta in etas:
            kinds, vs, columns = blocks(design, eta)
            masks = [np.arange(len(v)) < p.count for v, p in zip(vs, design.parts, strict=True)]
            with jax.enable_x64(True):
                own = _expectation(self.several, self.order, kinds, theta, vs, (columns, masks))
            value, slope = value + float(own[0]), slope + np.asarray(own[1])
        return value / len(etas), slope / len(etas)

    def population(
        self,
        term: int,
        values: Mapping[str, np.ndarray],
        columns: Mapping[str, np.ndarray],
        count: int,
        rng: np.random.Generator,
    ) -> Float64[np.ndarray, "S count m"]:
        """Effects of levels that nothing is known of, by their prior; columns are [count, ...]."""
        thetas, columns = np.asarray(values[""], np.float64), dict(columns)
        noise = rng.normal(size=(len(thetas), count, TRIED, self.terms[term]))
        gumbel = rng.gumbel(size=noise.shape[:3])
        with jax.enable_x64(True):
            own = self.several, self.order, term
            return np.asarray(_population(*own, (thetas, columns, noise, gumbel)))


def padded(count: int) -> int:
    """A number of rows that is not much larger: of few different sizes, few programs are compiled."""
    step = max(2 ** (max(count, 1).bit_length() - 3), 8)
    return -(-count // step) * step


def blocks(design: DensityDesign, eta: Float64[np.ndarray, "n V"]) -> tuple[Any, Any, Any]:
    """Kinds, vectors v and columns of the parts, each with copies of its last row up to a round size."""
    vs, columns, start = [], [], 0
    for part in design.parts:
        rows = np.minimum(np.arange(padded(part.count)), max(part.count - 1, 0))
        own = eta[start : start + part.count]
        vs.append(own[rows] if part.count else np.zeros((len(rows), eta.shape[1])))
        columns.append({n: _filled(c, rows) for n, c in part.columns.items()})
        start += part.count
    return tuple(part.kind for part in design.parts), vs, columns


def _filled(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return column[rows] if len(column) else np.ones((len(rows), *column.shape[1:]), column.dtype)


def _density(several: SeveralModel, order: Order, kind: int, theta: Array) -> Any:
    """The log density of one row of a kind: v, columns -> []."""
    if kind == DATA:
        return lambda v, row: several.log_lik(theta, v, row, order)
    return lambda v, group: several.log_local(kind, theta, v, group, order)


@program
def _derivatives(
    several: SeveralModel,
    order: Order,
    kinds: Order,
    theta: Array,
    vs: list[Any],
    columns: list[Any],
) -> Any:
    found = []
    for kind, v, own in zip(kinds, vs, columns, strict=True):
        density = _density(several, order, kind, theta)

        def one(v: Array, row: Any, density: Any = density) -> Any:
            slope = jax.grad(density)
            return density(v, row), slope(v, row), -jax.jacfwd(slope)(v, row)

        found.append(jax.vmap(one)(v, own))
    return found


@program
def _values(
    several: SeveralModel,
    order: Order,
    kinds: Order,
    theta: Array,
    vs: list[Any],
    columns: list[Any],
) -> Any:
    each = zip(kinds, vs, columns, strict=True)
    return [(jax.vmap(_density(several, order, kind, theta))(v, own),) for kind, v, own in each]


@program
def _expectation(
    several: SeveralModel, order: Order, kinds: Order, theta: Array, vs: list[Any], given: Any
) -> Any:
    def total(theta: Array) -> Array:
        value = several.log_prior(theta)
        for kind, v, own, mask in zip(kinds, vs, *given, strict=True):
            rows = jax.vmap(_density(several, order, kind, theta))(v, own)
            value += jnp.sum(jnp.where(mask, rows, 0.0))
        return value

    return jax.value_and_grad(total)(theta)


@program
def _priors(several: SeveralModel, thetas: Array) -> Any:
    return jax.vmap(several.theta.values)(thetas), jax.vmap(several.log_prior)(thetas)


@program
def _population(several: SeveralModel, order: Order, term: int, given: Any) -> Any:
    thetas, columns, noise, gumbel = given
    own = several.slots(order)[term]
    V = sum(space.size for space in several.z.values())

    def level(theta: Array, group: Any, noise: Array, gumbel: Array) -> Array:
        put = lambda z: jnp.zeros(V).at[own].set(z)
        density = lambda z: several.log_local(term, theta, put(z), group, order)
        slope, bent = jax.grad(density), lambda z: -jax.hessian(density)(z)

        def step(z: Array, _: Any) -> tuple[Array, None]:
            values, vectors = jnp.linalg.eigh(bent(z))
            move = vectors @ ((vectors.T @ slope(z)) / jnp.maximum(jnp.abs(values), 1e-6))
            return z + jnp.clip(move, -1e6, 1e6), None

        mode, _ = jax.lax.scan(step, jnp.zeros(noise.shape[-1]), None, length=STEPS)
        values, vectors = jnp.linalg.eigh(bent(mode))
        root = vectors / jnp.sqrt(jnp.maximum(values, 1e-9))
        z = mode + noise @ root.T
        weight = jax.vmap(density)(z) + 0.5 * jnp.sum(noise**2, -1)
        return z[jnp.argmax(weight + gumbel)]

    levels = jax.vmap(level, (None, 0, 0, 0))
    return jax.vmap(levels, (0, None, 0, 0))(thetas, columns, noise, gumbel)


def is_linear(several: SeveralModel, order: Order, parts: tuple[Part, ...]) -> bool:
    """Whether every row's log density is quadratic in v: the model is then linear and Gaussian."""
    real = jnp.result_type(float)
    theta = jax.ShapeDtypeStruct((several.theta.size,), real)
    v = jax.ShapeDtypeStruct((sum(space.size for space in several.z.values()),), real)
    one = lambda c: jax.ShapeDtypeStruct(c.shape[1:], jax.dtypes.canonicalize_dtype(c.dtype))
    for part in parts:
        row = {name: one(column) for name, column in part.columns.items()}
        of = lambda theta, v, row, kind=part.kind: _density(several, order, kind, theta)(v, row)
        if degree(of, (theta, v, row), 1) > 2:
            return False
    return True
