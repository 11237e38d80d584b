"""Log p(y | theta) at many thetas by quadrature, for solved fits of one or two local dimensions.

For later rows y' given the rows of the fit it is a difference: log p(y, y' | theta) - log p(y | theta).

The quadrature points lie around each group's conditional at each theta: points around the conditional at
another theta would miss a narrow p(z | theta), or a z that moves with theta. Thetas share the points of
one of them where a check at each theta allows it (`posterior.shared_points`). The rule is finer than the
fit's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.host import Range, ranges
from ramify.data.merging import with_sparse
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.solver import Solver
from ramify.inference.local_integral import quadrature
from ramify.models.model import Model
from ramify.models.threads import cpu_threads
from ramify.numerics import budgets
from ramify.numerics.chunks import in_chunks
from ramify.numerics.points import Rule, gauss_hermite, wide_rule
from ramify.numerics.programs import program
from ramify.numerics.sums import precise_sum
from ramify.numerics.threads import by_threads
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.matching import Part
from ramify.posterior.shared_points import (
    anchored_at,
    by_shared_points,
    can_share,
    highest_degrees,
)

AT_ONCE = 16  # thetas that are computed together
THETAS = 64  # thetas in a call, if each has points of its own
# Most thetas in a call, if they share points: in blocks of up to FEW_GROUPS groups, and in larger ones.
SHARING, FEW_GROUPS = (4096, 64), 512
# Most anchors (thetas around whose conditionals shared points lie), and the share of thetas that the
# points must suit for another anchor to be tried. The remaining thetas have points of their own.
ANCHORS, SUITED = 16, 1 / 16

_Use = Callable[[Array], tuple[Array, ...]]  # reduces log p(y_i | theta), [C, B], to what is kept


def has_rule(family: Family, model: Model) -> bool:
    """Whether each group's z can be integrated by quadrature around its solved mode."""
    solved = isinstance(family, Branched) and isinstance(family.local, Solver)
    return solved and model.z.size in budgets.FIRST_ORDER


def marginal_log_liks(
    family: Family,
    model: Model,
    groups: Groups,
    thetas: Float[np.ndarray, "S D"],
    points: int = 0,
) -> Float64[np.ndarray, " S"]:
    """The sum over groups of log p(y_i | theta) at each theta, by at least so many points of z."""

    def of_block(block: Range) -> Float64[np.ndarray, " S"]:
        known = condition(family, model, block.batches[0], local_draws=2)
        rule = _rule(known.local, model, points)
        found = _at_thetas(known, model, thetas, rule, lambda mass: _summed(mass, known.batch))
        return np.sum(np.asarray(found, np.float64), axis=0)

    threads = cpu_threads(model, example(groups))
    return sum(by_threads(of_block, ranges(groups), threads), np.zeros(len(thetas)))


def predictive_log_liks(
    model: Model, part: Part, thetas: Float[np.ndarray, "S D"]
) -> Float64[np.ndarray, " S"]:
    """The sum over groups of log p(y_i,test | theta, y_i) at each theta."""
    both, given = together(part.given, part.at), part.given
    total = marginal_log_liks(part.family, model, both, thetas)
    return total - marginal_log_liks(part.family, model, given, thetas) if given.n_rows else total


def predictive_by_group(
    model: Model, part: Part, thetas: Float[np.ndarray, "S D"]
) -> Iterator[Float[np.ndarray, "S B"]]:
    """Yields log p(y_i,test | theta, y_i) for some groups at a time."""

    def of_block(block: Range) -> Float[np.ndarray, "S B"]:
        known = [condition(part.family, model, batch, local_draws=2) for batch in block.batches]
        both, given = (log_mass_by_group(each, model, thetas) for each in known)
        return (both - given)[:, : block.stop - block.start]

    blocks = ranges(together(part.given, part.at), part.given)
    return _of_blocks(of_block, blocks, thetas, part.at, model)


def predictive_by_row(
    model: Model, part: Part, thetas: Float[np.ndarray, "S D"]
) -> Iterator[Float[np.ndarray, "S R"]]:
    """Yields log p(y_ij,test | theta, y_i) for some rows at a time, each row by itself."""
    owner, at = np.repeat(np.arange(len(part.at)), part.at.sizes), part.at
    one = np.ones(at.n_rows, np.int64)
    single = replace(at._take(owner), sizes=one, rows=at.rows, row_order=at.row_order)
    given, start = _Columns(_log_masses(model, part.family, part.given, thetas)), 0
    for both in _log_masses(model, part.family, together(part.given._take(owner), single), thetas):
        stop = start + both.shape[1]
        yield both - given.take(owner[start:stop])
        start = stop


class _Columns:
    """The columns of a stream of blocks; those before the last request are dropped."""

    def __init__(self, blocks: Iterator[Float[np.ndarray, "S B"]]):
        self._blocks, self._held, self._first = blocks, next(blocks), 0

    def take(self, numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, "S n"]:
        """The columns with these numbers, which never decrease, neither here nor from call to call."""
        while numbers[-1] >= self._first + self._held.shape[1]:
            behind = min(numbers[0] - self._first, self._held.shape[1])
            self._held = np.concatenate([self._held[:, behind:], next(self._blocks)], 1)
            self._first += behind
        return self._held[:, numbers - self._first]


def _log_masses(
    model: Model, family: Family, groups: Groups, thetas: Float[np.ndarray, "S D"]
) -> Iterator[Float[np.ndarray, "S B"]]:
    """Yields log p(y_i | theta) for some groups at a time."""

    def of_block(block: Range) -> Float[np.ndarray, "S B"]:
        known = condition(family, model, block.batches[0], local_draws=2)
        return log_mass_by_group(known, model, thetas)[:, : block.stop - block.start]

    return _of_blocks(of_block, ranges(groups), thetas, groups, model)


def _of_blocks(
    function: Callable[[Range], Any],
    blocks: Iterator[Range],
    thetas: Float[np.ndarray, "S D"],
    groups: Groups,
    model: Model,
) -> Iterator[Float[np.ndarray, "S B"]]:
    """The function of each block; by threads, where their results fit into memory."""
    most = len(thetas) * min(len(groups), budgets.result_rows())  # numbers of a result
    threads = min(cpu_threads(model, example(groups)), budgets.DENSITY_NUMBERS // max(most, 1))
    return by_threads(function, blocks, threads) if threads > 1 else map(function, blocks)


def log_mass_by_group(
    known: Conditioned, model: Model, thetas: Float[np.ndarray, "S D"], points: int = 0
) -> Float[np.ndarray, "S B"]:
    """Log p(y_i | theta) of a block's groups at each theta, by at least so many points of z."""
    return _at_thetas(
        known, model, thetas, _rule(known.local, model, points), lambda log_mass: (log_mass,)
    )[0]


def follows_theta(model: Model, part: Part) -> bool:
    """Whether the likelihood of rows given or to predict involves theta."""
    local = part.family.local  # pyright: ignore[reportAttributeAccessIssue]
    return any(local.follows_theta(model, example(rows)) for rows in (part.given, part.at))


def rows_given(part: Part) -> int:
    """Rows that `predictive_by_row` has to condition on."""
    return int(part.given.sizes @ part.at.sizes)


def _rule(local: Solver, model: Model, points: int) -> Rule:
    M, kind = model.z.size, jnp.result_type(float)
    order = max(budgets.FIRST_ORDER[M] + 2, round(points ** (1 / M)))
    return _rule_of(order, M, local.widened > 1, kind)


@cache
def _rule_of(order: int, M: int, wide: bool, kind: np.dtype) -> Rule:
    if wide:
        rule = wide_rule(max(order, budgets.WIDENED_ORDER[M]), M, budgets.WIDENED_REACH[M])
    else:
        rule = gauss_hermite(order, M)
    return Rule(*(x.astype(kind) for x in rule))


def together(given: Groups, at: Groups) -> Groups:
    """The groups of a part with the rows of both data sets."""
    owner = np.repeat(np.tile(np.arange(len(given)), 2), np.append(given.sizes, at.sizes))
    order = np.argsort(owner, kind="stable")
    # A column that only new rows have, such as `U_apart` of a formula, is zero in the others.
    of_given = lambda n, c: given.rows.get(n, np.zeros((given.n_rows, *c.shape[1:]), c.dtype))
    of_at = with_sparse(at.rows, given.rows, at.n_rows)
    rows = {n: np.concatenate([of_given(n, c), c])[order] for n, c in of_at.items()}
    return replace(given, sizes=given.sizes + at.sizes, rows=rows, row_order=order)


def _at_thetas(
    known: Conditioned, model: Model, thetas: Float[np.ndarray, "S D"], rule: Rule, use: _Use
) -> tuple[np.ndarray, ...]:
    """Applies `use` to log p(y_i | theta) at all thetas, in chunks that are put together."""
    apart = lambda chunk: use(_by_group(known, model, chunk, rule))
    if not can_share(known, model, rule):
        return in_chunks(apart, thetas, THETAS)
    found, left = _by_sharing(known, model, thetas, rule, use)
    if left.size:
        _put(found, left, in_chunks(apart, thetas[left], THETAS))
    return found


def _by_sharing(
    known: Conditioned, model: Model, thetas: Float[np.ndarray, "S D"], rule: Rule, use: _Use
) -> tuple[tuple[np.ndarray, ...], Int[np.ndarray, " left"]]:
    """The same by shared points; also the thetas that these points do not suit."""
    size, highest = SHARING[len(known.batch.index) > FEW_GROUPS], highest_degrees(rule)
    found, left, around = (), np.arange(len(thetas)), known

    def some(chunk: Float[Array, "C D"], wanted: np.int32) -> tuple[Array, ...]:
        log_mass, suited = by_shared_points(around, model, chunk, wanted, rule, highest)
        return suited, *use(log_mass)

    for _ in range(ANCHORS):
        suited, *now = in_chunks(some, thetas[left], size, counted=True)
        found = found or tuple(now)
        _put(found, left[suited], [part[suited] for part in now])
        left = left[~suited]
        if not left.size or suited.mean() < SUITED:
            break
        around = anchored_at(known, model, thetas[left[0]])
    return found, left


def _put(found: Sequence[np.ndarray], places: np.ndarray, new: Sequence[np.ndarray]) -> None:
    for whole, part in zip(found, new, strict=True):
        whole[places] = part


@program
def _by_group(
    known: Conditioned, model: Model, thetas: Float[Array, "C D"], rule: Rule
) -> Float[Array, "C B"]:
    site, batch = known.site, known.batch
    assert site is not None
    again = known.local.follows_theta(model, batch)

    def one(theta: Float[Array, " D"]) -> Float[Array, " B"]:
        local = known.local.follow(model, batch, site, theta, again)[1]
        return quadrature(model, True, batch, local, rule)(theta)

    return jax.lax.map(one, thetas, batch_size=AT_ONCE)


@program
def _summed(
    log_mass: Float[Array, "C B"], batch: Batch
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """The sum over a block's groups, in two float32 parts."""
    return precise_sum(jnp.where(batch.group_mask, log_mass, 0))
