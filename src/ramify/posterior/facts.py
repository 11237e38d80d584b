"""The numbers of pictures about groups and predictions; no figures and no text.

The work is bounded: with many rows a random sample of the groups stands for all. `posterior` is a
`Posterior`, which this module does not import, since it offers these pictures itself.
"""

from typing import Any

import numpy as np
from jaxtyping import Array, Float64

from ramify.data.groups import Groups
from ramify.data.host import ranges, some_groups
from ramify.families.branched import Branched
from ramify.families.build import is_fixed
from ramify.models.adapter import Adapter
from ramify.models.simulation import outcome_column
from ramify.numerics.programs import program
from ramify.plot.numbers import (
    FEW,
    Calibration,
    CategoryCalibration,
    Check,
    Effects,
    Shrinkage,
    chosen,
)
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.matching import matched

RANKED = 2**24  # most rows of the groups that are ranked
WORK = 2**28  # most likelihoods of rows for the draws of groups: seconds on two cores
EVERYONE = (
    2**27
)  # most of them if all groups are drawn: ranking by centres has a program of its own
SOLVING = 32  # the cost of solving a group again for a draw of theta, in likelihoods of its rows
SHOWN = 6  # most effects of a group that have a picture
SHRUNK, SHRUNK_ROWS = 150, 100_000  # groups in the picture of shrinkage, and most rows of them
JUDGED = 10_000  # most rows of the check of calibration


def effects_of(posterior: Any, groups: Groups, draws: int, seed: int) -> Effects:
    """Draws the effects of all groups, or ranks them by centres and draws those that figures show."""
    groups = some_groups(groups, RANKED, seed)
    N, each = len(groups), min(posterior.local_draws, 16) + SOLVING
    few = N <= FEW or groups.n_rows * each * draws <= EVERYONE
    centre = None if few else _centres(posterior, groups)
    own = [np.arange(N)] if centre is None else [chosen(column) for column in centre.T]
    drawn = np.unique(np.concatenate(own))
    some = groups if len(drawn) == N else groups.subset(positions=drawn)
    draws = int(np.clip(WORK // max(some.n_rows * each, 1), min(50, draws), draws))
    names, parts, K = [], [], posterior._local_draws(None)
    # Blocks have the shape of small data, as in other pictures, so that their programs are shared.
    for _, block in posterior._blocks(draws, posterior._for_locals(some, K), seed, K, small=True):
        names, values = _flat(posterior, block)
        parts.append((values.mean(0), *np.quantile(values, [0.05, 0.95], axis=0)))
    mean, low, high = (np.concatenate(x).astype(np.float64) for x in zip(*parts, strict=True))
    centre = mean if centre is None else centre
    return Effects(names, groups.labels, groups.sizes, centre, drawn, mean, low, high)


def _centres(posterior: Any, groups: Groups) -> Float64[np.ndarray, "N E"]:
    """Each group's effects at the centre of q(theta) and of its own q(z | theta)."""
    if not isinstance(posterior.family, Branched):  # a joint family has few groups
        sampled, theta = posterior.sample(100, groups), posterior.sample_theta(100)
        z = {n: v for n, v in sampled.items() if n not in theta}
        return _flat(posterior, z)[1].mean(0, dtype=np.float64)
    found, own = [], (posterior.family, posterior.model)
    for block in ranges(groups):
        known = condition(*own, block.batches[0], posterior.local_draws)
        values = _centre_block(known, posterior.adapter)
        real = slice(0, block.stop - block.start)
        real_values = {name: np.asarray(value)[None, real] for name, value in values.items()}
        found.append(_flat(posterior, real_values)[1][0])
    return np.concatenate(found).astype(np.float64)


@program
def _centre_block(known: Conditioned, adapter: Adapter) -> dict[str, Array]:
    theta = known.family.theta.mean
    return adapter.local_values(theta, known.conditional(adapter.model)(theta).mean, known.batch)


def _flat(posterior: Any, z: dict[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    """Names and draws [S, B, E] of the first entries of z."""
    names = [e for n, v in z.items() for e in posterior.adapter.entry_names(n, v.shape[2:])]
    columns = [value.reshape(*value.shape[:2], -1)[:, :, :SHOWN] for value in z.values()]
    return names[:SHOWN], np.concatenate(columns, 2)[:, :, :SHOWN]


def outcome_of(posterior: Any, groups: Groups) -> Float64[np.ndarray, " n_rows"] | None:
    """The observed outcomes, in the order of the groups' rows, on the scale of `predict`, if known."""
    if not posterior.model.can_simulate or not groups.n_rows:
        return None
    found = posterior.adapter.outcomes(groups)
    if found is None:
        found = groups.rows.get(outcome_column(posterior.model, groups) or "")
    return None if found is None or found.ndim != 1 else found.astype(np.float64)


def shrinkage_of(
    posterior: Any, groups: Groups, observed: np.ndarray, draws: int, seed: int
) -> Shrinkage:
    """Raw means of groups of all sizes, and the posterior means for the same rows."""
    order = np.argsort(groups.sizes, kind="stable")
    order = order[groups.sizes[order] > 0]
    chosen = order[np.unique(np.linspace(0, len(order) - 1, SHRUNK).round().astype(int))]
    chosen = chosen[np.cumsum(groups.sizes[chosen]) <= max(SHRUNK_ROWS, groups.sizes[chosen[0]])]
    some = groups.subset(positions=np.sort(chosen))
    given = None if is_fixed(posterior.family) else some
    kind = "mean" if posterior.adapter.describe().means else "response"
    table = posterior.predict(some, given, draws, seed, kind=kind, quantiles=())
    predicted = np.asarray(table["mean"], np.float64)
    owner = np.repeat(np.arange(len(some)), some.sizes)
    mean = lambda values: np.bincount(owner, values, len(some)) / some.sizes
    raw = mean(_rows_of(groups, some, observed))
    return Shrinkage(some.labels, some.sizes, raw, mean(predicted), float(observed.mean()))


def calibration_of(
    posterior: Any, groups: Groups, observed: np.ndarray, draws: int, seed: int
) -> Calibration | CategoryCalibration:
    """Predicts half of each group's rows from the other half, if the family can."""
    some = some_groups(groups, JUDGED, seed)
    own, held_out = _rows_of(groups, some, observed), False
    at, given = some, None if is_fixed(posterior.family) else some
    if given is not None and (some.sizes > 1).any():
        given, at = some.split(0.5, seed)
        own, held_out = own[np.isin(some.row_order, at.row_order)], True
    if not posterior.adapter.numeric:
        drawn = posterior.predict(at, given, draws, seed, kind="probability", summary=False)
        numbers = posterior.adapter.category_numbers(own).astype(np.int64)
        levels = tuple(posterior.adapter.categories("probability"))
        return CategoryCalibration(numbers, drawn.mean(0, dtype=np.float64), held_out, levels)
    binary = bool(np.isin(observed, (0, 1)).all())
    # Binning by predicted probability selects extremes of Monte Carlo noise, so this must be small.
    exact = binary and posterior.adapter.describe().means
    kind, draws = ("mean", draws) if exact else ("response", 4 * draws if binary else draws)
    drawn = posterior.predict(at, given, draws, seed, kind=kind, summary=False).astype(np.float64)
    binary = binary and 0 <= drawn.min() and drawn.max() <= 1
    return Calibration(own, drawn, held_out, bool(binary))


def check_of(posterior: Any, groups: Groups, observed: np.ndarray, draws: int, seed: int) -> Check:
    """Outcomes of some rows, and new ones that the posterior predicts for the same rows."""
    some = some_groups(groups, JUDGED, seed)
    given = None if is_fixed(posterior.family) else some
    drawn = posterior.predict(some, given, draws, seed, summary=False).astype(np.float64)
    owner = np.repeat(np.arange(len(some)), some.sizes)
    own, adapter = _rows_of(groups, some, observed), posterior.adapter
    if adapter.numeric:
        return Check(own, drawn, owner, some.labels)
    own, drawn = (adapter.category_numbers(y).astype(np.float64) for y in (own, drawn))
    return Check(own, drawn, owner, some.labels, tuple(adapter.categories("probability")))


def _rows_of(groups: Groups, some: Groups, values: np.ndarray) -> Float64[np.ndarray, " n"]:
    """The entries of values [n_rows] that belong to some of the groups, in their order."""
    where = np.empty(int(groups.row_order.max()) + 1, np.int64)
    where[groups.row_order] = np.arange(groups.n_rows)
    return values[where[some.row_order]]


def check(posterior: Any, groups: Any) -> Groups:
    """The groups to report on: those given (a table for a formula), or the fit's."""
    return matched(posterior._schema, posterior.family, posterior._default(groups))
