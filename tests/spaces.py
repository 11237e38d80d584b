"""The inverse of `Space.values`, which only tests need."""

import jax.numpy as jnp
from numpyro.distributions import biject_to


def unconstrained(space, values):
    """The flat unconstrained vector of named constrained values."""
    inverse = lambda name, p: biject_to(p.constraint)._inverse(jnp.asarray(values[name]))
    return jnp.concatenate([jnp.ravel(inverse(n, p)) for n, p in space.parameters.items()])
