"""The model of a formula, and its adapter, which reads tables and names results in statistical terms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_pytree_node
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.frontends.formula import outcomes, saving
from ramify.frontends.formula.condensed import condensed
from ramify.frontends.formula.core import Core, core_of
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.naming import FormulaNames
from ramify.frontends.formula.priors import Priors, in_words, log_density
from ramify.frontends.formula.reading import read_rows, response_columns
from ramify.frontends.formula.simulation import censored, check_simulable, prior_draws
from ramify.frontends.formula.skewness import begin_alpha
from ramify.frontends.formula.text import formula_columns
from ramify.models.adapter import Description
from ramify.models.model import Model
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.models.simulation import Simulated, Simulator, ThetaSampler
from ramify.models.structure import BlockStructure, LinearPredictors, Normal
from ramify.numerics.programs import program


@final
class FormulaModel(Model):
    """A model made by `from_formula`; `priors` are by the names of the parameters in results."""

    formula: Formula
    priors: Priors
    table: dict[str, Any] | None = None  # the columns of the fit's table; a saved fit has none

    def __init__(self, formula: Formula, priors: Priors):
        self.formula, self.priors = formula, priors
        self._build(core_of(formula, priors))

    def _build(self, core: Core) -> None:
        """Sets all attributes that programs use; the arrays of `core` are arguments of programs."""
        layout = core.layout
        theta: dict[str, Parameter] = {"intercept": real()} if layout.intercept else {}
        theta |= {"b": real(len(layout.common))} if layout.common else {}
        theta |= {"sd": positive(len(layout.group))} if layout.group else {}
        theta |= {"cor": correlation_cholesky(len(layout.group))} if "cor" in core.priors else {}
        theta |= {n: core.family.parameters[n].make(core.levels) for n in core.parameters}
        theta |= {name: p for own in core.own for name, p in own.parameters().items()}
        self.core = core
        super().__init__(
            theta,
            {"effects": real(core.dims)},
            self._prior,
            self._group_density,
            lambda theta, z, row: self._density(theta, core.predictors(theta, z, row), row),
            self._outcome,
        )
        linear = self._predictors().on_blocks(self.theta)
        self.structure = BlockStructure(self._normal, linear, trusted=True)

    @classmethod
    def _rebuild(cls, _: None, children: tuple[Core]) -> "FormulaModel":
        """The model inside a program, without `formula` and `priors`, whose numbers are not arguments."""
        model = object.__new__(cls)
        (model.core,) = children
        return model

    if not TYPE_CHECKING:  # type checkers see all attributes

        def __getattr__(self, name: str) -> Any:
            """Calls `_build` when an attribute is first used: most copies are only flattened again."""
            if "core" not in self.__dict__ or "theta" in self.__dict__:
                raise AttributeError(f"a {type(self).__name__} has no {name!r} here.")
            self._build(self.core)
            return getattr(self, name)

    @property
    def adapter(self) -> "FormulaAdapter":
        """Reads tables by the formula and names results as a statistician does."""
        return FormulaAdapter(self)

    def __repr__(self) -> str:
        """The formula, its likelihood and the numbers of effects."""
        spec = getattr(self, "formula", None)
        if spec is None:
            return super().__repr__()
        count = len(spec.layout.common) + spec.layout.intercept
        count += sum(len(own.effects) + own.intercept for own in spec.own)
        return (
            f"FormulaModel({spec.text}, {spec.likelihood} with {spec.link} link; {count} common "
            f"effects, {len(spec.varying)} by {spec.by})"
        )

    def _prior(self, theta: Named) -> Float[Array, ""]:
        """Log density of theta, with Jacobians, since priors are on the user's scale."""
        core, values = self.core, self.core.scaled(theta)
        terms = [log_density(core.priors[name], value) for name, value in values.items()]
        return sum((jnp.sum(jnp.log(core.unit(name))) for name in theta), sum(terms, jnp.zeros(())))

    def _group_density(self, theta: Named, z: Named, group: Named) -> Float[Array, ""]:
        """Log N(z; mean, diag(sd) C diag(sd)) of one group."""
        mean = self.core.mean(theta, group)
        return Normal(mean, self.core.root(theta)).log_density(z["effects"])

    def _normal(self, theta: Float[Array, " D"], batch: Batch) -> Normal:
        """The normal distribution of z for every group of a block."""
        inside = self.theta.values(theta)
        return Normal(self.core.means(inside, batch), self.core.root(inside))

    def _density(self, theta: Named, eta: Float[Array, " P"], row: Named) -> Float[Array, ""]:
        """Log density of one row's response, on the user's scale, times its weight."""
        core, inside = self.core, {**row, "y": self.core.standardised(row["y"])}
        values = core.family_values(theta, eta)
        density = core.family.log_density(core.link, eta[0], values, inside)
        stretch = jnp.log(core.scale) + (jnp.log(row["y"]) if core.family.of_log else 0.0)
        # The probability of a censored outcome does not depend on the scale.
        density -= jnp.where(row["cens"] > 0, 0.0, stretch) if "cens" in row else stretch
        return density * row["weights"] if "weights" in row else density

    def _predictors(self) -> LinearPredictors:
        """The likelihood as a function of linear predictors; all of ours are smooth in them."""
        core, parameters = self.core, self.core.family.parameters
        return LinearPredictors(
            weights=core.weights,
            offset=core.offsets,
            density=self._density,
            uses_theta=lambda columns: (
                bool(parameters) or bool(core.own) or core.layout.offset_uses_theta(columns)
            ),
            smooth=True,
        )

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        """A new outcome of one row, less the origin."""
        core, eta = self.core, self.core.predictors(theta, z, row)
        values = core.family_values(theta, eta)
        y = core.family.simulate(key, core.link, eta[0], values, row)
        if core.link == "identity":
            y = core.base + core.scale * y
            return jnp.exp(y) if core.family.of_log else y
        return core.numbers[y] if core.numbers is not None and core.levels > 2 else y

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return read_rows(self.formula, table, "table", outcomes=True)


register_pytree_node(FormulaModel, lambda model: ((model.core,), None), FormulaModel._rebuild)


@final
class FormulaAdapter(FormulaNames):
    """Reads tables for a `FormulaModel`, names its results and saves it."""

    model: FormulaModel

    @property
    def origin(self) -> float:
        """See `Formula.origin`."""
        return self.formula.origin

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups:
        """A table with the columns that the formula names, as the model's groups."""
        return read_rows(self.formula, table, what, outcomes=outcomes)

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """The rows with the group columns of their z, and `U_apart` where the rows' own values differ.

        Rows to predict have all their columns in X_all: the U b inside z is subtracted again, so any U
        can be used for a new group.
        """
        size = len(self.formula.layout.grouped)
        if group is None and size and "U" not in at.group:
            return replace(at, group={"U": np.zeros((len(at), size), jnp.result_type(float))})
        if group is None or "U" not in at.group or "U" not in group:
            return at
        apart = np.repeat(at.group["U"] - group["U"], at.sizes, 0) + at.rows.get("U_apart", 0.0)
        rows = {**at.rows, **({"U_apart": apart} if apart.any() else {})}
        return replace(at, rows=rows, group={**at.group, "U": group["U"]})

    def condensed(self, groups: Groups) -> Groups:
        """Fewer rows with the same likelihood, for a gaussian formula with large groups: `condensed`."""
        return condensed(self.model.core, groups)

    def begin(self, groups: Groups) -> dict[str, float]:
        """The start of alpha for a skew normal formula: see `skewness.begin_alpha`."""
        names = [n for n in ("alpha", "alpha_intercept") if n in self.model.theta.parameters]
        return {name: begin_alpha(groups) for name in names}

    def columns(self) -> dict[str, str | None]:
        """The columns that the formula names, each with its kind where that is known."""
        spec = self.formula
        category = spec.levels is not None and spec.numbers is None
        left = dict.fromkeys(response_columns(spec.parts), "category") if category else {}
        named = dict.fromkeys([*formula_columns(spec.text), *spec.parts.extra])
        kinds = {
            n: k for own in spec.own for c in (own.common, own.group) for n, k in c.kinds.items()
        }
        return named | kinds | spec.common.kinds | spec.group.kinds | left

    def global_values(
        self, theta: Float[np.ndarray, "S D"] | Float[Array, "S D"]
    ) -> dict[str, Any]:
        """Effects, sds, correlations and family parameters on the user's scale, by name."""
        values, far = super().global_values(theta), self.formula.far_intercept
        near = {"Intercept": np.asarray(values["Intercept"], np.float64) + far} if far else {}
        return {**values, **near}

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """The values of `global_values` for one theta; the intercept is less `Formula.far_intercept`."""
        core, inside = self.model.core, self.model.theta.values(theta)
        values, shift = core.scaled(inside), core.centring(inside)
        effects = values.pop("b", jnp.zeros(0))
        values |= {name: effects[k] for k, name in enumerate(core.layout.common)}
        if core.layout.intercept:
            values["Intercept"] = values.pop("intercept") - core.scale * shift
        if "cor" in inside:
            values["cor"] = inside["cor"] @ inside["cor"].T
        for own in core.own:
            named = own.named(values)
            values = {n: v for n, v in values.items() if n not in own.parameters()} | named
        if "cutpoints" in values:
            values["cutpoints"] = values["cutpoints"] + shift
        return values

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Each group's deviations from the population, {"effects": [B, M]}, on the user's scale."""
        core, inside = self.model.core, self.model.theta.values(theta)
        return {"effects": core.deviations * (z - core.means(inside, batch))}

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """The effects that vary by group."""
        return self.formula.varying

    def categories(self, kind: str) -> list[str]:
        """The levels of a response, if the kind is the probability of each."""
        categorical = self.model.core.categorical
        if kind == "probability" and not (self.formula.has_cutpoints or categorical):
            what = (
                f"'ordered' and 'categorical'; for {self.formula.likelihood!r} use kind=\"mean\"."
            )
            raise ValueError(f'kind="probability" is for likelihood={what}')
        if categorical and kind in ("mean", "link"):
            raise ValueError(
                f'kind="{kind}" is one number a row, and categories have none: use kind="probability".'
            )
        return [str(x) for x in self.formula.levels or ()] if kind == "probability" else []

    def expected(
        self, kind: str, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, "R *levels"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
        inside = self.model.theta.values(theta)
        one = lambda z, row: outcomes.expected(self.model.core, kind, inside, {"effects": z}, row)
        return jax.vmap(one)(z_rows, batch.rows | batch.group_at_rows())

    @property
    def numeric(self) -> bool:
        """False if the outcome is one of several levels without an order."""
        return not self.model.core.categorical

    def category_numbers(self, outcomes: np.ndarray) -> np.ndarray:
        """The positions of categories that are numbers; otherwise the outcomes."""
        numbers = self.formula.numbers
        return outcomes if numbers is None else np.searchsorted(numbers, outcomes)

    def outcome_type(self) -> jax.ShapeDtypeStruct:
        """Of a number: those of `simulate`, whose samplers take a tenth of a second to trace."""
        core = self.model.core
        if core.numbers is not None and core.levels > 2:
            return jax.ShapeDtypeStruct((), core.numbers.dtype)
        return jax.ShapeDtypeStruct((), jnp.result_type(int if core.family.discrete else float))

    draws_on_host = True

    def outcome_parameters(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """Linear predictor and its inverse link inside, family parameters, and trials of rows."""
        inside = self.model.theta.values(theta)
        return outcomes.outcome_parameters(self.model.core, inside, z_rows, batch)

    def draw_outcomes(self, rng: np.random.Generator, given: dict[str, np.ndarray]) -> np.ndarray:
        """New outcomes, by NumPy, less the origin."""
        core, y = self.model.core, self.draw_column(rng, given)
        by_number = core.numbers is not None and core.levels > 2
        return np.asarray(core.numbers)[y] if by_number else y

    def draw_column(self, rng: np.random.Generator, given: dict[str, np.ndarray]) -> np.ndarray:
        """New outcomes as in the data: levels by their numbers."""
        return outcomes.draw_column(self.model.core, rng, given)

    def theta_sampler(self) -> ThetaSampler:
        """Draws from the priors."""
        prior, correlations = prior_draws(self.formula, self.model.priors, self.model.core)
        one = program(lambda key, factors: self.model.theta.unconstrain(prior(key, factors)))
        key = lambda rng: jax.random.key(int(rng.integers(2**32)))
        return lambda rng: one(key(rng), correlations(rng))

    def simulator(self, groups: Groups) -> Simulator:
        """Draws from the priors, the groups' normal distribution and the likelihood."""
        check_simulable(groups)
        return partial(self._simulated, self.theta_sampler(), whole(groups))

    def _simulated(
        self, sampler: ThetaSampler, batch: Batch, rng: np.random.Generator
    ) -> Simulated:
        theta = sampler(rng)
        noise = rng.normal(size=(len(batch.index), self.model.z.size)).astype(theta.dtype)
        z, given = _locals_and_rows(self, theta, noise, batch)
        y = self.draw_column(rng, jax.tree.map(np.asarray, given))
        return Simulated(theta, z, censored(y, batch.rows))

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows: numbers, or numbers of levels."""
        y = batch.rows["y"]
        return {"y": np.asarray(y, np.float64) + self.origin if self.origin else y}

    def outcomes(self, groups: Groups) -> np.ndarray | None:
        """The outcomes of the rows, on the user's scale, as `predict` draws them; None if censored."""
        if "cens" in groups.rows:
            return None
        y, numbers = groups.rows["y"] + self.origin, self.formula.numbers
        return y if numbers is None else np.asarray(numbers, np.float64)[y.astype(int)]

    def describe(self) -> Description:
        """The formula, its likelihood and its priors."""
        spec = self.formula
        return Description(
            title=spec.short_text,
            lead=[f"{spec.likelihood} with {spec.link} link"],
            facts=[
                ("Formula", spec.short_text),
                ("Likelihood", f"{spec.likelihood}, {spec.link} link"),
            ],
            priors=[(name, in_words(prior)) for name, prior in self.model.priors.items()],
            response=spec.parts.response,
            deviations=True,
            means=not self.model.core.categorical,
            complete=True,
        )

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes the formula, its coding and its priors, and the data of the fit."""
        saving.save(self.formula, self.model.priors, groups, folder)


@program
def _locals_and_rows(
    adapter: FormulaAdapter, theta: Float[Array, " D"], noise: Float[Array, "B M"], batch: Batch
) -> tuple[Float[Array, "B M"], Named]:
    """Z from noise, given theta, and the parameters from which the rows' outcomes are drawn."""
    z = adapter.model._normal(theta, batch).draw(noise)
    return z, adapter.outcome_parameters(theta, batch.at_rows(z), batch)
