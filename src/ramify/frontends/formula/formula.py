"""Formula: a formula evaluated on the rows of a fit, with the layout of its effects and their units.

The linear predictor of a row is `offset + X b + W u_i`. Inside, columns are centred and in units of
their sds, and effects that vary by group have their population mean inside z:

- a column that is in both X and W: z = b + u, so that the likelihood depends on z alone;
- a column of X that is constant within groups: part of the mean of z's intercept;
- other columns keep their coefficient in the rows.

`solved` is fastest where the likelihood does not involve theta.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.moments import Facts
from ramify.frontends.formula.parameter_formulas import ParameterFormula
from ramify.frontends.formula.text import FormulaText

FAR = 100.0  # units of the response: values further from zero lose too many digits in float32


@dataclass(frozen=True)
class EffectLayout:
    """The names of the effects, and their places in X and W."""

    common: tuple[str, ...]  # the P columns of X without the intercept
    group: tuple[str, ...]  # the M columns of W
    intercept: bool  # whether there is a common intercept
    shared: tuple[tuple[int, int], ...]  # (place in X, place in W) of the columns that are in both
    grouped: tuple[int, ...]  # places in X of the columns that are constant within groups
    rest: tuple[int, ...]  # places in X of the others

    @property
    def group_intercept(self) -> int | None:
        """The place in W of the intercept, if it varies by group."""
        return self.group.index("Intercept") if "Intercept" in self.group else None

    def offset_uses_theta(self, columns: Collection[str]) -> bool:
        """Whether `Core.offset` involves theta, for rows with these columns; cutpoints apart."""
        level = self.group_intercept is None and self.intercept
        return bool(self.rest) or level or not {"X_all", "U_apart"}.isdisjoint(columns)


@dataclass(frozen=True)
class Units:
    """Centres and units of the data."""

    centre: tuple[float, ...]  # subtracted from each common column, [P]
    unit: tuple[float, ...]  # the divisor of each common column, [P]
    group_unit: tuple[float, ...]  # the divisor of each group-level column, [M]
    shift: float  # constant of the linear predictor, in response units, without the offset
    scale: float  # the unit of the linear predictor
    offset_centre: float  # subtracted from the offset

    @property
    def base(self) -> float:
        """Constant of the linear predictor, in response units: shift and offset together."""
        return self.shift + self.offset_centre

    def far(self, value: float) -> float:
        """The value if it is too far from zero for float32, else zero; it is added on the host."""
        return value if abs(value) > FAR * self.scale else 0.0


def lay_out(
    names: tuple[list[str], list[str]], facts: Facts, start: tuple[float, float], cutpoints: bool
) -> tuple[EffectLayout, Units]:
    """The layout and units of columns with these names and facts."""
    intercept = "Intercept" in names[0]
    free = intercept and not cutpoints  # else no parameter can absorb the shift by centring
    common = [i for i, name in enumerate(names[0]) if name != "Intercept"]
    labels = [names[0][i] for i in common]
    centre = facts.X.mean[common] if intercept else np.zeros(len(common))
    sds = facts.X.sd[common], facts.W.sd
    unit, group_unit = (np.where(sd > 0, sd, 1.0) for sd in sds)
    pairs = [(k, names[1].index(names[0][i])) for k, i in enumerate(common) if facts.same[i]]
    for k, w in pairs:
        group_unit[w] = unit[k]
    left = [k for k in range(len(common)) if k not in {k for k, _ in pairs}]
    held = "Intercept" in names[1]  # z has an intercept, whose mean can include these columns
    grouped = [k for k in left if held and facts.constant[common[k]]]
    middle = 0.0 if facts.offset is None else float(facts.offset.mean)
    layout = EffectLayout(
        common=tuple(labels),
        group=tuple(names[1]),
        intercept=free,
        shared=tuple(pairs),
        grouped=tuple(grouped),
        rest=tuple(k for k in left if k not in grouped),
    )
    units = Units(
        centre=tuple(map(float, centre)),
        unit=tuple(map(float, unit)),
        group_unit=tuple(map(float, group_unit)),
        shift=start[0] - middle if free else 0.0,
        scale=start[1],
        offset_centre=middle if free else 0.0,
    )
    return layout, units


@dataclass(frozen=True)
class Formula:
    """A formula, evaluated: what is needed to read new rows like those of the fit."""

    parts: FormulaText  # the text
    likelihood: str  # its name
    link: str  # its name
    common: Coding  # coding of the common effects
    group: Coding  # coding of the effects that vary by group
    layout: EffectLayout  # where each effect goes
    units: Units  # of the data of the fit
    levels: list[Any] | None  # of the response, where it has any
    table: str  # the kind of table that came in, and that results come back as
    zone: str | None = None  # the time zone of the grouping column, if it has times with one
    own: tuple[ParameterFormula, ...] = ()  # formulas of the likelihood's parameters

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    @property
    def text(self) -> str:
        """All formulas, those of categories included."""
        return "; ".join(parts.text for parts in self.every)

    @property
    def short_text(self) -> str:
        """The same without the formulas of categories that have the same terms as the first."""
        first, *rest = [parts.text for parts in self.every]
        if self.family.support == "categories":
            rest = [text for text in rest if text.split("~", 1)[1] != first.split("~", 1)[1]]
        return "; ".join([first, *rest])

    @property
    def every(self) -> list[FormulaText]:
        """The texts of all formulas: the mean's first."""
        return [self.parts, *(own.parts for own in self.own)]

    @property
    def codings(self) -> list[Coding]:
        """The codings of all formulas: of the common effects of each, and of those that vary by group."""
        return [coding for part in (self, *self.own) for coding in (part.common, part.group)]

    @property
    def parameters(self) -> list[str]:
        """The likelihood's parameters that have no formula: one number each, or cutpoints."""
        return [n for n in self.family.parameters if n not in {own.name for own in self.own}]

    @property
    def varying(self) -> list[str]:
        """Names of all effects that vary by group, as z has them."""
        return [*self.layout.group, *(name for own in self.own for name in own.varying)]

    @property
    def by(self) -> str:
        """The grouping column."""
        return self.parts.by

    @property
    def numbers(self) -> list[Any] | None:
        """The levels of the response if they are numbers, so that means of them make sense."""
        levels = self.levels or []
        return levels if levels and all(isinstance(x, int | float) for x in levels) else None

    def log_unit(self, parameter: str) -> float:
        """The log of the unit, inside, of a parameter of the likelihood."""
        return float(np.log(self.units.scale)) if parameter in self.family.scaled else 0.0

    @property
    def has_cutpoints(self) -> bool:
        """Whether cutpoints stand in for the intercept."""
        return self.family.support == "levels"

    @property
    def origin(self) -> float:
        """Subtracted from outcomes that are too far from zero for float32; else zero."""
        # Outcomes shift with the linear predictor only if the link is the identity.
        moves = self.link == "identity" and not self.family.of_log
        return self.units.far(self.units.base) if moves else 0.0

    @property
    def far_intercept(self) -> float:
        """Subtracted from an intercept that is too far from zero for float32; else zero."""
        return self.units.far(self.units.shift) if self.layout.intercept else 0.0
