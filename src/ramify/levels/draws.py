"""Draws of b and z given theta: the second and third branch of the posterior."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.design import Design
from ramify.levels.integral import Solved, solve
from ramify.levels.marginal import Marginal, Optimum
from ramify.levels.marginal_state import Effects
from ramify.levels.model import Given, LevelsModel

RESAMPLED = 8  # draws of z, of which one is chosen by importance weight
PAIRS = 16  # antithetic pairs of b whose slopes give the mean of b
CHUNK = 2**22  # evaluations of rows at once


class KeptDraws(NamedTuple):
    """Draws of b."""

    beta: Float64[np.ndarray, "S P"]
    u: Float64[np.ndarray, "S q"]


def draw_kept(optimum: Optimum, rng: np.random.Generator, count: int) -> KeptDraws:
    """Draws of b given theta, from N(b^, S^-1)."""
    beta, u = optimum.kept.noise(rng, count)
    at = optimum.effects
    return KeptDraws(at.beta + beta.T, at.u + u.T)


def mean_shift(G: Marginal, optimum: Optimum, rng: np.random.Generator) -> Effects:
    """The mean of b less its mode b^, and the same for z.

    The best Gaussian has E[dF/db] = 0: this is one step of variational Newton. Slopes are averaged over
    antithetic draws of b, in which linear parts cancel.
    """
    start = G.start()
    if G.model.linear or not G.size:
        return start
    beta, u = optimum.kept.noise(rng, PAIRS)
    at, precision = optimum.effects, G.precision(optimum.given)
    slope_beta, slope_u = np.zeros_like(at.beta), np.zeros_like(at.u)
    for k in range(PAIRS):
        for sign in (1.0, -1.0):
            effects = G.moved(optimum.state, sign * beta[:, k], sign * u[:, k])
            found = G.state(optimum.given, precision, effects)
            slope_beta += found.slope_beta / (2 * PAIRS)
            slope_u += found.slope_u / (2 * PAIRS)
    moved = optimum.kept.solve(slope_beta, slope_u)
    return Effects(*moved, G.moved(optimum.state, *moved).z - at.z)


def draw_z(
    model: LevelsModel,
    given: Given,
    design: Design,
    base: Float64[np.ndarray, "n *V"],
    begin: Float64[np.ndarray, "N M"],
    rng: np.random.Generator,
) -> Float64[np.ndarray, "N M"]:
    """A draw of each group's z given theta and b; `base` is the linear predictor without z.

    Draws come from the Gaussian around the mode; if it is not exact, one of several is chosen by weight.
    """
    solved = solve(model, given, design, base, begin)
    if not np.isfinite(solved.value).all():
        bad = int((~np.isfinite(solved.value)).sum())
        raise ValueError(
            f"log_lik or log_local of the rows of {bad:,} of {design.N:,} groups is not finite: nothing "
            "follows from them. Check these rows, and the densities' behaviour there."
        )
    if model.linear:
        noise = rng.normal(size=solved.z.shape)
        return solved.z + np.einsum("nij,nj->ni", solved.root, noise)
    return _resampled(model, given, design, base, solved, rng)


def _resampled(
    model: LevelsModel,
    given: Given,
    design: Design,
    base: Float64[np.ndarray, "n *V"],
    solved: Solved,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "N M"]:
    noise = rng.normal(size=(design.N, RESAMPLED, model.M))
    z = solved.z[:, None] + np.einsum("nij,nkj->nki", solved.root, noise)
    rows = model.log_lik(given, design, design.with_z(base, z))
    log_weight = np.stack([design.by_group(column) for column in rows.T], 1)
    log_weight += -0.5 * np.einsum("nki,ij,nkj->nk", z, given.precision, z)
    log_weight += 0.5 * np.sum(noise**2, -1)
    # The largest of log weight plus Gumbel noise is a draw by weight.
    chosen = np.argmax(log_weight + rng.gumbel(size=log_weight.shape), 1)
    return z[np.arange(design.N), chosen]
