"""Formula: a formula evaluated on the rows of a fit."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.layout import EffectLayout
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.response import response_columns
from ramify.frontends.formula.text import FormulaText, formula_columns
from ramify.models.parameters import Named

SD = 0.3  # the unit of group sds inside: a fit begins at one, and they are smaller than the response's


@dataclass(frozen=True)
class Formula:
    """A formula, evaluated: what is needed to read new rows like those of the fit."""

    parts: FormulaText  # the text
    likelihood: str  # its name
    link: str  # its name
    common: Coding  # coding of the common effects
    group: Coding  # coding of the effects that vary by group
    layout: EffectLayout  # where each effect goes, and units
    levels: list[Any] | None  # of the response, where it has any
    table: str  # the kind of table that came in, and that results come back as
    zone: str | None = None  # the time zone of the grouping column, if it has times with one

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    @property
    def by(self) -> str:
        """The grouping column."""
        return self.parts.by

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns of a table that the formula needs, each with its kind where that is known."""
        category = self.levels is not None and self.numbers is None
        left = dict.fromkeys(response_columns(self.parts), "category") if category else {}
        named = dict.fromkeys([*formula_columns(self.parts.text), *self.parts.extra])
        return named | self.common.kinds | self.group.kinds | left

    @property
    def numbers(self) -> list[Any] | None:
        """The levels of the response if they are numbers, so that means of them make sense."""
        levels = self.levels or []
        return levels if levels and all(isinstance(x, int | float) for x in levels) else None

    @property
    def has_cutpoints(self) -> bool:
        """Whether cutpoints stand in for the intercept."""
        return self.family.support == "levels"

    @property
    def origin(self) -> float:
        """Subtracted from outcomes that are too far from zero for float32; else zero."""
        # Only where the link is the identity does the outcome move with the predictor.
        return self.layout.far(self.layout.base) if self.link == "identity" else 0.0

    @property
    def far_intercept(self) -> float:
        """Subtracted from an intercept that is too far from zero for float32; else zero."""
        return self.layout.far(self.layout.shift) if self.layout.intercept else 0.0

    def unit(self, name: str) -> float:
        """The unit, inside, of a parameter of the likelihood."""
        return self.layout.scale if name in self.family.scaled else 1.0

    def predictor(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """The linear predictor of one row, inside: for an identity link, of the standardised y."""
        return jnp.sum(row["W"] * z["effects"]) + self.offset(theta, row)

    def offset(self, theta: Named, row: Named) -> Float[Array, ""]:
        """The part of the linear predictor that does not depend on z."""
        offset = self.layout.offset(theta, row)
        return offset if self.link == "identity" else offset + self.layout.base

    def to_user_scale(self, y: Array) -> Array:
        """Outcomes inside -> outcomes in the user's units, less the origin."""
        if self.link == "identity":
            return self.layout.base - self.origin + self.layout.scale * y
        return jnp.asarray(self.numbers)[y] if self.has_cutpoints and self.numbers else y
