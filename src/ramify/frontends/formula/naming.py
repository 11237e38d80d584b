"""The part of a formula's adapter that needs only the formula: the user's names and columns."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.formula import asking, results
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.reading import predictors
from ramify.frontends.formula.steps import steps
from ramify.models.adapter import Adapter, Section


class FormulaNames(Adapter):
    """Names the results of a `FormulaModel`, and knows the columns of its table."""

    @property
    def formula(self) -> Formula:
        """The formula of the fit; programs do not have it."""
        return self.model.formula

    @property
    def table(self) -> dict[str, Any] | None:
        """The columns of the fit's table; None in a fit that was loaded."""
        return self.model.table

    @property
    def table_kind(self) -> str:
        """The kind of the fit's table."""
        return self.formula.table

    def per_trial(self, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
        """The columns of n rows with trials of one size, and that size."""
        return asking.per_trial(self.formula.parts, columns, n)

    def variables(self) -> list[str]:
        """The columns that the right-hand side names, and that of the trials."""
        return asking.variables(self.formula.parts, predictors(*self.formula.every))

    def frame(self, table: Any) -> Any:
        """The predictors of a table as a frame for `formulae`."""
        return asking.frame_of(table, predictors(*self.formula.every), self.formula.codings)

    def typical(self) -> dict[str, Any]:
        """Means of numbers, and the most frequent of categories."""
        names = predictors(*self.formula.every)
        return asking.typical(self.formula.parts, names, self.formula.codings, self.table)

    def steps(self, frame: Any, name: str, share: float) -> np.ndarray:
        """How far a column of numbers goes in each row until the design changes by a share of its sds."""
        spec, units = self.formula, self.formula.units
        measured = [(spec.common, dict(zip(spec.layout.common, units.unit, strict=True)))]
        measured += [(spec.group, dict(zip(spec.layout.group, units.group_unit, strict=True)))]
        for own in spec.own:
            names = [name for name in own.common.names if name != "Intercept"]
            measured += [(own.common, dict(zip(names, own.unit, strict=True)))]
            measured += [(own.group, dict(zip(own.group.names, own.group_unit, strict=True)))]
        return steps(measured, units.scale, frame, name, share)

    @property
    def outcome_name(self) -> str:
        """The response as the formula writes it."""
        return self.formula.parts.response

    def named_axes(self) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
        """Effects by their names, and cutpoints by their levels."""
        return results.named_axes(self.formula)

    def predictors(self, groups: Groups) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The columns of the design by name, on the user's scale."""
        return results.predictors(self.formula, groups)

    def ratios(self) -> tuple[str, list[str]]:
        """The name of exp of the common effects, such as odds ratios, and which effects have one."""
        spec = self.formula
        first = ["Intercept"] if spec.layout.intercept else []
        names = [*first, *spec.layout.common]
        if spec.family.support == "categories":  # odds of a level against the first
            names = [name for own in spec.own for name in own.effects]
        return results.ratios("log" if spec.family.of_log else spec.link, names)

    def has_odds(self, kind: str) -> bool:
        """Whether the expected outcome of this kind is a share or a probability."""
        return results.has_odds(self.formula.family.support, kind)

    def coordinates(self) -> list[str]:
        """The user's names; a coordinate of the correlations' factor is called by its correlation."""
        return results.coordinates(self.formula, super().coordinates())

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any]:
        """Draws of every parameter: effects, sds, correlations, then those of the likelihood."""
        return results.summary_rows(self.formula, values)

    def sections(self, names: Sequence[str]) -> list[Section]:
        """Effects, sds, correlations, and parameters of the likelihood."""
        return results.sections(names, {*results.common(self.formula)}, f" ({self.formula.by})")

    def group_effects(
        self, sampled: Iterable[Any], sizes: np.ndarray, totals: bool, quantiles: Sequence[float]
    ) -> Any:
        """One row for each group: label, rows, and mean, sd and quantiles of each effect."""
        return results.group_effects(self.formula, sampled, sizes, totals, quantiles)
