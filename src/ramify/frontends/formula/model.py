"""The model that a formula stands for: parameters and densities."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.groups import Groups
from ramify.frontends.formula.adapter import FormulaAdapter
from ramify.frontends.formula.formula import SD, Formula
from ramify.frontends.formula.priors import Priors, log_density, moved, same, sd_name
from ramify.frontends.formula.reading import read_rows
from ramify.models.model import Model
from ramify.models.parameters import Named, Parameter, correlation_cholesky, positive, real
from ramify.numerics.small_linalg import solve_lower


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
            row = {**row, "y": (row["y"] - (layout.base - spec.origin)) / layout.scale}
        density = spec.family.log_density(spec.link, spec.predictor(theta, z, row), theta, row)
        density -= np.log(layout.scale)
        return density * row["weights"] if "weights" in row else density

    def _outcome(self, key: PRNGKeyArray, theta: Named, z: Named, row: Named) -> Array:
        """A new outcome of one row."""
        spec = self.formula
        eta = spec.predictor(theta, z, row)
        return spec.to_user_scale(spec.family.distribution(spec.link, eta, theta, row).sample(key))

    def groups(self, table: Any) -> Groups:
        """A table of the user's, with outcomes, as the groups that this model is fitted to."""
        return read_rows(self.formula, table, "table", outcomes=True)
