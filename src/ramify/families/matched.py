"""Expectation propagation: a Gaussian with the moments of a group's z, for groups of few rows.

Where a group has no more rows than z has dimensions, p(z | theta, y_i) is skewed, and its mode is
far from its mean: Laplace's approximation is a poor proposal and a poor control. Here every row j
has a site exp(nu f - tau f^2 / 2) in its own linear predictor f = w_j' z. The prior times all sites
is a Gaussian in z. A round takes each row's marginal N(m, v) of f, replaces the row's site with its
likelihood, takes mean m' and variance v' of that by a one-dimensional integral, and moves the site:

    tau <- tau + 1/v' - 1/v,    nu <- nu + m'/v' - m/v.

The Gaussian's integral times the rows' mean ratios of likelihood to site is a very good estimate of
p(y_i | theta) (Minka, 2001). A normal p(z | theta) and one linear predictor must be declared.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ramify.data.batch import Batch, Theta, Z
from ramify.models.densities import sum_rows
from ramify.models.expansion import Quadratic, expand
from ramify.models.model import Model
from ramify.numerics.small_linalg import inverse_factor, times_covariance

NODES = 15  # of the rule for the integral over a row's predictor
MOST_ROUNDS, CLOSE = 12, 0.01  # rounds; error of a marginal's mean and sd, in sds, that is accepted
SHARE = 0.8  # of the full update that a site takes in a round, since all rows move at once


def can_match(model: Model, batch: Batch) -> bool:
    """Whether the model declares the structure that expectation propagation needs here."""
    declared = model.structure.likelihood
    if declared is None or model.structure.prior is None or not declared.smooth:
        return False
    return jax.eval_shape(declared.weights, batch).shape[1] == 1


class _Sites(NamedTuple):
    tau: Float[Array, " R"]
    nu: Float[Array, " R"]
    off: Float[Array, ""]  # how far the worst marginal was off before the last move
    rounds: Int[Array, ""]


class RowSites(NamedTuple):
    """Each row's site: a parabola in w' (z - mean) that stands for its log likelihood."""

    value: Float[Array, " R"]
    slope: Float[Array, " R"]
    curvature: Float[Array, " R"]

    def at(self, x: Float[Array, "R K"]) -> Float[Array, "R K"]:
        """The parabola's value at K numbers of each row."""
        return self.value[:, None] + (self.slope[:, None] - 0.5 * self.curvature[:, None] * x) * x


class Matched(NamedTuple):
    """The Gaussian of each group, and the sites of its rows, each and summed."""

    mean: Z
    scale: Float[Array, "B M M"]
    likelihood: Quadratic
    rows: RowSites


def match_moments(model: Model, batch: Batch, theta: Theta, mode: Z) -> Matched:
    """Expectation propagation for all groups of a block at once, from sites at their modes."""
    declared, prior = model.structure.likelihood, model.structure.prior
    assert declared is not None and prior is not None
    normal = prior(theta, batch)
    precision = jnp.einsum("...ki,...kj->...ij", normal.root, normal.root)
    centre = jnp.broadcast_to(normal.mean, mode.shape)
    w = declared.weights(batch)[:, 0]
    offset = declared.offsets(theta, batch)[:, 0] + jnp.sum(w * batch.at_rows(centre), -1)

    def density(f: Float[Array, "R K"]) -> Float[Array, "R K"]:
        return declared.density(theta, (f + offset[:, None])[:, None], batch)

    rows = _Rows(batch, w, precision, density)

    def round_of(sites: _Sites) -> _Sites:
        mean, variance = rows.marginals(sites.tau, sites.nu)
        _, m, v = rows.tilted(sites.tau, sites.nu, mean, variance)
        off = jnp.maximum(jnp.abs(m - mean) / jnp.sqrt(variance), 0.5 * jnp.abs(v / variance - 1))
        tau = jnp.maximum(sites.tau + SHARE * (1 / v - 1 / variance), 0)
        nu = sites.nu + SHARE * (m / v - mean / variance)
        good = jnp.isfinite(tau) & jnp.isfinite(nu)
        off = jnp.max(jnp.where(batch.row_mask & good, off, 0))
        tau, nu = jnp.where(good, tau, sites.tau), jnp.where(good, nu, sites.nu)
        return _Sites(tau, nu, off, sites.rounds + 1)

    start = rows.expanded(jnp.sum(w * batch.at_rows(mode - centre), -1))
    more = lambda sites: (sites.off > CLOSE) & (sites.rounds < MOST_ROUNDS)
    tau, nu, _, _ = jax.lax.while_loop(more, round_of, start)
    shift, scale = rows.gaussian(tau, nu)
    mean, variance = rows.marginals(tau, nu)
    log_ratio = rows.tilted(tau, nu, mean, variance)[0]
    found = RowSites(log_ratio + (nu - 0.5 * tau * mean) * mean, nu - tau * mean, tau)
    return Matched(centre + shift, scale, rows.summed(*found), found)


class _Rows(NamedTuple):
    """A block's rows, each with its own linear predictor, less its mean under p(z | theta)."""

    batch: Batch
    weights: Float[Array, "R M"]
    precision: Float[Array, "*B M M"]  # of p(z | theta)
    density: Callable[[Array], Array]

    def summed(self, value: Array, slope: Array, curvature: Array) -> Quadratic:
        """Sums quadratics in the rows' predictors to one quadratic in each group's z."""
        w = self.weights
        bent = (curvature[:, None] * w)[:, :, None] * w[:, None]
        packed = Quadratic(value, slope[:, None] * w, bent).packed()
        return Quadratic.unpacked(sum_rows(packed, self.batch), w.shape[-1])

    def expanded(self, f: Float[Array, " R"]) -> _Sites:
        """Sites with the slope and the curvature of the likelihood at f."""
        at = expand(lambda f: self.density(f)[:, 0], f[:, None])
        tau = jnp.maximum(at.curvature[:, 0, 0], 1e-4)
        far = jnp.full((), jnp.inf, f.dtype)
        return _Sites(tau, at.slope[:, 0] + tau * f, far, jnp.zeros((), jnp.int32))

    def gaussian(self, tau: Array, nu: Array) -> tuple[Z, Float[Array, "B M M"]]:
        """Mean (minus the prior's mean) and scale of each group's z."""
        total = self.summed(jnp.zeros_like(tau), nu, tau)
        scale = inverse_factor(self.precision + total.curvature)
        return times_covariance(scale, total.slope), scale

    def marginals(self, tau: Array, nu: Array) -> tuple[Array, Array]:
        """Mean and variance of each row's predictor."""
        shift, scale = self.gaussian(tau, nu)
        spread = jnp.einsum("ri,rij->rj", self.weights, self.batch.at_rows(scale))
        return jnp.sum(self.weights * self.batch.at_rows(shift), -1), jnp.sum(spread**2, -1)

    def tilted(self, tau: Array, nu: Array, mean: Array, variance: Array) -> tuple[Array, ...]:
        """Log integral, mean and variance with a row's likelihood in place of its site."""
        f, log_weight = nodes(mean, variance)
        site = (nu[:, None] - 0.5 * tau[:, None] * f) * f
        log_mass = self.density(f) - site + log_weight
        share = jax.nn.softmax(log_mass, -1)
        m = jnp.sum(share * f, -1)
        v = jnp.sum(share * (f - m[:, None]) ** 2, -1)
        return jax.nn.logsumexp(log_mass, -1), m, v


def nodes(
    mean: Float[Array, " R"], variance: Float[Array, " R"]
) -> tuple[Float[Array, "R Q"], Float[np.ndarray, " Q"]]:
    """Points and log weights of a rule for averages over normal numbers."""
    node, weight = np.polynomial.hermite_e.hermegauss(NODES)
    points = mean[:, None] + jnp.sqrt(variance)[:, None] * node.astype(mean.dtype)
    return points, np.log(weight / weight.sum()).astype(mean.dtype)
