"""The model that a formula stands for: its densities, and how tables become its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.tables import columns_of, n_rows
from ramify.frontends.formula import priors as priors_of
from ramify.frontends.formula import results as results
from ramify.frontends.formula.design import Coding, check_levels, variables
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.layout import Layout, columns
from ramify.frontends.formula.likelihoods import INVERSE, LIKELIHOODS, Likelihood
from ramify.frontends.formula.priors import Priors, sd_name
from ramify.frontends.formula.response import read_extra, read_response, response_columns
from ramify.frontends.formula.text import FormulaText
from ramify.models.model import Model
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.numerics.small_linalg import solve_lower

SD = 0.3  # the unit of group sds inside: a fit begins at one, and they are smaller than the response's


@dataclass(frozen=True)
class Formula:
    """A formula, evaluated: all that new rows need to be read as those of the fit were.

    Attributes:
        parts: the text.
        likelihood: name of the likelihood.
        link: name of the link.
        common: coding of the common effects.
        group: coding of the effects that vary by group.
        layout: where each effect goes, and units.
        levels: levels of the response, where it has any.
        table: the kind of table that came in, and that results come back as.
        zone: the time zone of the grouping column, if it has times with one.
    """

    parts: FormulaText
    likelihood: str
    link: str
    common: Coding
    group: Coding
    layout: Layout
    levels: list[Any] | None
    table: str
    zone: str | None = None

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    @property
    def text(self) -> str:
        """The formula as it was written."""
        return self.parts.text

    @property
    def by(self) -> str:
        """The grouping column."""
        return self.parts.by

    @property
    def kinds(self) -> dict[str, str]:
        """Name -> "number" or "category" of the fit's columns, those of labels and calls apart."""
        category = self.levels is not None and not are_numbers(self.levels)
        left = dict.fromkeys(response_columns(self.parts), "category") if category else {}
        return self.common.kinds | self.group.kinds | left


@final
class FormulaModel(Model):
    """A model made by `from_formula`.

    Attributes:
        formula: the formula, evaluated: how rows become columns.
        priors: name -> distribution, as printed results name the parameters.
    """

    def __init__(self, formula: Formula, priors: Priors):
        """Builds the three densities from the layout and the likelihood."""
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
            self._row_density,
            self._outcome,
        )
        self.formula, self.priors = formula, priors
        # Only where the link is the identity does the outcome move with the predictor.
        self.origin = layout.far(layout.base) if formula.link == "identity" else 0.0
        saved = [(name, priors_of.same(prior)) for name, prior in priors.items()]
        own = formula.text, formula.likelihood, formula.link, layout, str(formula.levels)
        self._contents = *own, *saved

    def __eq__(self, other: object) -> bool:
        """Whether the densities are the same: what was compiled for one then serves the other."""
        return isinstance(other, FormulaModel) and self._contents == other._contents

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self._contents)

    def __repr__(self) -> str:
        """The formula and what is made of it."""
        spec = self.formula
        count = len(spec.layout.common) + spec.layout.intercept
        return (
            f"FormulaModel({spec.parts.text}, {spec.likelihood} with {spec.link} link; {count} common "
            f"effects, {len(spec.layout.group)} by {spec.by})"
        )

    def _prior(self, theta: Named) -> Float[Array, ""]:
        """Log density of theta: the priors are of the user's scale, hence the constants."""
        layout, priors = self.formula.layout, self.priors
        density = jnp.zeros(())
        if layout.intercept:
            prior, by = priors_of.moved(priors["Intercept"], self._far_intercept)
            density += prior.log_prob(layout.shift - by + layout.scale * theta["intercept"])
            density += np.log(layout.scale)
        if layout.common:
            own = [priors[name] for name in layout.common]
            density += priors_of.log_density(own, layout.coefficients(theta["b"]))
            density += float(np.sum(np.log(layout.scale / np.asarray(layout.unit))))
        own = [priors[sd_name(name, self.formula.by)] for name in layout.group]
        density += priors_of.log_density(own, layout.deviations(SD * theta["sd"]))
        density += float(np.sum(np.log(SD * layout.scale / np.asarray(layout.group_unit))))
        if "cor" in theta:
            density += priors["cor"].log_prob(theta["cor"])
        for name in self.formula.family.parameters:
            unit = self._unit(name)
            density += jnp.sum(priors[name].log_prob(unit * theta[name]) + np.log(unit))
        return density

    @property
    def _cut(self) -> bool:
        """Whether cutpoints stand in for the intercept."""
        return self.formula.family.support == "levels"

    def _unit(self, name: str) -> float:
        """What a family parameter is in units of, inside."""
        return self.formula.layout.scale if name in self.formula.family.scaled else 1.0

    def _group_density(self, theta: Named, z: Named, group: Named) -> Float[Array, ""]:
        """Log N(z; mean, diag(sd) C diag(sd)) of one group."""
        layout = self.formula.layout
        sd = SD * theta["sd"]
        apart = (z["effects"] - layout.mean(theta, group)) / sd
        log_det = jnp.sum(jnp.log(sd))
        if "cor" in theta:
            M = len(layout.group)
            # Solved for once: with z on its right it would be for every group and draw.
            apart = jax.vmap(solve_lower, (None, 0), 1)(theta["cor"], jnp.eye(M)) @ apart
            log_det += jnp.sum(jnp.log(jnp.diagonal(theta["cor"])))
        size = 0.5 * len(layout.group) * np.log(2 * np.pi)
        return -0.5 * jnp.sum(apart**2) - log_det - size

    def _row_density(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """Log density of one row's response, on the user's scale, times its weight."""
        spec, layout = self.formula, self.formula.layout
        if spec.link == "identity":
            row = {**row, "y": (row["y"] - (layout.base - self.origin)) / layout.scale}
        density = spec.family.log_density(spec.link, self._eta(theta, z, row), theta, row)
        density -= np.log(layout.scale)
        return density * row["weights"] if "weights" in row else density

    def _eta(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """The linear predictor of one row, inside, without the shift where y is standardised."""
        layout = self.formula.layout
        eta = layout.predictor(theta, z["effects"], row)
        return eta if self.formula.link == "identity" else eta + layout.base

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        spec = self.formula
        eta = self._eta(theta, z, row)
        y = spec.family.distribution(spec.link, eta, theta, row).sample(key)
        return self._on_their_scale(y)

    def _on_their_scale(self, y: Array) -> Array:
        """Outcomes inside -> outcomes as the user has them: numbers, or numbers of levels."""
        layout, levels = self.formula.layout, self.formula.levels
        if self.formula.link == "identity":
            return layout.base - self.origin + layout.scale * y
        if levels is None or not self._cut or not are_numbers(levels):
            return y
        return jnp.asarray(levels)[y]

    def expected(
        self, kind: str, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, "R *levels"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
        inside = self.theta.values(theta)
        one = lambda z, row: self._expected(kind, inside, {"effects": z}, row)
        return jax.vmap(one)(z_rows, batch.rows | batch.group_at_rows())

    def _expected(self, kind: str, theta: Named, z: Named, row: Named) -> Float[Array, "*levels"]:
        spec, eta = self.formula, self._eta(theta, z, row)
        if spec.link == "identity":
            return spec.layout.base - self.origin + spec.layout.scale * eta
        if kind == "link":
            return eta + (
                spec.layout.intercept_shift(theta["b"]) if self._cut and "b" in theta else 0
            )
        if spec.levels is not None and self._cut:
            probability = spec.family.distribution(spec.link, eta, theta, row).probs
            if kind == "probability":
                return probability
            numbers = spec.levels if are_numbers(spec.levels) else range(len(spec.levels))
            return probability @ jnp.asarray(list(numbers), eta.dtype)
        return INVERSE[spec.link](eta) * (row["trials"] if "trials" in row else 1.0)

    def categories(self, kind: str) -> list[str]:
        """The levels of an ordered response, where each has a probability of its own."""
        if kind != "probability":
            return []
        if not self._cut:
            raise ValueError(
                f"kind=\"probability\" is for likelihood='ordered'; for {self.formula.likelihood!r} "
                'use kind="mean".'
            )
        return [str(level) for level in self.formula.levels or ()]

    def global_values(self, theta: Float[Array, " D"]) -> Named:
        """Effects, sds, correlations and family parameters on the user's scale, by name."""
        spec, layout, inside = self.formula, self.formula.layout, self.theta.values(theta)
        b = inside["b"] if layout.common else jnp.zeros(0)
        shift = layout.intercept_shift(b)
        values: Named = {}
        if layout.intercept:
            near = layout.shift - self._far_intercept
            values["Intercept"] = near + layout.scale * (inside["intercept"] - shift)
        effects = layout.coefficients(b)
        values |= {name: effects[k] for k, name in enumerate(layout.common)}
        values["sd"] = layout.deviations(SD * inside["sd"])
        if "cor" in inside:
            values["cor"] = inside["cor"] @ inside["cor"].T
        values |= {name: self._unit(name) * inside[name] for name in spec.family.parameters}
        if "cutpoints" in values:
            values["cutpoints"] = values["cutpoints"] + shift
        return values

    def completed(self, values: Named) -> dict[str, Any]:
        """The same with the part of the intercept that only float64 has room for."""
        if not self._far_intercept:
            return values
        intercept = np.asarray(values["Intercept"], np.float64) + self._far_intercept
        return {**values, "Intercept": intercept}

    @property
    def _far_intercept(self) -> float:
        layout = self.formula.layout
        return layout.far(layout.shift) if layout.intercept else 0.0

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows, on the user's scale."""
        y = batch.rows["y"]
        return {"y": np.asarray(y, np.float64) + self.origin if self.origin else y}

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Each group's deviations from the population, {"effects": [B, M]}, on the user's scale."""
        layout, inside = self.formula.layout, self.theta.values(theta)
        mean = jax.vmap(lambda group: layout.mean(inside, group), axis_size=z.shape[0])(batch.group)
        return {"effects": layout.deviations(z - mean)}

    def summarised(self, values: dict[str, Any]) -> dict[str, Any]:
        """Draws of the globals by the names that a statistician gives them, in order."""
        return results.rows(values, self.formula.layout, self.formula.by, self.formula.levels)

    def group_effects(self, sampled: Any, sizes: Any, totals: bool, quantiles: Any) -> Any:
        """A table of the groups' effects: see `Posterior.group_effects`."""
        return results.group_effects(self.formula, sampled, sizes, totals, quantiles)

    def beside(self, at: Groups, group: Mapping[str, np.ndarray]) -> Groups:
        """Rows of interest may differ from those that z is conditioned on where the fit's did not."""
        if "U" not in at.group or "U" not in group:
            return at
        apart = np.repeat(at.group["U"] - group["U"], at.sizes, 0) + at.rows.get("U_apart", 0.0)
        rows = {**at.rows, **({"U_apart": apart} if apart.any() else {})}
        return replace(at, rows=rows, group={**at.group, "U": group["U"]})

    def unknown_columns(self, count: int) -> dict[str, np.ndarray]:
        """Of new groups: a row's own X says all, and what is taken off here is added there."""
        size = len(self.formula.layout.grouped)
        return {"U": np.zeros((count, size), jnp.zeros(()).dtype)} if size else {}

    def save(self, folder: Path, groups: Any) -> None:
        """Writes the formula, its coding and its priors, and the data of the fit."""
        from ramify.frontends.formula.saving import save

        save(self, groups, folder)

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return self.read(table, "table", outcomes=True)

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups:
        """A table as the model's columns.

        Args:
            table: with the columns that the formula names.
            what: what the caller calls the table, for messages.
            outcomes: whether rows are data to condition on; else places to predict.
        """
        spec, layout = self.formula, self.formula.layout
        frame = read_frame(table, predictors(spec.parts), what)
        n = n_rows(table, spec.by)
        frame = frame if len(frame.columns) else no_predictors(np.zeros(n))
        for coding in (spec.common, spec.group):
            check_levels(coding, frame, what)
        kind = jnp.zeros(()).dtype
        own = [i for i, name in enumerate(spec.common.names) if name != "Intercept"]
        X, W = spec.common.matrix(frame)[:, own], spec.group.matrix(frame)
        rows = columns(layout, X, W, kind)
        offset = spec.common.offset(frame)
        if offset is not None:
            rows["offset"] = ((offset - layout.offset_centre) / layout.scale).astype(kind)
        parts = spec.parts if outcomes else spec.parts._replace(weights=None)
        extra = read_extra(parts, table, n, what)
        rows |= {name: value.astype(kind) for name, value in extra.items()}
        if outcomes:
            arguments = spec.family.support, spec.likelihood, spec.levels
            rows["y"] = read_response(spec.parts, table, *arguments, what).y - self.origin
        groups = Groups.from_table(with_labels(rows, table, spec.by), by=spec.by, rows=[*rows])
        return self._arranged(groups) if outcomes else groups

    def _arranged(self, groups: Groups) -> Groups:
        """Common columns in their places: those constant within groups are group columns."""
        layout, rows = self.formula.layout, dict(groups.rows)
        X, group = rows.pop("X_all"), {}
        if layout.rest:
            rows["X"] = np.ascontiguousarray(X[:, list(layout.rest)])
        if layout.grouped:
            U = X[:, list(layout.grouped)]
            group["U"] = np.ascontiguousarray(U[groups.starts])
            apart = U - np.repeat(group["U"], groups.sizes, 0)
            # What happened to be constant in the groups of the fit need not be in others.
            rows |= {"U_apart": apart} if apart.any() else {}
        return replace(groups, rows=rows, group=group)


def predictors(parts: FormulaText) -> list[str]:
    """The columns that the right-hand side names."""
    found = {*variables(parts.common, parts.text), *variables(parts.group, parts.text)}
    return sorted(found)


def no_predictors(y: np.ndarray) -> Any:
    """A frame with as many rows, for formulas without a predictor."""
    import pandas as pd

    return pd.DataFrame({"(none)": np.zeros(len(y))})


def with_labels(rows: dict[str, np.ndarray], table: Any, by: str) -> dict[str, Any]:
    """The columns, and the label column of the table beside them."""
    return {**rows, **columns_of(table, [by])}


def are_numbers(levels: list[Any]) -> bool:
    """Whether levels of a response are numbers, so that means of them make sense."""
    return all(isinstance(x, int | float) for x in levels)
