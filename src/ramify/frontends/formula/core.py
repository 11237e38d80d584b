"""Core: a formula as its compiled programs see it. Data are arguments, so new data compile nothing."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ramify.data.batch import Batch
from ramify.frontends.formula.formula import EffectLayout, Formula
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood
from ramify.frontends.formula.parameter_formulas import (
    SD,
    ParameterPredictor,
    group_root,
    predictor_of,
)
from ramify.frontends.formula.priors import Densities, Priors, densities, priors_of, sd_name
from ramify.models.parameters import Named


class Core(eqx.Module):
    """The static parts that programs are compiled for, and the constants of the data as arrays.

    The arrays are differences and ratios computed in float64 and rounded at the end.
    """

    layout: EffectLayout = eqx.field(static=True)
    likelihood: str = eqx.field(static=True)
    link: str = eqx.field(static=True)
    levels: int = eqx.field(static=True)  # number of levels of the response
    priors: dict[str, Densities]  # by the names of theta, on the user's scale
    scale: Float[Array, ""]  # the unit of the linear predictor
    base: Float[Array, ""]  # its constant, less `Formula.origin`
    near: Float[Array, ""]  # the same without the offset, less `Formula.far_intercept`
    coefficient: Float[Array, " P"]  # the unit of each common effect
    slope: Float[Array, " P"]  # the centre of each common column, in its unit
    deviation: Float[Array, " M"]  # the unit of each group effect
    numbers: Shaped[Array, " levels"] | None  # the levels, if they are numbers
    own: tuple[ParameterPredictor, ...]  # of the likelihood's parameters that have a formula

    @property
    def dims(self) -> int:
        """M: the effects of a group, those in formulas of parameters included."""
        return len(self.layout.group) + sum(len(own.varying) for own in self.own)

    @property
    def parameters(self) -> list[str]:
        """The likelihood's parameters that have no formula."""
        return [n for n in self.family.parameters if n not in {own.name for own in self.own}]

    @property
    def categorical(self) -> bool:
        """Whether each level of the response except the first has its own linear predictor."""
        return self.family.support == "categories"

    @property
    def deviations(self) -> Float[Array, " M"]:
        """The unit of each entry of z."""
        return jnp.concatenate([self.deviation, *(own.deviation for own in self.own)])

    def standardised(self, y: Any) -> Any:
        """Outcomes on the scale of the linear predictor, where its link is the identity."""
        y = jnp.log(y) if self.family.of_log else y
        return (y - self.base) / self.scale if self.link == "identity" else y

    @property
    def family(self) -> Likelihood:
        """The likelihood's entry in the table of likelihoods."""
        return LIKELIHOODS[self.likelihood]

    def unit(self, name: str) -> Any:
        """The unit of a parameter inside programs."""
        own = {"intercept": self.scale, "b": self.coefficient, "sd": SD * self.deviation}
        own |= {n: unit for parameter in self.own for n, unit in parameter.units().items()}
        return own.get(name, self.scale if name in self.family.scaled else 1.0)

    def scaled(self, theta: Named) -> Named:
        """Parameters on the user's scale, the intercept that of centred columns and near zero."""
        values = {name: self.unit(name) * value for name, value in theta.items()}
        for own in self.own:
            values |= own.shifted(values)
        return values | (
            {"intercept": self.near + values["intercept"]} if self.layout.intercept else {}
        )

    def centring(self, theta: Named) -> Float[Array, ""]:
        """The shift of the intercept by centring, in units inside: sum_k centre_k b_k / unit_k."""
        return theta["b"] @ self.slope if "b" in theta else jnp.zeros(())

    def level(self, theta: Named) -> Float[Array, ""]:
        """The intercept for shared columns, which are not centred in W."""
        level = theta.get("intercept", jnp.zeros(()))
        # Without an intercept, or cutpoints in its place, columns are not centred at all.
        centred = self.layout.intercept or self.family.support == "levels"
        if not (self.layout.shared and centred):
            return level
        k = np.array([k for k, _ in self.layout.shared])
        return level - theta["b"][k] @ self.slope[k]

    def mean(self, theta: Named, group: Named) -> Float[Array, " M"]:
        """The mean of one group's z."""
        layout, mean = self.layout, jnp.zeros(self.dims)
        if layout.shared:
            # A product, since the derivatives of gathering and scattering compile longer.
            k, w = np.array(layout.shared).T
            mean = theta["b"] @ _one_at(k, w, (len(layout.common), self.dims), mean.dtype)
        if layout.group_intercept is not None:
            level = self.level(theta)
            if layout.grouped:
                level += jnp.sum(group["U"] * theta["b"][np.array(layout.grouped)])
            mean += level * np.eye(self.dims, dtype=mean.dtype)[layout.group_intercept]
        return mean

    def means(self, theta: Named, batch: Batch) -> Float[Array, "B M"]:
        """The mean of the z of each group of a block."""
        mean = lambda group: self.mean(theta, group)
        return jax.vmap(mean, axis_size=batch.index.shape[0])(batch.group)

    def predictors(self, theta: Named, z: Named, row: Named) -> Float[Array, " P"]:
        """The linear predictors of one row: of the mean, then of parameters.

        With an identity link the first is on the scale of the standardised y.
        """
        return jnp.sum(self.weights(row) * z["effects"], -1) + self.offsets(theta, row)

    def weights(self, row: Named) -> Float[Array, "P M"]:
        """The weights of z in each linear predictor."""
        if not self.own:
            return row["W"][None]
        each = [row["W"], *(own.weights(row) for own in self.own)]
        return jax.scipy.linalg.block_diag(*(w[None] for w in each))

    def offsets(self, theta: Named, row: Named) -> Float[Array, " P"]:
        """The part of each linear predictor without z."""
        return jnp.stack([self.offset(theta, row), *(own.offset(theta, row) for own in self.own)])

    def family_values(self, theta: Named, eta: Float[Array, " P"]) -> Named:
        """The likelihood's parameters for one row, whose linear predictors are `eta`."""
        found = {name: theta[name] for name in self.parameters}
        for own, predictor in zip(self.own, eta[1:], strict=True):
            found |= own.values(predictor)
        return found

    def root(self, theta: Named) -> Float[Array, "M M"]:
        """The inverse of the lower triangular factor of the covariance of z."""
        roots = [group_root(theta["sd"], theta.get("cor"))] if "sd" in theta else []
        for own in self.own:
            roots += (
                [group_root(own.part(theta, "sd"), own.part(theta, "cor"))] if own.varying else []
            )
        return jax.scipy.linalg.block_diag(*roots) if len(roots) > 1 else roots[0]

    def offset(self, theta: Named, row: Named) -> Float[Array, ""]:
        """The linear predictor of one row, in units inside, less W z.

        A row with `X_all` is to be predicted: its group's deviation is added to the row's own X b.
        Other rows are data, and their group's z includes U b; `U_apart` is the difference between a
        row's own columns and the U of its group.
        """
        layout, eta = self.layout, row.get("offset", jnp.zeros(()))
        eta += 0.0 if self.link == "identity" else self.base
        if "X_all" in row:
            mean = self.mean(theta, row)[: len(layout.group)]
            eta += theta.get("intercept", jnp.zeros(())) - jnp.sum(row["W"] * mean)
            return eta + (jnp.sum(row["X_all"] * theta["b"]) if layout.common else 0.0)
        if layout.rest:
            eta += jnp.sum(row["X"] * theta["b"][np.array(layout.rest)])
        if "U_apart" in row:
            eta += jnp.sum(row["U_apart"] * theta["b"][np.array(layout.grouped)])
        return eta + (self.level(theta) if layout.group_intercept is None else 0.0)


def _one_at(rows: Any, columns: Any, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """A matrix of zeros with ones at some places."""
    ones = np.zeros(shape, dtype)
    ones[rows, columns] = 1
    return ones


def core_of(formula: Formula, priors: Priors) -> Core:
    """The core of a formula and its priors."""
    layout, units, by = formula.layout, formula.units, formula.by
    own: dict[str, Any] = {name: priors[name] for name in formula.parameters}
    own |= {"intercept": priors["Intercept"]} if layout.intercept else {}
    own |= {"b": [priors[name] for name in layout.common]} if layout.common else {}
    own |= {"sd": [priors[sd_name(name, by)] for name in layout.group]} if layout.group else {}
    own |= {"cor": priors["cor"]} if "cor" in priors else {}
    own |= {name: prior for part in formula.own for name, prior in priors_of(part, priors, by)}
    away = {"intercept": formula.far_intercept}
    rounded = lambda x: jax.device_put(np.asarray(x, jnp.result_type(float)))
    return Core(
        layout,
        formula.likelihood,
        formula.link,
        len(formula.levels or ()),
        {name: densities(prior, away.get(name, 0.0)) for name, prior in own.items()},
        rounded(units.scale),
        rounded(units.base - formula.origin),
        rounded(units.shift - formula.far_intercept),
        rounded(units.scale / np.asarray(units.unit)),
        rounded(np.divide(units.centre, units.unit)),
        rounded(units.scale / np.asarray(units.group_unit)),
        None if formula.numbers is None else jnp.asarray(formula.numbers),
        tuple(predictor_of(own, formula.log_unit(own.name)) for own in formula.own),
    )
