"""Draws that represent theta's posterior, if the Gaussian q(theta) is not accurate enough.

Tried in this order: the Gaussian itself, draws from a Student t weighted by F, NUTS on exp F, NUTS
on a stand-in corrected by F, and draws with skewed marginals by F along curves.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ramify.data.groups import Groups
from ramify.data.partition import rounded
from ramify.data.sources import BlockSource, on_device
from ramify.families.branched import Branched
from ramify.families.weighted_theta import WeightedTheta
from ramify.fitting.theta_by_curves import WIDEST, by_curves, curves_fit_in
from ramify.fitting.theta_cloud import MOST_NOISE, Cloud, weighed_cloud
from ramify.inference.marginal import Marginal, OutOfBudget
from ramify.inference.theta_funnels import sample_standard, standard_proposal, without_funnels
from ramify.inference.theta_nuts import (
    CHAINS,
    CHUNK,
    Most,
    Sampled,
    sample_theta,
    whole,
)
from ramify.inference.theta_search import Learned
from ramify.inference.theta_stand_in import (
    StandIn,
    begin,
    can_stand_in,
    corrected,
    nearer,
)
from ramify.inference.theta_weights import (
    Proposal,
    few_count,
    first_points,
    fitted_proposal,
    value_noise,
)
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.thresholds import MOST_K_HAT, THIN
from ramify.posterior.summary import shown_values, summary_draws

Theta = Literal["gaussian", "weighted", "nuts"]

NEEDED = (2 * MOST_NOISE) ** -2  # effective draws whose means have twice that noise
COARSE = 0.3  # nats of rounding in F above which rounding makes theta's weights uneven
WIDE = 0.15  # smallest sd of a coordinate of theta whose shape is checked
# Nats by which F differs from a Gaussian's 1.5 sds away: clearly not Gaussian; not quite Gaussian.
SKEWED, BENT = 0.4, 0.15
LEAPS = 12  # evaluations of F in a transition of NUTS, about
EVALUATIONS = CHAINS * (CHUNK + 500) * LEAPS  # that NUTS usually takes
MOST_DIVERGED = 0.005  # share of divergent transitions above which a region was left out
STAND_IN_TRIES = 2  # stand-ins whose draws are weighed: the second is fitted to draws of the first
KEPT = 4000  # most draws by NUTS that are kept
UNEVEN = "draws of the global parameters are weighted unevenly: their means and sds may be off"
ASK = 'fit with theta="nuts"'

Shaped = tuple[Branched, dict[str, Any]]  # the family, and notes on its theta


class Allowed(NamedTuple):
    """What a fit may use to find the shape of theta's posterior."""

    asked: Theta | None
    groups: Groups
    points: int  # of theta that may be weighted; 0 if they would be too few
    needed: int  # the same if theta's posterior is found not to be a Gaussian
    gaussian: bool  # whether theta's posterior should be Gaussian, since there are many groups
    seed: int


def with_shape(family: Branched, F: Marginal, learned: Learned, allowed: Allowed) -> Shaped:
    """The family with draws of theta if q(theta) is not accurate enough, and notes on them."""
    try:
        family, notes = _with_shape(family, F, learned, allowed)
    except OutOfBudget:
        why = "the budget ended before theta's draws were made: its posterior is a Gaussian's"
        return family, {"warnings": [why]}
    width = _width(F, learned) if family.weighted is None else None
    return family, notes if width is None else notes | {"theta_width": width}


def _with_shape(family: Branched, F: Marginal, learned: Learned, allowed: Allowed) -> Shaped:
    bent, asked = [], allowed.asked
    if asked == "gaussian" or (asked is None and (allowed.gaussian or not allowed.points)):
        bent = not_gaussian(F, learned.at_mode())  # around its mean a skew shows less
        if asked == "gaussian" or not bent:
            return family, {"warnings": [f"{_skewed(F.model, bent)}; {ASK}"]} if bent else {}
        allowed = allowed._replace(points=allowed.needed)
    seconds, first, tried = _nuts_seconds(F, allowed.groups, EVALUATIONS), None, False
    if asked is None and allowed.points and seconds > budgets.NUTS_SECONDS and can_stand_in(F):
        # If few of the first points are effective, weighing the rest takes longer than the stand-in.
        first = first_points(F.values, learned, allowed.points, allowed.seed)
        tried = few_count(first, NEEDED) and value_noise(F, learned) <= COARSE
        if tried and (found := _by_stand_in(family, F, learned, allowed)) is not None:
            return found
    count, seed = allowed.points, allowed.seed
    cloud = weighed_cloud(F, learned, count, seed, first) if allowed.points else None
    if asked == "weighted" or (asked is None and cloud is not None and cloud.even):
        family, notes = _weighted(family, F, learned, cloud)
        doubted = cloud is not None and not cloud.enough and not notes["warnings"]
        return family, notes | ({"warnings": [f"{UNEVEN}; {ASK}"]} if doubted else {})
    if asked is None and cloud is not None and (noise := value_noise(F, learned)) > COARSE:
        return family, _uneven(cloud, noise)
    if asked == "nuts" or seconds <= budgets.NUTS_SECONDS:
        return _by_nuts(family, F, learned, cloud, allowed)
    if not tried and cloud is not None and not cloud.enough and can_stand_in(F):
        if (found := _by_stand_in(family, F, learned, allowed)) is not None:
            return found
    return _cheaply(family, F, learned, (bent, cloud, seconds), allowed)


def _cheaply(
    family: Branched,
    F: Marginal,
    learned: Learned,
    known: tuple[list[int], Cloud | None, float],
    allowed: Allowed,
) -> Shaped:
    """The family with draws along curves or weighted ones, where NUTS takes too long."""
    bent, cloud, seconds = known
    if cloud is None and curves_fit_in(F, learned, allowed.groups):
        theta, notes = by_curves(F, learned, bent, allowed.groups, allowed.seed)
        return replace(family, weighted=theta), notes
    family, notes = _weighted(family, F, learned, cloud)
    notes["theta_nuts_seconds"] = seconds
    if cloud is not None and cloud.enough:
        return family, notes
    why = UNEVEN if cloud else _skewed(F.model, bent)
    more = f'{why}; theta="nuts" would take some {seconds:.0f} s'
    return family, notes | {"warnings": notes["warnings"] or [more]}


def _weighted(family: Branched, F: Marginal, learned: Learned, cloud: Cloud | None) -> Shaped:
    """The family with weighted draws, unless a few of them have most of the weight."""
    if cloud is None:
        return family, {"warnings": []}
    if cloud.k_hat > MOST_K_HAT:
        return family, _uneven(cloud, value_noise(F, learned))
    return replace(family, weighted=cloud.weighted), cloud.notes | {"warnings": []}


def _by_nuts(
    family: Branched, F: Marginal, learned: Learned, cloud: Cloud | None, allowed: Allowed
) -> Shaped:
    """The family with draws of theta by NUTS, in the coordinates of the best proposal known."""
    over = lambda: F.budget is not None and F.budget.spent()
    each = _nuts_seconds(F, allowed.groups, 1)
    work = budgets.NUTS_SECONDS / each, budgets.NUTS_CHEAP / each
    most = Most(*work, over, budgets.NUTS_DRAWS)
    shown = partial(shown_values, F.model.adapter)
    form = without_funnels(F.model, learned)
    if form is None:
        known = None if cloud is None else cloud.proposal
        proposal = known or Proposal.symmetric(learned.mean, np.linalg.inv(learned.precision))
        sample = sample_theta
    else:
        proposal = standard_proposal(form, None if cloud is None else cloud.weighted, learned)
        sample = partial(sample_standard, form)
    centre = proposal.margins.spread(proposal.mean)
    centre = centre if form is None else form.theta(centre[None])[0]
    target = whole(F, _one_block(F, allowed.groups), centre)
    found = sample(target, F.expand, proposal, allowed.seed, most, shown)
    return _of_chains(family, F.model, found)


def _of_chains(family: Branched, model: Model, found: Sampled) -> Shaped:
    """The family with the draws of chains, and notes on them."""
    thin = -(-found.theta.shape[0] * found.theta.shape[1] // KEPT)
    names = [*summary_draws(model.adapter, model.adapter.global_values(found.theta[0, :1]))]
    notes = {
        "theta_r_hat": float(found.r_hat.max()),
        "theta_effective_draws": float(found.effective.min()),
        "theta_worst": names[int(np.argmin(found.effective))],
        "theta_divergences": found.divergences,
        "warnings": _left_out(found),
    }
    return replace(family, weighted=WeightedTheta.of_chains(found.theta[:, ::thin])), notes


def _by_stand_in(
    family: Branched, F: Marginal, learned: Learned, allowed: Allowed
) -> Shaped | None:
    """The family with NUTS draws on a stand-in, corrected by F; None if weights are uneven."""
    over = lambda: F.budget is not None and F.budget.spent()
    shown, seed = partial(shown_values, F.model.adapter), allowed.seed
    most = Most(budgets.STAND_IN_EVALUATIONS, 0.0, over, budgets.STAND_IN_EFFECTIVE)
    proposal = Proposal.symmetric(learned.mean, np.linalg.inv(learned.precision))
    own, at = begin(F, learned)
    # A few draws first, for better coordinates of the chains, and F at some for a better stand-in.
    few = Most(0.0, 0.0, over, (0, 0))
    found = sample_theta(own, own.expansions, proposal, seed, few, shown)
    for attempt in range(1, STAND_IN_TRIES + 1):
        draws = found.theta.reshape(-1, len(learned.mean))
        own, at = nearer(own, F, at, draws)
        proposal = fitted_proposal(draws, np.zeros(len(draws))) or proposal
        found = sample_theta(own, own.expansions, proposal, seed + attempt, most, shown)
        if (even := _corrected(F, own, found, seed)) is not None:
            family, notes = _of_chains(family, F.model, even[0])
            return family, notes | {"theta_k_hat": even[1]}
    return None


def _corrected(
    F: Marginal, own: StandIn, found: Sampled, seed: int
) -> tuple[Sampled, float] | None:
    """Draws chosen by their weights, and the k-hat of these; None if weights are uneven."""
    theta, log_weight = corrected(F, own, found.theta, budgets.CORRECTED_DRAWS, seed)
    k, effective = k_hat(log_weight), effective_draws(log_weight)
    if not (k < MOST_K_HAT or effective > THIN * len(log_weight)):
        return None
    lost = 1 / effective - 1 / len(log_weight)
    return found._replace(theta=theta, effective=1 / (1 / found.effective + lost)), k


def _left_out(found: Sampled) -> list[str]:
    """A warning if the chains left out a region."""
    why = (
        f"NUTS on theta diverged {found.divergences} times: theta's posterior has a narrow part that "
        "was left out, such as the funnel of a vector of globals with an sd of their own; write that "
        "vector as sd times standard normals (docs/translating.md)"
    )
    many = found.divergences > MOST_DIVERGED * found.theta.shape[0] * found.theta.shape[1]
    return [why] if many else []


def _one_block(F: Marginal, groups: Groups) -> BlockSource:
    """The blocks of F; a single block is made anew with less filler."""
    if len(F.source) > 1:
        return F.source
    members = np.full((1, rounded(len(groups), 4)), -1, np.int32)
    members[0, : len(groups)] = np.arange(len(groups))
    return on_device(groups, members, rounded(groups.n_rows, 16))


def _nuts_seconds(F: Marginal, groups: Groups, evaluations: int) -> float:
    """Seconds of NUTS, estimated from its work: by a clock, results would depend on the load."""
    each = F.problem.local_draws * (groups.n_rows + len(groups)) / budgets.NUTS_RATE
    return evaluations * (each + budgets.NUTS_OVERHEAD)


def _uneven(cloud: Cloud, noise: float) -> dict[str, Any]:
    """Notes on uneven weights of theta; if the cause is rounding, only a warning of that."""
    if noise <= COARSE:
        return cloud.notes | {"warnings": []}
    why = (
        f"float32 rounds the log likelihood of these data by {noise:.1f} nats, so that theta's draws "
        "can't be weighed and its sds may be wrong: call "
        'jax.config.update("jax_enable_x64", True) first'
    )
    return {"warnings": [why]}


def _width(F: Marginal, learned: Learned) -> float | None:
    """The sd of q(theta) over that of exp F along one direction, by slopes one sd to each side."""
    direction = np.random.default_rng(0).normal(size=len(learned.mean))
    direction /= np.linalg.norm(direction)
    step = np.linalg.solve(np.linalg.cholesky(learned.precision).T, direction)
    try:
        F.check_budget()
    except OutOfBudget:
        return None
    blocks = F.blocks_with(budgets.JUDGING_GROUPS)
    ahead, behind = F.expand(learned.mean + np.stack([step, -step]), blocks)[1]
    curvature = float((behind - ahead) @ step / 2)  # 1 where q(theta) is right
    return float(np.sqrt(max(curvature, 0.0))) if np.isfinite(curvature) else None


def not_gaussian(F: Marginal, learned: Learned) -> list[int]:
    """Coordinates along which F is not quite a parabola, if it is far from one along some."""
    # F is evaluated 1.5 sds to both sides of the widest coordinates, where a Gaussian falls by 1.125.
    covariance = np.linalg.inv(learned.precision)
    sd = np.sqrt(np.diag(covariance))
    widest = [int(i) for i in np.argsort(-sd)[:WIDEST] if sd[i] > WIDE]
    if not widest:
        return []
    way = 1.5 * covariance[widest] / sd[widest, None]
    try:
        values = F.values(learned.mean + np.concatenate([0 * way[:1], way, -way]))
    except OutOfBudget:
        return []
    fall = (values[0] - values[1:]).reshape(2, -1)
    off = np.abs(fall - 1.125).max(0)
    far = bool(np.any(~(off < SKEWED)))
    return [place for place, nats in zip(widest, off, strict=True) if far and not nats < BENT]


def _skewed(model: Model, bent: list[int]) -> str:
    """A warning of coordinates such as the log of an sd near zero."""
    names = ", ".join(model.adapter.coordinates()[place] for place in bent)
    return (
        f"the posterior of {names} is not the Gaussian that q(theta) is, on the scale where it is "
        "learned (an sd near zero, perhaps): its interval may be too narrow"
    )
