"""The model of a formula with several grouping terms, and the names of its results."""

import math
from collections.abc import Mapping
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ramify.data.groups import Groups
from ramify.frontends.formula.levels_formula import LevelsFormula
from ramify.frontends.formula.levels_reading import read_groups
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.priors import Densities, Priors, densities, log_density, sd_name
from ramify.levels.model import LevelsCore, LevelsModel
from ramify.models.parameters import Named, Parameter

_FORMS = {
    ("gaussian", "identity"): "normal",
    ("lognormal", "identity"): "normal",
    ("bernoulli", "logit"): "logit",
    ("binomial", "logit"): "logit",
    ("poisson", "log"): "poisson",
}


class FormulaCore(LevelsCore):
    """The densities of a formula; priors are on the user's scale."""

    likelihood: str = eqx.field(static=True)
    link: str = eqx.field(static=True)
    levels: int = eqx.field(static=True)  # how many the response has
    priors: dict[str, Densities]  # by the names of theta
    common: Densities | None
    units: dict[str, Float[Array, "..."]]  # of theta's parameters
    common_unit: Float[Array, " P"]
    common_near: Float[Array, " P"]  # added to the common effects, on the user's scale
    scale: Float[Array, ""]

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the likelihood."""
        return {name: own.make(self.levels) for name, own in self.family.parameters.items()}

    def log_prior(self, values: Named) -> Float[Array, ""]:
        """Log density of theta, with the Jacobians of its units."""
        total = jnp.zeros(())
        for name, value in values.items():
            unit = self.units.get(name, jnp.ones(()))
            total += log_density(self.priors[name], unit * value) + jnp.sum(jnp.log(unit))
        return total

    def log_prior_common(self, beta: Float[Array, " P"]) -> Float[Array, " P"]:
        """Log density of each common effect."""
        found, value = jnp.zeros_like(beta), self.common_near + self.common_unit * beta
        for places, density in (self.common or {}).items():
            own = np.array(places)
            found = found.at[own].set(density(value[own]) + jnp.log(self.common_unit[own]))
        return found

    def log_lik(
        self, values: Named, eta: Float[Array, "n *K"], columns: Mapping[str, Any]
    ) -> Float[Array, "n *K"]:
        """Log density of each row, on the user's scale, times its weight."""
        columns = {n: jnp.broadcast_to(c, eta.shape) for n, c in columns.items()}
        one = lambda e, row: self.family.log_density(self.link, e, values, row)
        rows = {name: column.ravel() for name, column in columns.items()}
        density = jax.vmap(one)(eta.ravel(), rows).reshape(eta.shape) - jnp.log(self.scale)
        density -= columns.get("log_y", 0.0)
        return density * columns["weights"] if "weights" in columns else density


@final
class LevelsFormulaModel(LevelsModel):
    """A model made by `from_formula` with several grouping terms; see `docs/levels.md`."""

    table: dict[str, Any] | None = None  # the columns of the fit's table

    def __init__(self, formula: LevelsFormula, priors: Priors, notes: list[str] | None = None):
        self.formula, self.priors, self.notes = formula, priors, list(notes or [])
        form = _FORMS.get((formula.likelihood, formula.link))
        linear = form == "normal"
        self.closed_form = None if form is None else (form, -math.log(formula.units.scale))
        normal = not _skewed_priors(formula, priors)
        super().__init__(
            core_of(formula, priors),
            tuple(len(term.effects) for term in formula.terms),
            tuple(term.correlated for term in formula.terms),
            formula.inside,
            linear and normal,
            normal,
        )

    def __repr__(self) -> str:
        """The formula, its likelihood and its factors."""
        spec = self.formula
        count = len(spec.units.names) + spec.units.intercept
        by = ", ".join(f"{len(factor):,} {factor.name}" for factor in spec.factors)
        return (
            f"LevelsFormulaModel({spec.parts.text}, {spec.likelihood} with {spec.link} link; {count} "
            f"common effects; levels: {by})" + "".join(f"\n  note: {line}" for line in self.notes)
        )

    def _common_prior(self, beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        if not self.normal_common:
            return super()._common_prior(beta)
        own = [self.priors[name] for name in common_names(self.formula)]
        loc, scale = (np.array([float(getattr(p, n)) for p in own]) for n in ("loc", "scale"))
        core: Any = self.core
        unit, near = (np.asarray(x, np.float64) for x in (core.common_unit, core.common_near))
        apart = (near + unit * beta - loc) / scale
        value = -0.5 * apart**2 + np.log(unit / (scale * np.sqrt(2 * np.pi)))
        return float(value.sum()), -apart * unit / scale, (unit / scale) ** 2

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return read_groups(self.formula, table, "table")


def _skewed_priors(formula: LevelsFormula, priors: Priors) -> bool:
    """Whether a common effect has a prior that is not normal."""
    return any(type(priors[name]).__name__ != "Normal" for name in common_names(formula))


def common_names(formula: LevelsFormula) -> list[str]:
    """The names of the common effects, the intercept first."""
    return ["Intercept"] * formula.units.intercept + list(formula.units.names)


def cor_names(formula: LevelsFormula) -> dict[int, str]:
    """The name of the prior of each term's correlations: `cor(movie)`."""
    found: dict[int, str] = {}
    for t, term in enumerate(formula.terms):
        if term.correlated:
            name = f"cor({formula.factors[term.factor].name})"
            again = sum(other.startswith(name[:-1]) for other in found.values())
            found[t] = name if not again else f"{name[:-1]}, {again + 1})"
    return found


def term_sds(formula: LevelsFormula, term: int) -> list[str]:
    """The names of a term's sds."""
    spec = formula.terms[term]
    return [sd_name(effect, formula.factors[spec.factor].name) for effect in spec.effects]


def core_of(formula: LevelsFormula, priors: Priors) -> FormulaCore:
    """The core of a formula and its priors, in float64."""
    units = formula.units
    with jax.enable_x64(True):
        own: dict[str, Any] = {name: densities(priors[name]) for name in formula.family.parameters}
        unit = {name: jnp.asarray(units.scale, jnp.float64) for name in formula.family.scaled}
        for t, term in enumerate(formula.terms):
            own[f"sd_{t}"] = densities([priors[name] for name in term_sds(formula, t)])
            unit[f"sd_{t}"] = jnp.asarray(units.scale / np.asarray(term.unit), jnp.float64)
        own |= {f"cor_{t}": densities(priors[name]) for t, name in cor_names(formula).items()}
        names = common_names(formula)
        first = [units.scale] if units.intercept else []
        scales = np.array([*first, *(units.scale / np.asarray(units.unit))], np.float64)
        near = np.array([units.shift] * units.intercept + [0.0] * len(units.names), np.float64)
        return FormulaCore(
            formula.likelihood,
            formula.link,
            len(formula.levels or ()),
            own,
            densities([priors[name] for name in names]) if names else None,
            unit,
            jnp.asarray(scales),
            jnp.asarray(near),
            jnp.asarray(units.scale, jnp.float64),
        )
