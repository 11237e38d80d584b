"""Fingerprints of a fit's model, data and options, by which a checkpoint knows its fit."""

import hashlib
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.families.build import Family, method_of
from ramify.io.saving import describe_space
from ramify.models.model import Model


def fingerprint(
    model: Model, groups: Groups, family: Family, options: dict[str, Any]
) -> dict[str, str]:
    """What must be the same for a fit to go on from a checkpoint, by name."""
    return {
        "model": _digest(*_densities(model, groups)),
        "data": _of_data(groups),
        "family": _digest(method_of(family), *_leaves(family)),
        "options": _digest(*(f"{name}={value}" for name, value in sorted(options.items()))),
        "version of JAX": jax.__version__,
        "precision": str(jnp.result_type(float)),
    }


def _densities(model: Model, groups: Groups) -> list[Any]:
    """The parameters, and the three densities as JAX traces them, with the arrays they refer to."""
    batch, theta = example(groups), jnp.zeros(model.theta.size)
    z = jnp.zeros((2, model.z.size))
    traced = [
        jax.make_jaxpr(model.log_prior)(theta),
        jax.make_jaxpr(model.log_local)(theta, z, batch),
        jax.make_jaxpr(model.log_lik)(theta, z, batch),
    ]
    parts: list[Any] = [str(describe_space(space)) for space in (model.theta, model.z)]
    for closed in traced:
        # Functions are shown with their address, which differs in every process.
        parts += [
            re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr)),
            *map(np.asarray, closed.consts),
        ]
    return parts


def optimizer_digest(optimizer: Any, family: Family) -> str:
    """What an optimizer does to the family's parameters, as JAX traces it: rates and schedules too."""
    parameters = eqx.filter(family, eqx.is_inexact_array)
    begun = optimizer.init(parameters)
    traced = jax.make_jaxpr(optimizer.update)(parameters, begun, parameters)
    shown = re.sub(r" at 0x[0-9a-f]+", "", str(traced.jaxpr))
    return _digest(shown, str(jax.tree.structure(begun)), *map(np.asarray, traced.consts))


def _of_data(groups: Groups) -> str:
    if groups.store is not None:
        return _digest(groups.by, *groups.rows, *groups.group, groups.store.digest())
    labels = groups.labels
    plain = str(labels.tolist()) if labels.dtype == object else labels
    columns = [x for own in (groups.rows, groups.group) for pair in own.items() for x in pair]
    return _digest(groups.by, plain, groups.sizes, *columns)


def _leaves(family: Family) -> list[Any]:
    arrays, rest = eqx.partition(family, eqx.is_array)
    return [re.sub(r" at 0x[0-9a-f]+", "", str(rest)), *map(np.asarray, jax.tree.leaves(arrays))]


def _digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
            continue
        found.update(f"{part.dtype.str} {part.shape}".encode())
        found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
