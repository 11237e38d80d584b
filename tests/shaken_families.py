"""Families of every kind, away from their start."""

from functools import cache

import equinox as eqx
import jax

import oracle
import ramify as rf

FAMILIES = {
    f"{make.__name__}-{covariance}": (make, covariance)
    for make in (rf.joint, rf.branch, rf.amortized)
    for covariance in oracle.COVARIANCES
} | {"solved": (rf.solved, None)}


@cache
def family_of(name, model, groups):
    """A family away from its start, so that no two groups or coordinates look alike."""
    make, covariance = FAMILIES[name]
    family = make(model, groups) if covariance is None else make(model, groups, covariance)

    def where(f):
        if name.startswith("joint"):
            return f.parts
        if name.startswith("branch"):
            return f.theta, f.local.w
        return (f.theta, f.local.head.linears[-1]) if name.startswith("amortized") else (f.theta,)

    part, rest = eqx.partition(where(family), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(part)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    size = 0.02 if name.startswith("amortized") else 0.2
    noisy = [x + size * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves)]
    return eqx.tree_at(where, family, eqx.combine(jax.tree.unflatten(tree, noisy), rest))
