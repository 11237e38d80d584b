"""LevelsFormula: a formula with several grouping terms, evaluated on the rows of a fit."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from ramify.data.levels import Levels
from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.text import FormulaText


class TermSpec(NamedTuple):
    """A grouping term, evaluated."""

    coding: Coding  # of its effects
    factor: int  # its place among the factors
    correlated: bool
    unit: tuple[float, ...]  # the divisor of each of its columns

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of its effects."""
        return tuple(self.coding.names)


class CommonUnits(NamedTuple):
    """Centres and units of the common columns and the linear predictor."""

    names: tuple[str, ...]  # the P columns of X without the intercept
    intercept: bool  # whether there is a common intercept
    centre: tuple[float, ...]
    unit: tuple[float, ...]
    shift: float  # constant of the linear predictor, without the offset
    scale: float  # the unit of the linear predictor
    offset_centre: float

    @property
    def base(self) -> float:
        """Constant of the linear predictor, with the offset."""
        return self.shift + self.offset_centre


@dataclass(frozen=True)
class LevelsFormula:
    """A formula with several grouping terms: what is needed to read new rows like those of the fit."""

    parts: FormulaText
    likelihood: str
    link: str
    common: Coding
    terms: tuple[TermSpec, ...]
    factors: tuple[Levels, ...]
    integrated: int  # the factor whose effects are integrated out
    units: CommonUnits
    levels: list[Any] | None  # of the response, where it has any
    table: str  # the kind of table that came in, and that results come back as

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    @property
    def by(self) -> str:
        """The name of the integrated factor."""
        return self.factors[self.integrated].name

    @property
    def codings(self) -> list[Coding]:
        """The codings of the common effects and of each term."""
        return [self.common, *(term.coding for term in self.terms)]

    @property
    def columns(self) -> list[str]:
        """The columns of all factors."""
        return list(dict.fromkeys(c for factor in self.factors for c in factor.columns))

    @property
    def numbers(self) -> list[Any] | None:
        """The levels of the response if they are numbers, so that means of them make sense."""
        levels = self.levels or []
        return levels if levels and all(isinstance(x, int | float) for x in levels) else None

    @property
    def inside(self) -> tuple[int, ...]:
        """The terms of the integrated factor."""
        return tuple(t for t, term in enumerate(self.terms) if term.factor == self.integrated)

    @property
    def kept(self) -> tuple[int, ...]:
        """The other terms."""
        return tuple(t for t in range(len(self.terms)) if t not in self.inside)

    def factor_named(self, name: str) -> int:
        """The place of a factor; raises if there is none of that name."""
        names = [factor.name for factor in self.factors]
        if name not in names:
            raise ValueError(
                f"there is no factor {name!r} in this formula; it has {', '.join(names)}."
            )
        return names.index(name)
