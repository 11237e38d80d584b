"""The log density of test rows, streamed over blocks of groups.

With (z^k, theta^k) ~ q, k = 1..S, the paper's test likelihood is log mean_k p(y_test given z^k, theta^k).
If z can be integrated by quadrature, p(y_test given theta^k, y) replaces the density at a draw of z.
"""

from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from ramify.data.batch import Batch
from ramify.models.densities import sum_rows
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.programs import program
from ramify.posterior.conditioned import blocks_of
from ramify.posterior.draws import Chunk, Draws, map_draws
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
    standard_error,
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
    # By quadrature equal draws of theta give equal values, so each distinct theta is evaluated once.
    distinct, which = theta.theta, np.arange(len(theta.theta))
    if by_rule:
        distinct, which = np.unique(distinct, axis=0, return_inverse=True)
        which = which.reshape(-1)
    if form == "joint" and by_rule:
        sums = np.sum([predictive_log_liks(model, part, distinct) for part in parts], axis=0)
        return log_mean_weight(sums[which])
    if form == "joint":
        return log_mean_weight(_sums(model, parts, theta, K))
    if by_rule:
        each = predictive_by_row if form == "per_row" else predictive_by_group
        values = (v for part in parts for v in each(model, part, distinct))
    else:
        values = _values(model, parts, theta, form == "per_row", K)
    total, influence = 0.0, np.zeros(len(distinct))
    for block in values:
        found = _log_means(block, np.bincount(which) / len(which))
        total, influence = total + found[0], influence + found[1]
    return Estimate(total, standard_error(influence[which]), draws=len(which))


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
    model: Model, parts: list[Part], theta: Draws, by_row: bool, K: int
) -> Iterator[Float[np.ndarray, "S n"]]:
    """The log densities of a block's test rows, or groups, at each draw of (theta, z)."""
    rows = budgets.result_rows()
    if by_row:
        rows = int(np.clip(budgets.DENSITY_NUMBERS // len(theta.theta), 1, rows))
    for given, at, _ in blocks_of(parts, model, K, rows=rows):
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
