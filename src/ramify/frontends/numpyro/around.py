"""Sites of theta that are drawn around others, such as a vector of effects with an sd of its own."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from ramify.data.batch import Theta
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.frontends.numpyro.program import Program
from ramify.frontends.numpyro.sites import Seen, from_values, run
from ramify.models.structure import Around

# On the scale of theta, that of log x where x is positive, these are loc + scale e with a fixed e.
_LOC_SCALE = dist.Normal, dist.StudentT, dist.LogNormal


def drawn_around(own: Evaluator) -> Around | None:
    """The sites whose scale is another site of theta or follows from some; None if there are none."""
    zero = jnp.zeros(own.theta.size)
    scales = Program(lambda theta: {n: s for n, (_, s) in _found(own, theta).items()}, zero)
    names = [name for name, moves in scales.reached([True]).items() if moves]

    def at(theta: Theta) -> tuple[Array, Array]:
        found = _found(own, theta)
        parts = []
        for name, parameter in own.theta.parameters.items():
            loc, scale = found[name] if name in names else (0.0, 1.0)
            flat = lambda x, shape=parameter.unconstrained_shape: jnp.broadcast_to(x, shape).ravel()
            parts.append((flat(loc), flat(scale)))
        loc, scale = (jnp.concatenate(own).astype(theta.dtype) for own in zip(*parts, strict=True))
        return loc, scale

    return Around(at, len(names)) if names else None


def _found(own: Evaluator, theta: Theta) -> dict[str, tuple[Array, Array]]:
    """Loc and scale of each site of theta that has them, by a run on one row."""
    values = from_values(own.latent_values(theta, jnp.zeros((1, own.z.size), theta.dtype)))
    sites = run(own.fn, own.keywords(1, own.row, own.group), values)
    found = {name: _loc_scale(sites[name]) for name in own.layout.theta}
    return {name: pair for name, pair in found.items() if pair is not None}


def _loc_scale(site: Seen) -> tuple[Array, Array] | None:
    base = site.fn
    while type(base) in (dist.Independent, dist.ExpandedDistribution):
        base = base.base_dist
    known = type(base) in _LOC_SCALE
    return (jnp.asarray(base.loc), jnp.asarray(base.scale)) if known else None
