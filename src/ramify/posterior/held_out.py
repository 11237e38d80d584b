"""The log density of test rows, streamed over blocks of groups.

With (z^k, theta^k) ~ q, k = 1..S, the paper's test likelihood is log mean_k p(y_test given z^k, theta^k).
If z can be integrated, p(y_test given theta^k, y) replaces the density at a draw of z: by quadrature, or
for all rows of a group together by draws around its mode given these rows. If the fit has draws of
theta, many of the S draws are equal: each is then evaluated once, and the density of rows by themselves
is averaged over all K draws of z by their weights.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.models.densities import row_log_liks_at, sum_rows
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.programs import program
from ramify.numerics.user_warning import warn_user
from ramify.posterior.conditioned import Conditioned, blocks_of
from ramify.posterior.drawn_masses import can_weigh, predictive_masses
from ramify.posterior.draws import Chunk, Draws, at_once, map_draws, of_chunks, weighed_locals
from ramify.posterior.marginal_values import (
    follows_theta,
    has_rule,
    predictive_by_group,
    predictive_by_row,
    predictive_log_liks,
    rows_given,
)
from ramify.posterior.matching import Part
from ramify.posterior.metrics import (
    LOCAL_DRAWS,
    Estimate,
    block_sums,
    check_form,
    double,
    log_mean_weight,
)
from ramify.posterior.rounding import row_terms
from ramify.posterior.theta_controls import LogMeans, by_few, standardised

PredictiveForm = Literal["joint", "per_group", "per_row"]
# Fewest draws of each group's z around its mode, unless their number was chosen: in a sum over groups
# theta's draws share their noise, in means of each group it averages out.
_FEWEST = {"joint": LOCAL_DRAWS, "per_group": 16}
UNEVEN = 0.5**2  # variance of a group's log integral above which its draws of z are too uneven
FEWEST_EFFECTIVE = 10  # draws, below which a log mean over them is told to be unreliable


class _Local(NamedTuple):
    """Numbers of draws of z."""

    K: int  # of which one is chosen
    weighed: int  # around the mode given all rows of a group

    def weighs(self, part: Part) -> bool:
        return self.weighed > 1 and can_weigh(part)


def log_predictive(
    model: Model,
    parts: list[Part],
    theta: Draws,
    form: PredictiveForm,
    K: int,
    chosen: bool,
    enough: bool = False,
) -> Estimate:
    """Log mean of p(y_test | z, theta), in a form that `Posterior.log_predictive` describes.

    `chosen` says that the user chose K. With `enough`, only as many of the draws of theta are used as
    have the standard error of all, where these come from q(theta) and z is integrated by quadrature.
    """
    check_form("log_predictive", form, PredictiveForm)
    by_rule = not chosen and all(has_rule(part.family, model) for part in parts)
    if by_rule and form == "per_row":
        by_rule = _affordable(model, parts, len(theta.theta), K)
    # Equal draws of theta are evaluated once; by draws of z, if these are then no fewer.
    distinct, which = np.unique(theta.theta, axis=0, return_inverse=True)
    which = which.reshape(-1)
    local = _Local(K, K if chosen or form == "per_row" else max(K, _FEWEST[form]))
    if form == "joint" and by_rule:
        sums = np.sum([predictive_log_liks(model, part, distinct) for part in parts], axis=0)
        return all_together(sums[which])
    if form == "joint":
        return _joint(model, parts, theta, local)
    if by_rule:
        each = predictive_by_row if form == "per_row" else predictive_by_group
        values = lambda thetas: (v for part in parts for v in each(model, part, thetas))
        of_first = lambda count: _summed(values(theta.theta[:count]))
        e = standardised(parts[0].family, theta) if enough else None
        few = None if e is None else by_few(of_first, e)
        return Estimate(*few) if few else sum_of_log_means(values(distinct), form, which)
    if K > 1 and 2 * len(distinct) <= len(which) <= K * len(distinct):
        numbers = np.arange(len(distinct), dtype=np.int32)
        few = Draws(distinct, np.full(len(distinct), np.nan), theta.key, numbers)
        return sum_of_log_means(_values(model, parts, few, form, local, True), form, which)
    return sum_of_log_means(_values(model, parts, theta, form, local, False), form)


def _affordable(model: Model, parts: list[Part], draws: int, K: int) -> bool:
    """Whether a rule for each test row takes no longer than draws."""
    # Each test row needs its own rule, around the mode given its group's rows and the row itself. The
    # likelihood of all these rows is evaluated at the rule's points, once if it does not involve theta.
    fixed = not any(follows_theta(model, part) for part in parts)
    repeated, drawn = sum(map(rows_given, parts)), sum(part.given.n_rows for part in parts)
    return fixed and repeated <= min(K * draws * drawn // 128, budgets.REPEATED_ROWS)


def _joint(model: Model, parts: list[Part], theta: Draws, local: _Local) -> Estimate:
    """The estimate for all test rows together."""
    # Noise of z that all draws of theta share is a common shift: noise of each would swamp their weights.
    sums, variance = np.zeros(len(theta.theta)), [np.zeros(0)]
    for part in parts:
        if not local.weighs(part):
            sums += _sums(model, part, theta, local.K)
            continue
        for found in predictive_masses(model, part, theta, local.weighed, theta.key):
            sums = sums + found.log().sum(1)
            variance.append(found.variance)
    noise = np.concatenate(variance)
    if uneven := int(np.sum(~(noise <= UNEVEN))):
        warn_user(
            f'log_predictive(form="joint"): {local.weighed} draws of z are too few for {uneven:,} of '
            f"{len(noise):,} groups, so that the estimate may be off by many nats: raise local_draws=."
        )
    return all_together(sums, float(noise.sum()))


def all_together(sums: Float64[np.ndarray, " S"], variance: float = 0.0) -> Estimate:
    """The log mean of p(y_test | theta) over draws, with more variance in its standard error."""
    found = log_mean_weight(sums)
    warn_of_few(np.array([found.ess]), len(sums), "joint")
    return Estimate(found, float(np.hypot(found.se, variance**0.5)), found.ess, len(sums))


def _sums(model: Model, part: Part, theta: Draws, K: int) -> Float64[np.ndarray, " S"]:
    """The log density of all test rows of a part at each draw of (theta, z)."""
    total, rows = np.zeros(len(theta.theta)), budgets.result_rows()
    for given, at, _ in blocks_of([part], model, K, rows=rows):
        use = lambda chunk, z, _: block_sums(model, chunk, z, at)  # noqa: B023
        total += double(map_draws(use, given, model, theta, K))
    return total


def _values(
    model: Model,
    parts: list[Part],
    theta: Draws,
    form: PredictiveForm,
    local: _Local,
    averaged: bool,
) -> Iterator[Float[np.ndarray, "S n"]]:
    """The log densities of a block's test rows, or groups, at each draw of theta, or of (theta, z).

    If `averaged`, densities at z are means over K draws of z for each theta.
    """
    rows, by_row, K = budgets.result_rows(), form == "per_row", local.K
    if by_row:
        rows = int(np.clip(budgets.DENSITY_NUMBERS // len(theta.theta), 1, rows))
    for part in parts:
        if not by_row and local.weighs(part):
            yield from (m.ratio() for m in predictive_masses(model, part, theta, local.weighed))
            continue
        for given, at, _ in blocks_of([part], model, K, rows=rows):
            if averaged:
                both = (replace(given, batch=batch) for batch in (given.batch, at))
                size = min(at_once(known, model, len(theta.theta), K) for known in both)
                mean = lambda chunk: weighed_values(given, model, chunk, at, K, by_row)  # noqa: B023
                yield of_chunks(mean, theta, size)
                continue
            use = lambda chunk, z, _: test_values(model, chunk, z, at, by_row)  # noqa: B023
            yield map_draws(use, given, model, theta, K)


@program
def test_values(
    model: Model, chunk: Chunk, z: Array, at: Batch, by_row: bool
) -> Float[Array, "C R_or_B"]:
    """Log p(y_test | z, theta) of each row of `at`, or of each group's rows, for each draw."""

    def one(theta: Array, z: Array) -> Array:
        rows = row_terms(model, theta, z, at)
        return rows if by_row else sum_rows(rows, at)

    return jax.vmap(one)(jnp.asarray(chunk.theta), z)


@program
def weighed_values(
    known: Conditioned, model: Model, chunk: Chunk, at: Batch, K: int, by_row: bool
) -> Float[Array, "C R_or_B"]:
    """Log p(y_test | theta, y) of each row of `at`, or each group's rows, by K weighted draws of z."""
    conditional = known.conditional(model)

    def one(key: PRNGKeyArray, theta: Array) -> Array:
        z, log_weight, _ = weighed_locals(key, conditional(theta), known, model, theta, K)
        share = jax.nn.log_softmax(log_weight, 0).T
        rows = row_log_liks_at(model, theta, jnp.moveaxis(z, 0, -1), at)
        if not by_row:
            return jax.nn.logsumexp(share + sum_rows(rows, at), -1)
        return jnp.where(at.row_mask, jax.nn.logsumexp(at.at_rows(share) + rows, -1), 0)

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))


def sum_of_log_means(
    blocks: Iterator[Float[np.ndarray, "S n"]],
    form: PredictiveForm,
    which: np.ndarray | None = None,
) -> Estimate:
    """The sum over all columns of log means over draws; draws use the rows `which` of a block."""
    found = _summed(blocks, which)
    warn_of_few(found.effective, len(found.share), form)
    ess = float(found.effective.min(initial=len(found.share)))
    draws = len(found.share) if which is None else len(which)
    return Estimate(found.total, found.error(), ess, draws)


def _summed(
    blocks: Iterator[Float[np.ndarray, "S n"]], which: np.ndarray | None = None
) -> LogMeans:
    total, influence, effective, share = 0.0, np.zeros(1), [np.zeros(0)], None
    for block in blocks:
        which = np.arange(len(block)) if which is None else which
        share = np.bincount(which) / len(which) if share is None else share
        found, own, ess = _log_means(block, share)
        total, influence = total + found, influence + own
        effective.append(ess)
    assert share is not None
    return LogMeans(total, influence, share, np.concatenate(effective))


def warn_of_few(ess: Float64[np.ndarray, " n"], draws: int, form: PredictiveForm) -> None:
    """Warns where too few draws are effective for a log mean over them."""
    fewest = min(FEWEST_EFFECTIVE, draws / 10)
    few = int(np.sum(~(ess >= fewest)))
    if not few:
        return
    what = form.removeprefix("per_") + "s" * (few > 1)
    where = "all rows together" if form == "joint" else f"{few:,} {what}"
    warn_user(
        f'log_predictive(form="{form}"): of {draws:,} draws fewer than {fewest:.2g} are effective in '
        f"{where}, so that the estimate may be too low by many nats. Ask for more draws"
        + ("." if form == "per_row" else ', or for form="per_row".')
    )


def _log_means(
    values: Float[np.ndarray, "S n"], share: Float64[np.ndarray, " S"]
) -> tuple[float, Float64[np.ndarray, " S"], Float64[np.ndarray, " n"]]:
    """The sum over columns of log means over draws with these shares, and each draw's influence on it.

    Also each column's number of effective draws.
    """
    total, influence = 0.0, np.zeros(len(share))
    effective = np.zeros(values.shape[1])
    # Some columns at a time: working memory then stays in the cache.
    width = max(budgets.CACHED_NUMBERS // len(share), 1)
    for start in range(0, values.shape[1], width):
        weight = values[:, start : start + width].astype(np.float64)
        top = weight.max(0)
        weight -= np.where(np.isfinite(top), top, 0.0)
        mean = share @ np.exp(weight, out=weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            total += float(np.sum(np.log(mean) + top))
            weight /= mean
            effective[start : start + width] = 1 / (share**2 @ weight**2)
            influence += np.where(mean > 0, weight, 1.0).sum(1)
    return total, influence - values.shape[1], effective
