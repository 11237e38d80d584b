"""The paper's metrics of a fit (its table of metrics), streamed over blocks of groups.

With (z^k, theta^k) ~ q, k = 1..S, all in nats:

| metric | expression |
|---|---|
| train ELBO | mean_k log p(y, z^k, theta^k) / q(z^k, theta^k) |
| train likelihood | log mean_k p(y, z^k, theta^k) / q(z^k, theta^k) |

The third, for test rows, is in `posterior.held_out`. All blocks see the same draws of theta. A block
returns one number per draw, its sum in two float32 parts, which the host adds up in float64.
"""

from itertools import pairwise
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.inference.elbo import weigh, weigh_points
from ramify.models.model import Model, log_priors
from ramify.numerics.hashing import keys_of
from ramify.numerics.points import group_points
from ramify.numerics.programs import program
from ramify.numerics.sums import log_mean_exp, precise_sum
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import (
    Chunk,
    Draws,
    at_once,
    draw_theta,
    locals_of,
    map_draws,
    of_chunks,
    proposed_theta,
)
from ramify.posterior.marginal_values import has_rule, marginal_log_liks
from ramify.posterior.rounding import log_ratio_terms, rounding, row_terms
from ramify.posterior.theta_controls import FIRST_DRAWS, LogMeans, by_few, standardised

LOCAL_DRAWS = 64  # of each group, where z is integrated by draws and no number was asked for
DRAWS = 10_000  # of theta for the evidence, if no number was asked for, or
# FIRST_DRAWS, twice or four times as many if more than EFFECTIVE of them are effective and their
# variance is less than this share of that of the groups' noise, which more draws would not reduce.
EFFECTIVE, MINOR = 50, 1 / 16
EvidenceForm = Literal["joint", "per_group", "mean_likelihood"]


class Estimate(float):
    """A Monte Carlo estimate: a float with a standard error.

    Attributes:
        se: standard error, from the spread of the draws.
        ess: effective sample size of the weights, if the estimate is an average of weights.
        draws: how many draws were taken.

    Example:
        >>> Estimate(-1234.5678, se=0.012), Estimate(-3.0, se=1.0).se
        (-1234.568 ± 0.012, 1.0)
    """

    se: float
    ess: float | None
    draws: int | None

    def __new__(
        cls, value: float, se: float = np.nan, ess: float | None = None, draws: int | None = None
    ) -> "Estimate":
        """A float with attributes."""
        self = super().__new__(cls, value)
        self.se, self.ess, self.draws = se, ess, draws
        return self

    def __repr__(self) -> str:
        """Value and standard error, to two digits of the latter; notes few effective draws."""
        digits = 1 - int(np.floor(np.log10(self.se))) if 0 < self.se < np.inf else 4
        digits = min(max(digits, 0), 6)
        text = f"{float(self):.{digits}f} ± {self.se:.{digits}f}"
        if self.ess is not None and self.draws is not None and self.ess < 0.01 * self.draws:
            text += f" (only {self.ess:.1f} of {self.draws:,} draws effective: a loose bound)"
        return text


def elbo(
    family: Family, model: Model, groups: Groups, draws: int, local_draws: int, key: PRNGKeyArray
) -> Estimate:
    """Mean over draws of log p(y, z, theta) - log q(z, theta), or of the tight bound."""
    theta = draw_theta(key, family, model, draws)
    if local_draws == 1:
        locals_ = joint_sums(family, model, groups, theta)
    else:
        locals_ = _tight(family, model, groups, theta, local_draws, shared=False)[0]
    total = theta_terms(model, theta) + locals_
    found = Estimate(total.mean(), standard_error(total), draws=draws)
    return _rounded(found, 0.0, family, model, groups, theta)


def log_evidence(
    family: Family,
    model: Model,
    groups: Groups,
    draws: int | None,
    form: EvidenceForm,
    local_draws: int | None,
    key: PRNGKeyArray,
) -> Estimate:
    """Log of the mean over draws, in one of the forms that `Posterior.log_evidence` describes."""
    check_form("log_evidence", form, EvidenceForm)
    if form == "per_group":
        theta = proposed_theta(key, family, model, draws or DRAWS)
        if not (local_draws is None and has_rule(family, model)):
            return _by_draws(
                family, model, groups, theta, local_draws or LOCAL_DRAWS, draws is None
            )
        if draws is None and (e := standardised(family, theta)) is not None:
            few = by_few(lambda count: _weights(family, model, groups, theta.some(0, count)), e)
            if few:
                return _rounded(Estimate(*few), 0.0, family, model, groups, theta)
        local = marginal_log_liks(family, model, groups, theta.theta)
    else:
        theta = draw_theta(key, family, model, draws or DRAWS)
        if form == "mean_likelihood":
            return log_mean_weight(_likelihood_sums(family, model, groups, theta))
        local = joint_sums(family, model, groups, theta)
    found = log_mean_weight(theta_terms(model, theta) + local)
    return _rounded(found, 0.0, family, model, groups, theta)


def _weights(family: Family, model: Model, groups: Groups, theta: Draws) -> LogMeans:
    """The log of the mean weight of draws of theta, z integrated by quadrature."""
    log_weight = theta_terms(model, theta) + marginal_log_liks(family, model, groups, theta.theta)
    found, S = log_mean_weight(log_weight), len(log_weight)
    influence = np.exp(log_weight - found) - 1
    return LogMeans(float(found), influence, np.full(S, 1 / S), np.array([found.ess]))


def _by_draws(
    family: Family, model: Model, groups: Groups, theta: Draws, local_draws: int, enough: bool
) -> Estimate:
    """The evidence per group by draws of z; with `enough`, by the first draws of theta if they are."""
    # All draws of theta share the groups' noise, so log p^(y | theta) is one smooth function whose
    # error is a common shift. Independent noise would swamp the weights of theta.
    S, weights, spreads = len(theta.theta), [], []
    found, variance = Estimate(np.nan), 0.0
    first = [min(times * FIRST_DRAWS, S) for times in (1, 2, 4)] if enough else []
    for start, stop in pairwise(sorted({0, *first, S})):
        if start and _minor(found, variance):
            break
        part = theta.some(start, stop)
        local, own = _tight(family, model, groups, part, local_draws, shared=True)
        weights.append(theta_terms(model, part) + local)
        spreads.append(own * len(local))
        found = log_mean_weight(np.concatenate(weights))
        variance = sum(spreads) / sum(map(len, weights))
    return _rounded(found, variance, family, model, groups, theta)


def _minor(found: Estimate, variance: float) -> bool:
    """Whether more draws of theta would hardly reduce the estimate's whole variance."""
    return found.ess is not None and found.ess > EFFECTIVE and found.se**2 < MINOR * variance


def _rounded(
    found: Estimate, variance: float, family: Family, model: Model, groups: Groups, draws: Draws
) -> Estimate:
    """The estimate freed of float32's bias, with more variance in its standard error."""
    value = float(found) + rounding(family, model, groups, draws, float(found))
    return Estimate(value, float(np.hypot(found.se, variance**0.5)), found.ess, found.draws)


def theta_terms(model: Model, draws: Draws) -> Float64[np.ndarray, " S"]:
    """Returns log p(theta) - log q(theta) of each draw."""
    log_prior = np.asarray(log_priors(model, draws.theta), np.float64)
    return log_prior - np.asarray(draws.log_q, np.float64)


def joint_sums(
    family: Family, model: Model, groups: Groups, draws: Draws
) -> Float64[np.ndarray, " S"]:
    """Sum over all groups of log p(y_i, z_i | theta) - log q(z_i | theta), for each draw."""
    total, S = np.zeros(len(draws.theta)), len(draws.theta)
    for block in ranges(groups):
        known = condition(family, model, block.batches[0])
        joint = lambda chunk: _block_joint(known, model, chunk)  # noqa: B023
        total += double(of_chunks(joint, draws, at_once(known, model, S, 1)))
    return total


@program
def _block_joint(
    known: Conditioned, model: Model, chunk: Chunk
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    z, log_q = locals_of(known, model, chunk, 1)
    terms = lambda theta, z, log_q: log_ratio_terms(model, theta, z, log_q, known.batch)
    return precise_sum(jax.vmap(terms)(jnp.asarray(chunk.theta), z, log_q))


def _likelihood_sums(
    family: Family, model: Model, groups: Groups, draws: Draws
) -> Float64[np.ndarray, " S"]:
    """Sum over all rows of log p(y | theta, z), for each draw."""
    total = np.zeros(len(draws.theta))
    for block in ranges(groups):
        known = condition(family, model, block.batches[0])
        use = lambda chunk, z, _: block_sums(model, chunk, z, known.batch)  # noqa: B023
        total += double(map_draws(use, known, model, draws, 1))
    return total


@program
def block_sums(
    model: Model, chunk: Chunk, z: Array, batch: Batch
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """Sum over a block's rows of log p(y | theta, z)."""
    terms = lambda theta, z: row_terms(model, theta, z, batch)
    return precise_sum(jax.vmap(terms)(jnp.asarray(chunk.theta), z))


def _tight(
    family: Family, model: Model, groups: Groups, draws: Draws, local_draws: int, shared: bool
) -> tuple[Float64[np.ndarray, " S"], float]:
    """Sum over groups of the K-draw bounds on log p(y_i | theta), and the variance of that sum."""
    if not isinstance(family, Branched):
        raise ValueError(
            "local draws need q(z_i | theta) of each group, and joint() has none: use "
            'local_draws=1 or form="joint", or fit a branch(), amortized() or solved() family.'
        )
    total, variance, S = np.zeros(len(draws.theta)), 0.0, len(draws.theta)
    first = Chunk(keys_of(draws.key, np.zeros(1, np.int32)), draws.theta[:1])
    for block in ranges(groups):
        known = condition(family, model, block.batches[0], local_draws)
        points = _points(first, known.batch, local_draws, model.z.size) if shared else None
        size = at_once(known, model, S, max(local_draws, 2))
        tight = lambda chunk: _block_tight(known, model, chunk, points, local_draws)  # noqa: B023
        *sums, spread = of_chunks(tight, draws, size)
        total += double(sums)
        variance += float(np.asarray(spread, np.float64).mean())
    return total, variance


@program
def _points(chunk: Chunk, batch: Batch, K: int, M: int) -> Float[Array, "K B M"]:
    """K points of each group, by the key of a draw of theta."""
    return group_points(chunk.keys()[0], batch.index, K, M)


@program
def _block_tight(
    known: Conditioned, model: Model, chunk: Chunk, points: Array | None, local_draws: int
) -> tuple[Float[Array, " C"], Float[Array, " C"], Float[Array, " C"]]:
    """A block's part of `_tight`, by shared points or, if `points` is None, each draw's own points."""
    conditional, batch = known.conditional(model), known.batch
    half = (local_draws + 1) // 2

    def one(key: PRNGKeyArray, theta: Array) -> tuple[Array, Array, Array]:
        if points is None:
            weighted = weigh(key, conditional(theta), model, batch, theta, local_draws)
        else:
            weighted = weigh_points(points, conditional(theta), model, batch, theta)
        real = lambda x: jnp.where(batch.group_mask, x, 0)
        if local_draws < 2:
            return *precise_sum(real(weighted.bound)), jnp.zeros(())
        # The two halves are independent: their difference shows the noise of their mean.
        halves = weighted.log_weight[:half], weighted.log_weight[half:]
        apart = log_mean_exp(halves[0]) - log_mean_exp(halves[1])
        return *precise_sum(real(weighted.bound)), jnp.sum(real(apart**2)) / 4

    return jax.vmap(one)(chunk.keys(), jnp.asarray(chunk.theta))


def double(parts: Any) -> Float64[np.ndarray, " S"]:
    """The sum of the two parts of a `precise_sum`, in float64."""
    return np.asarray(parts, np.float64).sum(0)


def standard_error(values: Float64[np.ndarray, " S"]) -> float:
    """The standard error of the mean of independent values; NaN for a single value."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def log_mean_weight(log_weight: Float64[np.ndarray, " S"]) -> Estimate:
    """Log of the mean weight, its delta-method standard error and the effective sample size."""
    top = log_weight.max()
    if not np.isfinite(top):
        return Estimate(top, ess=0.0, draws=len(log_weight))
    weight = np.exp(log_weight - top)
    mean = weight.mean()
    ess = float(weight.sum() ** 2 / np.sum(weight**2))
    return Estimate(top + np.log(mean), standard_error(weight / mean), ess, len(weight))


def check_form(method: str, form: str, forms: Any) -> None:
    """Raises where `form` is none of a `Literal`'s values."""
    if form not in get_args(forms):
        known = ", ".join(f'"{name}"' for name in get_args(forms))
        raise ValueError(f"{method} expected form to be one of {known}; got {form!r}.")
