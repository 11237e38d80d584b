"""Reads tables and names results in statistical terms, for formulas with several grouping terms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.data.tables import in_zone
from ramify.frontends.formula import asking, levels_saving, results
from ramify.frontends.formula.levels_formula import LevelsFormula
from ramify.frontends.formula.levels_model import LevelsFormulaModel, common_names, term_sds
from ramify.frontends.formula.levels_reading import (
    design,
    design_of,
    predictors,
    read_columns,
)
from ramify.frontends.formula.priors import in_words
from ramify.frontends.formula.reading import response_columns
from ramify.frontends.formula.row_densities import INVERSE
from ramify.frontends.formula.steps import steps
from ramify.frontends.formula.totals import population
from ramify.levels.adapter import FactorInfo, LevelsAdapter, RowsAt
from ramify.levels.design import Design
from ramify.models.adapter import Description, Section


class FormulaLevelsAdapter(LevelsAdapter):
    """The adapter of a `LevelsFormulaModel`."""

    def __init__(self, model: LevelsFormulaModel):
        self.model, formula = model, model.formula
        self.integrated, self.table_kind = formula.integrated, formula.table
        self.table = model.table
        self.response = formula.parts.response
        self.factors = []
        for f, factor in enumerate(formula.factors):
            terms = tuple(t for t, term in enumerate(formula.terms) if term.factor == f)
            effects = tuple(name for t in terms for name in formula.terms[t].effects)
            labels = in_zone(formula.table, factor.shown, factor.zone)
            self.factors.append(FactorInfo(factor.name, labels, terms, effects))

    @property
    def formula(self) -> LevelsFormula:
        """The formula of the fit."""
        return self.model.formula

    def design(self, groups: Groups) -> Design:
        """The rows of a fit."""
        return design_of(self.formula, groups)

    def read(self, table: Any, what: str, seen: list[dict[Any, int]], *, outcomes: bool) -> RowsAt:
        """Rows of a user's table."""
        rows = read_columns(self.formula, table, what, outcomes=outcomes, seen=seen)
        codes = [rows[f"level_{f}"] for f in range(len(self.factors))]
        known = dict(rows)
        for f, info in enumerate(self.factors):
            known[f"level_{f}"] = np.where(codes[f] < len(info.labels), codes[f], -1)
        terms = [rows[f"W_{t}"] for t in range(len(self.formula.terms))]
        return RowsAt(design(self.formula, known, 0), codes, terms)

    def summary_rows(
        self, values: Mapping[str, np.ndarray], beta: Float64[np.ndarray, "S P"]
    ) -> dict[str, Float64[np.ndarray, " S"]]:
        """Draws of every parameter: effects, sds, correlations, then those of the likelihood."""
        spec, units = self.formula, self.formula.units
        slopes = beta[:, int(units.intercept) :]
        moved = units.scale * slopes @ np.divide(units.centre, units.unit) if units.names else 0.0
        found: dict[str, np.ndarray] = {}
        if units.intercept:
            found["Intercept"] = units.shift + units.scale * beta[:, 0] - moved
        for k, name in enumerate(units.names):
            found[name] = units.scale / units.unit[k] * slopes[:, k]
        for t, term in enumerate(spec.terms):
            sds = values[f"sd_{t}"] * units.scale / np.asarray(term.unit)
            found |= dict(zip(term_sds(spec, t), sds.T, strict=True))
        for t, term in enumerate(spec.terms):
            if term.correlated:
                factor = values[f"cor_{t}"]
                both, by = factor @ np.swapaxes(factor, 1, 2), spec.factors[term.factor].name
                for i, first in enumerate(term.effects):
                    for j, second in enumerate(term.effects[:i]):
                        found[f"cor({second}, {first} | {by})"] = both[:, i, j]
        for name in spec.family.parameters:
            if name != "cutpoints":
                found[name] = values[name] * (units.scale if name in spec.family.scaled else 1.0)
        if "cutpoints" in values and spec.levels is not None:
            for k, (low, high) in enumerate(zip(spec.levels[:-1], spec.levels[1:], strict=True)):
                found[f"cutpoint({low}|{high})"] = values["cutpoints"][:, k] + moved
        return found

    def deviations(self, term: int, effects: Float64[np.ndarray, "*S m"]) -> np.ndarray:
        """Effects of a term on the user's scale."""
        return effects * (self.formula.units.scale / np.asarray(self.formula.terms[term].unit))

    def population(
        self, factor: int, draws: Mapping[str, np.ndarray]
    ) -> Float64[np.ndarray, "S E"]:
        """The population's part of a factor's effects."""
        spec = self.formula
        group = [spec.terms[t].coding for t in self.factors[factor].terms]
        return population(spec.common, group, draws)

    def variables(self) -> list[str]:
        """The columns that the right-hand side names, and that of the trials."""
        return asking.variables(self.formula.parts, predictors(self.formula.parts))

    def frame(self, table: Any) -> Any:
        """The predictors of a table as a frame for `formulae`."""
        return asking.frame_of(table, predictors(self.formula.parts), self.formula.codings)

    def typical(self) -> dict[str, Any]:
        """Means of numbers, and the most frequent of categories."""
        parts = self.formula.parts
        return asking.typical(parts, predictors(parts), self.formula.codings, self.table)

    def steps(self, frame: Any, name: str, share: float) -> np.ndarray:
        """How far a column of numbers goes in each row until the design changes by a share of its sds."""
        spec, units = self.formula, self.formula.units
        measured = [(spec.common, dict(zip(units.names, units.unit, strict=True)))]
        for term in spec.terms:
            measured += [(term.coding, dict(zip(term.effects, term.unit, strict=True)))]
        return steps(measured, units.scale, frame, name, share)

    def ratios(self) -> tuple[str, list[str]]:
        """The name of exp of the common effects, such as odds ratios, and which effects have one."""
        spec = self.formula
        return results.ratios("log" if spec.family.of_log else spec.link, common_names(spec))

    def has_odds(self, kind: str) -> bool:
        """Whether the expected outcome of this kind is a share or a probability."""
        return results.has_odds(self.formula.family.support, kind)

    def sections(self, names: Sequence[str]) -> list[Section]:
        """Effects, sds by factor, correlations, and parameters of the likelihood."""
        return results.sections(names, {*common_names(self.formula)}, "")

    def per_trial(self, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
        """The columns of n rows with trials of one size, and that size."""
        return asking.per_trial(self.formula.parts, columns, n)

    def categories(self, kind: str) -> list[str]:
        """The levels of an ordered response, if the kind is the probability of each."""
        spec = self.formula
        if kind == "probability" and spec.family.support != "levels":
            what = f"likelihood='ordered'; for {spec.likelihood!r} use kind=\"mean\"."
            raise ValueError(f'kind="probability" is for {what}')
        return [str(x) for x in spec.levels or ()] if kind == "probability" else []

    def expected(
        self, kind: str, eta: Float64[np.ndarray, "S n"], values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """Means, linear predictors or probabilities of rows."""
        spec, units = self.formula, self.formula.units
        if spec.link == "identity":
            mean = units.base + units.scale * eta
            if not spec.family.of_log or kind == "link":
                return mean
            return np.exp(mean + 0.5 * (units.scale * values["sigma"][:, None]) ** 2)
        if kind == "link":
            return eta
        if "cutpoints" in values:
            probability = _probabilities(eta, values["cutpoints"])
            if kind == "probability":
                return probability
            numbers = spec.numbers or range(probability.shape[-1])
            return probability @ np.asarray(list(numbers), np.float64)
        own = {name: values[name][:, None] for name in spec.family.parameters}
        mean: Any = self._mean(eta)
        mean = mean if spec.family.mean is None else np.asarray(spec.family.mean(mean, own))
        return mean * at.design.columns.get("trials", 1.0)

    def _mean(self, eta: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(INVERSE[self.formula.link](jnp.asarray(eta)))

    def outcomes(
        self, rng: np.random.Generator, eta: np.ndarray, values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """New outcomes of rows."""
        spec, units = self.formula, self.formula.units
        own = {name: values[name][:, None] for name in spec.family.parameters}
        own |= {"trials": at.design.columns["trials"]} if "trials" in at.design.columns else {}
        y = spec.family.draw(rng, eta, self._mean(eta), own)
        if spec.link == "identity":
            y = units.base + units.scale * y
            return np.exp(y) if spec.family.of_log else y
        by_number = spec.numbers is not None and "cutpoints" in values
        return np.asarray(spec.numbers)[y] if by_number else y

    def observed(self, groups: Groups) -> np.ndarray:
        """The outcomes of the fit's rows."""
        y, numbers = np.asarray(groups.rows["y"], np.float64), self.formula.numbers
        return y if numbers is None else np.asarray(numbers, np.float64)[y.astype(int)]

    def describe(self) -> Description:
        """The formula, its likelihood, its factors and its priors."""
        spec = self.formula
        factors = [(f.name, f"{len(f.labels):,} levels") for f in self.factors]
        return Description(
            title=spec.parts.text,
            lead=[f"{spec.likelihood} with {spec.link} link"],
            facts=[
                ("Formula", spec.parts.text),
                ("Likelihood", f"{spec.likelihood}, {spec.link} link"),
                *factors,
            ],
            priors=[(name, in_words(prior)) for name, prior in self.model.priors.items()],
            response=spec.parts.response,
            deviations=True,
            means=True,
            complete=True,
        )

    def columns(self) -> dict[str, str | None]:
        """The columns that a table for this formula has."""
        spec = self.formula
        kinds: dict[str, str | None] = dict.fromkeys(
            [*response_columns(spec.parts), *spec.parts.extra]
        )
        for factor in spec.factors:
            for name, labels in zip(factor.columns, factor.labels, strict=True):
                kinds[name] = {"U": "category", "i": "number", "u": "number"}.get(labels.dtype.kind)
        for coding in (spec.common, *(term.coding for term in spec.terms)):
            kinds |= coding.kinds
        return kinds

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes the formula, its coding, its levels and its priors, and the data of the fit."""
        levels_saving.save(self.formula, self.model.priors, groups, folder)


def _probabilities(
    eta: Float64[np.ndarray, "S n"], cutpoints: Float64[np.ndarray, "S k"]
) -> Float64[np.ndarray, "S n levels"]:
    """The probability of each level."""
    below = 1 / (1 + np.exp(-(cutpoints[:, None] - eta[..., None])))
    ends = np.zeros((*eta.shape, 1))
    return np.diff(np.concatenate([ends, below, ends + 1], -1), axis=-1)
