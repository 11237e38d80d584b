"""LevelsModel: a model with several factors, as the rest of the room uses it.

This is the seam for front ends. A front end derives a `LevelsCore`, whose methods are compiled, and puts
it into a `LevelsModel` with the numbers of effects of each grouping term.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from ramify.levels.closed_forms import FORMS
from ramify.levels.design import Design
from ramify.models.parameters import Named, Parameter, Space, correlation_cholesky, positive
from ramify.numerics.programs import program

CHUNK = 64  # thetas at once


class LevelsCore(eqx.Module):
    """The densities of a model, for programs; its arrays are their arguments. All methods are traced.

    All effects are deviations with mean zero, on the scale that the model computes on.
    """

    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the likelihood: those of theta other than sds and correlations."""
        raise NotImplementedError

    def log_prior(self, values: Named) -> Float[Array, ""]:
        """Log density of the constrained theta."""
        raise NotImplementedError

    def log_prior_common(self, beta: Float[Array, " P"]) -> Float[Array, " P"]:
        """Log density of each common effect."""
        raise NotImplementedError

    def log_lik(
        self, values: Named, eta: Float[Array, "n *K"], columns: Mapping[str, Any]
    ) -> Float[Array, "n *K"]:
        """Log density of each row at its linear predictors; columns are [n, 1] where eta is [n, K]."""
        raise NotImplementedError


class Given(NamedTuple):
    """The priors and parameters of a model at one theta, in float64 on the host."""

    log_prior: float  # of the unconstrained theta, with its Jacobian
    precision: Float64[np.ndarray, "M M"]  # of z
    log_det: float  # of this precision
    kept: list[Float64[np.ndarray, "m m"]]  # the precision of a level's effects, for each kept term
    kept_log_det: list[float]  # of these precisions
    values: dict[str, np.ndarray]  # parameters of the likelihood


class LevelsModel:
    """A model with several factors.

    Theta has, for each term t, the sds "sd_<t>" of its effects and, if they are correlated, the Cholesky
    factor "cor_<t>" of their correlations; then the parameters of the likelihood.

    Attributes:
        core: the densities.
        terms: the number of effects of each term.
        correlated: whether the effects of each term are correlated.
        integrated: the terms of the integrated factor, whose effects side by side are z.
        linear: whether the model is linear and Gaussian: then everything is exact.
        normal_common: whether the priors of the common effects are normal.
        theta: the space of theta.
        closed_form: the likelihood's name in `closed_forms.FORMS` and a constant to add to its
            logarithm; None if it has none, and JAX differentiates it.
    """

    several_factors = True  # read by functions that are for one factor only
    closed_form: tuple[str, float] | None = None

    def __init__(
        self,
        core: LevelsCore,
        terms: tuple[int, ...],
        correlated: tuple[bool, ...],
        integrated: tuple[int, ...],
        linear: bool,
        normal_common: bool = False,
    ):
        self.core, self.terms, self.correlated = core, terms, correlated
        self.integrated, self.linear, self.normal_common = integrated, linear, normal_common
        self._common: Any = None  # the normal priors at zero
        self.kept = tuple(t for t in range(len(terms)) if t not in integrated)
        self.theta = _space(core, terms, correlated)

    @property
    def form(self) -> str | None:
        """The name of the likelihood's closed form, if it has one."""
        return None if self.closed_form is None else self.closed_form[0]

    @property
    def transformed(self) -> Bool[np.ndarray, " D"]:
        """Which entries of theta are transformed, such as logarithms of sds: here all."""
        return np.ones(self.theta.size, bool)

    @property
    def M(self) -> int:
        """The dimension of z."""
        return sum(self.terms[t] for t in self.integrated)

    def factor(self, values: Mapping[str, Any], term: int) -> Float64[np.ndarray, "m m"]:
        """The lower triangular factor of the covariance of a term's effects."""
        sd = np.asarray(values[f"sd_{term}"], np.float64)
        cor = values.get(f"cor_{term}")
        return np.diag(sd) if cor is None else sd[:, None] * np.asarray(cor, np.float64)

    def values(self, thetas: Float64[np.ndarray, "n D"]) -> dict[str, np.ndarray]:
        """Named, constrained values of thetas, [n, ...] each."""
        return self._evaluated(thetas)[0]

    def unconstrained(self, values: Mapping[str, Any]) -> Float64[np.ndarray, " D"]:
        """Theta of named, constrained values."""
        own = {name: np.asarray(values[name], np.float64) for name in self.theta.parameters}
        with jax.enable_x64(True):
            return np.array(_unconstrained(self.core, self.terms, self.correlated, own))

    def _evaluated(self, thetas: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Values and log prior densities, in chunks of one compiled shape."""
        own, found = (self.core, self.terms, self.correlated), []
        for start in range(0, len(thetas), CHUNK):
            chunk = thetas[start : start + CHUNK]
            with jax.enable_x64(True):
                values, prior = _values(*own, np.resize(chunk, (CHUNK, chunk.shape[1])))
                values = {n: np.asarray(v)[: len(chunk)] for n, v in values.items()}
                found.append((values, np.asarray(prior)[: len(chunk)]))
        values = {n: np.concatenate([own[n] for own, _ in found]) for n in found[0][0]}
        return values, np.concatenate([prior for _, prior in found])

    def at(self, theta: Float64[np.ndarray, " D"]) -> Given:
        """Priors and parameters at one theta."""
        return next(self.at_each(theta[None]))

    def at_each(self, thetas: Float64[np.ndarray, "n D"]) -> Iterator[Given]:
        """Priors and parameters at many thetas."""
        named, log_priors = self._evaluated(np.asarray(thetas, np.float64))
        for k, log_prior in enumerate(log_priors):
            own = {name: np.asarray(value[k]) for name, value in named.items()}
            yield self._given(own, float(log_prior))

    def _given(self, named: dict[str, np.ndarray], log_prior: float) -> Given:
        roots = [np.linalg.inv(self.factor(named, t)) for t in range(len(self.terms))]
        log_dets = [2 * float(np.log(np.diag(root)).sum()) for root in roots]
        precision, at = np.zeros((self.M, self.M)), 0
        for t in self.integrated:
            own = slice(at, at + self.terms[t])
            precision[own, own], at = roots[t].T @ roots[t], own.stop
        return Given(
            log_prior,
            precision,
            sum(log_dets[t] for t in self.integrated),
            [roots[t].T @ roots[t] for t in self.kept],
            [log_dets[t] for t in self.kept],
            {n: v for n, v in named.items() if not n.startswith(("sd_", "cor_"))},
        )

    def common_prior(self, beta: Float64[np.ndarray, " P"]) -> tuple[float, np.ndarray, np.ndarray]:
        """Log density of the common effects, its slope and minus its curvature."""
        if not len(beta):
            return 0.0, beta, beta
        if not self.normal_common:
            return self._common_prior(beta)
        if self._common is None:
            self._common = self._common_prior(np.zeros_like(beta))
        value, slope, curvature = self._common
        lower = curvature * beta
        return value + float((slope - 0.5 * lower) @ beta), slope - lower, curvature

    def _common_prior(self, beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            found = _common(self.core, jnp.asarray(beta, jnp.float64))
        value, slope, curvature = map(np.asarray, found)
        return float(value.sum()), slope, np.maximum(curvature, 0.0)

    def population(
        self,
        term: int,
        values: Mapping[str, np.ndarray],
        columns: Mapping[str, np.ndarray],
        others: np.ndarray,
        rng: np.random.Generator,
    ) -> Float64[np.ndarray, "S count m"]:
        """Draws of the effects of levels without data; `values` are draws of theta by name.

        `others`, [S, count, ...], are linear predictors of rows of these levels without these effects.
        """
        sd = values[f"sd_{term}"]  # [S, m]
        noise = rng.normal(size=(len(sd), others.shape[1], sd.shape[1]))
        if f"cor_{term}" in values:
            noise = np.einsum("sij,snj->sni", values[f"cor_{term}"], noise)
        return sd[:, None] * noise

    def convex(self, rows: "Derivatives") -> "Derivatives":
        """The rows with negative curvatures set to zero."""
        return rows._replace(curvature=np.maximum(rows.curvature, 0.0))

    def cautious(
        self, design: Design, solved: Any
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, "M n"]]:
        """Curvatures of rows and their `shared` by Laplace's method, for a positive definite S."""
        return solved.rows.curvature, design.shared(solved.rows.curvature, solved.root)

    def derivatives(self, given: Given, design: Design, eta: np.ndarray) -> "Derivatives":
        """The derivatives of the rows' log likelihood at linear predictors [n] or [n, K], in float64."""
        columns = self._columns(design, eta)
        if self.closed_form is not None:
            value, more = self._closed(given, columns, eta)
            slope, curvature = more()
            weights = columns.get("weights")
            if weights is not None:
                slope, curvature = slope * weights, curvature * weights
            return Derivatives(value, slope, curvature)
        with jax.enable_x64(True):
            return Derivatives(*map(np.asarray, _of_rows(self.core, given.values, columns, eta)))

    def log_lik(self, given: Given, design: Design, eta: np.ndarray) -> np.ndarray:
        """The rows' log likelihood alone."""
        if self.closed_form is None:
            return self.derivatives(given, design, eta).value
        return self._closed(given, self._columns(design, eta), eta)[0]

    def _columns(self, design: Design, eta: np.ndarray) -> dict[str, np.ndarray]:
        form = self.form
        own = design.columns if form is None else design.with_constant(form)
        return {n: c if eta.ndim == 1 else c[:, None] for n, c in own.items()}

    def _closed(self, given: Given, columns: Mapping[str, np.ndarray], eta: np.ndarray) -> Any:
        assert self.closed_form is not None
        name, added = self.closed_form
        value, more = FORMS[name](given.values, columns, eta)
        value = value + added if added else value
        return value * columns["weights"] if "weights" in columns else value, more


class Derivatives(NamedTuple):
    """Log likelihood of rows, its slope and minus its curvature in the linear predictor."""

    value: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


def differentiate(
    model: LevelsModel, given: Given, design: Design, eta: Float64[np.ndarray, "n *K"]
) -> Derivatives:
    """The derivatives of the rows' log likelihood at linear predictors."""
    return model.derivatives(given, design, eta)


def _space(core: LevelsCore, terms: tuple[int, ...], correlated: tuple[bool, ...]) -> Space:
    own: dict[str, Parameter] = {}
    for t, (effects, both) in enumerate(zip(terms, correlated, strict=True)):
        own |= {f"sd_{t}": positive(effects)}
        own |= {f"cor_{t}": correlation_cholesky(effects)} if both else {}
    return Space({**own, **core.parameters()})


@program
def _of_rows(core: LevelsCore, values: Named, columns: Any, eta: Array) -> Any:
    return _second_order(lambda e: core.log_lik(values, e, columns), eta)


@program
def _values(
    core: LevelsCore, terms: tuple[int, ...], correlated: tuple[bool, ...], thetas: Array
) -> tuple[Named, Float[Array, " n"]]:
    space = _space(core, terms, correlated)

    def one(theta: Float[Array, " D"]) -> tuple[Named, Float[Array, ""]]:
        values, log_det = space.constrain(theta)
        return values, core.log_prior(values) + log_det

    return jax.vmap(one)(thetas)


@program
def _unconstrained(
    core: LevelsCore, terms: tuple[int, ...], correlated: tuple[bool, ...], values: Named
) -> Float[Array, " D"]:
    return _space(core, terms, correlated).unconstrain(values)


@program
def _common(core: LevelsCore, beta: Float[Array, " P"]) -> Any:
    return _second_order(core.log_prior_common, beta)


def _second_order(density: Any, at: Array) -> tuple[Array, Array, Array]:
    """Values, slopes and minus curvatures of a function that acts on each entry separately."""
    one = jnp.ones_like(at)
    first = lambda x: jax.jvp(density, (x,), (one,))
    (value, slope), (_, curvature) = jax.jvp(first, (at,), (one,))
    return value, slope, -curvature
