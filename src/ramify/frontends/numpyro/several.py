"""NumPyro functions with several group plates, as models of one row and one level.

The function is run on a single row, with one level of every factor: the density of that row, and of each
of these levels, then depends on its own effects alone. Sites are sorted as for one factor, by what their
sizes depend on.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import constraints

from ramify.data.groups import Groups
from ramify.data.levels import nesting
from ramify.frontends.numpyro.arguments import Fn, Refused
from ramify.frontends.numpyro.program import Program
from ramify.frontends.numpyro.sites import Seen, draw, from_noise, from_values, run
from ramify.models.parameters import Named, Parameter, Space
from ramify.models.several import Effects, Order, SeveralModel

ROW = -1  # where a site that is observed in the rows belongs
THETA = -2


class Call(NamedTuple):
    """The role of each argument of the function."""

    factors: tuple[str, ...]
    index: dict[int, str]  # pyright: ignore[reportIncompatibleMethodOverride]  # the rows' levels
    size: dict[int, str]  # the number of levels
    outer: dict[str, tuple[int, int]]  # the level of one factor that each level of another is in
    rows: tuple[str, ...]
    group: dict[str, int]  # the factor of a group column
    optional: frozenset[str]  # arguments with default None
    unread: tuple[str, ...] = ()  # columns of the data that the function does not take

    @property
    def empty(self) -> list[str]:
        """Arguments that are None, since the data has no column for them."""
        taken = *self.rows, *self.group, *self.outer, *self.index.values(), *self.size.values()
        return sorted(self.optional.difference(taken))

    def bind(self, block: "Several", rows: Mapping[str, Any], group: Mapping[str, Any]) -> dict:
        """Keyword arguments for these rows and levels; a column that may be missing is None."""
        named = {
            n: rows[n] if n in rows else None for n in self.rows if n in rows or n in self.optional
        }
        named |= {n: group[n] for n in self.group}
        named |= {n: block.index[f] for f, n in self.index.items()}
        named |= {n: block.sizes[f] for f, n in self.size.items()}
        within = lambda pair: np.arange(block.sizes[pair[0]], dtype=np.int32) % block.sizes[pair[1]]
        return named | {n: within(pair) for n, pair in self.outer.items()}


class Several(NamedTuple):
    """Rows in made-up levels of every factor."""

    sizes: tuple[int, ...]
    index: list[np.ndarray]  # pyright: ignore[reportIncompatibleMethodOverride]


def block_of(sizes: tuple[int, ...], n: int) -> Several:
    """Some rows, spread over some levels of each factor; nested factors stay nested."""
    return Several(sizes, [(np.arange(n) % size).astype(np.int32) for size in sizes])


class Site(NamedTuple):
    """A site after a run: shapes in place of arrays."""

    seen: Seen
    value: tuple[int, ...]
    log_prob: tuple[int, ...]


def read_call(fn: Fn, groups: Groups) -> Call:
    """Matches the function's arguments to the data by name; refuses those it can't supply."""
    parameters = inspect.signature(fn).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes = lambda name: name in named or open_ended
    names = [factor.name.replace(":", "_") for factor in groups.factors]
    index = {f: n for f, n in enumerate(names) if takes(n)}
    size = {f: f"n_{n}" for f, n in enumerate(names) if takes(f"n_{n}")}
    outer = {
        f"{names[g]}_of_{names[f]}": (f, g)
        for f in range(len(names))
        for g in range(len(names))
        if f != g and f"{names[g]}_of_{names[f]}" in named
    }
    for argument, (f, g) in outer.items():
        if not nesting(groups.levels(f), groups.levels(g)):
            raise Refused(
                f'the model asks for "{argument}", and {names[f]} is not nested in {names[g]}.'
            )
    rows = tuple(n for n in groups.rows if not n.startswith("level_") and takes(n))
    group = {n: f for f, own in enumerate(groups.level_columns) for n in own if takes(n)}
    supplied = {*index.values(), *size.values(), *outer, *rows, *group}
    for name, parameter in named.items():
        if name not in supplied and parameter.default is parameter.empty:
            levels = ", ".join(f'"{n}" and "n_{n}"' for n in names)
            raise Refused(
                f'the model asks for "{name}", which the data does not have. It can be called with '
                f"columns of the data ({', '.join([*rows, *group])}), the rows' levels and the number of "
                f'levels of each factor ({levels}) and, where factors are nested, "<outer>_of_<inner>". '
                "Constants are bound beforehand: functools.partial."
            )
    for f, name in enumerate(names):
        if f not in index or f not in size:
            raise Refused(
                f'the data is grouped by "{name}" as well, and the model takes no "{name}" and '
                f'"n_{name}". Add them, or leave the factor out of by=.'
            )
    columns = [n for n in groups.rows if not n.startswith("level_")]
    columns += [n for own in groups.level_columns for n in own]
    optional = frozenset(n for n, p in named.items() if p.default is None)
    own = optional, tuple(n for n in columns if n not in supplied)
    return Call(tuple(f.name for f in groups.factors), index, size, outer, rows, group, *own)


def look(fn: Fn, call: Call, block: Several, rows: Any, group: Any) -> dict[str, Site]:
    """The sites of a run on a block; nothing is computed."""
    found: dict[str, Site] = {}

    def probe(key: PRNGKeyArray, rows: Any, group: Any) -> Any:
        seen = run(fn, call.bind(block, rows, group), from_noise(key))
        for name, site in seen.items():
            log_prob = () if site.log_prob is None else site.log_prob.shape
            found[name] = Site(site, site.value.shape, log_prob)
        return {name: site.value for name, site in seen.items()}

    try:
        jax.eval_shape(probe, jax.random.key(0), rows, group)
    except Refused:
        raise
    except Exception as error:
        sizes = ", ".join(f"n_{n} = {s}" for n, s in zip(call.factors, block.sizes, strict=True))
        raise Refused(
            f"the model fails on a small block of the data ({sizes}, {len(block.index[0])} rows): "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    return found


class Sorted(NamedTuple):
    """The sites of a function, sorted."""

    theta: dict[str, Parameter]
    z: dict[str, dict[str, Parameter]]
    axes: dict[str, int]  # which axis of a level's site counts the levels
    places: dict[str, int]  # the factor of each sample site; THETA, or ROW
    observed: tuple[str, ...]  # in the rows
    decentred: frozenset[str]  # sites that LocScaleReparam has made deterministic
    left_out: tuple[str, ...]  # deterministic sites, which results leave out


def sort_sites(fn: Fn, call: Call, groups: Groups) -> Sorted:
    """Runs the function on two small blocks and sorts its sites, or refuses it."""
    count = len(call.factors)
    blocks = [block_of(tuple(k + 2 * f for f in range(count)), n) for k, n in ((3, 23), (4, 29))]
    one, two = (look(fn, call, own, *columns_for(call, groups, own)) for own in blocks)
    if list(one) != list(two):
        raise Refused("the model has other sites for other numbers of levels or rows.")
    sizes = [(a, b) for a, b in zip(blocks[0].sizes, blocks[1].sizes, strict=True)] + [(23, 29)]
    drawn = [n for n, site in one.items() if site.seen.kind == "sample"]
    theta, z, axes, places = {}, {name: {} for name in call.factors}, {}, {}
    for name in drawn:
        what = "log_prob" if one[name].seen.observed else "value"
        place, axis = _place(name, getattr(one[name], what), getattr(two[name], what), sizes)
        places[name] = place
        if one[name].seen.observed:
            if place != ROW:
                raise Refused(
                    f'site "{name}" is observed, and has no log density for each row: put it in '
                    'numpyro.plate("rows", ...). With several factors only rows are observed.'
                )
            continue
        if place == ROW:
            raise Refused(
                f'site "{name}" is latent and has a value for each row. Sum or integrate it out.'
            )
        parameter = _parameter(name, one[name], None if place == THETA else axis)
        if place == THETA:
            theta[name] = parameter
        else:
            own = _place(name, one[name].log_prob, two[name].log_prob, sizes)[0]
            if own != place:
                raise Refused(
                    f'site "{name}" has a value for each level and one log density for all of them: put '
                    f'it in numpyro.plate("...", {call.size[place]}).'
                )
            z[call.factors[place]][name], axes[name] = parameter, axis
    _check_sorted(call, theta, z)
    rows = tuple(n for n in drawn if places[n] == ROW and not one[n].seen.factor)
    away = {n.removesuffix("_decentered") for n in axes if n.endswith("_decentered")}
    told = tuple(n for n, site in one.items() if site.seen.kind == "deterministic")
    return Sorted(theta, z, axes, places, rows, frozenset(away & {*told}), told)


def _check_sorted(call: Call, theta: Any, z: dict[str, Any]) -> None:
    for f, name in enumerate(call.factors):
        if not z[name]:
            raise Refused(
                f'no latent site belongs to "{name}": none has an axis of {call.size[f]}. Put its '
                f'sites in numpyro.plate("...", {call.size[f]}), or leave the factor out of by=.'
            )
    if not theta:
        raise Refused("every latent site belongs to a level, so that nothing is shared.")


def _place(name: str, first: Any, second: Any, sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """The place of a site, and its axis: the factor whose levels the axis counts, ROW, or THETA."""
    grown = [(i, p) for i, p in enumerate(zip(first, second, strict=False)) if p[0] != p[1]]
    if not grown:
        return THETA, 0
    if len(grown) > 1 or grown[0][1] not in sizes:
        raise Refused(
            f'site "{name}" has shape {list(first)} on one block and {list(second)} on another: it may '
            "belong to each level of one factor or to each row, not to pairs of them."
        )
    axis, pair = grown[0]
    place = sizes.index(pair)
    return (ROW if place == len(sizes) - 1 else place), axis


def _parameter(name: str, site: Site, axis: int | None) -> Parameter:
    """Shape and support of a site; for one of levels, those it has in one level."""
    support: Any = site.seen.support
    while isinstance(support, constraints.independent):  # independent reals are reals
        support = support.base_constraint
    traced = lambda b: isinstance(b, jax.core.Tracer)  # pyright: ignore[reportAttributeAccessIssue]
    if any(np.ndim(b) or traced(b) for b in jax.tree.leaves(support)):
        raise Refused(
            f'the support of site "{name}" depends on other sites or differs between levels. Draw a site '
            "with a fixed support and move it: u ~ Uniform(0, 1), then low + (high - low) * u."
        )
    shape = list(site.value)
    if axis is not None:
        del shape[axis]
    return Parameter(tuple(shape), support)


def columns_for(
    call: Call, groups: Groups, block: Several
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Row and group columns for a block, from all over the data."""
    n = len(block.index[0])
    some = lambda column, count: column[np.linspace(0, len(column) - 1, count).astype(int)]
    rows = {name: some(groups.rows[name], n) for name in call.rows}
    group = {
        name: some(groups.level_columns[f][name], block.sizes[f]) for name, f in call.group.items()
    }
    return rows, group


@final
class NumpyroSeveral(SeveralModel):
    """A model made by `from_numpyro` with several group plates."""

    def __init__(self, fn: Fn, call: Call, sites: Sorted, groups: Groups, outcome: str | None):  # pyright: ignore[reportMissingSuperCall]
        self.theta = Space(sites.theta)
        self.z = {name: Space(own) for name, own in sites.z.items()}
        self.fn, self.call, self.sites = fn, call, sites
        if outcome is not None and outcome not in sites.observed:
            raise Refused(
                f'outcome="{outcome}" is not a site observed in the rows; those: '
                f"{', '.join(sites.observed) or 'none'}."
            )
        own = sites.observed
        self.outcome = outcome or (own[0] if len(own) == 1 else None)
        self.one = block_of((1,) * len(call.factors), 1)
        self.example = columns_for(call, groups, self.one)
        self.around = {name: self._seen_by(f) for f, name in enumerate(self.factors)}

    def __repr__(self) -> str:
        words = {"observed": self.sites.observed, "left out": self.sites.left_out}
        words["columns not read"] = self.call.unread
        rest = "".join(f"; {title}: {', '.join(names)}" for title, names in words.items() if names)
        return f"Numpyro{super().__repr__()[:-1]}{rest})"

    @property
    def can_simulate(self) -> bool:
        """Whether there is exactly one outcome to draw, or one was named."""
        return self.outcome is not None

    def latent(self, theta: Named, z: Effects) -> Named:
        """The values of all latent sites, of one level of each factor."""
        axes = self.sites.axes
        own = {n: jnp.expand_dims(v, axes[n]) for level in z.values() for n, v in level.items()}
        return {**theta, **own}

    def terms(self, theta: Named, z: Effects, row: Named, place: int) -> Float[Array, ""]:
        """The log densities of the sites of one place, on one row and one level of each factor."""
        rows, group = self._columns(row)
        named = self.call.bind(self.one, rows, group)
        sites = run(self.fn, named, from_values(self.latent(theta, z)))
        own = [n for n, where in self.sites.places.items() if where == place]
        return sum((jnp.sum(sites[n].log_prob) for n in own), jnp.zeros(()))

    def _columns(self, row: Named) -> tuple[dict[str, Any], dict[str, Any]]:
        rows, group = self.example
        lifted = {n: jnp.asarray(c)[None] for n, c in row.items()}
        return {**rows, **{n: c for n, c in lifted.items() if n in rows}}, {
            **group,
            **{n: c for n, c in lifted.items() if n in group},
        }

    def _nothing(self) -> Effects:
        return {name: space.values(jnp.zeros(space.size)) for name, space in self.z.items()}

    def log_prior(self, theta: Float[Array, " D"]) -> Float[Array, ""]:
        """Log p(theta) of the unconstrained theta, Jacobian included."""
        values, log_det = self.theta.constrain(theta)
        return self.terms(values, self._nothing(), {}, THETA) + log_det

    def _local(self, factor: str, theta: Named, z: Effects, group: Named) -> Float[Array, ""]:
        return self.terms(theta, z, group, self.factors.index(factor))

    def log_lik(
        self, theta: Float[Array, " D"], v: Float[Array, " V"], row: Named, order: Order
    ) -> Float[Array, ""]:
        """Log p(y | theta, z) of one row."""
        return self.terms(self.theta.values(theta), self.effects(v, order), row, ROW)

    def simulate(
        self,
        key: PRNGKeyArray,
        theta: Float[Array, " D"],
        v: Float[Array, " V"],
        row: Named,
        order: Order,
    ) -> Array:
        """A new outcome of one row: the function run forward, latent sites as given."""
        if self.outcome is None:
            raise ValueError(
                "predict draws one outcome, and the model observes "
                f'{", ".join(self.sites.observed) or "none"}: name one, from_numpyro(..., outcome="...").'
            )
        rows, group = self._columns(row)
        rows = {n: c for n, c in rows.items() if n in row or n not in self.call.optional}
        latent = self.latent(self.theta.values(theta), self.effects(v, order))
        named = self.call.bind(self.one, rows, group)
        return draw(key, self.fn, named, latent, frozenset(self.sites.observed))[self.outcome][0]

    def check(self, row: Any, group: Mapping[str, Any], scalar: Any) -> None:
        """Raises if the data lack a column of the model's."""
        for name in self.call.rows:
            if name not in row and name not in self.call.optional:
                raise ValueError(f'the model needs the row column "{name}", which the data lacks.')

    def _seen_by(self, factor: int) -> tuple[str, ...]:
        """The factors whose effects the prior of another factor's effects depends on."""
        theta, sizes = jnp.zeros(self.theta.size), [space.size for space in self.z.values()]

        def density(*own: Array) -> Array:
            z = {n: space.values(v) for (n, space), v in zip(self.z.items(), own, strict=True)}
            return self.terms(self.theta.values(theta), z, {}, factor)

        program = Program(density, *(jnp.zeros(size) for size in sizes))
        flags = lambda f: [g == f for g in range(len(sizes))]
        others = [f for f in range(len(sizes)) if f != factor and program.reached(flags(f))]
        return tuple(self.factors[f] for f in others)
