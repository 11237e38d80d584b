"""Compares a declared structure with its model's densities on a few rows; raises if they differ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.batch import Batch
from ramify.models.model import Model
from ramify.models.structure import BlockStructure, Normal
from ramify.numerics.programs import EXACT

# It runs once, on little data: most of its cost is compiling.
_QUICKLY: Any = EXACT | {"xla_backend_optimization_level": 0}


def check_structure(model: Model, batch: Batch) -> None:
    """Raises if a declaration differs from the densities by more than rounding."""
    if model.structure.trusted or model.structure == BlockStructure():
        return
    rng = np.random.default_rng(0)
    noise = lambda *shape: jnp.asarray(0.3 * rng.normal(size=shape), jnp.result_type(float))
    thetas, z = noise(2, model.theta.size), noise(batch.index.shape[0], model.z.size)
    _check_shapes(model, thetas[0], batch)
    each = jax.vmap(lambda theta: _both_ways(model, theta, z, batch))
    found = jax.device_get(jax.jit(each, compiler_options=_QUICKLY)(thetas))
    if "prior" in found:
        own, said = (x[:, np.asarray(batch.group_mask)] for x in found["prior"])
        _compare("prior", "log_local", "normal density", own, said)
    if (declared := model.structure.likelihood) is not None:
        own, said = (x[:, np.asarray(batch.row_mask)] for x in found["likelihood"])
        _compare("likelihood", "log_lik", "density of linear predictors", own, said)
        free_of_theta = declared.uses_theta is not None and not declared.uses_theta(batch)
        if free_of_theta and not _close(own[0], own[1]).all():
            raise ValueError(
                "structure.likelihood says uses_theta=False, and log_lik changes with theta. Say "
                "True, or leave uses_theta out."
            )


def _both_ways(model: Model, theta: Any, z: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
    """Values of the model's densities, and of the declared ones."""
    found, declared = {}, model.structure
    if declared.prior is not None:
        normal = declared.prior(theta, batch)
        found["prior"] = model.log_local(theta, z, batch), normal.log_density(z)
    if declared.likelihood is not None:
        rows = batch.at_rows(z)
        said = declared.likelihood.log_lik(theta, rows[..., None], batch)[:, 0]
        found["likelihood"] = model.log_lik(theta, rows, batch), said
    return found


def _close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether numbers agree to half of their digits."""
    rounding = float(np.sqrt(np.finfo(a.dtype).eps))
    return np.isclose(a, b, rtol=rounding, atol=rounding, equal_nan=True)


def _compare(part: str, density: str, what: str, own: np.ndarray, said: np.ndarray) -> None:
    wrong = ~_close(own, said)
    if wrong.any():
        first = np.unravel_index(np.argmax(wrong), wrong.shape)
        raise ValueError(
            f"structure.{part} disagrees with {density}: at a random theta and z, {density} returns "
            f"{own[first]:.6g} and the declared {what} is {said[first]:.6g} (constants and Jacobians "
            f"of z count). Correct one of the two, or leave {part} out of the structure."
        )


def _check_shapes(model: Model, theta: Any, batch: Batch) -> None:
    B, R, M = batch.index.shape[0], batch.segment.shape[0], model.z.size
    declared = model.structure
    if declared.prior is not None:
        normal: Normal = jax.eval_shape(declared.prior, theta, batch)
        _check_shape("prior.mean", "[M]", normal.mean, (B, M))
        root = (M, M) if normal.root.ndim == 2 else (B, M, M)
        _check_shape("prior.scale", "[M] or [M, M]", normal.root, root)
    if (linear := declared.likelihood) is not None:
        weights = jax.eval_shape(linear.weights, batch)
        P = weights.shape[1] if weights.ndim == 3 else 1
        _check_shape("likelihood.weights", "[P, M]", weights, (R, P, M))
        offsets = jax.eval_shape(linear.offsets, theta, batch)
        _check_shape("likelihood.offset", "[P]", offsets, (R, P))
        eta = jax.ShapeDtypeStruct((R, P, 1), offsets.dtype)
        density = jax.eval_shape(linear.density, theta, eta, batch)
        _check_shape("likelihood.density", "[]", density, (R, 1))


def _check_shape(what: str, wanted: str, found: Any, shape: tuple[int, ...]) -> None:
    if found.shape != shape:
        raise ValueError(
            f"structure.{what} must return shape {wanted}, M the entries of z and P the linear "
            f"predictors; got a shape that makes a block {list(found.shape)}, not {list(shape)}."
        )
