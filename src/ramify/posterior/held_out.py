"""The log density of test rows, streamed over blocks of groups.

With (z^k, theta^k) ~ q, k = 1..S, the paper's test likelihood is log mean_k p(y_test given z^k, theta^k).
If z can be integrated by quadrature, p(y_test given theta^k, y) replaces the density at a draw of z. If
the fit has draws of theta, many of the S draws are equal: each is then evaluated once, and the density
is averaged over all K draws of z by their weights.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.models.densities import row_log_liks_at, sum_rows
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.programs import program
from ramify.posterior.conditioned import Conditioned, blocks_of
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
    Estimate,
    block_sums,
    check_form,
    double,
    log_mean_weight,
)
from ramify.posterior.rounding import row_terms

PredictiveForm = Literal["joint", "per_group", "per_row"]


def log_predictive(
    model: Model, parts: list[Part], theta: Draws, form: PredictiveForm, K: int, by_rule: bool
) -> Estimate:
    """Log mean of p(y_test | z, theta), in a form that `Posterior.log_predictive` describes."""
    check_form("log_predictive", form, PredictiveForm)
    by_rule = by_rule and all(has_rule(part.family, model) for part in parts)
    if by_rule and form == "per_row":
        by_rule = _affordable(model, parts, len(theta.theta), K)
    # Equal draws of theta are evaluated once; by draws of z, if these are then no fewer.
    distinct, which = np.unique(theta.theta, axis=0, return_inverse=True)
    which = which.reshape(-1)
    weighed = K > 1 and 2 * len(distinct) <= len(which) <= K * len(distinct)
    if form == "joint" and by_rule:
        sums = np.sum([predictive_log_liks(model, part, distinct) for part in parts], axis=0)
        return log_mean_weight(sums[which])
    if form == "joint":
        return log_mean_weight(_sums(model, parts, theta, K))
    if by_rule:
        each = predictive_by_row if form == "per_row" else predictive_by_group
        values = (v for part in parts for v in each(model, part, distinct))
    elif weighed:
        numbers = np.arange(len(distinct), dtype=np.int32)
        few = Draws(distinct, np.full(len(distinct), np.nan), theta.key, numbers)
        values = _values(model, parts, few, form == "per_row", K, weighed)
    else:
        which = np.arange(len(which))
        values = _values(model, parts, theta, form == "per_row", K, weighed)
    share = np.bincount(which) / len(which)
    total, influence = 0.0, np.zeros(len(share))
    for block in values:
        found = _log_means(block, share)
        total, influence = total + found[0], influence + found[1]
    return Estimate(total, _shared_error(influence, share), draws=len(which))


def _shared_error(influence: Float64[np.ndarray, " T"], share: Float64[np.ndarray, " T"]) -> float:
    """The standard error from independent values that have these shares of the draws."""
    # A value has one error, however many of the draws it has.
    T = len(share)
    return float(np.linalg.norm(share * influence) * (T / (T - 1)) ** 0.5) if T > 1 else np.nan


def _affordable(model: Model, parts: list[Part], draws: int, K: int) -> bool:
    """Whether a rule for each test row takes no longer than draws."""
    # Each test row needs its own rule, around the mode given its group's rows and the row itself. The
    # likelihood of all these rows is evaluated at the rule's points, once if it does not involve theta.
    fixed = not any(follows_theta(model, part) for part in parts)
    repeated, drawn = sum(map(rows_given, parts)), sum(part.given.n_rows for part in parts)
    return fixed and repeated <= min(K * draws * drawn // 128, budgets.REPEATED_ROWS)


def _sums(model: Model, parts: list[Part], theta: Draws, K: int) -> Float64[np.ndarray, " S"]:
    """The log density of all test rows at each draw of (theta, z)."""
    total, rows = np.zeros(len(theta.theta)), budgets.result_rows()
    for given, at, _ in blocks_of(parts, model, K, rows=rows):
        use = lambda chunk, z, _: block_sums(model, chunk, z, at)  # noqa: B023
        total += double(map_draws(use, given, model, theta, K))
    return total


def _values(
    model: Model, parts: list[Part], theta: Draws, by_row: bool, K: int, weighed: bool
) -> Iterator[Float[np.ndarray, "S n"]]:
    """The log densities of a block's test rows, or groups, at each draw of (theta, z).

    If `weighed`, they are averaged over K draws of z for each theta.
    """
    rows = budgets.result_rows()
    if by_row:
        rows = int(np.clip(budgets.DENSITY_NUMBERS // len(theta.theta), 1, rows))
    for given, at, _ in blocks_of(parts, model, K, rows=rows):
        if weighed:
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
    conditional, batch = known.conditional(model), known.batch

    def one(key: PRNGKeyArray, theta: Array) -> Array:
        z, log_weight, _ = weighed_locals(key, conditional(theta), model, batch, theta, K)
        share = jax.nn.log_softmax(log_weight, 0).T
        rows = row_log_liks_at(model, theta, jnp.moveaxis(z, 0, -1), at)
        if not by_row:
            return jax.nn.logsumexp(share + sum_rows(rows, at), -1)
        return jnp.where(at.row_mask, jax.nn.logsumexp(at.at_rows(share) + rows, -1), 0)

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))


def _log_means(
    values: Float[np.ndarray, "S n"], share: Float64[np.ndarray, " S"]
) -> tuple[float, Float64[np.ndarray, " S"]]:
    """The sum over columns of log means over draws with these shares, and each draw's influence on it."""
    total, influence = 0.0, np.zeros(len(share))
    # Some columns at a time: working memory then stays in the cache.
    width = max(budgets.CACHED_NUMBERS // len(share), 1)
    for start in range(0, values.shape[1], width):
        weight = values[:, start : start + width].astype(np.float64)
        top = weight.max(0)
        weight -= np.where(np.isfinite(top), top, 0.0)
        mean = share @ np.exp(weight, out=weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            influence += np.where(mean > 0, weight / mean, 1.0).sum(1)
            total += float(np.sum(np.log(mean) + top))
    return total, influence - values.shape[1]
