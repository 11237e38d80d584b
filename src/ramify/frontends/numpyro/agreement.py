"""A check that a model has the same density on blocks as on the whole data.

On a small block the function is run as its author wrote it, with group numbers that repeat, and as
Ramify runs it, with each row a group of its own and in another order. Densities that mix groups or
rows, or depend on a group's number, differ. Parts of the block are then changed one by one to find
out why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ramify.frontends.numpyro.arguments import Block, Refused, small_block
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.frontends.numpyro.layout import Level
from ramify.frontends.numpyro.sites import from_values, run
from ramify.numerics.programs import EXACT

Terms = dict[str, Any]


class Point(NamedTuple):
    """The inputs of a run."""

    theta: Any
    z: Any
    rows: dict[str, Any]
    group: dict[str, Any]


def check_agreement(evaluator: Evaluator, groups: Any) -> tuple[set[str], bool]:
    """Refuses a model whose densities mix groups or rows."""
    # Returns the deterministic sites that do, and whether p(z | theta, u) is normal.
    block = small_block(evaluator.arguments, groups, 3, 7)
    rng = np.random.default_rng(0)
    noise = lambda *shape: np.asarray(0.3 * rng.normal(size=shape), jnp.result_type(float))
    D, M = evaluator.theta.size, evaluator.z.size
    point = Point(noise(D), noise(block.n_group, M), block.rows, block.group)
    normal = evaluator.has_normal_prior()
    ways = lambda p: (_as_written(evaluator, block, p), _as_blocks(evaluator, block, p, normal))
    whole, (picked, density) = jax.jit(ways, compiler_options=EXACT)(point)
    places = evaluator.layout.terms | evaluator.layout.deterministics
    differ = {n for n in places if not np.all(_close(whole[n], picked[n]))}
    for name in evaluator.layout.terms:
        if name in differ:
            evaluate = jax.jit(
                lambda p: _as_written(evaluator, block, p),  # noqa: B023
                compiler_options=EXACT,
            )
            reason = _REASONS[_why(evaluator, block, point, evaluate, name)]
            own, rows = evaluator.arguments.index or "group", ", ".join(evaluator.arguments.rows)
            words = {"name": name, "own": own, "columns": rows}
            raise Refused(reason.format(**words, size=evaluator.arguments.size_name))
    terms = sum(picked[name] for name in evaluator.layout.z)
    return differ, normal and bool(np.all(_close(terms, density)))


def _as_written(evaluator: Evaluator, block: Block, point: Point) -> Terms:
    """Terms and values of every site as the function is written, for the rows in `_chosen` order."""
    layout, chosen = evaluator.layout, _chosen(block)
    named = evaluator.arguments.bind(block.index, block.n_group, point.rows, point.group)
    sites = run(evaluator.fn, named, from_values(evaluator.latent_values(point.theta, point.z)))
    out = {n: p.summed(sites[n].log_prob) for n, p in layout.terms.items()}
    out |= {n: p.per_item(sites[n].value) for n, p in layout.deterministics.items()}
    at: dict[Level, Any] = {"theta": ..., "z": block.index[chosen], "row": chosen}
    places = layout.terms | layout.deterministics
    return {n: jnp.asarray(value)[at[places[n].level]] for n, value in out.items()}


def _as_blocks(evaluator: Evaluator, block: Block, point: Point, normal: bool) -> tuple[Terms, Any]:
    """The same by the evaluator, and log p(z | theta, u) by mean and scale if it is normal."""
    chosen = _chosen(block)
    owner = block.index[chosen]
    z = point.z[owner]
    rows = {n: column[chosen] for n, column in point.rows.items()}
    group = {n: column[owner] for n, column in point.group.items()}
    evaluate, theta = evaluator.evaluate, point.theta
    found = evaluate("term", "theta", theta) | evaluate("term", "z", theta, z, group=group)
    found |= evaluate("term", "row", theta, z, rows, group)
    found |= evaluate("value", "theta", theta)
    found |= evaluate("value", "z", theta, z, group=group)
    prior = evaluator.normal_prior(theta, group, len(owner)) if normal else None
    return found, None if prior is None else prior.log_density(z)


def _chosen(block: Block) -> np.ndarray:
    """Some rows, out of order and with repeats."""
    return np.array([block.n_rows - 1, 1, 0, 1, block.n_rows - 2])


def _close(a: Any, b: Any) -> np.ndarray:
    return np.asarray(np.isclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True))


def _why(
    evaluator: Evaluator, block: Block, point: Point, evaluate: Callable[[Point], Terms], name: str
) -> str:
    """Which of `_REASONS` makes a log density differ, found by changing one thing at a time."""
    level, chosen = evaluator.layout.terms[name].level, _chosen(block)
    owner, before = block.index[chosen], np.asarray(evaluate(point)[name])

    def moves(changed: Point, own: np.ndarray) -> bool:
        moved = ~_close(np.asarray(evaluate(changed)[name]), before)
        return bool(moved.any() if level == "theta" else (moved & ~own).any())

    groups, rows = range(block.n_group), range(block.n_rows)
    added = lambda g: point.z + (np.arange(block.n_group) == g).astype(point.z.dtype)[:, None]
    own = lambda r: (chosen == r) & (level == "row")
    if any(moves(point._replace(z=added(g)), owner == g) for g in groups):
        shared = level == "theta" and name in evaluator.layout.theta
        return "groups, prior" if shared else f"groups, {level}"
    if any(moves(point._replace(rows=_swapped(point.rows, r)), own(r)) for r in rows):
        return f"rows, {level}"
    swapped = any(moves(point._replace(group=_swapped(point.group, g)), owner == g) for g in groups)
    return "columns" if swapped else "numbers"


def _swapped(columns: dict[str, np.ndarray], place: int) -> dict[str, np.ndarray]:
    """The columns with the entries at one place replaced by those of another."""
    source = lambda c: np.where(np.arange(len(c)) == place, (place + 1) % len(c), np.arange(len(c)))
    return {n: c[source(c)] for n, c in columns.items()}


# What a site's log density depends on but must not, by the level of the site.
_REASONS = {
    "groups, row": 'the likelihood of site "{name}" mixes groups: a row\'s log density depends on '
    "latent sites of other groups than its own. A row may use its own group's, b[{own}], and not "
    "b.mean() or b[another column].",
    "groups, z": 'site "{name}" of one group depends on those of another. Given the sites outside the '
    "plate, groups must be independent: no mean over groups, difference or random walk between them.",
    "groups, prior": 'the prior of site "{name}" depends on latent sites of the groups, and '
    "it is not one of them: a second level of latent sites, which is not supported yet. If it "
    'belongs to the groups, put it in their plate, numpyro.plate("...", {size}).',
    "groups, theta": 'site "{name}" has one log density for all groups together and depends on latent '
    "sites of the groups, which it mixes (a sum over groups, say). Give it a log density for each "
    "group or row, or write the constraint into the prior.",
    "rows, row": 'the log density of a row of site "{name}" depends on other rows (a mean or sum over '
    "rows, a lag). Compute such a column beforehand. Where rows of a group hang together, a time "
    "series say, make each group one row whose columns are arrays.",
    "rows, z": 'the log density of site "{name}", which belongs to a group, is computed from row '
    "columns ({columns}). Compute what it needs beforehand, as a group column.",
    "rows, theta": 'the log density of site "{name}", which belongs to all groups, is computed from '
    "row columns ({columns}). Compute what it needs beforehand, and pass it as a constant, "
    "functools.partial.",
    "columns": 'the log density of site "{name}" depends on group columns of other groups than its '
    "own (a mean over groups, say). Compute such numbers beforehand, as a group column or a "
    "constant: functools.partial(model, ...).",
    "numbers": 'the log density of site "{name}" depends on the number that a group or row happens '
    "to have, or on how many there are ({size}). Ramify calls the model on blocks, where numbers "
    "start anew: what belongs to a group must come as a group column (Groups.from_table(..., "
    "group=[...])), and a latent site of the groups must have size {size}, not a number written out "
    "(hard-coded).",
}
