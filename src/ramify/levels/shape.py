"""The shape of theta's posterior beyond a Gaussian, and a pool of draws of theta and b from it.

Where G is cheap, points from a skewed Student t are weighted by it. Where it is not, but theta is wide,
they may be weighted by a coarse G (`coarse`). Otherwise a profile replaces G: a polynomial of degree four
along each axis of G's Gaussian, through four more points, plus products of powers for each pair of axes,
through four corners. This shape fits: sds of factors with few levels are each skewed, and a correlation
is wider if its sds are smaller.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.inference.shared_draws import Values
from ramify.inference.theta_search import Learned
from ramify.inference.theta_weights import fitted_proposal, weigh_theta, with_control
from ramify.levels.coarse import Coarse
from ramify.levels.draws import draw_kept, mean_shift
from ramify.levels.iterated import PROBES, Iterated
from ramify.levels.marginal import Marginal, NotSolved, Optimum
from ramify.levels.search import Found, whitening
from ramify.numerics.memory import check_memory
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.thresholds import MOST_K_HAT

ITERATIONS = 20  # of Lanczos' method, roughly
POINTS = 500  # weighted points of theta
CHEAP = 1.5e9  # work of all evaluations of G, below which the points are weighted by G itself
WIDE, CHEAP_WIDE = 0.2, 6e9  # the same where an sd of theta is wide, and its posterior skewed
COARSE_POINTS, COARSE = (
    1000,
    1e10,
)  # points that are weighted by a coarse G; the work of all: ten seconds
MOST_SHARE = 0.5  # a coarse G is worth having with at most this share of G's points for z
ALONG = (-2.4, -1.2, 1.2, 2.4)  # sds along an axis
NARROW = 0.1  # for logarithms: along an axis shorter than this, the two ends are enough
CORNER = 1.8  # sds along both of two axes
BETWEEN = 4e9  # most work of all corners
MOST_BETWEEN = 0.5  # corners may add at most this share of the Gaussian's fall, far from the mode
NOISE, MORE = (
    0.03,
    4,
)  # sds of noise in a mean, above which more points are weighted; how many times more
LOOKED, OFF = (
    20,
    0.1,
)  # points at which a profile is compared with G, and the rms in nats to correct
CORRECTED, CORRECTING = 300, 3e9  # points that correct a profile, and the work of all of them
ATTEMPTS, EVEN = 3, 0.5  # most times that points are drawn again; the k-hat that is good enough
NODES = (8, 64)  # thetas at which b is solved for
NODE_WORK = 6e8
POOL, POOL_NUMBERS, FEWEST = 4000, 2e7, 300  # draws, the most numbers in them, and the fewest draws
DRAW_WORK = 4e10  # most work of draws by Lanczos' method
TOGETHER = 100  # draws that are moved at once


class Cloud(NamedTuple):
    """Points of theta with log weights that sum to one, and notes on them."""

    points: Float64[np.ndarray, "T D"]
    log_weight: Float64[np.ndarray, " T"]
    notes: dict[str, Any]
    # The approximation of G less its value at the mode; None if G itself gave the weights.
    stands: Values | None = None

    @property
    def weight(self) -> Float64[np.ndarray, " T"]:
        """The weights."""
        return np.exp(self.log_weight - np.logaddexp.reduce(self.log_weight))

    def draws(self, rng: np.random.Generator, count: int) -> Float64[np.ndarray, "count D"]:
        """Draws by stratified resampling, in random order."""
        levels = (np.arange(count) + rng.random(count)) / count
        place = np.searchsorted(np.cumsum(self.weight), levels)
        return self.points[rng.permutation(np.minimum(place, len(self.points) - 1))]


class Weighed(NamedTuple):
    """Points of theta, their log weights up to a constant, and the log density they were drawn from."""

    points: Float64[np.ndarray, "T D"]
    log_weight: Float64[np.ndarray, " T"]
    log_t: Float64[np.ndarray, " T"]


class Pool(NamedTuple):
    """Draws of theta and b together."""

    theta: Float64[np.ndarray, "S D"]
    beta: Float64[np.ndarray, "S P"]
    u: Float64[np.ndarray, "S q"]


def work(G: Marginal) -> float:
    """The work of one evaluation of G, in multiplications, roughly."""
    n, q = len(G.design.offset), G.size
    touched = float(np.sum(np.diff(G.design.entries[2].indptr).astype(np.float64) ** 2))
    touched *= 0.1 if G.design.filled else 1.0  # products of arrays
    rows = G.design.row_work * n * (50.0 + 0.0 if G.model.linear else 50.0 * G.points)
    factors = 1 if G.model.linear else 3
    if G.algebra == "iterative":
        return rows + 2.0 * n * PROBES * ITERATIONS
    dense = q**3 / 3 if G.algebra == "dense" else 100.0 * touched
    return rows + factors * (10 * touched + 0.3 * dense) + 1e6


def cloud(G: Marginal, found: Found, seed: int) -> Cloud:
    """Weighted points of theta: by G, by a coarse G or by a profile, as time allows."""
    nothing = np.zeros(len(found.mean))
    learned = Learned(found.mean, found.precision, 0.0, nothing, None, None, np.zeros(0, int))
    sd = np.sqrt(np.diag(np.linalg.inv(found.precision)))
    wide = bool(sd[G.model.transformed].max(initial=0.0) > WIDE)
    if work(G) * 2 * POINTS < (CHEAP_WIDE if wide else CHEAP):
        own = Weighed(*weigh_theta(G.values, learned, POINTS, seed, rough=True))
        own = redrawn(G.values, own, learned, MORE * POINTS, seed)
        return controlled(own, learned, 0.0, None)
    coarse = coarse_near(G, found) if wide else None
    height = coarse.values if coarse else lambda thetas: risen(G, found, thetas)
    between = wide and 2 * len(sd) * (len(sd) - 1) * work(coarse.G if coarse else G) < BETWEEN
    profile = Profile.through(height, G.model.transformed, found, between)
    own = Weighed(*weigh_theta(profile.values, learned, 8 * POINTS, seed, rough=True))
    if coarse is None:
        drawn = controlled(own, learned, found.optimum.value, profile.values)
        return corrected(G, found, drawn, seed)
    own = redrawn(coarse.values, own, learned, COARSE_POINTS, seed, stand_in=True)
    drawn = controlled(own, learned, found.optimum.value, coarse.values)
    return drawn._replace(notes=drawn.notes | {"theta_coarse": coarse.G.evaluations})


def risen(G: Marginal, found: Found, thetas: Float64[np.ndarray, "n D"]) -> np.ndarray:
    """G less its value at the mode."""
    return G.values(thetas, found.optimum) - found.optimum.value


def coarse_near(G: Marginal, found: Found) -> Coarse | None:
    """A coarse G; None where it costs too much, or not much less than G."""
    coarse = Marginal(G.model, G.design, G.algebra, coarse=True)
    dear = work(coarse) * COARSE_POINTS > COARSE
    return None if dear or coarse.points > MOST_SHARE * G.points else Coarse.near(G, coarse, found)


def redrawn(
    values: Values,
    own: Weighed,
    learned: Learned,
    count: int,
    seed: int,
    *,
    stand_in: bool = False,
) -> Weighed:
    """Draws the points again, from a proposal fitted to them, while their weights are uneven or noisy.

    With `stand_in`, the weights are of an approximation of `values`: then it draws at least once.
    """
    even = MOST_K_HAT if stand_in else EVEN
    for attempt in range(ATTEMPTS):
        first = attempt == 0 and (stand_in or with_control(*own, learned)[1].max() > NOISE)
        better = fitted_proposal(own.points, own.log_weight)
        if better is None or not (first or k_hat(own.log_weight) > even):
            break
        points, log_t = better.sample(np.random.default_rng([seed, 9, attempt]), count)
        own = Weighed(points, values(points) - log_t, log_t)
    return own


def controlled(own: Weighed, learned: Learned, height: float, stands: Values | None) -> Cloud:
    """The points after a control variate, with notes; `height` is added to the log evidence."""
    points, log_weight, log_t = own
    moved, noise = with_control(points, log_weight, log_t, learned)
    notes = {
        "theta_k_hat": k_hat(log_weight),
        "theta_effective_draws": effective_draws(log_weight),
        "theta_noise_sds": float(noise.max()),
    }
    notes |= evidence(points, log_weight, log_t, learned, height)
    return Cloud(moved, log_weight - np.logaddexp.reduce(log_weight), notes, stands)


def corrected(G: Marginal, found: Found, drawn: Cloud, seed: int) -> Cloud:
    """A profile's cloud with its means corrected to those under G, by importance weights of some points.

    The shift is the weighted mean less the plain mean of the same points, which share most of their
    noise. Nothing is done where the profile is near G, or G is expensive.
    """
    count = int(min(CORRECTED, CORRECTING / work(G)))
    stands = drawn.stands
    if stands is None or count < 5 * LOOKED:
        return drawn
    points = drawn.draws(np.random.default_rng([seed, 11]), count)
    off = lambda some: risen(G, found, some) - stands(some)
    first = off(points[:LOOKED])
    if np.std(first) < OFF:
        return drawn
    log_weight = np.concatenate([first, off(points[LOOKED:])])
    weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    shift = weight @ points - points.mean(
        0
    )  # a factor for the sds would be noisier than they are off
    notes = drawn.notes | {"theta_corrected": effective_draws(log_weight)}
    return Cloud(drawn.points + shift, drawn.log_weight, notes)


def evidence(
    points: np.ndarray, log_weight: np.ndarray, log_t: np.ndarray, learned: Learned, height: float
) -> dict[str, float]:
    """Notes with log p(y) and its standard error.

    The points' weights give the ratio of the integral of exp G to the known integral of its Gaussian;
    `height` is added to its logarithm.
    """
    apart, D = points - learned.mean, points.shape[1]
    log_control = -0.5 * np.sum((apart @ learned.precision) * apart, 1) - log_t
    sums = [np.logaddexp.reduce(own) for own in (log_weight, log_control)]
    gaussian = 0.5 * (D * np.log(2 * np.pi) - np.linalg.slogdet(learned.precision)[1])
    noise = np.exp(log_weight - sums[0]) - np.exp(log_control - sums[1])
    return {
        "log_evidence": float(sums[0] - sums[1] + gaussian + height),
        "log_evidence_se": float(np.sqrt(np.sum(noise**2))),
    }


class Profile(NamedTuple):
    """An approximation of G less its value at the mode: polynomials along axes and between pairs."""

    centre: Float64[np.ndarray, " D"]
    axes: Float64[np.ndarray, "D D"]
    coefficients: Float64[np.ndarray, "D 4"]  # of t, t^2, t^3 and t^4
    between: Float64[np.ndarray, "3 D D"]  # of t_i t_j, t_i^2 t_j and t_i^2 t_j^2

    @classmethod
    def through(cls, height: Values, logs: np.ndarray, found: Found, between: bool) -> "Profile":
        """The profile through `height`, G less its value at the mode, on each axis and maybe at corners.

        `logs` tells which entries of theta are logarithms.
        """
        axes, D = whitening(found.precision), len(found.mean)
        wide = (np.where(logs, np.abs(axes).T, np.inf).max(1) > NARROW).tolist()
        rows = [cls._along(height, found, axis, k, wide[k]) for k, axis in enumerate(axes.T)]
        alone = cls(found.mean, axes, np.stack(rows), np.zeros((3, D, D)))
        return alone._replace(between=alone.corners(height)) if between else alone

    @staticmethod
    def _along(
        height: Values, found: Found, axis: np.ndarray, number: int, wide: bool
    ) -> Float64[np.ndarray, " 4"]:
        """The coefficients along an axis; along a narrow axis, the first two are from the search."""
        along = np.array(ALONG if wide else (ALONG[0], ALONG[-1]))
        change = height(found.mean + along[:, None] * axis)
        change = np.where(np.isfinite(change), change, -(along**2))
        powers = along[:, None] ** np.arange(1, 5)
        if wide:
            return np.linalg.solve(powers, change)
        known = np.array([found.slope[number], -0.5])
        more = np.linalg.solve(powers[:, 2:], change - powers[:, :2] @ known)
        return np.concatenate([known, more])

    def corners(self, height: Values) -> Float64[np.ndarray, "3 D D"]:
        """The coefficients between axes that make the profile equal G at all corners."""
        D, signs = len(self.centre), np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
        between = np.zeros((3, D, D))
        for i in range(D):
            for j in range(i):
                thetas = self.centre + CORNER * signs @ self.axes[:, [i, j]].T
                off = height(thetas) - self.values(thetas)
                off = off if np.isfinite(off).all() else np.zeros(4)
                of_i, of_j = signs.T * off
                between[0, i, j] = np.mean(of_i * signs[:, 1]) / CORNER**2
                between[1, i, j] = np.mean(of_j) / CORNER**3
                between[1, j, i] = np.mean(of_i) / CORNER**3
                between[2, i, j] = np.mean(off) / CORNER**4
        return between

    def values(self, thetas: Float64[np.ndarray, "n D"]) -> Float64[np.ndarray, " n"]:
        """The profile at thetas; beyond its outermost points it continues with their slope."""
        t = np.linalg.solve(self.axes, (thetas - self.centre).T)  # [D, n]
        near = np.clip(t, ALONG[0], ALONG[-1])
        powers = near[..., None] ** np.arange(1, 5)
        slopes = np.arange(1, 5) * near[..., None] ** np.arange(4)
        inside = np.einsum("dnk,dk->dn", powers, self.coefficients)
        outside = np.einsum("dnk,dk->dn", slopes, self.coefficients) * (t - near)
        bent = np.where(outside < 0, 0.0, -0.5 * (t - near) ** 2)
        return np.sum(inside + np.minimum(outside, 0.0) + bent, 0) + self._between(near)

    def _between(self, t: Float64[np.ndarray, "D n"]) -> Float64[np.ndarray, " n"]:
        first, second, third = self.between
        square = t**2
        found = np.sum(t * (first @ t) + square * (second @ t + third @ square), 0)
        return np.minimum(found, MOST_BETWEEN * 0.5 * np.sum(square, 0))


def moved_sds(G: Marginal, found: Found) -> Float64[np.ndarray, "D 2"]:
    """The shift of theta in sds by correcting Laplace's method, and by the error of coarser rules."""
    if G.model.linear or not G.design.kept and all(block.rule is G.rule for block in G.blocks):
        return np.zeros((len(found.mean), 2))
    return _moved(G, found, lambda own: np.array([own.correction, G.left_out(own)]))


def probe_sds(G: Marginal, found: Found) -> float:
    """The shift of theta, in sds, that the random probes may cause: the largest standard error."""
    if not isinstance(found.optimum.kept, Iterated):
        return 0.0
    log_dets: Any = lambda optimum: -0.5 * optimum.kept.log_dets
    moved = _moved(G, found, log_dets)
    return float(np.std(moved, -1).max() / np.sqrt(PROBES))


def _moved(G: Marginal, found: Found, part: Callable[[Optimum], Any]) -> np.ndarray:
    """The shift of each coordinate of theta, in sds, by the slope of a part of G, [D, ...]."""
    axes = whitening(found.precision)
    slope = []
    for axis in axes.T:
        ends = [part(_solved(G, found, found.mean + sign * 0.5 * axis)) for sign in (1, -1)]
        slope.append(ends[0] - ends[1])
    moved = axes @ np.array(slope)
    return (moved.T / np.sqrt(np.diag(axes @ axes.T))).T


def pool(G: Marginal, found: Found, drawn: Cloud, seed: int) -> tuple[Pool, dict[str, Any]]:
    """Draws of theta, and of b given each; and notes on how far the cloud is from G, the rms in nats.

    B is solved for at some of the thetas, the nodes. Another theta has the Gaussian of the nearest node,
    its mean moved by a linear regression of b^ on theta over the nodes. A node at which b could not be
    found has the Gaussian at theta's mode, which is noted.
    """
    rng = np.random.default_rng(seed)
    P, q = G.design.X.shape[1], G.design.K.shape[1]
    most = POOL_NUMBERS / max(P + q, 1)
    if G.algebra == "iterative":
        most = min(most, DRAW_WORK / (2 * ITERATIONS * len(G.design.offset)))
    count = int(np.clip(most, FEWEST, POOL))
    what = f"{count:,} draws of {P + q:,} kept effects"
    check_memory(8 * 3 * count * (P + q), None, what, "Merge rare levels")
    theta = drawn.draws(rng, count)
    axes = whitening(found.precision)
    white = np.linalg.solve(axes, (theta - found.mean).T).T
    nodes = _nodes(G, white, rng)
    shift = mean_shift(G, found.optimum, rng)
    beta, u = np.empty((count, P)), np.empty((count, q))
    centres, heights, solved = [], [], []
    nearest = np.argmin(((white[:, None] - white[nodes][None]) ** 2).sum(-1), 1)
    for k, node in enumerate(nodes):
        own = np.flatnonzero(nearest == k)
        optimum = _solved(G, found, theta[node])
        draws = draw_kept(optimum, rng, len(own))
        beta[own], u[own] = draws.beta, draws.u
        centres.append(np.concatenate([optimum.effects.beta, optimum.effects.u]))
        heights.append(optimum.value - found.optimum.value)
        solved.append(optimum is not found.optimum)
    response = _response(white[nodes], np.stack(centres))
    moved = white - white[nodes][nearest]
    beta += moved @ response[:, :P] + shift.beta
    for own in range(0, count, TOGETHER):  # in place, and in a processor's cache
        u[own : own + TOGETHER] += moved[own : own + TOGETHER] @ response[:, P:] + shift.u
    solved, apart = np.array(solved), np.zeros(1)
    if drawn.stands is not None and solved.any():
        apart = np.array(heights)[solved] - drawn.stands(theta[nodes][solved])
    notes = {"theta_profile_nats": float(np.sqrt(np.mean(np.square(apart))))}
    if not solved.all():
        notes |= {"nodes": len(solved), "unsolved_nodes": int((~solved).sum())}
    return Pool(theta, beta, u), notes


def _nodes(G: Marginal, white: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of some thetas, chosen at random."""
    fewest, most = NODES
    count = int(np.clip(NODE_WORK / work(G), fewest, most))
    return rng.permutation(len(white))[: min(count, len(white))]


def _solved(G: Marginal, found: Found, theta: np.ndarray) -> Optimum:
    try:
        return G.optimum(theta, found.optimum)
    except (NotSolved, np.linalg.LinAlgError):
        return found.optimum


def _response(white: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Slopes of b^ in the whitened theta, [D, P + q], by ridge regression over the nodes."""
    apart, change = white - white.mean(0), centres - centres.mean(0)
    ridge = 1e-3 * len(white) * np.eye(white.shape[1])
    return np.linalg.solve(apart.T @ apart + ridge, apart.T @ change)
