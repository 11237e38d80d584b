"""Models from formulas: `y ~ 1 + x + (1 + x | user)`, as lme4, brms and Bambi write them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from ramify._data import Groups
from ramify._model import Model, Named, Parameter, correlation_cholesky, positive, real
from ramify._types import Batch
from ramify.frontends import _formula_priors as priors_of
from ramify.frontends._formula_design import Coding, check_levels, code, variables
from ramify.frontends._formula_frame import kind_of_table, read_frame
from ramify.frontends._formula_layout import Layout, columns, lay_out
from ramify.frontends._formula_likelihoods import LIKELIHOODS, Likelihood, start
from ramify.frontends._formula_priors import Priors, sd_name
from ramify.frontends._formula_response import read_extra, read_response, response_columns
from ramify.frontends._formula_text import FormulaText, error, parse, place_of


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
    """

    parts: FormulaText
    likelihood: str
    link: str
    common: Coding
    group: Coding
    layout: Layout
    levels: list[Any] | None
    table: str

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    @property
    def by(self) -> str:
        """The grouping column."""
        return self.parts.by


def from_formula(
    formula: str,
    table: Any,
    *,
    likelihood: str = "gaussian",
    link: str | None = None,
    priors: Mapping[str, Any] | None = None,
    trials: str | None = None,
    weights: str | None = None,
) -> "tuple[FormulaModel, Groups]":
    """A model and its data from a formula in the grammar of lme4, brms and Bambi.

    Common effects may have interactions, polynomials, splines and categories, which the `formulae`
    package codes; one grouping term says what varies by group: `(1 + x | g)` with correlations,
    `(1 + x || g)` without. See `docs/formulas.md`.

    Args:
        formula: such as "y ~ 1 + x + (1 + x | user)", "y | trials(n) ~ x + (1 | user)".
        table: pandas, polars or Arrow table, or a dict of arrays; only the columns that the formula
            names are read.
        likelihood: "gaussian", "student_t", "bernoulli", "binomial", "poisson",
            "negative_binomial" or "ordered".
        link: by default the usual one.
        priors: name -> NumPyro distribution, in place of the defaults, which `model.priors` shows.
        trials: the column of binomial trials, where the formula does not say.
        weights: the column of weights, where the formula does not say.

    Returns:
        A model and its groups, for `fit(model, groups)`.

    Example:
        >>> table = {"user": ["a", "a", "b", "b"], "x": [0.0, 1.0, 0.0, 2.0], "y": [1.0, 2.0, 0.0, 4.0]}
        >>> model, groups = from_formula("y ~ x + (1 | user)", table)
        >>> model
        FormulaModel(y ~ x + (1 | user), gaussian with identity link; 2 common effects, 1 by user)
        >>> model.priors
        Intercept             Normal(1.75, 3.698)
        x                     Normal(0, 4.459)
        sd(Intercept | user)  HalfNormal(3.698)
        sigma                 Exponential(0.6761)
    """
    parts = parse(formula)
    parts = parts._replace(trials=trials or parts.trials, weights=weights or parts.weights)
    family, link = _likelihood(likelihood, link)
    _check_columns(parts, table)
    response = read_response(parts, table, family.support, likelihood, None, "table")
    frame = read_frame(table, _predictors(parts), "table")
    common, X = code(parts.common, formula, frame if len(frame.columns) else _rows(response.y))
    group, W = code(parts.group, formula, frame if len(frame.columns) else _rows(response.y))
    _check_design(parts, common, X, group, W, family)
    offset = common.offset(frame)
    begin = start(family, link, response.y, response.trials)
    raw = {"y": response.y, "X": X, "W": W}
    sorted_rows = Groups.from_table(_with_labels(raw, table, parts.by), by=parts.by, rows=[*raw])
    middle = 0.0 if offset is None else float(offset.mean())
    names = (common.names, group.names)
    layout = lay_out(names, X, W, sorted_rows, begin, middle, family.support == "levels")
    spec = Formula(
        parts, likelihood, link, common, group, layout, response.levels, kind_of_table(table)
    )
    sd_y = float(np.std(response.y)) or 1.0
    own = priors_of.defaults(layout, parts.by, link, list(family.parameters), sd_y)
    owners = dict(zip(common.names, common.owners, strict=True))
    chosen = priors_of.replaced(own, priors or {}, layout, parts.by, owners)
    model = FormulaModel(spec, chosen)
    return model, model.read(table, "table")


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
            density += priors["Intercept"].log_prob(
                layout.shift + layout.scale * theta["intercept"]
            )
            density += np.log(layout.scale)
        if layout.common:
            own = [priors[name] for name in layout.common]
            density += priors_of.log_density(own, layout.coefficients(theta["b"]))
            density += float(np.sum(np.log(layout.scale / np.asarray(layout.unit))))
        own = [priors[sd_name(name, self.formula.by)] for name in layout.group]
        density += priors_of.log_density(own, layout.deviations(theta["sd"]))
        density += float(np.sum(np.log(layout.scale / np.asarray(layout.group_unit))))
        if "cor" in theta:
            density += priors["cor"].log_prob(theta["cor"])
        for name in self.formula.family.parameters:
            unit = self._unit(name)
            density += jnp.sum(priors[name].log_prob(unit * theta[name]) + np.log(unit))
        return density

    def _unit(self, name: str) -> float:
        """What a family parameter is in units of, inside."""
        return self.formula.layout.scale if name in self.formula.family.scaled else 1.0

    def _group_density(self, theta: Named, z: Named, group: Named) -> Float[Array, ""]:
        """Log N(z; mean, diag(sd) C diag(sd)) of one group."""
        layout = self.formula.layout
        apart = (z["effects"] - layout.mean(theta, group)) / theta["sd"]
        log_det = jnp.sum(jnp.log(theta["sd"]))
        if "cor" in theta:
            M = len(layout.group)
            apart = solve_triangular(theta["cor"], jnp.eye(M), lower=True) @ apart
            log_det += jnp.sum(jnp.log(jnp.diagonal(theta["cor"])))
        size = 0.5 * len(layout.group) * np.log(2 * np.pi)
        return -0.5 * jnp.sum(apart**2) - log_det - size

    def _row_density(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """Log density of one row's response, on the user's scale, times its weight."""
        spec = self.formula
        density = spec.family.log_density(spec.link, self._eta(theta, z, row), theta, row)
        density -= np.log(spec.layout.scale)
        return density * row["weights"] if "weights" in row else density

    def _eta(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """The linear predictor of one row, inside, without the shift where y is standardised."""
        layout = self.formula.layout
        eta = layout.predictor(theta, z["effects"], row)
        return eta if self.formula.link == "identity" else eta + layout.shift

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        spec = self.formula
        eta = self._eta(theta, z, row)
        y = spec.family.distribution(spec.link, eta, theta, row).sample(key)
        return self._on_their_scale(y)

    def _on_their_scale(self, y: Array) -> Array:
        """Outcomes inside -> outcomes as the user has them: numbers, or numbers of levels."""
        layout, levels = self.formula.layout, self.formula.levels
        if self.formula.link == "identity":
            return layout.shift + layout.offset_centre + layout.scale * y
        if levels is not None and all(isinstance(x, int | float) for x in levels):
            return jnp.asarray(levels)[y]
        return y

    def global_values(self, theta: Float[Array, " D"]) -> Named:
        """Effects, sds, correlations and family parameters on the user's scale, by name."""
        spec, layout, inside = self.formula, self.formula.layout, self.theta.values(theta)
        b = inside["b"] if layout.common else jnp.zeros(0)
        shift = layout.intercept_shift(b)
        values: Named = {}
        if layout.intercept:
            values["Intercept"] = layout.shift + layout.scale * (inside["intercept"] - shift)
        effects = layout.coefficients(b)
        values |= {name: effects[k] for k, name in enumerate(layout.common)}
        values["sd"] = layout.deviations(inside["sd"])
        if "cor" in inside:
            values["cor"] = inside["cor"] @ inside["cor"].T
        values |= {name: self._unit(name) * inside[name] for name in spec.family.parameters}
        if "cutpoints" in values:
            values["cutpoints"] = values["cutpoints"] + shift
        return values

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Each group's deviations from the population, {"effects": [B, M]}, on the user's scale."""
        layout, inside = self.formula.layout, self.theta.values(theta)
        mean = jax.vmap(lambda group: layout.mean(inside, group), axis_size=z.shape[0])(batch.group)
        return {"effects": layout.deviations(z - mean)}

    def read(self, table: Any, what: str, *, conditioned: bool = True) -> Groups:
        """A table as the model's columns.

        Args:
            table: with the columns that the formula names.
            what: what the caller calls the table, for messages.
            conditioned: whether rows are data to condition on, with outcomes; else places to
                predict, whose outcomes nobody looks at.
        """
        spec, layout = self.formula, self.formula.layout
        frame = read_frame(table, _predictors(spec.parts), what)
        n = _length(table, spec.by)
        frame = frame if len(frame.columns) else _rows(np.zeros(n))
        for coding in (spec.common, spec.group):
            check_levels(coding, frame, what)
        kind = jnp.zeros(()).dtype
        own = [i for i, name in enumerate(spec.common.names) if name != "Intercept"]
        X, W = spec.common.matrix(frame)[:, own], spec.group.matrix(frame)
        rows = columns(layout, X, W, kind)
        offset = spec.common.offset(frame)
        if offset is not None:
            rows["offset"] = ((offset - layout.offset_centre) / layout.scale).astype(kind)
        extra = read_extra(spec.parts, table, n, what)
        rows |= {name: value.astype(kind) for name, value in extra.items()}
        if not conditioned:
            rows.pop("weights", None)
            return Groups.from_table(_with_labels(rows, table, spec.by), by=spec.by, rows=[*rows])
        rows["y"] = self._outcomes(table, what).astype(kind)
        groups = Groups.from_table(_with_labels(rows, table, spec.by), by=spec.by, rows=[*rows])
        return self._arranged(groups, what)

    def _outcomes(self, table: Any, what: str) -> Float[np.ndarray, " n"]:
        spec, layout = self.formula, self.formula.layout
        family = spec.family
        y = read_response(spec.parts, table, family.support, spec.likelihood, spec.levels, what).y
        if spec.link == "identity":
            return (y - layout.shift - layout.offset_centre) / layout.scale
        return y

    def _arranged(self, groups: Groups, what: str) -> Groups:
        """Common columns in their places: those constant within groups are group columns."""
        layout, rows = self.formula.layout, dict(groups.rows)
        X, group = rows.pop("X_all"), {}
        if layout.rest:
            rows["X"] = np.ascontiguousarray(X[:, list(layout.rest)])
        if layout.grouped:
            U = X[:, list(layout.grouped)]
            group["U"] = np.ascontiguousarray(U[groups.starts])
            owner = np.repeat(np.arange(len(groups)), groups.sizes)
            varies = U != group["U"][owner]
            if varies.any():
                row, column = (int(i) for i in np.argwhere(varies)[0])
                name = layout.common[layout.grouped[column]]
                raise ValueError(
                    f'"{name}" varies within group {groups.labels[owner[row]]} of {what}; in the fit '
                    "every group had one value of it, and it must have one here."
                )
        return replace(groups, rows=rows, group=group)


def _likelihood(name: str, link: str | None) -> tuple[Likelihood, str]:
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood={name!r} is unknown; there are {', '.join(LIKELIHOODS)}.")
    links = LIKELIHOODS[name].links
    if link is not None and link not in links:
        raise ValueError(
            f"link={link!r} does not go with likelihood={name!r}; it takes {', '.join(links)}."
        )
    return LIKELIHOODS[name], link or links[0]


def _predictors(parts: FormulaText) -> list[str]:
    found = {*variables(parts.common, parts.text), *variables(parts.group, parts.text)}
    return sorted(found)


def _check_columns(parts: FormulaText, table: Any) -> None:
    """Raises where the formula names a column that the table has not, pointing at the name."""
    from ramify._data._raw import columns_of

    extra = [c for c in (parts.trials, parts.weights) if c and not c.isdigit()]
    used = [*response_columns(parts), *_predictors(parts), *extra]
    for name in [*used, parts.by]:
        try:
            columns_of(table, [name])
        except ValueError as problem:
            raise error(parts.text, place_of(parts.text, name), str(problem).rstrip(".")) from None
    if parts.by in used:
        raise error(
            parts.text,
            place_of(parts.text, parts.by),
            f"the grouping column {parts.by!r} can't be a predictor or the response as well",
        )


def _check_design(
    parts: FormulaText,
    common: Coding,
    X: Float[np.ndarray, "n P"],
    group: Coding,
    W: Float[np.ndarray, "n M"],
    family: Likelihood,
) -> None:
    """Raises where the columns can't belong to a model."""
    if not group.names:
        raise error(parts.text, place_of(parts.text, parts.by), "nothing varies by group")
    if family.support == "levels" and "Intercept" not in common.names:
        raise error(
            parts.text,
            parts.text.find(parts.common),
            "likelihood='ordered' has cutpoints in place of an intercept: leave the 0 out",
        )
    for coding, matrix in ((common, X), (group, W)):
        for k, name in enumerate(coding.names):
            if name != "Intercept" and "Intercept" in coding.names and np.ptp(matrix[:, k]) == 0:
                raise ValueError(
                    f'"{name}" is constant ({matrix[0, k]:g} in every row), so its effect can\'t be '
                    "told from the intercept: leave it out of the formula."
                )


def _rows(y: np.ndarray) -> Any:
    """A frame with as many rows, for formulas without a predictor."""
    import pandas as pd

    return pd.DataFrame({"(none)": np.zeros(len(y))})


def _with_labels(rows: dict[str, np.ndarray], table: Any, by: str) -> dict[str, Any]:
    from ramify._data._raw import columns_of

    return {**rows, **columns_of(table, [by])}


def _length(table: Any, by: str) -> int:
    from ramify._data._raw import columns_of, length

    return length(by, columns_of(table, [by])[by])
