"""Weighted points of theta: importance weights of a Student t against the marginal posterior."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.families.weighted_theta import weighted_quantiles
from ramify.inference.marginal import Marginal
from ramify.inference.shared_draws import Values
from ramify.inference.theta_search import Learned
from ramify.numerics.points import student_sample
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.skewed import LEVELS, Margins
from ramify.numerics.thresholds import MOST_K_HAT

GOOD = 0.9  # share of the effective points at best above which no better proposal is looked for
LONG = 0.5  # the margins' skew above which a tail is long: 2.6 times as long as the other


class Proposal(NamedTuple):
    """A Student t with skewed margins, from which theta is drawn; mean and covariance are of y."""

    margins: Margins
    mean: Float64[np.ndarray, " D"]
    covariance: Float64[np.ndarray, "D D"]

    @classmethod
    def symmetric(cls, mean: np.ndarray, covariance: np.ndarray) -> "Proposal":
        """A proposal without skew: mean and covariance are those of theta."""
        return cls(Margins.none(len(mean)), mean, covariance)

    def sample(
        self, rng: np.random.Generator, count: int
    ) -> tuple[Float64[np.ndarray, "count D"], Float64[np.ndarray, " count"]]:
        """Points of theta and their log density."""
        y, log_t = student_sample(rng, self.mean, self.covariance, count)
        return self.margins.spread(y), log_t - np.log(self.margins.stretch(y)).sum(1)


# Points of theta [T, D], their log weights p^(theta, y) / t(theta) up to a constant, and log t.
Weighed = tuple[np.ndarray, np.ndarray, np.ndarray]


def first_points(F: Values, learned: Learned, count: int, seed: int) -> Weighed:
    """The first quarter of the points of `weigh_theta`, from a t like q(theta)."""
    return _drawn(F, _first_proposal(learned), count // 4, 4 * seed)


def few_count(first: Weighed, enough: float) -> bool:
    """Whether too few of the first points are effective for the rest to help, or to fit a better t."""
    points, log_weight, _ = first
    expected = 4 * effective_draws(log_weight)  # of all points, by the same proposal
    return fitted_proposal(points, log_weight) is None and expected < enough


def weigh_theta(
    F: Values,
    learned: Learned,
    count: int,
    seed: int,
    first: Weighed | None = None,
    rough: bool = False,
) -> Weighed:
    """Weighted points of theta; `first` are those of `first_points`, if they are known.

    If `rough`, a k-hat below 0.7 is enough, since the caller draws them again.
    """
    # The t first has the mean and covariance of q(theta). It is fitted again to weighted points: to a
    # quarter of them, then to all, at most twice, until nearly as many are effective as if theta had
    # the proposal's shape. The quarter can't show the end of a long tail, and weights that never met
    # it look even: the first fit is not the last one then.
    proposal, enough = _first_proposal(learned), GOOD * effective_at_best(count, len(learned.mean))
    points, log_weight, log_t = first or first_points(F, learned, count, seed)
    for attempt in range(1, 4):
        better = fitted_proposal(points, log_weight)
        if better is None and attempt > 1:
            break
        proposal = better or proposal
        points, log_weight, log_t = _drawn(F, proposal, count, 4 * seed + attempt)
        known = attempt > 1 or np.abs(proposal.margins.sinh).max() < LONG
        good = rough or (known and effective_draws(log_weight) > enough)
        if good and k_hat(log_weight) < MOST_K_HAT:
            break
    return points, log_weight, log_t


def with_control(
    points: np.ndarray, log_weight: np.ndarray, log_t: np.ndarray, learned: Learned
) -> tuple[np.ndarray, np.ndarray]:
    """Moves the points so that weighted means and sds have less noise; also returns the noise left.

    Weights p/t and q/t of the same points have much of their noise in common, and the mean and sd of
    the Gaussian q are known. The noise is that of each mean, in posterior sds.
    """
    covariance = np.linalg.inv(learned.precision)
    apart = points - learned.mean
    log_control = -0.5 * np.sum((apart @ learned.precision) * apart, 1) - log_t
    weight, control = (np.exp(x - np.logaddexp.reduce(x)) for x in (log_weight, log_control))
    mean, known = weight @ points, control @ points
    own, other = points - mean, points - known
    shift, rest = _less_noise(weight, own, control, other, known - learned.mean)
    # The variance is zero if one point has all the weight.
    variance, expected = np.maximum(weight @ own**2, 1e-300), np.diag(covariance)
    change, _ = _less_noise(
        weight,
        own**2 - variance,
        control,
        other**2 - control @ other**2,
        control @ other**2 - expected,
    )
    stretch = np.sqrt(np.clip((variance - change) / variance, 0.25, 4.0))
    return mean - shift + stretch * own, rest / np.sqrt(variance)


def _less_noise(
    weight: np.ndarray, own: np.ndarray, control: np.ndarray, other: np.ndarray, off: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What to subtract from weighted averages, by the control's error `off`, and the noise left."""
    # The contributions of each point and its mirror image together to the averages.
    pull, common = (_pairs(w[:, None] * x) for w, x in ((weight, own), (control, other)))
    share = np.sum(pull * common, 0) / np.maximum(np.sum(common**2, 0), 1e-300)
    share = np.clip(share, 0.0, 1.0)
    return share * off, np.sqrt(np.sum((pull - share * common) ** 2, 0))


def _pairs(values: np.ndarray) -> np.ndarray:
    """The sums of neighbours [2 n, D], which are mirror images; the last may be without one."""
    return np.pad(values, ((0, len(values) % 2), (0, 0))).reshape(-1, 2, values.shape[1]).sum(1)


def fitted_proposal(points: np.ndarray, log_weight: np.ndarray) -> Proposal | None:
    """A proposal fitted to weighted points; weights are cut at sqrt(T) times their mean.

    The cut is Ionides' (2008). None if the points have too few effective draws.
    """
    if not np.isfinite(log_weight.max()):
        return None
    weight = np.exp(log_weight - log_weight.max())
    weight = np.minimum(weight, np.sqrt(len(weight)) * weight.mean())
    weight /= weight.sum()
    if np.sum(weight**2) * 10 * points.shape[1] > 1:
        return None
    margins = Margins.of_quantiles(weighted_quantiles(points, weight, LEVELS))
    y = margins.gather(points)
    apart = y - weight @ y
    return Proposal(margins, weight @ y, (weight[:, None] * apart).T @ apart)


def _first_proposal(learned: Learned) -> Proposal:
    return Proposal.symmetric(learned.mean, np.linalg.inv(learned.precision))


def effective_at_best(count: int, D: int) -> float:
    """Effective points of a proposal with theta's shape: a Student t against a Gaussian."""
    y, log_t = student_sample(np.random.default_rng(0), np.zeros(D), np.eye(D), count)
    return effective_draws(-0.5 * np.sum(y**2, 1) - log_t)


def _drawn(F: Values, proposal: Proposal, count: int, seed: int) -> Weighed:
    points, log_t = proposal.sample(np.random.default_rng(seed), count)
    value = F(points)
    return points, np.where(np.isfinite(value), value, -np.inf) - log_t, log_t


def value_noise(F: Marginal, learned: Learned) -> float:
    """Rounding of F in nats: the scatter of its values around a smooth curve within half an sd."""
    along = np.linspace(-0.5, 0.5, 24)
    sd = np.sqrt(np.diag(np.linalg.inv(learned.precision)))
    values = F.values(learned.mean + along[:, None] * sd)
    smooth = np.polynomial.Polynomial.fit(along, values, 4)(along)
    return float(np.sqrt(np.sum((values - smooth) ** 2) / (len(along) - 5)))
