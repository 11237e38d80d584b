"""What is known of a model: its declared structure or, without one, what its traced program tells.

The degree of densities as polynomials in theta or z is an upper bound (`models.degree`): a
likelihood may seem to use theta though it does not, and a normal prior may be missed, which only
costs time. A numeric test at some points would be wrong if they missed a branch, such as rare rows
whose density involves theta.
"""

from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from ramify.data.batch import Batch
from ramify.models.degree import degree
from ramify.models.model import Model


def uses_theta(model: Model, batch: Batch) -> bool:
    """Whether the likelihood of rows with these columns involves theta at all."""
    declared = model.structure.likelihood
    if declared is not None and declared.uses_theta is not None:
        return declared.uses_theta(batch)
    theta, z = _arguments(model, batch.segment.shape[0])
    return degree(model.log_lik, (theta, z, batch), 0) != 0


def normal_prior(model: Model, batch: Batch) -> bool:
    """Whether log p(z | theta, u) is quadratic in z, so that an expansion at any point is exact."""
    if model.structure.prior is not None or shared_normal(model, batch):
        return True
    theta, z = _arguments(model, batch.index.shape[0])
    return degree(model.log_local, (theta, z, batch), 1) <= 2


_shared: WeakKeyDictionary[Model, dict[Any, bool]] = WeakKeyDictionary()  # by columns and precision


def shared_normal(model: Model, batch: Batch) -> bool:
    """Whether an undeclared log p(z | theta) is quadratic in z, and the same function for all groups."""
    # Front ends have a `log_local` of their own, and declare what they know of it.
    if model.structure.prior is not None or type(model).log_local is not Model.log_local:
        return False
    columns = [(name, x.shape[1:], x.dtype) for name, x in batch.group.items()]
    key, found = (*columns, jnp.result_type(float)), _shared.setdefault(model, {})
    if key not in found:
        found[key] = _is_shared_normal(model, batch)
    return found[key]


def _is_shared_normal(model: Model, batch: Batch) -> bool:
    arguments = *_arguments(model, batch.index.shape[0]), *batch.group.values()
    named = lambda columns: dict(zip(batch.group, columns, strict=True))
    log_local = lambda theta, z, *columns: model.log_local_of(theta, z, named(columns))
    if degree(log_local, arguments, 1) > 2:
        return False
    return all(degree(log_local, arguments, 2 + i) == 0 for i in range(len(batch.group)))


def normal_posterior(model: Model, batch: Batch) -> bool:
    """Whether log p(z, y_i | theta) is quadratic in z, so that p(z | theta, y_i) is normal."""
    theta, z = _arguments(model, batch.segment.shape[0])
    return normal_prior(model, batch) and degree(model.log_lik, (theta, z, batch), 1) <= 2


def _arguments(model: Model, count: int) -> tuple[Any, Any]:
    theta = jax.ShapeDtypeStruct((model.theta.size,), jnp.result_type(float))
    return theta, jax.ShapeDtypeStruct((count, model.z.size), theta.dtype)
