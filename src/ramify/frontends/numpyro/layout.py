"""Sorting a model's sites: which belong to theta, which to each group's z, which to each row.

The model is run on two blocks of different sizes. An axis whose length changes with the number of
groups or of rows is the axis of groups or rows, whatever its plate is called, with or without a plate.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from ramify.frontends.numpyro.arguments import Arguments, Block, Fn, Refused, small_block
from ramify.frontends.numpyro.program import Program
from ramify.frontends.numpyro.sites import Seen, look
from ramify.models.parameters import Parameter
from ramify.numerics.programs import EXACT

Level = Literal["theta", "z", "row"]


class Place(NamedTuple):
    """Where a site belongs, and which axis of its array counts the groups or rows."""

    level: Level
    axis: int | None

    def per_item(self, values: Any) -> Any:
        """The array with the axis of groups or rows first, if there is one."""
        return values if self.axis is None else jnp.moveaxis(values, self.axis, 0)

    def summed(self, log_prob: Any) -> Any:
        """Log densities summed to one per group or row, or to one."""
        kept = self.per_item(log_prob)
        return jnp.sum(kept, tuple(range(0 if self.axis is None else 1, kept.ndim)))


class SiteLayout(NamedTuple):
    """The sites of a model, sorted."""

    theta: dict[str, Parameter]  # latent sites that all groups share
    z: dict[str, Parameter]  # latent sites of a group, with the shape they have in one
    axes: dict[str, int]  # which axis of a z site's value counts the groups
    terms: dict[str, Place]  # for every sample site, where its log density belongs
    deterministics: dict[str, Place]  # those that can be computed block by block
    outcomes: dict[str, tuple[str, ...]]  # sites observed in the rows, with the columns of each
    left_out: tuple[str, ...]  # the other deterministic sites, which results leave out

    def without(self, deterministics: set[str]) -> "SiteLayout":
        """The layout with some deterministic sites left out."""
        kept = {n: p for n, p in self.deterministics.items() if n not in deterministics}
        more = tuple(n for n in self.deterministics if n in deterministics)
        return self._replace(deterministics=kept, left_out=(*self.left_out, *more))


class Pair(NamedTuple):
    """The sites of a model on two blocks."""

    arguments: Arguments
    blocks: tuple[Block, Block]
    seen: tuple[dict[str, Seen], dict[str, Seen]]
    program: Program  # of the first block

    def place(self, name: str, what: str) -> Place:
        """Where a site's value or log_prob belongs, by the axis that grows."""
        first, second = (getattr(seen[name], what).shape for seen in self.seen)
        grown = [(i, p) for i, p in enumerate(zip(first, second, strict=False)) if p[0] != p[1]]
        if len(first) != len(second) or len(grown) > 1:
            raise Refused(
                f'site "{name}" has shape {list(first)} on one block and {list(second)} on another: '
                f"it needs more than one axis of {self.arguments.size_name} groups or of rows. A "
                "site may belong to each group or to each row, not to pairs of them."
            )
        if not grown:
            return Place("theta", None)
        ((axis, sizes),) = grown
        one, two = self.blocks
        if sizes == (one.n_group, two.n_group):
            return Place("z", axis)
        if sizes == (one.n_rows, two.n_rows):
            return Place("row", axis)
        raise Refused(
            f'site "{name}" has an axis of {sizes[0]} for {one.n_group} groups and {one.n_rows} rows, '
            f"and of {sizes[1]} for {two.n_group} and {two.n_rows}: neither the number of groups nor "
            "that of rows."
        )

    def reads(self, name: str, what: str, columns: tuple[str, ...]) -> bool:
        """Whether a site's value or log_prob is computed from any of these row columns."""
        block, key = self.blocks[0], False
        own = {column: column in columns for column in block.rows}
        flags = jax.tree.leaves((key, own, dict.fromkeys(block.group, False)))
        return self.program.reached(flags)[name][what]


def sort_sites(fn: Fn, arguments: Arguments, groups: Any, plate: str | None) -> SiteLayout:
    """Runs the model on two small blocks and sorts its sites, or refuses it."""
    pair = _look_twice(fn, arguments, groups)
    sites = pair.seen[0]
    drawn = {n: s for n, s in sites.items() if s.kind == "sample"}
    latent = {n: pair.place(n, "value") for n, s in drawn.items() if not s.observed}
    _check_latents(pair, latent, groups)
    axes = {n: place.axis for n, place in latent.items() if place.axis is not None}
    _check_plate(pair, plate, axes)
    bounds = _bounds(pair, list(latent))
    parameters = {n: _parameter(pair, n, axes.get(n), bounds[n]) for n in latent}
    terms = {n: _term(pair, n, latent) for n in drawn}
    rows = [n for n, place in terms.items() if place.level == "row" and not sites[n].factor]
    told = {n: pair.place(n, "value") for n, s in sites.items() if s.kind == "deterministic"}
    columns = lambda n: tuple(c for c in arguments.rows if pair.reads(n, "value", (c,)))
    return SiteLayout(
        theta={n: p for n, p in parameters.items() if n not in axes},
        z={n: p for n, p in parameters.items() if n in axes},
        axes=axes,
        terms=terms,
        deterministics=told,
        outcomes={n: columns(n) for n in rows},
        left_out=(),
    ).without({n for n, place in told.items() if place.level == "row" or columns(n)})


def _look_twice(fn: Fn, arguments: Arguments, groups: Any) -> Pair:
    first, second = (small_block(arguments, groups, G, R) for G, R in ((3, 7), (4, 9)))
    (seen, program), (again, _) = (look(fn, arguments, block) for block in (first, second))
    if list(seen) != list(again):
        odd = sorted(set(seen) ^ set(again)) or list(seen)
        raise Refused(
            f'site "{odd[0]}" is in the model for some numbers of groups or rows and not for others; '
            "its sites must be the same on every block of the data."
        )
    return Pair(arguments, (first, second), (seen, again), program)


def _check_latents(pair: Pair, latent: Mapping[str, Place], groups: Any) -> None:
    size, levels = pair.arguments.size_name, {place.level for place in latent.values()}
    for name, place in latent.items():
        if place.level == "row":
            raise Refused(_row_latent(pair, name))
        if place.level == "z" and pair.place(name, "log_prob").level != "z":
            raise Refused(
                f'site "{name}" has a value for each group and one log density for all of them '
                f"together (to_event, or a distribution over all groups). Put it in "
                f'numpyro.plate("...", {size}), which keeps the groups apart.'
            )
    if "z" not in levels:
        raise Refused(_no_locals(pair, latent, len(groups)))
    if "theta" not in levels:
        raise Refused(
            f"every latent site ({', '.join(latent)}) belongs to a group, so the groups share "
            "nothing. A hierarchical model has at least one site outside the group plate."
        )
    if not any(seen.observed for seen in pair.seen[0].values()):
        raise Refused("the model observes nothing: pass a column of the data as obs= to a site.")


def _row_latent(pair: Pair, name: str) -> str:
    missing = sorted(pair.arguments.optional - {*pair.arguments.rows, *pair.arguments.group})
    hint = ""
    if name.endswith("_unobserved"):  # NumPyro's own name
        hint = (
            " If it comes of obs_mask=, for outcomes that are missing: fill their column with any "
            "possible value, and pass a boolean column to numpyro.handlers.mask around the site."
        )
    elif missing:
        hint = (
            f' If it is to be observed: the data has no row column "{missing[0]}", so the model got '
            "None there."
        )
    return (
        f'site "{name}" is latent and has a value for each row; latent sites may belong to all '
        "groups or to each group. Sum or integrate it out of the likelihood." + hint
    )


def _no_locals(pair: Pair, latent: Mapping[str, Any], N: int) -> str:
    size = pair.arguments.size_name
    for name in latent:
        if N in pair.seen[0][name].value.shape:
            plates = pair.seen[0][name].plates
            where = f'plate "{plates[0]}"' if plates else f'site "{name}"'
            return (
                f"{where} has size {N}, the number of groups in the data, for any {size}: site "
                f'"{name}" has that number hard-coded. Ramify calls the model on blocks of groups: '
                f"write {size} where it says {N}, and take {size} as an argument."
            )
    return (
        f"no latent site belongs to the groups: none of {', '.join(latent) or 'its sites'} has an "
        f'axis of {size}. Put the groups\' sites in numpyro.plate("...", {size}), where {size} is an '
        "argument of the model (size= names it otherwise)."
    )


def _check_plate(pair: Pair, plate: str | None, axes: Mapping[str, int]) -> None:
    if plate is None:
        return
    sites = pair.seen[0]
    outside = [name for name in axes if plate not in sites[name].plates]
    if len(outside) == len(axes):
        known = sorted({p for seen in sites.values() for p in seen.plates})
        raise Refused(
            f'no latent site of the groups is in a plate "{plate}" of {pair.arguments.size_name}; '
            f"the model's plates are {', '.join(known) or 'none'}."
        )
    if outside:
        raise Refused(
            f'site "{outside[0]}" has a value for each group and is not in plate "{plate}". Move it '
            "there, or leave plate= out."
        )


def _term(pair: Pair, name: str, latent: Mapping[str, Any]) -> Place:
    """Where a sample site's log density belongs."""
    place = pair.place(name, "log_prob")
    if name in latent or not pair.reads(name, "log_prob", pair.arguments.rows):
        return place
    if place.level == "theta":
        raise Refused(
            f'site "{name}" has one log density for all rows together (to_event over rows, a sum, or '
            "a distribution over all of them). Ramify needs one for each row: put the site in "
            'numpyro.plate("rows", ...) and drop the to_event.'
        )
    one_row_each = place.level == "z" and pair.arguments.index is None
    return place._replace(level="row") if one_row_each else place


def _bounds(pair: Pair, latent: list[str]) -> dict[str, list[Any]]:
    """The bounds of each latent site's support: numbers, the same whatever the parameters are."""
    given = {n: jax.tree.leaves(pair.seen[0][n].support) for n in latent}
    traced = lambda b: isinstance(b, jax.core.Tracer)  # pyright: ignore[reportAttributeAccessIssue]
    if all(np.ndim(b) == 0 and not traced(b) for bounds in given.values() for b in bounds):
        return given
    block, program = pair.blocks[0], jax.jit(pair.program, compiler_options=EXACT)
    once, again = (program(jax.random.key(k), block.rows, block.group) for k in (0, 1))
    for name in latent:
        for a, b in zip(once[name]["bounds"], again[name]["bounds"], strict=True):
            if not np.allclose(a, b):
                raise Refused(
                    f'the support of site "{name}" depends on other latent sites. Draw a site with a '
                    "fixed support and move it: u ~ Uniform(0, 1), then low + (high - low) * u in a "
                    "numpyro.deterministic."
                )
    return {n: [np.asarray(b) for b in once[n]["bounds"]] for n in latent}


def _parameter(pair: Pair, name: str, axis: int | None, bounds: list[Any]) -> Parameter:
    """Shape and support of a site: for a site of the groups, those it has in one group."""
    seen, shape = pair.seen[0][name], list(pair.seen[0][name].value.shape)
    if axis is not None:
        back = axis - len(shape)
        bounds = [_one_group(name, bound, back, shape[axis]) for bound in bounds]
        del shape[axis]
    support = jax.tree.unflatten(jax.tree.structure(seen.support), bounds)
    while isinstance(support, constraints.independent):  # independent reals are reals
        support = support.base_constraint
    return Parameter(tuple(shape), support)


def _one_group(name: str, bound: Any, back: int, n_group: int) -> Any:
    """A bound without the axis of groups, along which it must not vary."""
    if np.ndim(bound) < -back or np.shape(bound)[back] != n_group:
        return bound
    first = np.take(bound, [0], back)
    if not np.array_equal(np.broadcast_to(first, np.shape(bound)), bound):
        raise Refused(
            f'the support of site "{name}" differs from group to group. Draw a site with one support '
            "for all and move it: u ~ Uniform(0, 1), then low + (high - low) * u."
        )
    return np.squeeze(first, back)
