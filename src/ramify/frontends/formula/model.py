"""The model that a formula stands for: parameters and densities."""

from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.frontends.formula.adapter import FormulaAdapter
from ramify.frontends.formula.formula import SD, Formula
from ramify.frontends.formula.priors import Priors, log_density, moved, same, sd_name
from ramify.frontends.formula.reading import read_rows
from ramify.models.model import Model
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.models.structure import BlockStructure, LinearPredictors, Normal
from ramify.numerics.small_linalg import inverse_lower


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
        linear = self._predictors().on_blocks(self.theta)
        self.structure = BlockStructure(self._normal, linear, trusted=True)
        saved = [(name, same(prior)) for name, prior in priors.items()]
        own = formula.text, formula.likelihood, formula.link, layout, str(formula.levels)
        self._contents = *own, *saved

    def __eq__(self, other: object) -> bool:
        """Whether the densities are the same: what was compiled for one then serves the other."""
        return isinstance(other, FormulaModel) and self._contents == other._contents

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self._contents)

    @property
    def adapter(self) -> FormulaAdapter:
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

    def _row_density(self, theta: Named, z: Named, row: Named) -> Float[Array, ""]:
        """Log density of one row's response, on the user's scale, times its weight."""
        return self._density(theta, self.formula.predictor(theta, z, row), row)

    def _density(self, theta: Named, eta: Float[Array, ""], row: Named) -> Float[Array, ""]:
        """The same, given the linear predictor of the row."""
        spec, layout = self.formula, self.formula.layout
        if spec.link == "identity":
            row = {**row, "y": (row["y"] - (layout.base - spec.origin)) / layout.scale}
        density = spec.family.log_density(spec.link, eta, theta, row)
        density -= np.log(layout.scale)
        return density * row["weights"] if "weights" in row else density

    def _predictors(self) -> LinearPredictors:
        """The likelihood as a function of one linear predictor; all of ours are smooth in it."""
        spec = self.formula
        return LinearPredictors(
            weights=lambda row: row["W"][None],
            offset=lambda theta, row: spec.offset(theta, row)[None],
            density=lambda theta, eta, row: self._density(theta, eta[0], row),
            uses_theta=spec.likelihood_uses_theta,
            smooth=True,
        )

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        """A new outcome of one row."""
        spec = self.formula
        eta = spec.predictor(theta, z, row)
        return spec.to_user_scale(spec.family.distribution(spec.link, eta, theta, row).sample(key))

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return read_rows(self.formula, table, "table", outcomes=True)
