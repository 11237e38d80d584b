"""The adapter of formulas: tables by the formula, results in a statistician's terms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.frontends.formula import results, saving
from ramify.frontends.formula.formula import Formula, are_numbers
from ramify.frontends.formula.priors import Priors, in_words
from ramify.frontends.formula.reading import read_rows
from ramify.models.adapter import Adapter, Description, Section
from ramify.models.parameters import Named


@final
class FormulaAdapter(Adapter):
    """Reads tables for a `FormulaModel`, names its results and saves it.

    Attributes:
        formula: the formula of the model.
        priors: its priors.
    """

    def __init__(self, model: Any):
        super().__init__(model)
        self.formula: Formula = model.formula
        self.priors: Priors = model.priors
        self.origin = self.formula.origin

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups:
        """A table with the columns that the formula names, as the model's groups."""
        return read_rows(self.formula, table, what, outcomes=outcomes)

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """The rows with the group columns of their z, and `U_apart` where theirs are different.

        Rows read to predict have all their columns in X_all. There z only needs the U it was
        conditioned on, and for a new group any U will do, since it is taken off again.
        """
        size = len(self.formula.layout.grouped)
        if group is None and size and "U" not in at.group:
            group = {"U": np.zeros((len(at), size), jnp.zeros(()).dtype)}
            return replace(at, group={**at.group, **group})
        if group is None or "U" not in at.group or "U" not in group:
            return at
        apart = np.repeat(at.group["U"] - group["U"], at.sizes, 0) + at.rows.get("U_apart", 0.0)
        rows = {**at.rows, **({"U_apart": apart} if apart.any() else {})}
        return replace(at, rows=rows, group={**at.group, "U": group["U"]})

    def columns(self) -> dict[str, str | None]:
        """The columns that the formula names."""
        return self.formula.columns

    def global_values(
        self, theta: Float[np.ndarray, "S D"] | Float[Array, "S D"]
    ) -> dict[str, Any]:
        """Effects, sds, correlations and family parameters on the user's scale, by name."""
        values, far = super().global_values(theta), self.formula.far_intercept
        if not far:
            return values
        return {**values, "Intercept": np.asarray(values["Intercept"], np.float64) + far}

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """The same of one theta, without the far part of the intercept."""
        return results.user_scale(self.formula, self.model.theta.values(theta))

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Each group's deviations from the population, {"effects": [B, M]}, on the user's scale."""
        layout, inside = self.formula.layout, self.model.theta.values(theta)
        return {"effects": layout.deviations(z - layout.means(inside, batch))}

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """The effects that vary by group."""
        del name, shape
        return list(self.formula.layout.group)

    def categories(self, kind: str) -> list[str]:
        """The levels of an ordered response, where each has a probability of its own."""
        if kind != "probability":
            return []
        if not self.formula.has_cutpoints:
            raise ValueError(
                f"kind=\"probability\" is for likelihood='ordered'; for {self.formula.likelihood!r} "
                'use kind="mean".'
            )
        return [str(level) for level in self.formula.levels or ()]

    def expected(
        self, kind: str, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, "R *levels"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
        inside = self.model.theta.values(theta)
        one = lambda z, row: results.expected(self.formula, kind, inside, {"effects": z}, row)
        return jax.vmap(one)(z_rows, batch.rows | batch.group_at_rows())

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows: numbers, or numbers of levels."""
        y = batch.rows["y"]
        return {"y": np.asarray(y, np.float64) + self.origin if self.origin else y}

    def outcomes(self, groups: Groups) -> np.ndarray:
        """The outcomes of the rows, on the user's scale."""
        y, levels = groups.rows["y"] + self.origin, self.formula.levels
        if levels is None or not are_numbers(levels):
            return y
        return np.asarray(levels, np.float64)[y.astype(int)]

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any]:
        """Draws of the globals by the names that a statistician gives them, in order."""
        return results.summary_rows(values, self.formula)

    def sections(self, names: Sequence[str], by: str) -> list[Section]:
        """Effects, sds, correlations, and parameters of the likelihood."""
        del by
        return results.sections(names, self.formula)

    def group_effects(
        self,
        sampled: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]],
        sizes: np.ndarray,
        totals: bool,
        quantiles: Sequence[float],
    ) -> Any:
        """A table of the groups' effects: see `Posterior.group_effects`."""
        return results.group_effects(self.formula, sampled, sizes, totals, quantiles)

    def describe(self) -> Description:
        """The formula, its likelihood and its priors."""
        spec = self.formula
        return Description(
            title=spec.text,
            lead=[f"{spec.likelihood} with {spec.link} link"],
            facts=[("Formula", spec.text), ("Likelihood", f"{spec.likelihood}, {spec.link} link")],
            priors=[(name, in_words(prior)) for name, prior in self.priors.items()],
            response=spec.parts.response,
            deviations=True,
            means=True,
            complete=True,
        )

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes the formula, its coding and its priors, and the data of the fit."""
        saving.save(self.formula, self.priors, groups, folder)
