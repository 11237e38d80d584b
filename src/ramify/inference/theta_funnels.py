"""Coordinates in which theta has no funnels between an sd and a vector that is drawn with it.

An entry of theta that is drawn around others, x ~ N(loc, scale) where both follow from theta, stands as
e = (x - loc) / scale if the data tell less of it than that prior does ("non-centred"; Papaspiliopoulos,
Roberts and Skold 2007). Otherwise, and of all others, e is x. Only chains move in these coordinates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from ramify.families.weighted_theta import WeightedTheta
from ramify.inference.theta_nuts import (
    Expand,
    Expansion,
    Most,
    Sampled,
    Shown,
    Target,
    sample_theta,
)
from ramify.inference.theta_search import Learned
from ramify.inference.theta_weights import Proposal, fitted_proposal
from ramify.models.model import Model
from ramify.models.structure import Around
from ramify.numerics.arrays import floats
from ramify.numerics.chunks import in_chunks
from ramify.numerics.points import normal_points
from ramify.numerics.programs import program

POINTS = 256  # of q(theta), over which the precisions of priors are averaged as that of q(theta) is
SMALLEST = 1e-30  # scale: a smaller one may be rounded to zero
OWN = 0.5  # of the precision of an entry given all others: more is by its prior, which e takes off
# Of the chains that tell the others' coordinates: they end as soon as they may.
FEW: dict[str, Any] = {"evaluations": 0.0, "cheap": 0.0, "draws": (0, 0)}


class Standard(NamedTuple):
    """The map between theta and e."""

    model: Model
    chosen: Bool[Array, " D"]  # entries that are standardised

    def theta(self, e: Float64[np.ndarray, "S D"]) -> Float64[np.ndarray, "S D"]:
        """Theta at each e."""
        return in_chunks(lambda some: _thetas(self, some), e).astype(np.float64)

    def standardised(self, theta: Float64[np.ndarray, "S D"]) -> Float64[np.ndarray, "S D"]:
        """The e of each theta."""
        return in_chunks(lambda some: _standardised(self, some), theta).astype(np.float64)

    def spread(self, e: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Theta at e, and log |d theta / d e|."""

        # Each time around, one more of the sites that are drawn around others is what it has to be.
        def further(_: Any, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
            loc, scale = self.around(so_far[0])
            return loc + scale * e, jnp.sum(jnp.log(scale))

        return jax.lax.fori_loop(0, self._known.sites, further, (e, jnp.zeros((), e.dtype)))

    def gather(self, theta: Float[Array, " D"]) -> Float[Array, " D"]:
        """The e of theta."""
        loc, scale = self.around(theta)
        return (theta - loc) / scale

    def around(self, theta: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """What each entry is drawn around, and with which scale; 0 and 1 where e is x."""
        loc, scale = self._known.at(theta)
        return jnp.where(self.chosen, loc, 0.0), jnp.where(self.chosen, scale, 1.0)

    @property
    def _known(self) -> Around:
        known = self.model.structure.around
        assert known is not None
        return known


class OfStandard(NamedTuple):
    """A target of chains as a function of e."""

    target: Target
    form: Standard

    def function(self, centre: Array) -> Callable[[Array], Expansion]:
        """E -> the target's value there with the map's Jacobian, and its slope."""
        inside = self.target.function(self.form.spread(centre)[0])

        def expand(e: Float[Array, " D"]) -> Expansion:
            (theta, log_det), back = jax.vjp(self.form.spread, e)
            (high, low), slope = inside(theta)
            return (high, low + log_det), back((slope, jnp.ones_like(log_det)))[0]

        return expand


def without_funnels(model: Model, learned: Learned) -> Standard | None:
    """The coordinates, by what q(theta) says of each entry given all others; None if e is theta."""
    if model.structure.around is None:
        return None
    everywhere = Standard(model, jnp.ones(len(learned.mean), bool))
    noise = normal_points(POINTS, len(learned.mean))
    points = learned.mean + np.linalg.solve(np.linalg.cholesky(learned.precision).T, noise.T).T
    scales = np.maximum(np.asarray(_scales(everywhere, floats(points)), np.float64), SMALLEST)
    chosen = np.mean(scales**-2, 0) > OWN * np.diag(learned.precision)
    chosen &= np.ptp(scales, 0) > 0  # of all that are not drawn around others it is 1
    return Standard(model, jax.device_put(chosen)) if chosen.any() else None


def standard_proposal(form: Standard, known: WeightedTheta | None, learned: Learned) -> Proposal:
    """Where the chains begin: a proposal like weighted points of theta, or else like q(theta)."""
    if known is not None:
        points, log_weight = (np.asarray(x, np.float64) for x in (known.points, known.log_weight))
        e = form.standardised(points)
        found = fitted_proposal(e, log_weight) if np.isfinite(e).all() else None
        if found is not None:
            return found
    mean, turn = (np.asarray(x, np.float64) for x in _near(form, floats(learned.mean)))
    return Proposal.symmetric(mean, turn @ np.linalg.inv(learned.precision) @ turn.T)


def sample_standard(
    form: Standard,
    target: Target,
    expand: Expand,
    proposal: Proposal,
    seed: int,
    most: Most,
    shown: Shown,
) -> Sampled:
    """Draws of theta by chains that move in e; the proposal is of e."""

    def expanded(e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = expand(form.theta(e))
        log_det, slope = map(np.asarray, _pulled(form, floats(e), floats(slope)))
        return value + log_det, slope.astype(np.float64)

    own, seen = OfStandard(target, form), lambda e: shown(form.theta(e))
    # A few draws first: where there is a funnel q(theta) is often far too narrow.
    first = sample_theta(own, expanded, proposal, seed, most._replace(**FEW), seen)
    draws = first.theta.reshape(-1, first.theta.shape[-1])
    proposal = fitted_proposal(draws, np.zeros(len(draws))) or proposal
    found = sample_theta(own, expanded, proposal, seed + 1, most, seen)
    theta = form.theta(found.theta.reshape(-1, found.theta.shape[-1]))
    return found._replace(theta=theta.reshape(found.theta.shape))


@program
def _thetas(form: Standard, e: Float[Array, "S D"]) -> Float[Array, "S D"]:
    return jax.vmap(lambda own: form.spread(own)[0])(e)


@program
def _standardised(form: Standard, theta: Float[Array, "S D"]) -> Float[Array, "S D"]:
    return jax.vmap(form.gather)(theta)


@program
def _scales(form: Standard, theta: Float[Array, "S D"]) -> Float[Array, "S D"]:
    return jax.vmap(lambda own: form.around(own)[1])(theta)


@program
def _near(form: Standard, theta: Float[Array, " D"]) -> tuple[Array, Array]:
    """The e of a theta, and its derivatives."""
    return form.gather(theta), jax.jacfwd(form.gather)(theta)


@program
def _pulled(
    form: Standard, e: Float[Array, "S D"], slope: Float[Array, "S D"]
) -> tuple[Float[Array, " S"], Float[Array, "S D"]]:
    """Log |d theta / d e| at each e, and the slope of a function of theta and of this in e."""

    def one(e: Array, slope: Array) -> tuple[Array, Array]:
        (_, log_det), back = jax.vjp(form.spread, e)
        return log_det, back((slope, jnp.ones_like(log_det)))[0]

    return jax.vmap(one)(e, slope)
