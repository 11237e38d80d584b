"""LevelsAdapter: what a posterior of a model with several factors needs of a front end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from ramify.data.groups import Groups
from ramify.levels.design import Design
from ramify.models.adapter import Description, Section


class FactorInfo(NamedTuple):
    """A factor of a fit."""

    name: str
    labels: Shaped[np.ndarray, " L"]  # of its levels
    terms: tuple[int, ...]  # its grouping terms
    effects: tuple[str, ...]  # the names of its effects, term by term


class RowsAt(NamedTuple):
    """Rows of a table to predict, or to condition on."""

    design: Design  # its u has the effects of known levels; its `code` is of the integrated factor
    # The level of each row in each factor: those that the fit has not seen have numbers after its own,
    # the same in all tables that were read with the same `seen`; -2 for a row without a label.
    codes: list[Int64[np.ndarray, " n"]]
    terms: list[Float64[np.ndarray, "n m"]]  # the columns of each term


class LevelsAdapter:
    """Reads tables, names results and makes outcomes for a `LevelsModel`; a front end derives its own."""

    factors: list[FactorInfo]
    integrated: int  # the place of the integrated factor
    table_kind: str  # the kind of table that results come back as
    table: dict[str, Any] | None  # the columns of the fit's table, where they are kept
    response: str  # what the outcome is called

    def design(self, groups: Groups) -> Design:
        """The rows of a fit."""
        raise NotImplementedError

    def read(self, table: Any, what: str, seen: list[dict[Any, int]], *, outcomes: bool) -> RowsAt:
        """Rows of a user's table; `seen` collects levels that the fit has not seen, for each factor."""
        raise NotImplementedError

    def summary_rows(
        self, values: Mapping[str, np.ndarray], beta: Float64[np.ndarray, "S P"]
    ) -> dict[str, Float64[np.ndarray, " S"]]:
        """Draws of every parameter by its name, on the user's scale."""
        raise NotImplementedError

    def level_sizes(self, groups: Groups, factor: int) -> Int64[np.ndarray, " L"]:
        """The rows of each level of a factor."""
        if factor == self.integrated:
            return np.asarray(groups.sizes)
        return np.bincount(
            groups.rows[f"level_{factor}"], minlength=len(self.factors[factor].labels)
        )

    def outer_first(self) -> list[int]:
        """The factors in an order in which their effects can be drawn: outer factors first."""
        return list(range(len(self.factors)))

    def named_theta(
        self, values: Mapping[str, np.ndarray], beta: Float64[np.ndarray, "S P"]
    ) -> dict[str, np.ndarray]:
        """Draws of the parameters as `sample` returns them; by default the rows of a summary."""
        return self.summary_rows(values, beta)

    def named_effects(
        self, factor: int, effects: Float64[np.ndarray, "S L E"]
    ) -> dict[str, np.ndarray]:
        """Draws of a factor's effects as `sample` returns them."""
        return {f"effects({self.factors[factor].name})": effects}

    def effect_axes(self, factor: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Names and coordinates of the axes of `named_effects` after the axis of draws, for ArviZ."""
        info = self.factors[factor]
        name = f"{info.name}_effect"
        return {f"effects({info.name})": [info.name, name]}, {name: list(info.effects)}

    def new_columns(self, at: RowsAt, factor: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The columns that the prior of a factor's levels reads, at some rows; by default none."""
        return {}

    def conditioned(
        self, given: RowsAt, inside: np.ndarray, code: Int64[np.ndarray, " n"], count: int
    ) -> Design:
        """The rows of the mask `inside`, with new numbers for their groups of the integrated factor."""
        design = given.design
        return Design(
            code,
            count,
            design.W[inside],
            design.X[inside],
            design.K[inside],
            design.offset[inside],
            {name: column[inside] for name, column in design.columns.items()},
            design.kept,
        )

    def deviations(self, term: int, effects: Float64[np.ndarray, "*S m"]) -> np.ndarray:
        """Effects of a term on the user's scale."""
        raise NotImplementedError

    def population(
        self, factor: int, draws: Mapping[str, np.ndarray]
    ) -> Float64[np.ndarray, "S E"]:
        """The population's part of a factor's effects, for `group_effects(totals=True)`."""
        raise ValueError("totals=True is for models from formulas; here effects are z itself.")

    def per_trial(self, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
        """The columns of n rows with trials of one size, and that size, by which to divide means."""
        raise NotImplementedError

    def categories(self, kind: str) -> list[str]:
        """The names of the categories of a prediction of this kind; [] if it is one number."""
        raise NotImplementedError

    def expected(
        self, kind: str, eta: Float64[np.ndarray, "S n"], values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """Means, linear predictors or probabilities of rows, on the user's scale."""
        raise NotImplementedError

    def outcomes(
        self, rng: np.random.Generator, eta: np.ndarray, values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """New outcomes of rows, on the user's scale."""
        raise NotImplementedError

    def observed(self, groups: Groups) -> np.ndarray:
        """The outcomes of the fit's rows, on the user's scale."""
        raise NotImplementedError

    def variables(self) -> list[str]:
        """The columns that a prediction needs, without labels."""
        raise NotImplementedError

    def frame(self, table: Any) -> Any:
        """The predictors of a table as a pandas frame of numbers and categories."""
        raise NotImplementedError

    def typical(self) -> dict[str, Any]:
        """One row of the predictors: means, and the most frequent of categories."""
        raise NotImplementedError

    def steps(self, frame: Any, name: str, share: float) -> np.ndarray:
        """How far a column of numbers goes in each row until the design changes by a share of its sds."""
        raise NotImplementedError

    def ratios(self) -> tuple[str, list[str]]:
        """The name of exp of an effect ("odds ratios"), and the rows of a summary with such effects."""
        raise NotImplementedError

    def has_odds(self, kind: str) -> bool:
        """Whether the expected outcome of this kind is a share or a probability."""
        raise NotImplementedError

    def sections(self, names: Sequence[str]) -> list[Section]:
        """The rows of a summary, given by name, in parts that share a scale: for the report."""
        raise NotImplementedError

    def describe(self) -> Description:
        """The words of a report about the model."""
        raise NotImplementedError

    def columns(self) -> dict[str, str | None]:
        """The columns of a table that `read` needs, each with its kind, "number" or "category"."""
        raise NotImplementedError

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes to the folder of a saved fit what `load` needs to rebuild the model."""
        raise NotImplementedError
