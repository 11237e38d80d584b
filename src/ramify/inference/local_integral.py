"""A group's z integrated out: log p(y_i | theta) from K points of z, and its derivatives.

In one or two dimensions the points are those of a quadrature rule around the group's mode. In more
they are importance draws (`weigh_block`) from a Student t around the solved conditional; in three
to seven, once theta has been found, those of a rule that is rotated at random for each group. Let C
be the integral of the Gaussian that the expansion of log p(y_i, z | theta) around the group's mode
describes: it is known, and serves as a control variate,

    log p^(y_i | theta) = log C(theta) + log mean_k w_k(theta) - log mean_k v_k(theta),

w the weights of the model and v those of the Gaussian, whose mean is C on average. If the group is
nearly Gaussian both means have the same noise, which cancels, also in the derivatives. Groups with
little information on theta are of that kind: without a control their noise would exceed it.

Where the Gaussian is that of `families.matched`, it is multiplied with 1 + sum_j (r_j - 1), r_j the
ratio of row j's likelihood to its site: w / v = prod_j r_j to first order. Its integral is a sum of
integrals over single rows' predictors. Only products of two or more rows' ratios are left to draws.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ramify.data.batch import Batch
from ramify.families.conditional import Local
from ramify.families.matched import nodes
from ramify.families.newton import expand_likelihood
from ramify.families.solver import Site, Solver
from ramify.models.densities import group_log_liks, log_liks_at, sum_rows
from ramify.models.expansion import Quadratic, expand_local
from ramify.models.model import Model
from ramify.models.structure import linear
from ramify.models.traced import normal_prior
from ramify.numerics.points import Rule, quarter_sizes
from ramify.numerics.small_linalg import inverse_factor, times_covariance
from ramify.numerics.sums import log_mean_exp

COVERED = 3.0  # most nats that the control adds to a group's log integral
FEW_PAIRS = 8  # entries of z up to which all pairs of them are kept, on a CPU
FARTHEST = 50.0  # cut of log ratios: larger ones are far out, where the Gaussian is negligible


def quadrature(
    model: Model,
    uses_theta: bool,
    batch: Batch,
    local: Local,
    rule: Rule,
    turns: Float[Array, "B order M M"] | None = None,
) -> Callable[[Array], Float[Array, " B"]]:
    """Theta -> log p(y_i | theta) by a rule whose points are scaled to the Gaussian `local`.

    `turns` rotate the points at each radius of the rule, separately for each group.
    """
    # The points do not move with theta, so the gradient is Fisher's identity.
    step = _steps(local.scale, rule, turns)
    z = local.mean[..., None] + step
    radii = 1 if turns is None else turns.shape[1]
    likelihood = lambda theta: _log_liks_in(radii, model, theta, z, batch)
    fixed = None if uses_theta else likelihood(jnp.zeros(model.theta.size))
    prior = _log_prior_at(model, batch, local.mean, step)
    log_volume = jnp.sum(jnp.log(jnp.diagonal(local.scale, axis1=-2, axis2=-1)), -1)

    def log_mass(theta: Float[Array, " D"]) -> Float[Array, " B"]:
        known = likelihood(theta) if fixed is None else fixed
        return jax.nn.logsumexp(prior(theta) + known + rule.log_weight, -1) + log_volume

    return log_mass


def _steps(
    scale: Float[Array, "B M M"], rule: Rule, turns: Float[Array, "B order M M"] | None
) -> Float[Array, "B M K"]:
    """The steps from the mean to each point of the rule."""
    if turns is None:
        return jnp.einsum("bij,kj->bik", scale, rule.points)
    B, order, M, _ = turns.shape
    at_radius = rule.points.reshape(order, -1, M)
    turned = jnp.einsum("bij,brjl->bril", scale, turns)
    return jnp.einsum("bril,rnl->birn", turned, at_radius).reshape(B, M, -1)


def _log_liks_in(
    parts: int, model: Model, theta: Array, z: Float[Array, "B M K"], batch: Batch
) -> Float[Array, "B K"]:
    """`log_liks_at` of the points in `parts`, one after the other, with the memory of one."""
    if parts == 1:
        return log_liks_at(model, theta, z, batch)
    B, M, K = z.shape
    each = jnp.moveaxis(z.reshape(B, M, parts, K // parts), 2, 0)
    found = jax.lax.map(lambda z: log_liks_at(model, theta, z, batch), each)
    return jnp.moveaxis(found, 0, 1).reshape(B, K)


def _log_prior_at(
    model: Model, batch: Batch, mean: Float[Array, "B M"], step: Float[Array, "B M K"]
) -> Callable[[Array], Float[Array, "B K"]]:
    """Theta -> log p(z | theta) at steps from a mean; by its expansion, if it is normal."""
    if normal_prior(model, batch):
        return lambda theta: parabola(expand_local(model, batch, theta)(mean), step).T
    z = mean[..., None] + step
    return lambda theta: jax.vmap(lambda z: model.log_local(theta, z, batch), -1, -1)(z)


def bound(
    log_weight: Float[Array, "K B"], times: Float[Array, "K B"] | None = None
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Log of the mean of weights, multiplied by `times` (near one), and an estimate of its bias."""
    # log-mean-exp (LME) of K weights is low by a term in 1/K. Halves are low by twice that, so 2
    # LME(all) - mean LME(halves) is free of it: the jackknife, an estimate and no longer a bound.
    # The remaining bias goes as 1/K^2. The same estimate from half as many weights has four times
    # as much, so it is a third of the difference. The correction is kept below a nat: if one half
    # of the draws has nearly no weight, it would be thousands and meaningless.
    sizes = quarter_sizes(log_weight.shape[0])
    if sizes[-1] < 2:
        whole = log_mean_exp(log_weight)
        return whole, jnp.zeros_like(whole)
    quarters = _log_sums(log_weight, sizes, times)  # every weight is exponentiated only once
    # Of all quarters, the first two and the last two, by one sum: three would compile three times.
    taken = np.repeat([[True, True], [True, False], [False, True]], 2, axis=1)
    counts = np.log(taken @ np.asarray(sizes)).astype(quarters.dtype)
    some = jnp.where(taken[..., None], quarters, -jnp.inf)
    lme, *halves = jax.nn.logsumexp(some, 1) - counts[:, None]
    half = 0.5 * (halves[0] + halves[1])
    quarter = jnp.mean(quarters, 0) - sum(math.log(size) for size in sizes) / 4
    corrected = lme + jnp.tanh(lme - half)
    coarser = half + jnp.tanh(half - quarter)
    return corrected, (coarser - corrected) / 3


def _log_sums(
    log_weight: Float[Array, "K B"], sizes: list[int], times: Float[Array, "K B"] | None
) -> Float[Array, "4 B"]:
    """Log of the sum of each quarter's weights."""

    def quarters(x: Float[Array, "K B"], filler: float) -> Float[Array, "4 n B"]:
        if len(set(sizes)) > 1:  # shorter quarters are filled up with weights of zero
            pieces = jnp.split(x, np.cumsum(sizes)[:-1])
            fill = lambda w: jnp.pad(w, ((0, sizes[0] - len(w)), (0, 0)), constant_values=filler)
            x = jnp.concatenate([fill(piece) for piece in pieces])
        return x.reshape(4, sizes[0], -1)

    own = quarters(log_weight, -jnp.inf)
    plain = jax.nn.logsumexp(own, 1)
    if times is None:
        return plain
    # Factors of a few draws may be negative; the mean is kept above a tenth.
    mean = jnp.sum(jnp.exp(own - plain[:, None]) * quarters(times, 1.0), 1)
    return plain + jnp.log(jnp.maximum(mean, 0.1))


class Parts(NamedTuple):
    """The parts of log p^(y_i | theta), at one theta."""

    log_weight: Float[Array, "K B"]
    log_weight_gaussian: Float[Array, "K B"]
    log_integral: Float[Array, " B"]
    times: Float[Array, "K B"] | None = None  # factors of the Gaussian's weights, if any


def controlled(
    parts: Parts, definite: Bool[Array, " B"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Log p^(y_i | theta), with the Gaussian as control where it is definite, and its bias."""
    # As if both were groups of one block: compiled once.
    both, times = jnp.concatenate([parts.log_weight, parts.log_weight_gaussian], 1), parts.times
    times = None if times is None else jnp.concatenate([jnp.ones_like(times), times], 1)
    (value, noise), (bias, noise_bias) = (x.reshape(2, -1) for x in bound(both, times))
    known = jnp.where(definite, parts.log_integral - noise, 0)
    # A large value says that the draws are not where z is at this theta: they tell nothing of it.
    return value + jnp.clip(known, -COVERED, COVERED), bias - jnp.where(definite, noise_bias, 0)


class Weigh(NamedTuple):
    """A block's importance draws with the proposal held fixed, and their weights at any theta."""

    prior: Callable[[Array], Quadratic]  # log p(z | theta) expanded around the proposal's mean
    density: Callable[[Array], Float[Array, "K B"]] | None  # at each draw; None if `prior` is exact
    likelihood: Callable[[Array], "Likelihood"]
    step: Float[Array, "B M K"]  # from the mean to each draw
    log_q: Float[Array, "K B"]
    # Groups where both expansions together have a maximum: their Gaussian is the control.
    definite: Bool[Array, " B"]
    ratios: "Ratios | None" = None

    def parts(self, theta: Float[Array, " D"]) -> Parts:
        """Weights and the Gaussian's integral at this theta."""
        prior, likelihood = self.prior(theta), self.likelihood(theta)
        expanded = parabola(prior, self.step)
        density = expanded if self.density is None else self.density(theta)
        both = prior + likelihood.expansion
        integral, ratios = log_integral(both, self.definite), self.ratios
        return Parts(
            density + likelihood.value - self.log_q,
            expanded + likelihood.expanded - self.log_q,
            integral if ratios is None else integral + ratios.log_mean(both, self.definite),
            None if ratios is None else ratios.times,
        )

    def bound(self, theta: Float[Array, " D"]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        """Log p^(y_i | theta), and an estimate of its bias."""
        return controlled(self.parts(theta), self.definite)


class Ratios(NamedTuple):
    """1 + sum_j (r_j - 1) of each group at its draws, and the log of its mean over a Gaussian."""

    times: Float[Array, "K B"]
    log_mean: Callable[[Quadratic, Array], Float[Array, " B"]]


class Likelihood(NamedTuple):
    """Each group's log likelihood at the draws, its expansion, and the expansion at the draws."""

    value: Float[Array, "K B"]
    expansion: Quadratic
    expanded: Float[Array, "K B"]


def weigh_block(
    model: Model,
    solver: Solver,
    batch: Batch,
    site: Site,
    local: Local,
    points: Float[Array, "K B M"],
) -> Weigh:
    """Draws of every group's z from its solved conditional `local`, with their control."""
    # If p(z | theta) is a Gaussian, its expansion gives its density at all the draws, and theta is
    # used once a group. Expansions are around the proposal's mean: from far away the parabola of a
    # narrow p(z | theta) is a difference of large numbers.
    z, log_q = jax.vmap(local.propose)(points)
    step = jnp.moveaxis(z - local.mean, 0, -1)
    expansion = site_likelihood(model, batch, site, local.mean, solver.uses_theta)

    def likelihood(theta: Float[Array, " D"]) -> Likelihood:
        around, value = expansion(theta), group_log_liks(model, theta, z, batch)
        return Likelihood(value, around, parabola(around, step))

    fixed = None if solver.uses_theta else likelihood(jnp.zeros(model.theta.size))
    density = jax.vmap(lambda theta, z: model.log_local(theta, z, batch), (None, 0))
    return Weigh(
        prior=lambda theta: expand_local(model, batch, theta)(local.mean),
        density=None if normal_prior(model, batch) else lambda theta: density(theta, z),
        likelihood=likelihood if fixed is None else lambda _: fixed,
        step=step,
        log_q=log_q,
        definite=site.converged & batch.group_mask,
        ratios=None if fixed is None else row_ratios(model, batch, site, local, step),
    )


def row_ratios(
    model: Model, batch: Batch, site: Site, local: Local, step: Float[Array, "B M K"]
) -> Ratios | None:
    """Ratios of rows' likelihoods to their sites; None if rows have no sites."""
    declared, sites = model.structure.likelihood, site.rows
    if declared is None or sites is None:
        return None
    none, weights = jnp.zeros(model.theta.size), declared.weights(batch)
    at_anchor = (
        linear(weights, batch.at_rows(site.anchor)[..., None])
        + declared.offsets(none, batch)[..., None]
    )
    apart = local.mean - site.anchor

    def surplus(x: Float[Array, "R K"]) -> Float[Array, "R K"]:
        log_lik = declared.density(none, at_anchor + x[:, None], batch)
        return jnp.expm1(jnp.minimum(log_lik - sites.at(x), FARTHEST))

    def log_mean(q: Quadratic, definite: Bool[Array, " B"]) -> Float[Array, " B"]:
        eye = jnp.eye(q.slope.shape[-1], dtype=q.slope.dtype)
        scale = inverse_factor(jnp.where(definite[:, None, None], q.curvature, eye))
        mean = apart + times_covariance(scale, jnp.where(definite[:, None], q.slope, 0))
        spread = jnp.einsum("ri,rij->rj", weights[:, 0], batch.at_rows(scale))
        x, log_weight = nodes(
            jnp.sum(weights[:, 0] * batch.at_rows(mean), -1), jnp.sum(spread**2, -1)
        )
        total = sum_rows(jnp.sum(jnp.exp(log_weight) * surplus(x), -1), batch)
        return jnp.log1p(jnp.maximum(total, -0.9))

    draws = linear(weights, batch.at_rows(apart[..., None] + step))[:, 0]
    return Ratios(1 + sum_rows(surplus(draws), batch).T, log_mean)


def site_likelihood(
    model: Model, batch: Batch, site: Site, around: Float[Array, "B M"], again: bool
) -> Callable[[Array], Quadratic]:
    """Theta -> the likelihood's expansion around a point of each group, by the site or `again`."""
    if again:
        return lambda theta: expand_likelihood(model, batch, theta)(around)
    # Filler groups have an expansion of minus infinity, whose gradient is NaN.
    known = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0), site.likelihood)
    moved = known.moved(around - site.anchor)
    return lambda _: moved


def parabola(q: Quadratic, step: Float[Array, "B M n"]) -> Float[Array, "n B"]:
    """The expansion's value at n steps from its centre."""
    if step.shape[1] <= FEW_PAIRS and jax.default_backend() == "cpu":
        return (q.value[:, None] + _by_pairs(q, step)).T
    slope = q.slope[..., None] - 0.5 * jnp.einsum("bij,bjn->bin", q.curvature, step)
    return (q.value[:, None] + jnp.sum(slope * step, 1)).T


def _by_pairs(q: Quadratic, step: Float[Array, "B M n"]) -> Float[Array, "B n"]:
    """The change of the expansion by steps, as a product with the steps' entries and their pairs."""
    # On a CPU a product of small matrices for each group, with its derivative in the curvature, takes
    # three times as long. The pairs are the same for every expansion at these steps.
    first, second = np.triu_indices(step.shape[1])
    terms = jnp.concatenate([step, step[:, first] * step[:, second]], 1)
    share = np.where(first == second, -0.5, -1.0).astype(step.dtype)
    factors = jnp.concatenate([q.slope, share * q.curvature[:, first, second]], 1)
    return jnp.einsum("bp,bpn->bn", factors, terms)


def log_integral(q: Quadratic, definite: Bool[Array, " B"]) -> Float[Array, " B"]:
    """Log of the integral of exp(expansion) over z; meaningless where it is not definite."""
    M = q.slope.shape[-1]
    eye = jnp.eye(M, dtype=q.slope.dtype)
    curvature = jnp.where(definite[:, None, None], q.curvature, eye)
    return q.value + _log_volume(q.slope, curvature) + 0.5 * M * math.log(2 * math.pi)


@jax.custom_jvp
def _log_volume(slope: Float[Array, "B M"], curvature: Float[Array, "B M M"]) -> Float[Array, " B"]:
    """Half of g' P^-1 g - log |P|."""
    factor = inverse_factor(curvature)
    white = jnp.einsum("bij,bi->bj", factor, slope)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
    return 0.5 * jnp.sum(white**2, -1) + log_det


@_log_volume.defjvp
def _log_volume_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """By m' dg - (m' dP m + tr(P^-1 dP)) / 2, m = P^-1 g: no factor is differentiated."""
    slope, curvature = primals
    factor = inverse_factor(curvature)
    mode = times_covariance(factor, slope)
    bent = jnp.einsum("bi,bij,bj->b", mode, tangents[1], mode)
    trace = jnp.einsum("bik,bij,bjk->b", factor, tangents[1], factor)
    return _log_volume(*primals), jnp.sum(mode * tangents[0], -1) - 0.5 * (bent + trace)
