"""The maximum of G over theta, and the curvature there.

A few steps of EM come near it: a term's covariance becomes the mean of its effects' second moments, and
the likelihood's parameters maximise its expectation. Newton's method with finite differences of G then
finds it: theta has few entries, and G is smooth, in float64 and without noise.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.inference.marginal import definite
from ramify.levels.density import DensityLevels
from ramify.levels.density_search import begun
from ramify.levels.draws import draw_kept
from ramify.levels.marginal import Marginal, NotSolved, Optimum
from ramify.levels.model import differentiate

EM_STEPS = 5
EM_DRAWS = 8
MOST_SHARE = 0.8  # largest assumed ratio of an EM step to the one before
ENOUGH = 100_000  # rows times draws for parameters of the likelihood
ROUNDS = 3  # of Newton along each coordinate separately
NEWTON_STEPS = 30
CLOSE = 0.003  # nats that a last step may gain
WIDEST = 0.7  # longest difference in any coordinate: sds are logarithms
FURTHEST = 0.5  # longest step in any coordinate before the Hessian is known
FURTHER = 2.0  # longest difference along a parameter that is no logarithm, in sds given the others
STUCK = 8  # steps after which the Hessian is computed again
MOVED = 0.5  # sds: further from where the Hessian was computed, it is computed again


class Found(NamedTuple):
    """Theta's mode and minus the Hessian of G there."""

    optimum: Optimum
    precision: Float64[np.ndarray, "D D"]
    slope: Float64[np.ndarray, " D"]  # of G at the mode, along the axes of `whitening`
    converged: bool

    @property
    def gain(self) -> float:
        """Nats that one more step would gain."""
        return 0.5 * float(self.slope @ self.slope)

    @property
    def mean(self) -> Float64[np.ndarray, " D"]:
        """The mode."""
        return self.optimum.theta


def search(G: Marginal, theta: Float64[np.ndarray, " D"]) -> Found:
    """The maximum of G, from a rough theta."""
    optimum, axes, star = _by_coordinate(G, *expectation_maximisation(G, theta))
    wide = np.where(G.model.transformed, WIDEST, FURTHER * np.diag(axes))
    precision, slope = _measured(G, optimum, axes, star)
    white, centre, converged = whitening(precision), optimum.theta, False
    for step in range(NEWTON_STEPS):
        converged = 0.5 * float(slope @ slope) < CLOSE
        if converged:
            break
        before, optimum = optimum, _climbed(G, optimum, white @ np.clip(slope, -3.0, 3.0))
        if optimum is before and optimum.theta is centre:
            break
        near = np.abs(np.linalg.solve(white, optimum.theta - centre)).max() < MOVED
        if near and optimum is not before and step % STUCK != STUCK - 1:
            small = _limited(0.3 * white, wide)
            ratio = np.linalg.norm(white, axis=0) / np.linalg.norm(small, axis=0)
            slope = _star(G, optimum, small)[0] * ratio
        else:
            axes = _limited(white, wide)
            precision, slope = _measured(G, optimum, axes, _star(G, optimum, axes))
            white, centre = whitening(precision), optimum.theta
    return Found(optimum, precision, slope, converged)


def _by_coordinate(
    G: Marginal, theta: np.ndarray, scale: np.ndarray
) -> tuple[Optimum, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Newton along each coordinate separately, from rough scales: an optimum, axes and differences."""
    optimum, axes, logs = G.optimum(theta), np.diag(scale), G.model.transformed
    star = _star(G, optimum, axes)
    for _ in range(ROUNDS if logs.all() else 2 * ROUNDS):
        slope, curved = star[0], np.maximum(-star[1], 1e-3)
        width = 1 / np.sqrt(curved)  # an sd, in lengths of the axes
        off = np.abs(slope) * width  # sds from the maximum
        if (off < MOVED).all() and (width < 2).all() and (width > 0.5).all():
            break
        if (off > 0.1).any():
            furthest = np.where(logs, FURTHEST, FURTHER * np.diag(axes))
            optimum = _climbed(G, optimum, np.clip(axes @ (slope / curved), -furthest, furthest))
        axes = _limited(axes * np.clip(width, 0.1, 10.0), np.where(logs, WIDEST, np.inf))
        star = _star(G, optimum, axes)
    return optimum, axes, star


def _measured(
    G: Marginal, at: Optimum, axes: np.ndarray, star: tuple[np.ndarray, np.ndarray]
) -> tuple[Float64[np.ndarray, "D D"], Float64[np.ndarray, " D"]]:
    """Minus the Hessian, and the slope along the axes of its Gaussian, from differences along `axes`."""
    precision = _precision(G, at, axes, star[1])
    return precision, whitening(precision).T @ np.linalg.solve(axes.T, star[0])


def whitening(precision: Float64[np.ndarray, "D D"]) -> Float64[np.ndarray, "D D"]:
    """A with A A' = precision^-1, each column near a coordinate: sds times the root of correlations."""
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(sd, sd))
    return sd[:, None] * (vectors * np.sqrt(np.maximum(values, 1e-12))) @ vectors.T


def _limited(
    axes: Float64[np.ndarray, "D D"], wide: Float64[np.ndarray, " D"]
) -> Float64[np.ndarray, "D D"]:
    """The axes, as columns, shortened so that no coordinate is longer than `wide`."""
    return axes * np.minimum(1.0, 1 / np.maximum((np.abs(axes) / wide[:, None]).max(0), 1e-300))


def _star(G: Marginal, at: Optimum, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second differences of G along each of the axes, which are columns."""
    thetas = np.concatenate([at.theta + axes.T, at.theta - axes.T])
    ahead, behind = np.split(G.values(thetas, at), 2)
    slope, diagonal = 0.5 * (ahead - behind), ahead + behind - 2 * at.value
    bad = ~np.isfinite(slope) | ~np.isfinite(diagonal)
    return np.where(bad, 0.0, slope), np.where(bad, -1.0, diagonal)


def _precision(
    G: Marginal, at: Optimum, axes: np.ndarray, diagonal: np.ndarray
) -> Float64[np.ndarray, "D D"]:
    """Minus the Hessian of G, by differences along the axes and between pairs of them."""
    hessian, (i, j) = np.diag(diagonal), np.tril_indices(len(diagonal), -1)
    both = (axes[:, i] + axes[:, j]).T
    ends = G.values(np.concatenate([at.theta + both, at.theta - both]), at)
    cross = 0.5 * (sum(np.split(ends, 2)) - 2 * at.value - diagonal[i] - diagonal[j])
    hessian[i, j] = hessian[j, i] = np.where(np.isfinite(cross), cross, 0.0)
    back = np.linalg.inv(axes)
    return definite(back.T @ -hessian @ back)


def _climbed(G: Marginal, at: Optimum, step: np.ndarray) -> Optimum:
    """The optimum after a step in theta, shortened until G does not fall."""
    for _ in range(8):
        try:
            found = G.optimum(at.theta + step, at)
            if found.value >= at.value:
                return found
        except (NotSolved, np.linalg.LinAlgError):
            pass
        step = 0.35 * step
    return at


def expectation_maximisation(
    G: Marginal, theta: Float64[np.ndarray, " D"]
) -> tuple[Float64[np.ndarray, " D"], Float64[np.ndarray, " D"]]:
    """Theta after a few steps of EM, with moments from draws of b; and rough sds of theta."""
    if isinstance(G.model, DensityLevels):
        return begun(G, theta)
    path = [theta]
    for step in range(EM_STEPS):
        path.append(_maximised(G, G.optimum(path[-1]), np.random.default_rng(step)))
    # EM's steps shrink geometrically: add the sum of all that would follow the last one.
    before, last = path[-2] - path[-3], path[-1] - path[-2]
    share = np.clip(last / np.where(before == 0, np.inf, before), 0.0, MOST_SHARE)
    theta = path[-1] + last * share / (1 - share)
    levels = {t: term.levels for t, term in zip(G.model.kept, G.design.kept, strict=True)}
    scale = []
    for name, parameter in G.model.theta.parameters.items():
        kind, _, term = name.partition("_")
        size = int(np.prod(parameter.unconstrained_shape))
        count = levels.get(int(term), G.design.N) if kind in ("sd", "cor") else len(G.design.offset)
        scale += [float(np.clip((2 * count) ** -0.5, 1e-4, 0.5))] * size
    return theta, np.array(scale)


def _maximised(G: Marginal, optimum: Optimum, rng: np.random.Generator) -> np.ndarray:
    """Theta that maximises the expected log density of y, z and b, by draws of z and b."""
    model, design, values = G.model, G.design, G.model.values(optimum.theta[None])
    values = {name: value[0] for name, value in values.items()}
    drawn = draw_kept(optimum, rng, EM_DRAWS)
    solved = optimum.state.integral.solved
    at, moments = optimum.effects, {t: 0.0 for t in range(len(model.terms))}
    predictors, spread = [], np.einsum("nik,njk->ij", solved.root, solved.root)  # of z given b
    for beta, u in zip(drawn.beta, drawn.u, strict=True):
        z = G.moved(optimum.state, beta - at.beta, u - at.u).z
        noise = np.einsum("nij,nj->ni", solved.root, rng.normal(size=z.shape))
        predictors.append(design.eta(beta, u, z + noise))
        both, start = z.T @ z + spread, 0
        for t in model.integrated:
            own = slice(start, start + model.terms[t])
            moments[t] += both[own, own] / (design.N * EM_DRAWS)
            start = own.stop
        for t, term in zip(model.kept, design.kept, strict=True):
            own = u[term.start : term.stop].reshape(term.levels, term.effects)
            moments[t] += own.T @ own / (term.levels * EM_DRAWS)
    for t, moment in moments.items():
        sd = np.sqrt(np.maximum(np.diag(moment), 1e-8))
        values[f"sd_{t}"] = sd
        if f"cor_{t}" in values:
            correlation = moment / np.outer(sd, sd)
            shrunk = 0.98 * correlation + 0.02 * np.eye(len(sd))
            values[f"cor_{t}"] = np.linalg.cholesky(shrunk)
    return _likelihood_maximised(G, model.unconstrained(values), np.stack(predictors, 1))


def _likelihood_maximised(
    G: Marginal, theta: np.ndarray, eta: Float64[np.ndarray, "n S"]
) -> np.ndarray:
    """Theta with the parameters of the likelihood that maximise its mean over draws of eta."""
    names = list(G.model.theta.parameters)
    sizes = [int(np.prod(p.unconstrained_shape)) for p in G.model.theta.parameters.values()]
    family = np.repeat([not n.startswith(("sd_", "cor_")) for n in names], sizes)
    if not family.any():
        return theta
    from scipy.optimize import minimize  # which is slow to import

    theta, eta = theta.copy(), eta[:, : max(1, ENOUGH // len(eta))]

    def lost(own: np.ndarray) -> float:
        theta[family] = own
        given = G.model.at(theta)
        total = differentiate(G.model, given, G.design, eta).value.sum() / eta.shape[1]
        found = -(total + given.log_prior) / len(eta)
        return found if np.isfinite(found) else 1e10

    options = {"xatol": 1e-3, "fatol": 1e-6, "maxfev": 60}
    theta[family] = minimize(lost, theta[family], method="Nelder-Mead", options=options).x
    return theta
