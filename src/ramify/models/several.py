"""SeveralModel: a model of log densities with several grouping factors.

A row's density depends on theta and one vector v: the unconstrained effects of its levels of all
factors, side by side in an order that the fit decides. The density of a level's effects depends on
those, and on the effects of the levels that it is nested in.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.models.parameters import Named, Parameter, Space

Order = tuple[int, ...]  # of the factors, by their places among those of the model
Effects = dict[str, Named]  # by factor and name


class SeveralModel:
    """A model p(theta) prod_f prod_l p(z_fl | theta) prod_r p(y_r | theta, z of its levels, x_r).

    `rf.Model` makes one where `z` is given by factor.

    Attributes:
        theta: the space of theta.
        z: the space of each factor's effects, by the factor's name.
        around: for a factor whose effects are drawn around those of others, the names of these.
    """

    several_factors = True  # functions for one factor check this
    around: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        theta: Mapping[str, Parameter],
        z: Mapping[str, Mapping[str, Parameter]],
        densities: tuple[Callable[..., Array], Mapping[str, Callable[..., Array]], Any],
        simulate: Callable[..., Array] | None = None,
    ):
        """`densities` are log_prior, log_local by factor and log_lik, as `rf.Model` has them."""
        self.theta, self.z = Space(theta), {factor: Space(own) for factor, own in z.items()}
        self._log_prior, self._log_local, self._log_lik = densities
        self._simulate = simulate

    def __repr__(self) -> str:
        names = lambda space: ", ".join(
            f"{name} {list(p.shape)}" for name, p in space.parameters.items()
        )
        own = "; ".join(f"z[{factor!r}]: {names(space)}" for factor, space in self.z.items())
        return f"Model(theta: {names(self.theta)}; {own})"

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the factors."""
        return tuple(self.z)

    @property
    def can_simulate(self) -> bool:
        """Whether the model can make new outcomes."""
        return self._simulate is not None

    def slots(self, order: Order) -> list[slice]:
        """Where the effects of each factor are in v, in the model's order of the factors."""
        found, start = {}, 0
        for f in order:
            size = self.z[self.factors[f]].size
            found[f] = slice(start, start + size)
            start += size
        return [found[f] for f in range(len(self.factors))]

    def effects(self, v: Float[Array, " V"], order: Order) -> Effects:
        """The effects of all factors by name, constrained."""
        slots = self.slots(order)
        return {
            n: space.values(v[own]) for (n, space), own in zip(self.z.items(), slots, strict=True)
        }

    def log_prior(self, theta: Float[Array, " D"]) -> Float[Array, ""]:
        """Log p(theta) of the unconstrained theta, Jacobian included."""
        values, log_det = self.theta.constrain(theta)
        return self._log_prior(values) + log_det

    def log_local(
        self,
        factor: int,
        theta: Float[Array, " D"],
        v: Float[Array, " V"],
        group: Named,
        order: Order,
    ) -> Float[Array, ""]:
        """Log p(z | theta) of a level's unconstrained effects, Jacobian included."""
        name = self.factors[factor]
        log_det = self.z[name].constrain(v[self.slots(order)[factor]])[1]
        return self._local(name, self.theta.values(theta), self.effects(v, order), group) + log_det

    def _local(self, factor: str, theta: Named, z: Effects, group: Named) -> Float[Array, ""]:
        return self._log_local[factor](theta, z[factor], group)

    def log_lik(
        self, theta: Float[Array, " D"], v: Float[Array, " V"], row: Named, order: Order
    ) -> Float[Array, ""]:
        """Log p(y | theta, z) of one row."""
        return self._log_lik(self.theta.values(theta), self.effects(v, order), row)

    def simulate(
        self,
        key: PRNGKeyArray,
        theta: Float[Array, " D"],
        v: Float[Array, " V"],
        row: Named,
        order: Order,
    ) -> Array:
        """A new outcome of one row."""
        if self._simulate is None:
            raise ValueError(
                "predict needs a model that can make new outcomes; give Model a "
                "simulate=lambda key, theta, z, row: ... that returns one row's outcome."
            )
        return self._simulate(key, self.theta.values(theta), self.effects(v, order), row)

    def check(self, row: Any, group: Mapping[str, Any], scalar: Callable[..., None]) -> None:
        """Raises if one of the user's functions returns a wrong type or shape, or lacks a column.

        Columns are given by their shapes; `scalar(what, density, *arguments)` checks one density.
        """
        flat = lambda space: jax.ShapeDtypeStruct((space.size,), jnp.result_type(float))
        theta = jax.eval_shape(self.theta.values, flat(self.theta))
        z = {n: jax.eval_shape(space.values, flat(space)) for n, space in self.z.items()}
        scalar("log_prior(theta)", self._log_prior, theta)
        for name, density in self._log_local.items():
            what = f"log_local[{name!r}](theta, z, group)"
            scalar(what, density, theta, z[name], group[name])
        scalar("log_lik(theta, z, row)", self._log_lik, theta, z, row)
