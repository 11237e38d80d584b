"""DensityLevels: a model of log densities with several factors, as the engine of this room needs it.

JAX differentiates a row's density in its vector v: one program for values, slopes and curvatures of all
rows, and one for values alone, for any theta. If memory is short, points of a rule are taken one by one.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from ramify.levels.density_design import DATA, DensityDesign, Part, padded
from ramify.levels.integral import Solved, root_of
from ramify.levels.model import CHUNK, Derivatives, Given, LevelsModel
from ramify.models.degree import degree
from ramify.models.several import Order, SeveralModel
from ramify.numerics.programs import QUICK, program
from ramify.numerics.small_linalg import inverse_lower

STEPS = 20  # of Newton to the mode of a level without data
LARGE = 3e7  # numbers in the curvatures of all rows at several v: above, one v is taken at a time
TRIED = 16  # draws of a level without data, of which one is chosen by importance weight


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
        self._programs: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return repr(self.several)

    @property
    def transformed(self) -> np.ndarray:
        """Which entries of theta are transformed: those of parameters that are not real."""
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
        """As in `LevelsModel`, but without priors of effects, which are among the rows."""
        thetas = np.asarray(thetas, np.float64)
        M, log_volume = self.terms[self.order[0]], np.log(2 * np.pi)
        kept = [self.terms[f] for f in self.kept]
        for theta, log_prior in zip(thetas, self._evaluated(thetas)[1], strict=True):
            yield Given(
                float(log_prior),
                np.zeros((M, M)),
                M * log_volume,  # cancels the constant of the normal prior, which is not used here
                [np.zeros((m, m)) for m in kept],
                [m * log_volume for m in kept],
                {"theta": theta},
            )

    def common_prior(self, beta: Float64[np.ndarray, " 0"]) -> tuple[float, np.ndarray, np.ndarray]:
        """Zero: common effects are in theta."""
        return 0.0, beta, beta

    def convex(self, rows: Derivatives) -> Derivatives:
        """The rows unchanged: only the sum of their curvatures has to be positive definite."""
        return rows

    def cautious(self, design: Any, solved: Solved) -> tuple[np.ndarray, np.ndarray]:
        """Curvatures without their negative eigenvalues, so that S is positive definite."""
        values, vectors = np.linalg.eigh(solved.rows.curvature)
        own = np.einsum("rij,rj,rkj->rik", vectors, np.maximum(values, 1e-9), vectors)
        return own, design.shared(own, root_of(design.products(own)))

    def derivatives(self, given: Given, design: Any, eta: np.ndarray) -> Derivatives:
        """Values [n], slopes [n, V] and minus curvatures [n, V, V] of rows at v [n, V], or [n, K, V]."""
        if eta.ndim == 3 and eta[..., 0].size * eta.shape[2] ** 2 > LARGE and eta.shape[1] > 1:
            each = [self.derivatives(given, design, own) for own in np.moveaxis(eta, 1, 0)]
            return Derivatives(*(np.stack(own, 1) for own in zip(*each, strict=True)))
        return Derivatives(*self._run(_derivatives, given, design, eta))

    def log_lik(self, given: Given, design: Any, eta: np.ndarray) -> np.ndarray:
        """Values alone, [n] or [n, K]."""
        return self._run(_values, given, design, eta)[0]

    def _run(
        self, function: Any, given: Given, design: DensityDesign, eta: np.ndarray
    ) -> list[Any]:
        """The arrays that a program returns for all rows, without padding."""
        with jax.enable_x64(True):
            own = self._compiled(function, design.kinds, design.padded_counts)
            found = own(given.values["theta"], eta[design.padded_rows], design.on_device)
            return [np.asarray(x)[design.own_rows] for x in found]

    def _compiled(self, function: Any, *static: Any) -> Any:
        """A function compiled for this model and for static arguments; kept, so later calls are cheap."""
        if (function, static) not in self._programs:
            own = partial(function, self.several, self.order, *static)
            self._programs[function, static] = jax.jit(own, compiler_options=QUICK)
        return self._programs[function, static]

    def expectation(
        self, theta: np.ndarray, design: DensityDesign, etas: list[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        """Log p(theta) plus the mean over draws of v of all rows' log densities; and its slope."""
        value, slope = 0.0, np.zeros(len(theta))
        with jax.enable_x64(True):
            own = self._compiled(_expectation, design.kinds, design.padded_counts)
            for eta in etas:
                found = own(theta, eta[design.padded_rows], (design.on_device, design.mask))
                value, slope = value + float(found[0]), slope + np.asarray(found[1])
        return value / len(etas), slope / len(etas)

    def population(
        self,
        term: int,
        values: Mapping[str, np.ndarray],
        columns: Mapping[str, np.ndarray],
        others: np.ndarray,
        rng: np.random.Generator,
    ) -> Float64[np.ndarray, "S count m"]:
        """Draws of the effects of levels without data, from their prior; columns are [count, ...].

        `others` are vectors v of rows of these levels, with the effects of outer levels, [S, count, V].
        """
        count = others.shape[1]
        thetas = np.asarray(values[""], np.float64)
        some = np.minimum(np.arange(padded(count)), count - 1)
        columns = {name: column[some] for name, column in columns.items()}
        noise = rng.normal(size=(len(thetas), len(some), TRIED, self.terms[term]))
        gumbel = rng.gumbel(size=noise.shape[:3])
        with jax.enable_x64(True):
            own = self._compiled(_population, term)(
                thetas, columns, others[:, some], (noise, gumbel)
            )
            return np.asarray(own)[:, :count]


def _density(several: SeveralModel, order: Order, kind: int, theta: Array) -> Any:
    """The log density of one row of a kind, a function of v and columns."""
    if kind == DATA:
        return lambda v, row: several.log_lik(theta, v, row, order)
    return lambda v, group: several.log_local(kind, theta, v, group, order)


def _parts(kinds: Order, counts: Order, v: Array, columns: list[Any]) -> Iterator[Any]:
    """The kind, vectors v and columns of each part."""
    start = 0
    for kind, count, own in zip(kinds, counts, columns, strict=True):
        yield kind, v[start : start + count], own
        start += count


def _by_point(one: Any, v: Array) -> Any:
    """Maps a function of one row's v and columns over rows with one v each, or with several."""
    return jax.vmap(one if v.ndim == 2 else jax.vmap(one, (0, None)))


def _derivatives(
    several: SeveralModel,
    order: Order,
    kinds: Order,
    counts: Order,
    theta: Array,
    v: Array,
    columns: list[Any],
) -> Any:
    found = []
    for kind, own, read in _parts(kinds, counts, v, columns):
        density = _density(several, order, kind, theta)

        def one(v: Array, row: Any, density: Any = density) -> Any:
            slope = jax.grad(density)
            return density(v, row), slope(v, row), -jax.jacfwd(slope)(v, row)

        found.append(_by_point(one, own)(own, read))
    return [jnp.concatenate(own) for own in zip(*found, strict=True)]


def _values(
    several: SeveralModel,
    order: Order,
    kinds: Order,
    counts: Order,
    theta: Array,
    v: Array,
    columns: list[Any],
) -> Any:
    each = [
        _by_point(_density(several, order, kind, theta), own)(own, read)
        for kind, own, read in _parts(kinds, counts, v, columns)
    ]
    return [jnp.concatenate(each)]


def _expectation(
    several: SeveralModel,
    order: Order,
    kinds: Order,
    counts: Order,
    theta: Array,
    v: Array,
    given: tuple[list[Any], Array],
) -> Any:
    columns, mask = given

    def total(theta: Array) -> Array:
        (rows,) = _values(several, order, kinds, counts, theta, v, columns)
        return several.log_prior(theta) + jnp.sum(jnp.where(mask, rows, 0.0))

    return jax.value_and_grad(total)(theta)


@program
def _priors(several: SeveralModel, thetas: Array) -> Any:
    return jax.vmap(several.theta.values)(thetas), jax.vmap(several.log_prior)(thetas)


def _population(
    several: SeveralModel,
    order: Order,
    term: int,
    thetas: Array,
    columns: Any,
    others: Array,
    random: tuple[Array, Array],
) -> Array:
    """A draw of the effects of levels without data, for each theta: [S, count, m].

    Several draws come from the Gaussian around the mode of the prior; one is chosen by weight.
    """
    own = several.slots(order)[term]

    def level(theta: Array, group: Any, v: Array, random: tuple[Array, Array]) -> Array:
        noise, gumbel = random
        put = lambda z: v.at[own].set(z)
        density = lambda z: several.log_local(term, theta, put(z), group, order)
        slope, root = jax.grad(density), lambda z: _inverse_root(-jax.hessian(density)(z))

        def step(_: Any, z: Array) -> Array:
            back = root(z)
            return z + jnp.clip(back @ (back.T @ slope(z)), -1e6, 1e6)

        mode = jax.lax.fori_loop(0, STEPS, step, jnp.zeros(noise.shape[-1]))
        z = mode + noise @ root(mode).T
        weight = jax.vmap(density)(z) + 0.5 * jnp.sum(noise**2, -1)
        return z[jnp.argmax(weight + gumbel)]

    levels = jax.vmap(level, (None, 0, 0, 0))
    return jax.vmap(levels, (0, None, 0, 0))(thetas, columns, others, random)


def _inverse_root(matrix: Float64[Array, "m m"]) -> Float64[Array, "m m"]:
    """A with A A' = matrix^-1; if the matrix is not positive definite, of its diagonal alone."""
    factor = jnp.linalg.cholesky(matrix)
    rough = jnp.diag(1 / jnp.sqrt(jnp.maximum(jnp.abs(jnp.diag(matrix)), 1e-6)))
    return jnp.where(jnp.isfinite(factor).all(), inverse_lower(factor).T, rough)


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
