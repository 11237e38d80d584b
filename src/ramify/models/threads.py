"""How many threads of a CPU may compute with a model at the same time."""

from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from jax.extend.core import subjaxprs

from ramify.data.batch import Batch
from ramify.models.model import Model
from ramify.numerics.threads import cores

# Primitives that call other libraries on a CPU, some on threads of XLA's pool, or Python.
OUTSIDE = set(
    "cholesky eig eigh fft ffi_call geqrf hessenberg householder_product io_callback lu pure_callback "
    "qr schur svd triangular_solve tridiagonal tridiagonal_solve".split()
)


_known: WeakKeyDictionary[Model, dict[Any, bool]] = WeakKeyDictionary()  # by columns and precision


def cpu_threads(model: Model, batch: Batch) -> int:
    """One for each core, or a single one if two calls of the model's densities might never end."""
    if cores() == 1:
        return 1
    columns = [
        (n, x.shape[1:], x.dtype) for own in (batch.rows, batch.group) for n, x in own.items()
    ]
    key, found = (*columns, jnp.result_type(float)), _known.setdefault(model, {})
    if key not in found:
        found[key] = one_at_a_time(model, batch)
    return 1 if found[key] else cores()


def one_at_a_time(model: Model, batch: Batch) -> bool:
    """Whether densities call functions that are not known to work in two threads at a time."""
    # In jaxlib 0.10 a batched LAPACK call waits for threads of the pool it runs in, so as many
    # concurrent calls as there are cores wait for each other. A call for one matrix becomes a
    # batched one where it is differentiated or evaluated at many thetas.
    flat = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    theta, M = flat(model.theta.size), model.z.size
    z, z_rows = flat(batch.index.shape[0], M), flat(batch.segment.shape[0], M)
    prior, linear = model.structure.prior, model.structure.likelihood
    traced = [jax.make_jaxpr(model.log_local)(theta, z, batch)]
    traced += [jax.make_jaxpr(model.log_lik)(theta, z_rows, batch)]
    if prior is not None:
        traced[0] = jax.make_jaxpr(prior)(theta, batch)  # in place of the density
    if linear is not None:
        rows = lambda theta, z, batch: linear.log_lik(theta, z[..., None], batch)
        traced[1] = jax.make_jaxpr(rows)(theta, z_rows, batch)
    return any(_waits(program.jaxpr) for program in traced)


def _waits(program: Any) -> bool:
    own = any(equation.primitive.name in OUTSIDE for equation in program.eqns)
    return own or any(map(_waits, subjaxprs(program)))
