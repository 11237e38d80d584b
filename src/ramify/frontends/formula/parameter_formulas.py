"""Formulas of a likelihood's own parameters, such as `sigma ~ x + (1 | g)`: brms's distributional models.

    link(parameter of a row) = X b + W u_i + offset

with a log link for positive parameters, a logit for probabilities and none for `alpha`. Columns are
centred and in units of their sds, as those of the mean's formula are. The effects u_i of a group are
part of its z, after those of the mean, with population mean zero; effects of different formulas are
independent given theta.
"""

import re
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.moments import Moments
from ramify.frontends.formula.row_densities import INVERSE
from ramify.frontends.formula.text import FormulaText
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.numerics.small_linalg import inverse_lower

SD = 0.3  # unit of group sds inside: a fit begins at one unit, and they are below the response's sd
SHARES = ("zi", "hu")  # probabilities
REAL = ("alpha",)  # any numbers
CATEGORY = "mu"  # begins the name of a level's linear predictor, as in brms
NOTHING = Coding("", [], [], [], {})  # the coding of the group part without a grouping term


def category_names(levels: list[Any]) -> list[str]:
    """The names in results of the linear predictors of all levels except the first.

    Example:
        >>> category_names(["bus", "car", "on foot"]), category_names([0.0, 1.0, 2.5])
        (['mucar', 'muonfoot'], ['mu1', 'mu2_5'])
    """
    word = lambda level: f"{level:g}".replace(".", "_") if isinstance(level, float) else str(level)
    return [CATEGORY + re.sub(r"\W", "", word(level)) for level in levels[1:]]


def group_root(sd: Float[Array, " M"], cor: Array | None) -> Float[Array, "M M"]:
    """The inverse of the lower triangular factor of a covariance, from sds in their unit inside."""
    return jnp.diag(1 / (SD * sd)) if cor is None else inverse_lower(cor) / (SD * sd)


@dataclass(frozen=True)
class ParameterFormula:
    """A formula of a parameter, evaluated: what is needed to read new rows like those of the fit."""

    name: str  # of the parameter
    parts: FormulaText  # the text
    common: Coding  # coding of the common effects
    group: Coding  # coding of the effects that vary by group
    centre: tuple[float, ...]  # subtracted from each common column
    unit: tuple[float, ...]  # the divisor of each common column
    group_unit: tuple[float, ...]  # the divisor of each group-level column
    shift: float  # the centre of the intercept, on the link's scale

    @property
    def link(self) -> str:
        """Logit for a probability, none for a category or any number, else log."""
        if self.name.startswith(CATEGORY) or self.name in REAL:
            return "identity"
        return "logit" if self.name in SHARES else "log"

    @property
    def intercept(self) -> bool:
        """Whether there is a common intercept."""
        return "Intercept" in self.common.names

    @property
    def effects(self) -> list[str]:
        """Names of the common effects in results, without the intercept: `sigma_x`."""
        return [f"{self.name}_{name}" for name in self.common.names if name != "Intercept"]

    @property
    def varying(self) -> list[str]:
        """Names of the effects that vary by group, in results."""
        return [f"{self.name}_{name}" for name in self.group.names]

    @property
    def correlated(self) -> bool:
        """Whether the effects that vary by group have correlations."""
        return len(self.group.names) > 1 and not self.parts.independent

    def rows(self, frame: Any, what: str) -> dict[str, Float64[np.ndarray, "n ..."]]:
        """The columns of new rows that the model needs."""
        own = [i for i, name in enumerate(self.common.names) if name != "Intercept"]
        found, offset = {}, self.common.offset(frame, what)
        if own:
            X = self.common.matrix(frame, what)[:, own]
            found["X"] = (X - np.asarray(self.centre)) / np.asarray(self.unit)
        if self.group.names:
            found["W"] = self.group.matrix(frame, what) / np.asarray(self.group_unit)
        if offset is not None:
            found["offset"] = offset
        return {f"{self.name}_{column}": values for column, values in found.items()}


def in_units(
    parts: FormulaText, coded: tuple[tuple[Coding, Moments], ...], shift: float
) -> ParameterFormula:
    """A parameter's formula with the centres and units of its columns, common and varying."""
    (common, X), (group, W) = coded
    own = [i for i, name in enumerate(common.names) if name != "Intercept"]
    free = "Intercept" in common.names
    numbers = lambda values: tuple(map(float, values))
    unit, group_unit = (np.where(sd > 0, sd, 1.0) for sd in (X.sd[own], W.sd))
    centre = X.mean[own] if free else np.zeros(len(own))
    sizes = numbers(centre), numbers(unit), numbers(group_unit)
    return ParameterFormula(parts.response, parts, common, group, *sizes, shift if free else 0.0)


class ParameterPredictor(eqx.Module):
    """The linear predictor of a parameter inside programs; data are arrays."""

    name: str = eqx.field(static=True)
    link: str = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    correlated: bool = eqx.field(static=True)
    effects: tuple[str, ...] = eqx.field(static=True)  # in results
    varying: tuple[str, ...] = eqx.field(static=True)
    base: Float[Array, ""]  # the constant of the predictor
    shift: Float[Array, ""]  # the centre of the intercept, on the user's scale
    coefficient: Float[Array, " P"]  # the unit of each common effect
    slope: Float[Array, " P"]  # the centre of each common column, in its unit
    deviation: Float[Array, " M"]  # the unit of each group effect

    def parameters(self) -> dict[str, Parameter]:
        """The parameters of theta that belong to this formula."""
        P, M = len(self.effects), len(self.varying)
        found = {"intercept": real()} if self.intercept else {}
        found |= ({"b": real(P)} if P else {}) | ({"sd": positive(M)} if M else {})
        found |= {"cor": correlation_cholesky(M)} if self.correlated else {}
        return {f"{self.name}_{part}": parameter for part, parameter in found.items()}

    def units(self) -> dict[str, Any]:
        """The units, inside, of these parameters."""
        found = {"b": self.coefficient, "sd": SD * self.deviation}
        return {f"{self.name}_{part}": unit for part, unit in found.items()}

    def part(self, theta: Named, part: str) -> Any:
        """`intercept`, `b`, `sd` or `cor` of this formula; None if it has none."""
        return theta.get(f"{self.name}_{part}")

    def offset(self, theta: Named, row: Named) -> Float[Array, ""]:
        """The linear predictor of one row, less W u."""
        eta = self.base + row.get(f"{self.name}_offset", 0.0)
        eta += theta[f"{self.name}_intercept"] if self.intercept else 0.0
        if self.effects:
            eta += jnp.sum(row[f"{self.name}_X"] * theta[f"{self.name}_b"])
        return eta

    def weights(self, row: Named) -> Float[Array, " M"]:
        """The weights of the group's effects in the linear predictor."""
        return row[f"{self.name}_W"] if self.varying else jnp.zeros(0)

    def values(self, eta: Float[Array, "..."]) -> Named:
        """The parameter, and its linear predictor, which `row_densities.log_odds` uses if it is there."""
        return {self.name: INVERSE[self.link](eta), f"{self.name}_link": eta}

    def shifted(self, values: Named) -> Named:
        """The intercept on the user's scale."""
        if not self.intercept:
            return {}
        return {f"{self.name}_intercept": self.shift + values[f"{self.name}_intercept"]}

    def named(self, values: Named) -> Named:
        """Results by the user's names, from the values of theta on the user's scale."""
        effects = values.get(f"{self.name}_b", jnp.zeros(0))
        found = {name: effects[k] for k, name in enumerate(self.effects)}
        if self.intercept:
            moved = jnp.sum(self.slope / self.coefficient * effects) if self.effects else 0.0
            found[f"{self.name}_Intercept"] = values[f"{self.name}_intercept"] - moved
        found |= {f"{self.name}_sd": values[f"{self.name}_sd"]} if self.varying else {}
        if self.correlated:
            factor = values[f"{self.name}_cor"]
            found[f"{self.name}_cor"] = factor @ factor.T
        return found


def predictor_of(own: ParameterFormula, log_scale: float) -> ParameterPredictor:
    """The predictor for programs; `log_scale` is the log of the parameter's unit inside."""
    rounded = lambda x: jax.device_put(np.asarray(x, jnp.result_type(float)))
    return ParameterPredictor(
        own.name,
        own.link,
        own.intercept,
        own.correlated,
        tuple(own.effects),
        tuple(own.varying),
        rounded(own.shift - log_scale),
        rounded(own.shift),
        rounded(1 / np.asarray(own.unit)),
        rounded(np.divide(own.centre, own.unit)),
        rounded(1 / np.asarray(own.group_unit)),
    )
