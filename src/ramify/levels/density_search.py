"""A start for the search for theta of a model of log densities, whose theta may be anything."""

from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.levels.draws import draw_kept
from ramify.levels.marginal import Marginal

STEPS, DRAWS = 8, 4  # of EM
CLOSE = 0.1  # sds of theta given all effects: EM ends with a step shorter than this
WIDEST = 0.5  # largest sd of a transformed entry of theta


def begun(
    G: Marginal, theta: Float64[np.ndarray, " D"]
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Theta after some steps of EM with draws of b and z, and its rough sds given b and z."""
    from scipy.optimize import minimize  # which is slow to import

    scale = np.ones(len(theta))
    for step in range(STEPS):
        etas = _drawn(G, theta, np.random.default_rng(step))
        lost = lambda own, etas=etas: _lost(G, own, etas)
        found = minimize(lost, theta, jac=True, method="L-BFGS-B", options={"maxiter": 60})
        moved, theta = found.x - theta, found.x
        scale = _scale(G, theta, etas)
        if np.abs(moved / scale).max() < CLOSE:
            break
    return theta, scale


def _drawn(G: Marginal, theta: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Draws of the rows' vectors v."""
    optimum = G.optimum(theta)
    drawn, solved, at = (
        draw_kept(optimum, rng, DRAWS),
        optimum.state.integral.solved,
        optimum.effects,
    )
    found = []
    for beta, u in zip(drawn.beta, drawn.u, strict=True):
        z = G.moved(optimum.state, beta - at.beta, u - at.u).z
        z = z + np.einsum("nij,nj->ni", solved.root, rng.normal(size=z.shape))
        found.append(G.design.eta(beta, u, z))
    return found


def _lost(G: Marginal, theta: np.ndarray, etas: list[np.ndarray]) -> tuple[float, np.ndarray]:
    model: Any = G.model
    value, slope = model.expectation(theta, G.design, etas)
    if not (np.isfinite(value) and np.isfinite(slope).all()):
        return 1e300, np.zeros_like(theta)
    return -value, -slope


def _scale(G: Marginal, theta: np.ndarray, etas: list[np.ndarray]) -> np.ndarray:
    """The sds of theta given all effects, by differences of slopes."""
    found = []
    for axis in np.eye(len(theta)):
        step = 1e-4 * axis * max(1.0, float(np.abs(theta @ axis)))
        ahead, behind = (_lost(G, theta + sign * step, etas)[1] @ axis for sign in (1, -1))
        found.append((ahead - behind) / (2 * float(step @ axis)))
    sd = 1 / np.sqrt(np.maximum(np.array(found), 1e-12))
    return np.where(G.model.transformed, np.minimum(sd, WIDEST), sd)
