"""Models written in NumPyro, unchanged: the flat function that its author would give to NUTS.

The function is run on blocks. Wherever one density is wanted of each group or row, it is run with as
many groups as there are rows, row r in group r, each with its own copy of z: then row r's log density
depends on that copy alone, and all of them come from one run of the function.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.frontends.numpyro.agreement import check_agreement
from ramify.frontends.numpyro.arguments import (
    Arguments,
    Refused,
    example_row,
    read_arguments,
    repeated,
)
from ramify.frontends.numpyro.centring import centred, decentred
from ramify.frontends.numpyro.layout import Layout, Level, Place, sort_sites
from ramify.frontends.numpyro.program import Program
from ramify.frontends.numpyro.sites import draw, from_values, run
from ramify.models.model import Model
from ramify.models.parameters import Named, Space
from ramify.numerics.precision import computing

What = tuple[Literal["term", "value", "observed"], Level]


@computing
def from_numpyro(
    fn: Callable[..., Any],
    groups: Groups,
    *,
    plate: str | None = None,
    index: str | None = None,
    size: str | None = None,
    outcome: str | None = None,
    centre: bool = True,
) -> "NumpyroModel":
    """A model from a NumPyro function, as it would be given to NUTS.

    Its arguments are found by name: columns of the groups (row columns [R, ...], group columns
    [B, ...]), the group number of each row and the number of groups. An argument for the outcome
    whose default is None is left out for prediction. Sites are sorted by what their sizes depend
    on: latent sites with a value for each group are that group's z, other latent sites are theta.
    Sizes inside the function must come from its arguments. A function that takes no group numbers
    is one for groups of a single row each.

    Args:
        fn: the model, possibly wrapped in handlers such as `reparam`.
        groups: the data. A few rows are used to look at the model; it can be fitted to others.
        plate: name of the group plate, to have it checked that the groups' sites are in it.
        index: name of the argument with each row's group number; by default the groups' `by`.
        size: name of the argument with the number of groups; by default `n_` and the `by`.
        outcome: the observed site that `predict` draws, where there are several.
        centre: take LocScaleReparam off the groups' sites. It is there for samplers, which follow
            theta and z together; where z is integrated out for each theta, the centred form is
            better, since then the rows tell of z whatever theta is. False keeps the model as it is.

    Raises:
        ValueError: if the model is outside of what Ramify fits; the message names the site and says
            what to do.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def schools(error, y=None, *, school, n_school):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 5))
        ...     tau = numpyro.sample("tau", dist.HalfCauchy(5))
        ...     with numpyro.plate("schools", n_school):
        ...         effect = numpyro.sample("effect", dist.Normal(mu, tau))
        ...     with numpyro.plate("rows", error.shape[0]):
        ...         numpyro.sample("y", dist.Normal(effect[school], error), obs=y)
        >>> table = {"school": ["A", "B"], "y": [28.0, 8.0], "error": [15.0, 10.0]}
        >>> groups = Groups.from_table(table, by="school", rows=["y", "error"])
        >>> from_numpyro(schools, groups)
        NumpyroModel(theta: mu [], tau [] positive; z: effect []; observed: y)
    """
    try:
        arguments = read_arguments(fn, groups, index, size)
        layout = sort_sites(fn, arguments, groups, plate)
        away, written = decentred(layout), fn
        if centre and away:
            written = centred(fn, away)
            layout = sort_sites(written, arguments, groups, plate)
        model = NumpyroModel(written, arguments, layout, groups, outcome)
        model.layout = layout.without(check_agreement(model, groups))
        return model
    except Refused as refused:
        inner = getattr(fn, "func", fn)  # of a functools.partial
        name = getattr(inner, "__name__", type(inner).__name__)
        raise ValueError(f"from_numpyro({name}): {refused}") from refused.__cause__


@final
class NumpyroModel(Model):
    """A NumPyro model seen as the three densities of a block; made by `from_numpyro`.

    Attributes:
        fn: the function.
        layout: where each of its sites belongs.
        arguments: what the function is called with.
        outcome: the observed site that `simulate` draws.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: Arguments,
        layout: Layout,
        groups: Groups,
        outcome: str | None = None,
    ):
        """Keeps one row of the data, to stand in where no row is looked at."""
        if outcome is not None and outcome not in layout.outcomes:
            known = ", ".join(layout.outcomes) or "none"
            raise Refused(
                f'outcome="{outcome}" is not a site observed in the rows; those: {known}.'
            )
        self.theta, self.z = Space(layout.theta), Space(layout.z)
        self.layout, self.arguments = layout, arguments
        only = next(iter(layout.outcomes)) if len(layout.outcomes) == 1 else None
        self.fn, self.outcome = fn, outcome or only
        self._row = example_row({n: groups.rows[n] for n in arguments.rows})
        self._group = example_row({n: groups.group[n] for n in arguments.group})
        self._programs: dict[Any, Program] = {}

    def __repr__(self) -> str:
        """The parameters with their shapes and supports, and the other sites."""
        layout = self.layout
        observed = [n for n in layout.terms if n not in layout.theta and n not in layout.z]
        words = {"observed": observed, "deterministic": layout.deterministics}
        words["left out"] = layout.left_out
        rest = "".join(f"; {title}: {', '.join(names)}" for title, names in words.items() if names)
        return f"{super().__repr__()[:-1]}{rest})"

    @property
    def can_simulate(self) -> bool:
        """Whether there is an outcome to draw, and no doubt which."""
        return self.outcome is not None

    def log_prior(self, theta: Float[Array, " D"]) -> Float[Array, ""]:
        """Log p(theta) of the unconstrained theta, Jacobian included."""
        terms = self.theta_terms(theta)
        return sum(terms.values(), self.theta.constrain(theta)[1])

    def log_local(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Float[Array, " B"]:
        """Log p(z_i | theta, u_i) of each place, and of what is observed of the group itself."""
        terms = self.z_terms(theta, z, batch.group)
        return sum(terms.values(), jax.vmap(self.z.constrain)(z)[1])

    def log_lik(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, " R"]:
        """Log p(y_ij | theta, z_i, x_ij) of each row, given each row's own copy of its z."""
        terms = self.row_terms(theta, z_rows, batch.rows, batch.group_at_rows())
        return sum(terms.values(), jnp.zeros(z_rows.shape[0], z_rows.dtype))

    def theta_terms(self, theta: Float[Array, " D"]) -> Named:
        """The log density of each site of theta, [], without Jacobians."""
        return self._evaluate(("term", "theta"), theta, self._nobody(1), None, None)

    def z_terms(self, theta: Float[Array, " D"], z: Float[Array, "n M"], group: Named) -> Named:
        """The log density of each site of the groups, [n], without Jacobians."""
        return self._evaluate(("term", "z"), theta, z, None, group)

    def row_terms(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], rows: Named, group: Named
    ) -> Named:
        """The log density of each site of the rows, [R]; group columns are those of each row."""
        return self._evaluate(("term", "row"), theta, z_rows, rows, group)

    def global_values(self, theta: Float[Array, " D"]) -> Named:
        """Named constrained values of theta, and the deterministic sites that follow from them."""
        return self.theta.values(theta) | self.theta_deterministics(theta)

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Named constrained z of each place, [B, ...], and its deterministic sites."""
        return jax.vmap(self.z.values)(z) | self.z_deterministics(theta, z, batch.group)

    def theta_deterministics(self, theta: Float[Array, " D"]) -> Named:
        """The deterministic sites that follow from theta alone."""
        return self._evaluate(("value", "theta"), theta, self._nobody(1), None, None)

    def z_deterministics(
        self, theta: Float[Array, " D"], z: Float[Array, "n M"], group: Named
    ) -> Named:
        """The deterministic sites of the groups, [n, ...]."""
        return self._evaluate(("value", "z"), theta, z, None, group)

    def observed(self, batch: Batch) -> Named:
        """The values of the sites observed in the rows, [R, ...]."""
        theta, z = jnp.zeros(self.theta.size), self._nobody(batch.segment.shape[0])
        return self._evaluate(("observed", "row"), theta, z, batch.rows, batch.group_at_rows())

    def log_lik_sites(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """The log likelihood of each row, [R], for each site observed in the rows."""
        return self.row_terms(theta, z_rows, batch.rows, batch.group_at_rows())

    def simulate(
        self,
        key: PRNGKeyArray,
        theta: Float[Array, " D"],
        z_rows: Float[Array, "R M"],
        batch: Batch,
    ) -> Array:
        """A new outcome for each row, [R, ...]: the model run forward, latent sites as given.

        Outcome columns are None where the model allows it, as in `numpyro.infer.Predictive`; where
        it does not, its data stand in, and the observed sites are drawn all the same.
        """
        if self.outcome is None:
            raise ValueError(self._no_outcome())
        rows, absent = dict(batch.rows), repeated(self._row, z_rows.shape[0])
        for column in {c for columns in self.layout.outcomes.values() for c in columns}:
            if column in self.arguments.optional:
                rows.pop(column, None)
            elif column not in rows:
                rows[column] = absent[column]
        named = self._named(z_rows.shape[0], rows, batch.group_at_rows())
        again = frozenset(self.layout.outcomes)
        values = draw(key, self.fn, named, self.latent_values(theta, z_rows), again)
        return self.layout.terms[self.outcome].per_item(values[self.outcome])

    def _no_outcome(self) -> str:
        if self.layout.outcomes:
            return (
                f"predict draws one outcome, and the model observes {', '.join(self.layout.outcomes)} "
                'in its rows: name one, from_numpyro(fn, groups, outcome="...").'
            )
        return (
            "predict draws an outcome for each row, and the model observes none in its rows: a "
            "numpyro.factor has a density and nothing to draw from. Observe the outcome in a "
            'numpyro.sample("...", distribution, obs=...), or simulate it from posterior.sample().'
        )

    def check(self, batch: Batch) -> None:
        """Raises if the data lack a column of the model's, or have it in another shape."""
        for kind, mine, theirs in (
            ("row", self._row, batch.rows),
            ("group", self._group, batch.group),
        ):
            for name, column in mine.items():
                got = theirs[name].shape[1:] if name in theirs else None
                if got != column.shape[1:]:
                    raise ValueError(
                        f'the model was made for a {kind} column "{name}" with elements of shape '
                        f"{list(column.shape[1:])}; the data has "
                        + ("no such column." if got is None else f"elements of {list(got)}.")
                    )

    def _evaluate(
        self, what: What, theta: Array, z: Array, rows: Named | None, group: Named | None
    ) -> Named:
        """Some of the model's sites with each row a group of its own, traced once for each shape.

        Where columns are None nobody looks at them: copies of one row stand in.
        """
        if not self._asked(what):
            return {}  # a fit without its data has no columns, and needs none
        rows = None if rows is None else _taken(self._row, rows)
        group = None if group is None else _taken(self._group, group)
        leaves, tree = jax.tree.flatten((theta, z, rows, group))
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        if (what, shapes) not in self._programs:
            pick = lambda *x: self._pick(what, *x)  # noqa: E731
            self._programs[what, shapes] = Program(pick, *jax.tree.unflatten(tree, shapes))
        return self._programs[what, shapes](theta, z, rows, group)

    def _asked(self, what: What) -> dict[str, Place]:
        """The sites that are meant, and where they belong."""
        kind, level = what
        places = self.layout.deterministics if kind == "value" else self.layout.terms
        names = self.layout.outcomes if kind == "observed" else places
        return {n: places[n] for n in names if places[n].level == level}

    def _pick(
        self, what: What, theta: Array, z: Array, rows: Named | None, group: Named | None
    ) -> Named:
        n = z.shape[0]
        rows = repeated(self._row, n) if rows is None else rows
        group = repeated(self._group, n) if group is None else group
        sites = run(self.fn, self._named(n, rows, group), from_values(self.latent_values(theta, z)))
        if what[0] == "term":
            return {n: place.summed(sites[n].log_prob) for n, place in self._asked(what).items()}
        return {n: place.per_item(sites[n].value) for n, place in self._asked(what).items()}

    def _named(self, n: int, rows: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments where each of n rows is a group of its own."""
        return self.arguments.bind(np.arange(n, dtype=np.int32), n, rows, group)

    def latent_values(self, theta: Array, z: Array) -> Named:
        """The values of the latent sites, shaped as the function knows them."""
        local = jax.vmap(self.z.values)(z)
        axes = self.layout.axes
        return self.theta.values(theta) | {n: jnp.moveaxis(v, 0, axes[n]) for n, v in local.items()}

    def _nobody(self, n: int) -> Float[Array, "n M"]:
        return jnp.zeros((n, self.z.size))


def _taken(names: Mapping[str, Any], columns: Named) -> Named:
    for name in names:
        if name not in columns:
            raise ValueError(
                f'the model needs the column "{name}", and the data at hand has '
                f"{', '.join(columns) or 'none'}: pass groups= with all columns of the fit."
            )
    return {name: columns[name] for name in names}
