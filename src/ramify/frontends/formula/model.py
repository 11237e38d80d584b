"""The model that a formula stands for, and its adapter: tables in, results in a statistician's terms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.tables import as_table, in_zone
from ramify.frontends.formula import saving
from ramify.frontends.formula.formula import SD, Formula
from ramify.frontends.formula.likelihoods import INVERSE
from ramify.frontends.formula.priors import Priors, in_words, log_density, moved, same, sd_name
from ramify.frontends.formula.reading import read_rows, response_columns
from ramify.frontends.formula.text import formula_columns
from ramify.models.adapter import Adapter, Description, Section
from ramify.models.model import Model
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.models.structure import BlockStructure, LinearPredictors, Normal
from ramify.numerics.small_linalg import inverse_lower
from ramify.posterior.prediction import labelled, quantile_names


@final
class FormulaModel(Model):
    """A model made by `from_formula`; `priors` are by the names of the parameters in results."""

    def __init__(self, formula: Formula, priors: Priors):
        layout, M = formula.layout, len(formula.layout.group)
        count = len(formula.levels or ())
        theta: dict[str, Parameter] = {"intercept": real()} if layout.intercept else {}
        theta |= {"b": real(len(layout.common))} if layout.common else {}
        theta |= {"sd": positive(M)}
        theta |= {"cor": correlation_cholesky(M)} if "cor" in priors else {}
        theta |= {name: make(count) for name, make in formula.family.parameters.items()}
        super().__init__(
            theta,
            {"effects": real(M)},
            self._prior,
            self._group_density,
            lambda theta, z, row: self._density(theta, formula.predictor(theta, z, row), row),
            self._outcome,
        )
        self.formula, self.priors = formula, priors
        linear = self._predictors().on_blocks(self.theta)
        self.structure = BlockStructure(self._normal, linear, trusted=True)
        saved = [(name, same(prior)) for name, prior in priors.items()]
        own = formula.parts.text, formula.likelihood, formula.link, layout, str(formula.levels)
        self._contents = *own, *saved

    def __eq__(self, other: object) -> bool:
        """Whether the densities are the same: what was compiled for one then serves the other."""
        return isinstance(other, FormulaModel) and self._contents == other._contents

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self._contents)

    @property
    def adapter(self) -> "FormulaAdapter":
        """Reads tables by the formula and names results as a statistician does."""
        return FormulaAdapter(self)

    def __repr__(self) -> str:
        """The formula, its likelihood and the numbers of effects."""
        spec = self.formula
        count = len(spec.layout.common) + spec.layout.intercept
        return (
            f"FormulaModel({spec.parts.text}, {spec.likelihood} with {spec.link} link; {count} common "
            f"effects, {len(spec.layout.group)} by {spec.by})"
        )

    def _prior(self, theta: Named) -> Float[Array, ""]:
        """Log density of theta; the constants are Jacobians, since priors are on the user's scale."""
        layout, priors = self.formula.layout, self.priors
        density = jnp.zeros(())
        if layout.intercept:
            prior, by = moved(priors["Intercept"], self.formula.far_intercept)
            density += prior.log_prob(layout.shift - by + layout.scale * theta["intercept"])
            density += np.log(layout.scale)
        if layout.common:
            own = [priors[name] for name in layout.common]
            density += log_density(own, layout.coefficients(theta["b"]))
            density += float(np.sum(np.log(layout.scale / np.asarray(layout.unit))))
        own = [priors[sd_name(name, self.formula.by)] for name in layout.group]
        density += log_density(own, layout.deviations(SD * theta["sd"]))
        density += float(np.sum(np.log(SD * layout.scale / np.asarray(layout.group_unit))))
        if "cor" in theta:
            density += priors["cor"].log_prob(theta["cor"])
        for name in self.formula.family.parameters:
            unit = self.formula.unit(name)
            density += jnp.sum(priors[name].log_prob(unit * theta[name]) + np.log(unit))
        return density

    def _group_density(self, theta: Named, z: Named, group: Named) -> Float[Array, ""]:
        """Log N(z; mean, diag(sd) C diag(sd)) of one group."""
        mean = self.formula.layout.mean(theta, group)
        return Normal(mean, self._root(theta)).log_density(z["effects"])

    def _normal(self, theta: Float[Array, " D"], batch: Batch) -> Normal:
        """The same distribution for every group of a block."""
        inside = self.theta.values(theta)
        return Normal(self.formula.layout.means(inside, batch), self._root(inside))

    def _root(self, theta: Named) -> Float[Array, "M M"]:
        """The inverse of the lower triangular factor of the covariance."""
        sd = SD * theta["sd"]
        return inverse_lower(theta["cor"]) / sd if "cor" in theta else jnp.diag(1 / sd)

    def _density(self, theta: Named, eta: Float[Array, ""], row: Named) -> Float[Array, ""]:
        """Log density of one row's response, on the user's scale, times its weight."""
        spec, layout = self.formula, self.formula.layout
        if spec.link == "identity":
            row = {**row, "y": (row["y"] - (layout.base - spec.origin)) / layout.scale}
        density = spec.family.log_density(spec.link, eta, theta, row)
        density -= np.log(layout.scale)
        return density * row["weights"] if "weights" in row else density

    def _predictors(self) -> LinearPredictors:
        """The likelihood as a function of one linear predictor; all of ours are smooth in it."""
        spec, parameters = self.formula, self.formula.family.parameters
        return LinearPredictors(
            weights=lambda row: row["W"][None],
            offset=lambda theta, row: spec.offset(theta, row)[None],
            density=lambda theta, eta, row: self._density(theta, eta[0], row),
            uses_theta=lambda columns: bool(parameters) or spec.layout.offset_uses_theta(columns),
            smooth=True,
        )

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        """A new outcome of one row, less the origin."""
        spec, layout, eta = self.formula, self.formula.layout, self.formula.predictor(theta, z, row)
        y = spec.family.distribution(spec.link, eta, theta, row).sample(key)
        if spec.link == "identity":
            return layout.base - spec.origin + layout.scale * y
        return jnp.asarray(spec.numbers)[y] if spec.has_cutpoints and spec.numbers else y

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return read_rows(self.formula, table, "table", outcomes=True)


@final
class FormulaAdapter(Adapter):
    """Reads tables for a `FormulaModel`, names its results and saves it."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.formula: Formula = model.formula
        self.priors: Priors = model.priors
        self.origin = self.formula.origin

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups:
        """A table with the columns that the formula names, as the model's groups."""
        return read_rows(self.formula, table, what, outcomes=outcomes)

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """The rows with the group columns of their z, and `U_apart` where their own differ.

        Rows to predict have all their columns in X_all: the U b inside z is taken off again, so
        that any U will do for a new group.
        """
        size = len(self.formula.layout.grouped)
        if group is None and size and "U" not in at.group:
            return replace(at, group={"U": np.zeros((len(at), size), jnp.zeros(()).dtype)})
        if group is None or "U" not in at.group or "U" not in group:
            return at
        apart = np.repeat(at.group["U"] - group["U"], at.sizes, 0) + at.rows.get("U_apart", 0.0)
        rows = {**at.rows, **({"U_apart": apart} if apart.any() else {})}
        return replace(at, rows=rows, group={**at.group, "U": group["U"]})

    def columns(self) -> dict[str, str | None]:
        """The columns that the formula names, each with its kind where that is known."""
        spec = self.formula
        category = spec.levels is not None and spec.numbers is None
        left = dict.fromkeys(response_columns(spec.parts), "category") if category else {}
        named = dict.fromkeys([*formula_columns(spec.parts.text), *spec.parts.extra])
        return named | spec.common.kinds | spec.group.kinds | left

    def global_values(
        self, theta: Float[np.ndarray, "S D"] | Float[Array, "S D"]
    ) -> dict[str, Any]:
        """Effects, sds, correlations and family parameters on the user's scale, by name."""
        values, far = super().global_values(theta), self.formula.far_intercept
        near = {"Intercept": np.asarray(values["Intercept"], np.float64) + far} if far else {}
        return {**values, **near}

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """The same of one theta; the intercept is less `Formula.far_intercept`."""
        spec, layout, inside = self.formula, self.formula.layout, self.model.theta.values(theta)
        b = inside["b"] if layout.common else jnp.zeros(0)
        shift = layout.intercept_shift(b)
        values: Named = {}
        if layout.intercept:
            near = layout.shift - spec.far_intercept
            values["Intercept"] = near + layout.scale * (inside["intercept"] - shift)
        effects = layout.coefficients(b)
        values |= {name: effects[k] for k, name in enumerate(layout.common)}
        values["sd"] = layout.deviations(SD * inside["sd"])
        if "cor" in inside:
            values["cor"] = inside["cor"] @ inside["cor"].T
        values |= {name: spec.unit(name) * inside[name] for name in spec.family.parameters}
        if "cutpoints" in values:
            values["cutpoints"] = values["cutpoints"] + shift
        return values

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Each group's deviations from the population, {"effects": [B, M]}, on the user's scale."""
        layout, inside = self.formula.layout, self.model.theta.values(theta)
        return {"effects": layout.deviations(z - layout.means(inside, batch))}

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """The effects that vary by group."""
        return list(self.formula.layout.group)

    def categories(self, kind: str) -> list[str]:
        """The levels of an ordered response, where each has a probability of its own."""
        if kind == "probability" and not self.formula.has_cutpoints:
            what = f"likelihood='ordered'; for {self.formula.likelihood!r} use kind=\"mean\"."
            raise ValueError(f'kind="probability" is for {what}')
        return [str(x) for x in self.formula.levels or ()] if kind == "probability" else []

    def expected(
        self, kind: str, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, "R *levels"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
        inside = self.model.theta.values(theta)
        one = lambda z, row: self._expected(kind, inside, {"effects": z}, row)
        return jax.vmap(one)(z_rows, batch.rows | batch.group_at_rows())

    def _expected(self, kind: str, theta: Named, z: Named, row: Named) -> Float[Array, "*levels"]:
        spec, layout, eta = self.formula, self.formula.layout, self.formula.predictor(theta, z, row)
        if spec.link == "identity":
            return layout.base - spec.origin + layout.scale * eta
        if kind == "link":
            centred = spec.has_cutpoints and "b" in theta
            return eta + (layout.intercept_shift(theta["b"]) if centred else 0)
        if spec.has_cutpoints:
            probability = spec.family.distribution(spec.link, eta, theta, row).probs
            numbers = spec.numbers or range(probability.shape[-1])
            mean = probability @ jnp.asarray(list(numbers), eta.dtype)
            return probability if kind == "probability" else mean
        return INVERSE[spec.link](eta) * (row["trials"] if "trials" in row else 1.0)

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows: numbers, or numbers of levels."""
        y = batch.rows["y"]
        return {"y": np.asarray(y, np.float64) + self.origin if self.origin else y}

    def outcomes(self, groups: Groups) -> np.ndarray:
        """The outcomes of the rows, on the user's scale."""
        y, numbers = groups.rows["y"] + self.origin, self.formula.numbers
        return y if numbers is None else np.asarray(numbers, np.float64)[y.astype(int)]

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any]:
        """Draws of every parameter: effects, sds, correlations, then those of the likelihood."""
        layout, by, levels = self.formula.layout, self.formula.by, self.formula.levels
        found = {"Intercept": values["Intercept"]} if layout.intercept else {}
        found |= {name: values[name] for name in layout.common}
        found |= {sd_name(name, by): values["sd"][:, m] for m, name in enumerate(layout.group)}
        if "cor" in values:
            for i, first in enumerate(layout.group):
                for j, second in enumerate(layout.group[:i]):
                    found[f"cor({second}, {first} | {by})"] = values["cor"][:, i, j]
        found |= {name: values[name] for name in ("sigma", "nu", "shape") if name in values}
        if "cutpoints" in values and levels is not None:
            for k, (low, high) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
                found[f"cutpoint({low}|{high})"] = values["cutpoints"][:, k]
        return found

    def sections(self, names: Sequence[str]) -> list[Section]:
        """Effects, sds, correlations, and parameters of the likelihood."""
        common = {"Intercept", *self.formula.layout.common}
        rows: dict[str, list[int]] = {"effect": [], "sd": [], "cor": [], "family": []}
        for i, name in enumerate(names):
            kind = name.split("(")[0] if name.startswith(("sd(", "cor(")) else "family"
            rows["effect" if name in common else kind].append(i)
        found = [
            Section("Population effects", rows["effect"], "line"),
            Section(f"Standard deviations between groups ({self.formula.by})", rows["sd"], "from"),
            Section("Correlations of group effects", rows["cor"], "unit"),
            Section("Parameters of the likelihood", rows["family"], "line"),
        ]
        return [section for section in found if section.rows]

    def group_effects(
        self, sampled: Iterable[Any], sizes: np.ndarray, totals: bool, quantiles: Sequence[float]
    ) -> Any:
        """One row for each group: label, rows, and mean, sd and quantiles of each effect."""
        spec, labels, parts = self.formula, [], []
        for names, draws in sampled:
            effects = draws["effects"]  # [S, B, M]
            if totals:
                zero = np.zeros_like(draws["sd"][:, 0])
                population = [draws.get(name, zero) for name in spec.layout.group]
                effects = effects + np.stack(population, 1)[:, None]
            levels = np.quantile(effects, np.asarray(quantiles, np.float64), axis=0)
            labels.append(names)
            parts.append(np.stack([effects.mean(0), effects.std(0), *levels]))
        table = np.concatenate(parts, 1)  # [statistics, N, M]
        columns: dict[str, Any] = {"n": np.asarray(sizes)}
        for m, effect in enumerate(spec.layout.group):
            for i, statistic in enumerate(["mean", "sd", *quantile_names(quantiles)]):
                columns[f"{effect}_{statistic}"] = table[i, :, m]
        own = in_zone(spec.table, np.concatenate(labels), spec.zone)
        return as_table(spec.table, labelled(spec.by, own, columns))

    def describe(self) -> Description:
        """The formula, its likelihood and its priors."""
        spec = self.formula
        return Description(
            title=spec.parts.text,
            lead=[f"{spec.likelihood} with {spec.link} link"],
            facts=[
                ("Formula", spec.parts.text),
                ("Likelihood", f"{spec.likelihood}, {spec.link} link"),
            ],
            priors=[(name, in_words(prior)) for name, prior in self.priors.items()],
            response=spec.parts.response,
            deviations=True,
            means=True,
            complete=True,
        )

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes the formula, its coding and its priors, and the data of the fit."""
        saving.save(self.formula, self.priors, groups, folder)
