"""A stand-in for F at a fiftieth of its cost: chains move on it, and F corrects their draws.

The likelihood of each group is replaced with its site at theta's centre, a Gaussian in z. With a
normal p(z | theta) = N(mu, Lambda^-1), the integral over z is known: if the site has value v, slope
s and curvature H at mu,

    log p(y_i | theta) = v + 1/2 s' P^-1 s + 1/2 log |Lambda| - 1/2 log |P|,    P = H + Lambda.

This has the shape that sds near zero and their correlations give to F. The difference of F from it
is approximated by a parabola, fitted to values and slopes of F at a few points of q(theta). Far out
the parabola is held constant along each of its axes, unless it falls there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ramify.data.batch import Batch
from ramify.data.partition import rounded
from ramify.families.solver import solve_block
from ramify.inference.marginal import Marginal
from ramify.inference.shared_draws import can_share
from ramify.inference.theta_nuts import Expansion
from ramify.inference.theta_search import Learned
from ramify.models.model import Model
from ramify.models.structure import Normal
from ramify.numerics.arrays import floats
from ramify.numerics.chunks import in_chunks
from ramify.numerics.points import normal_points
from ramify.numerics.programs import program
from ramify.numerics.small_linalg import inverse_factor_last, log_diagonal, product, times
from ramify.numerics.sums import precise_sum

POINTS = 4  # points of q(theta), for each coordinate, to which the parabola is fitted
FARTHEST = 2.5  # sds of q(theta) beyond which the parabola is held constant along an axis
FALLING = 0.3  # curvature in those sds above which it is not
CHUNK = 256  # thetas of a call


class Parabola(NamedTuple):
    """The difference between F and the sites' integral, in y = axes (theta - centre)."""

    centre: Float[Array, " D"]
    axes: Float[Array, "D D"]
    level: Float[Array, ""]
    slope: Float[Array, " D"]
    curvature: Float[Array, " D"]
    falls: Bool[Array, " D"]  # axes along which it is not held constant far out

    def at(self, theta: Float[Array, " D"]) -> Float[Array, ""]:
        """The value at theta."""
        y = self.axes @ (theta - self.centre)
        y = jnp.where(self.falls, y, y / (1 + (y / FARTHEST) ** 2) ** 0.5)
        return self.level + self.slope @ y - 0.5 * self.curvature @ y**2


class Sites(NamedTuple):
    """All groups' sites, groups in the last axis: what is done to all of them runs along it."""

    anchor: Float[Array, "M B"]
    value: Float[Array, " B"]
    slope: Float[Array, "M B"]
    curvature: Float[Array, "M M B"]
    known: Bool[Array, " B"]  # those that are not filler

    def moved(self, step: Float[Array, "M B"]) -> tuple[Array, Array]:
        """Values and slopes of the same parabolas, written around points a step away."""
        pull = times(self.curvature, step)
        return self.value + jnp.sum((self.slope - 0.5 * pull) * step, 0), self.slope - pull


class StandIn(NamedTuple):
    """All groups' sites at one theta, and the parabola."""

    model: Model
    batch: Batch
    sites: Sites
    parabola: Parabola

    def function(self, centre: Array) -> Callable[[Array], Expansion]:
        """Theta -> its value in two float32 parts, and its slope."""
        del centre
        return self.expand

    def expand(self, theta: Float[Array, " D"]) -> Expansion:
        """The value in two float32 parts, and the slope by Fisher's identity, at one theta."""
        values, slope = self._groups(theta)
        more = lambda theta: self.model.log_prior(theta) + self.parabola.at(theta)
        rest, steeper = jax.value_and_grad(more)(theta)
        return precise_sum(jnp.append(values, rest)), slope + steeper

    def _groups(self, theta: Float[Array, " D"]) -> tuple[Float[Array, " B"], Float[Array, " D"]]:
        """Log p(y_i | theta) of each group by its site, and the slope of their sum."""
        prior, back = jax.vjp(self._prior, theta)
        # All places may share one root.
        shared = prior.root.ndim == 2
        root = prior.root[..., None] if shared else jnp.moveaxis(prior.root, 0, -1)
        value, slope = self.sites.moved(prior.mean.T - self.sites.anchor)
        transposed = root.swapaxes(0, 1)
        scale = inverse_factor_last(self.sites.curvature + product(transposed, root))
        white = times(scale.swapaxes(0, 1), slope)
        apart = times(scale, white)
        log_det = jnp.sum(log_diagonal(scale) + log_diagonal(root), 0)
        value = value + 0.5 * jnp.sum(white**2, 0) + log_det
        # The slopes in mean and root of the mean of log p(z_i | theta) over each group's Gaussian.
        known = self.sites.known
        pull = jnp.where(known, times(transposed, times(root, apart)), 0)
        about = product(scale, scale.swapaxes(0, 1)) + apart[:, None] * apart
        steep = _steep(prior.root, about, known.astype(about.dtype))
        return jnp.where(known, value, 0), back(Normal(pull.T, steep))[0]

    def _prior(self, theta: Float[Array, " D"]) -> Normal:
        declared = self.model.structure.prior
        assert declared is not None
        own, places = declared(theta, self.batch), len(self.sites.known)
        return own._replace(mean=jnp.broadcast_to(own.mean, (places, own.mean.shape[-1])))

    def expansions(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values [n] and slopes [n, D] at thetas."""
        own = np.asarray(thetas, self.sites.anchor.dtype)
        high, low, slopes = in_chunks(lambda chunk: _expansions(self, chunk), own, CHUNK)
        return np.asarray(high, np.float64) + low, np.asarray(slopes, np.float64)


def _steep(
    root: Float[Array, "*B M M"], about: Float[Array, "M M B"], known: Float[Array, " B"]
) -> Float[Array, "*B M M"]:
    """The derivative of E log p(z) in the prior's root, given second moments of z about its mean."""
    up = 1 / jnp.diagonal(root, axis1=-2, axis2=-1)
    if root.ndim == 2:
        # A sum over groups, as a product with a vector: that is faster on a CPU.
        return jnp.diag(jnp.sum(known) * up) - root @ (about @ known)
    own = jnp.einsum("bij,jkb->bik", root, about)
    return known[:, None, None] * (up[..., None] * jnp.eye(len(about), dtype=up.dtype) - own)


@program
def _expansions(own: StandIn, thetas: Float[Array, "C D"]) -> tuple[Array, Array, Array]:
    (high, low), slopes = jax.vmap(own.expand)(thetas)
    return high, low, slopes


def can_stand_in(F: Marginal) -> bool:
    """Whether p(z | theta) is declared normal, and F has no exact integral and no shared draws."""
    declared = F.model.structure.prior is not None
    return declared and not F.problem.normal and not can_share(F.problem)


class Seen(NamedTuple):
    """F at some thetas."""

    thetas: Float[np.ndarray, "n D"]
    values: Float[np.ndarray, " n"]
    slopes: Float[np.ndarray, "n D"]

    def __add__(self, other: "Seen") -> "Seen":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Seen(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def seen(F: Marginal, thetas: np.ndarray) -> Seen:
    """F and its slope at any number of thetas, without those where it is not finite."""
    found = []
    for start in range(0, len(thetas), F.points):
        F.check_budget()
        found.append(F.expand(thetas[start : start + F.points]))
    values, slopes = (np.concatenate(part) for part in zip(*found, strict=True))
    finite = np.isfinite(values) & np.isfinite(slopes).all(1)
    return Seen(thetas[finite], values[finite], slopes[finite])


def begin(F: Marginal, learned: Learned) -> tuple[StandIn, Seen]:
    """The stand-in fitted to F at enough points of q(theta) for a parabola; and F there."""
    D = len(learned.mean)
    factor = np.linalg.cholesky(np.linalg.inv(learned.precision))
    at = seen(F, learned.mean + normal_points(POINTS * D // 2 * 2, D) @ factor.T)
    return with_parabola(stand_in(F, learned), learned, at), at


def nearer(own: StandIn, F: Marginal, at: Seen, draws: np.ndarray) -> tuple[StandIn, Seen]:
    """The stand-in fitted also to F at some of its draws, far ones included, with the same axes."""
    at += seen(F, draws[:: -(-len(draws) // (POINTS * F.model.theta.size))])
    return refitted(own, at), at


def with_parabola(own: StandIn, learned: Learned, at: Seen) -> StandIn:
    """The stand-in with a parabola, and its axes, fitted to F at these thetas."""
    back = np.linalg.cholesky(learned.precision).T  # to sds of q(theta)
    bare = own._replace(parabola=_flat(learned.mean, back, np.zeros(len(back), bool)))
    known, known_slopes = bare.expansions(at.thetas)
    more = at.values - known, (at.slopes - known_slopes) @ np.linalg.inv(back)
    hessian = fitted_parabola((at.thetas - learned.mean) @ back.T, *more)[2]
    curvature, ways = np.linalg.eigh(-hessian)
    axes = _flat(learned.mean, ways.T @ back, curvature > FALLING)
    return refitted(own._replace(parabola=axes), at)


def refitted(own: StandIn, at: Seen) -> StandIn:
    """The stand-in fitted to F at these thetas, with the same axes."""
    centre, axes, falls = (
        np.asarray(own.parabola._asdict()[n]) for n in ("centre", "axes", "falls")
    )
    known, known_slopes = own._replace(parabola=_flat(centre, axes, falls)).expansions(at.thetas)
    D, y = len(axes), (at.thetas - centre) @ axes.T
    root = np.where(falls, 1.0, (1 + (y / FARTHEST) ** 2) ** 0.5)
    u, stretch = y / root, root**-3.0
    level = np.concatenate([np.ones((len(y), 1)), u, -0.5 * u**2], 1)
    each = lambda x: x[:, :, None] * np.eye(D)
    steep = np.concatenate([np.zeros((*y.shape, 1)), each(stretch), each(-u * stretch)], 2)
    slopes = (at.slopes - known_slopes) @ np.linalg.inv(axes)
    share = D**0.5  # values count as much as all slopes
    rows = np.concatenate([share * level, steep.reshape(-1, 1 + 2 * D)])
    wanted = np.append(share * (at.values - known), slopes.ravel())
    found = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    level, slope, curvature = (floats(x) for x in (found[0], found[1 : 1 + D], found[1 + D :]))
    parabola = own.parabola._replace(level=level, slope=slope, curvature=curvature)
    return own._replace(parabola=parabola)


def _flat(centre: np.ndarray, axes: np.ndarray, falls: np.ndarray) -> Parabola:
    """A parabola that is zero everywhere."""
    none = floats(np.zeros(len(centre)))
    return Parabola(
        floats(centre), floats(axes), floats(np.zeros(())), none, none, jax.device_put(falls)
    )


def stand_in(F: Marginal, learned: Learned) -> StandIn:
    """The stand-in of all groups' sites at q(theta)'s mean, without a parabola."""
    F.expand(learned.mean[None])  # leaves the modes there
    centre, found = floats(learned.mean), []
    for number, modes in enumerate(F.known_modes):
        batch = F.source.block(number)
        site = solve_block(F.problem.solver, F.model, batch, centre, floats(modes.begin))
        found.append((batch, site.anchor, site.likelihood, site.converged))
    batch, anchor, likelihood, converged = _together(found)
    places = np.flatnonzero(converged & batch.group_mask)
    known = np.arange(_room(len(places))) < len(places)
    places = np.resize(places, known.shape)  # filler are copies
    last = lambda x: np.moveaxis(x[places], 0, -1)
    value, slope, curvature = map(last, likelihood)
    sites = Sites(last(anchor), value, slope, curvature, jax.device_put(known))
    names = "index", "count", "group_mask"
    own = {name: getattr(batch, name)[places] for name in names}
    batch = batch._replace(group={n: x[places] for n, x in batch.group.items()}, **own)
    D = len(learned.mean)
    none = _flat(learned.mean, np.eye(D), np.zeros(D, bool))
    batch, sites = jax.device_put((batch, sites))
    return StandIn(F.model, batch, sites, none)


def _room(count: int) -> int:
    """Places for so many groups: up to an eighth more, since every number of them is compiled anew."""
    step = max(rounded(count) // 8, 8)
    return max(-(-count // step), 1) * step


def _together(blocks: list[Any]) -> Any:
    """Joins the parts of all blocks, without rows, on the host."""
    no_rows = lambda batch: batch._replace(
        rows={}, segment=batch.segment[:0], row_mask=batch.row_mask[:0], scale=batch.scale[None]
    )
    blocks = jax.device_get([(no_rows(batch), *rest) for batch, *rest in blocks])
    batch, *rest = jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)
    return batch._replace(scale=batch.scale[0]), *rest


def fitted_parabola(
    x: Float[np.ndarray, "n D"], values: Float[np.ndarray, " n"], slopes: Float[np.ndarray, "n D"]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Level, slope and Hessian at zero of the parabola fitted to values and slopes.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(5, 2))
        >>> level, slope, hessian = fitted_parabola(x, 3 + x[:, 0] ** 2, 2 * x * [1, 0])
        >>> bool(np.allclose(level, 3) and np.allclose(hessian, [[2, 0], [0, 0]], atol=1e-9))
        True
    """
    n, D = x.shape
    first, second = np.triu_indices(D)
    many = np.arange(len(first))
    bent = np.zeros((n, D, len(first)))  # slopes of x_i x_j
    bent[:, first, many] += x[:, second]
    bent[:, second, many] += x[:, first]
    level = np.concatenate([np.ones((n, 1)), x, x[:, first] * x[:, second]], 1)
    straight = np.broadcast_to(np.eye(D), (n, D, D))
    steep = np.concatenate([np.zeros((n, D, 1)), straight, bent], 2).reshape(n * D, -1)
    wanted = np.append(values, slopes.ravel())
    found = np.linalg.lstsq(np.concatenate([level, steep]), wanted, rcond=None)[0]
    half = np.zeros((D, D))
    half[first, second] = found[1 + D :]
    return float(found[0]), found[1 : 1 + D], half + half.T


def held_tilt(
    F: Marginal, own: StandIn, thetas: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, " n"]:
    """A correction that holds F's tilt constant far out: it is known only near the centre."""
    centre, axes = (np.asarray(x, np.float64) for x in own.parabola[:2])
    y = (thetas - centre) @ axes.T
    near = centre + y / (1 + (y / FARTHEST) ** 2) ** 0.5 @ np.linalg.inv(axes).T
    return F.tilt.at(near)[0] - F.tilt.at(thetas)[0]


def corrected(
    F: Marginal, own: StandIn, theta: Float[np.ndarray, "C n D"], count: int, seed: int
) -> tuple[Float[np.ndarray, "C m D"], Float[np.ndarray, " points"]]:
    """About `count` draws of chains that moved on the stand-in, chosen by weight, and their log weights.

    Weights are exp(F - stand-in). Each chain's draws are chosen from its own, and stay in order.
    """
    C, n, D = theta.shape
    some = np.linspace(0, n - 1, min(count // C, n)).astype(int)
    thin = theta[:, some]
    flat = thin.reshape(-1, D)
    log_weight = F.values(flat) + held_tilt(F, own, flat) - own.expansions(flat)[0]
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    share = np.cumsum(np.exp(log_weight - log_weight.max()).reshape(C, -1), 1)
    level = np.arange(len(some)) + np.random.default_rng(seed).random((C, 1))
    level = level / len(some) * share[:, -1:]
    place = [np.searchsorted(*pair) for pair in zip(share, level, strict=True)]
    place = np.minimum(np.stack(place), len(some) - 1)
    return np.take_along_axis(thin, place[..., None], 1), log_weight
