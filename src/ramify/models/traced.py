"""What is known of a model: as it was declared or, where nothing was, as its traced program says.

The degree of densities as polynomials in theta or z is an upper bound (`models.degree`): a likelihood may
be said to use theta where it does not, and a normal prior may be missed, which costs time only. A numeric
test at some points would be wrong where they miss a branch, such as rows of a rare kind with theta in
their density.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import subjaxprs

from ramify.data.batch import Batch
from ramify.models.degree import degree
from ramify.models.model import Model

# On a CPU LAPACK computes these; of many matrices at once on threads of XLA's pool.
LAPACK = set(
    "cholesky eig eigh geqrf hessenberg householder_product lu qr schur svd triangular_solve "
    "tridiagonal tridiagonal_solve".split()
)
OUTSIDE = set("fft ffi_call io_callback pure_callback".split())  # other libraries, or Python


def uses_theta(model: Model, batch: Batch) -> bool:
    """Whether the likelihood of rows with these columns involves theta at all."""
    declared = model.structure.likelihood
    if declared is not None and declared.uses_theta is not None:
        return declared.uses_theta(batch)
    theta, z = _arguments(model, batch.segment.shape[0])
    return degree(model.log_lik, (theta, z, batch), 0) != 0


def normal_prior(model: Model, batch: Batch) -> bool:
    """Whether log p(z | theta, u) is quadratic in z, so that any expansion is the whole of it."""
    if model.structure.prior is not None:
        return True
    theta, z = _arguments(model, batch.index.shape[0])
    return degree(model.log_local, (theta, z, batch), 1) <= 2


def normal_posterior(model: Model, batch: Batch) -> bool:
    """Whether log p(z, y_i | theta) is quadratic in z, so that p(z | theta, y_i) is normal."""
    theta, z = _arguments(model, batch.segment.shape[0])
    return normal_prior(model, batch) and degree(model.log_lik, (theta, z, batch), 1) <= 2


def one_at_a_time(model: Model, batch: Batch) -> bool:
    """Whether sweeps of two blocks at the same time may, for all that is known, wait forever on a CPU."""
    # In jaxlib 0.10 a batched LAPACK call waits for threads of the pool it runs in, so that as many
    # such calls at a time as there are cores wait for each other.
    theta, z = _arguments(model, batch.index.shape[0])
    z_rows = _arguments(model, batch.segment.shape[0])[1]
    prior, linear = model.structure.prior, model.structure.likelihood
    if prior is not None:
        traced = [jax.make_jaxpr(prior)(theta, batch)]
    else:
        traced = [jax.make_jaxpr(model.log_local)(theta, z, batch)]
    if linear is not None:
        rows = lambda theta, z, batch: linear.log_lik(theta, z[..., None], batch)
        traced += [jax.make_jaxpr(rows)(theta, z_rows, batch)]
    else:
        traced += [jax.make_jaxpr(model.log_lik)(theta, z_rows, batch)]
    return any(_waits(program.jaxpr) for program in traced)


def _waits(program: Any) -> bool:
    batched = lambda equation: equation.invars[0].aval.ndim > 2
    own = lambda e: e.primitive.name in OUTSIDE or e.primitive.name in LAPACK and batched(e)
    return any(map(own, program.eqns)) or any(map(_waits, subjaxprs(program)))


def _arguments(model: Model, count: int) -> tuple[Any, Any]:
    theta = jax.ShapeDtypeStruct((model.theta.size,), jnp.result_type(float))
    return theta, jax.ShapeDtypeStruct((count, model.z.size), theta.dtype)
