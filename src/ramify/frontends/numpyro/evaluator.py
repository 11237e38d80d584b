"""Evaluator: the sites of a NumPyro function on a block, one log density or value per group or row.

The function is run with as many groups as there are rows: row r is in group r, with its own copy of z.
The log density of row r then depends on that copy alone, and one run gives all of them.
"""

from collections.abc import Mapping
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ramify.data.groups import Groups
from ramify.frontends.numpyro.arguments import Arguments, Fn, repeated, small_block
from ramify.frontends.numpyro.layout import Level, Place, SiteLayout
from ramify.frontends.numpyro.program import Program
from ramify.frontends.numpyro.sites import Seen, from_values, joined, normal_of, run
from ramify.models.parameters import Named, Space
from ramify.models.structure import Normal

Kind = Literal["term", "value", "observed", "normal"]
What = tuple[Kind, Level]


@final
class Evaluator:
    """Evaluates the sites of a NumPyro function, for its model and its adapter."""

    def __init__(self, fn: Fn, arguments: Arguments, layout: SiteLayout, groups: Groups):
        self.fn, self.arguments, self.layout = fn, arguments, layout
        self.theta, self.z = Space(layout.theta), Space(layout.z)
        one = small_block(arguments, groups, 1, 1)  # for sites that do not depend on columns
        self.row, self.group = one.rows, one.group
        self._programs: dict[Any, Program] = {}

    def evaluate(
        self,
        kind: Kind,
        level: Level,
        theta: Array,
        z: Array | None = None,
        rows: Named | None = None,
        group: Named | None = None,
    ) -> Named:
        """Some sites of the function, with each row a group of its own; traced once for each shape.

        "term": log densities, without Jacobians; "value": deterministic sites; "observed": observed
        ones; "normal": mean and root of the groups' sites together, where these are normal. z is
        [n, M]; it and the columns are None where the sites do not depend on them. Returns name ->
        [n, ...], or [...] for the sites of theta.
        """
        what: What = kind, level
        z = jnp.zeros((1, self.z.size)) if z is None else z
        if not self._asked(*what):
            return {}  # no columns are needed then, which a fit without its data does not have
        rows, group = _taken(self.row, rows), _taken(self.group, group)
        leaves, tree = jax.tree.flatten((theta, z, rows, group))
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        if (what, shapes) not in self._programs:
            pick = lambda *x: self._pick(what, *x)
            self._programs[what, shapes] = Program(pick, *jax.tree.unflatten(tree, shapes))
        return self._programs[what, shapes](theta, z, rows, group)

    def normal_prior(self, theta: Array, group: Named, n: int) -> Normal:
        """p(z_i | theta, u_i) of n groups, for a model that `has_normal_prior`."""
        found = self.evaluate("normal", "z", theta, jnp.zeros((n, self.z.size)), group=group)
        return Normal(found["mean"], found["root"])

    def has_normal_prior(self) -> bool:
        """Whether all sites of a group are latent and normal, with parameters that are free of z."""
        if {n for n, p in self.layout.terms.items() if p.level == "z"} != {*self.layout.z}:
            return False
        theta, z, columns = jnp.zeros(self.theta.size), jnp.zeros((3, self.z.size)), self.group
        pick = lambda theta, z, columns: self._pick(("normal", "z"), theta, z, None, columns)
        program = Program(pick, theta, z, repeated(columns, 3))
        flags = [False, True, *(False for _ in columns)]
        return bool(program.shapes) and not any(program.reached(flags).values())

    def latent_values(self, theta: Array, z: Array) -> Named:
        """The values of the latent sites, in the shapes of the function."""
        local = jax.vmap(self.z.values)(z)
        axes = self.layout.axes
        return self.theta.values(theta) | {n: jnp.moveaxis(v, 0, axes[n]) for n, v in local.items()}

    def keywords(self, n: int, rows: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments where each of n rows is a group of its own."""
        return self.arguments.bind(np.arange(n, dtype=np.int32), n, rows, group)

    def _asked(self, kind: Kind, level: Level) -> dict[str, Place]:
        """The sites of this kind and level, with their places."""
        places = self.layout.deterministics if kind == "value" else self.layout.terms
        names = self.layout.outcomes if kind == "observed" else places
        return {n: places[n] for n in names if places[n].level == level}

    def _pick(
        self, what: What, theta: Array, z: Array, rows: Named | None, group: Named | None
    ) -> Named:
        n = z.shape[0]  # columns that are None do not matter: copies of one row replace them
        rows = repeated(self.row, n) if rows is None else rows
        group = repeated(self.group, n) if group is None else group
        values = from_values(self.latent_values(theta, z))
        sites = run(self.fn, self.keywords(n, rows, group), values)
        if what[0] == "normal":
            return self._normal(sites)
        if what[0] == "term":
            return {n: place.summed(sites[n].log_prob) for n, place in self._asked(*what).items()}
        return {n: place.per_item(sites[n].value) for n, place in self._asked(*what).items()}

    def _normal(self, sites: dict[str, Seen]) -> Named:
        """Mean and root of the groups' sites together; nothing if one of them is not normal."""
        parts = [normal_of(sites[name], self.layout.axes[name]) for name in self.layout.z]
        known = [part for part in parts if part is not None]
        return joined(known)._asdict() if len(known) == len(parts) else {}


def _taken(names: Mapping[str, Any], columns: Named | None) -> Named | None:
    if columns is None:
        return None
    for name in names:
        if name not in columns:
            raise ValueError(
                f'the model needs the column "{name}", and the data at hand has '
                f"{', '.join(columns) or 'none'}: pass groups= with all columns of the fit."
            )
    return {name: columns[name] for name in names}
