"""Whether to trust a fit: importance weights of theta and of every group, and a verdict in words.

If an approximation q is good, the weights p/q of its own draws are nearly equal (`numerics.psis`). See
Yao et al., "Yes, but did it work?" (2018).
"""

from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int64, PRNGKeyArray, Shaped

from ramify.data.groups import Groups
from ramify.data.host import ranges, some_groups
from ramify.diagnostics.verdict import Locals, Theta, Verdict, judge
from ramify.families.branched import Branched
from ramify.families.conditional import Local
from ramify.families.solver import solved_at
from ramify.inference.group_check import weigh_groups
from ramify.inference.theta_weights import Proposal
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.arrays import floats
from ramify.numerics.hashing import generator
from ramify.numerics.precision import computing
from ramify.numerics.programs import program
from ramify.numerics.psis import effective_draws, k_hat
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Draws, draw_theta, proposal_of
from ramify.posterior.fitted import check_posterior
from ramify.posterior.levels import LevelsPosterior
from ramify.posterior.marginal_values import has_rule
from ramify.posterior.notebook import html_lines, html_table
from ramify.posterior.posterior import Posterior
from ramify.posterior.prediction import labelled
from ramify.posterior.theta_check import affordable, theta_log_weights
from ramify.posterior.trust import findings, off_sds, verdict_of


@final
@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of `diagnose`; printing it shows the verdict, the reasons and the worst groups.

    Attributes:
        verdict: "trust", "check" or "do not trust".
        reasons: sentences: what was found and, where something is wrong, what to do.
        k_hat: of theta's importance weights.
        effective_draws: effective number of draws of theta, by their weights.
        draws: draws of theta that were weighed.
        shift: by coordinate of the unconstrained theta, how far the weights move its mean, in sds.
        shift_noise: how far the noise in the weights alone would move a mean.
        widening: by coordinate, the relative change of its sd by the weights.
        widening_noise: the relative change of an sd by the noise in the weights alone.
        by: name of the label column.
        labels: the groups that were judged, [N]; empty for a joint family.
        sizes: their rows.
        group_k_hat: of each group's weights.
        group_effective: effective share of each group's draws, by their weights.
        group_off: by how many sds averages over a group's sampled z may be off, by these weights.
        gap: what the group's Gaussian loses, in nats: the tight bound less the plain one.
        converged: whether the solver found the group's mode.
    """

    verdict: Verdict
    reasons: list[str]
    k_hat: float
    effective_draws: float
    draws: int
    shift: dict[str, float]
    shift_noise: float
    widening: dict[str, float]
    widening_noise: float
    by: str
    labels: Shaped[np.ndarray, " N"]
    sizes: Int64[np.ndarray, " N"]
    group_k_hat: Float64[np.ndarray, " N"]
    group_effective: Float64[np.ndarray, " N"]
    group_off: Float64[np.ndarray, " N"]
    gap: Float64[np.ndarray, " N"]
    converged: Bool[np.ndarray, " N"]

    def worst(self, count: int = 10) -> dict[str, np.ndarray]:
        """The worst groups as a table: unconverged ones first, then by how far their z may be off."""
        order = np.lexsort((-self.gap, -self.group_off, self.converged))[:count]
        columns = {"n": self.sizes, "k_hat": self.group_k_hat, "effective": self.group_effective}
        columns |= {"off_sds": self.group_off, "gap": self.gap, "converged": self.converged}
        table = labelled(self.by, self.labels, columns)
        return {name: column[order] for name, column in table.items()}

    def __repr__(self) -> str:
        lines = [f"Verdict: {self.verdict}", *(f"  - {reason}" for reason in self.reasons)]
        if len(self.labels):
            lines += ["Worst groups:", *_table(self.worst(5))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        worst, said = self.worst(5), html_lines(f"Verdict: {self.verdict}", self.reasons)
        if not len(self.labels):
            return said
        label, *columns = [[*map(_shown, column.tolist())] for column in worst.values()]
        rows = [*zip(label, zip(*columns, strict=True), strict=True)]
        return said + "<div>Worst groups:</div>" + html_table([*worst][1:], rows)


@computing
def diagnose(
    posterior: Posterior, groups: Groups | None = None, draws: int | None = None, seed: int = 0
) -> Diagnosis:
    """Judges a fit by the importance weights of its own draws.

    Theta is weighed against its marginal posterior, log p(theta) + sum_i log p^(y_i | theta) -
    log q(theta), with the groups' z integrated out by importance draws that all draws of theta share.
    Each group is weighed at some draws of theta, log p(y_i, z | theta) - log q(z | theta). A joint family
    has no q(z_i | theta): its weights are those of everything together, and its groups are not judged.

    Args:
        posterior: the fit.
        groups: the data; those of the fit by default, and for several factors only these.
        draws: S, draws of theta; by default as many as seconds allow, 50 to 1,000; for several factors
            only None: their fits are judged by their notes.
        seed: the answer is a function of it.
    """
    check_posterior(posterior, "rf.diagnose(posterior)")
    if isinstance(posterior, LevelsPosterior):
        _check_own(posterior, groups, draws)
        return _of_levels(posterior)
    groups = posterior._for_metrics(groups)
    # The draws differ from those of the fit, so that the fit's own Monte Carlo error shows.
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    found = _judge_theta(posterior, groups, key, draws)
    judged, locals_ = _judge_groups(posterior, groups, jax.random.fold_in(key, 1))
    verdict, reasons = judge(posterior, found, judged, locals_, groups)
    return Diagnosis(verdict, reasons, *found, posterior.by, judged.labels, judged.sizes, *locals_)


def _check_own(posterior: LevelsPosterior, groups: Any, draws: int | None) -> None:
    """Raises where a fit with several factors would be judged by other data than its own, or by draws."""
    own = posterior.groups
    size = None if groups is None else (getattr(groups, "n_rows", None), len(groups))
    if draws is not None or size not in (None, (own.n_rows, len(own))):
        raise ValueError(
            "a fit with several grouping factors is judged by its own notes, not by draws or other "
            "data: call rf.diagnose(posterior) without groups= and draws=."
        )


def _of_levels(posterior: LevelsPosterior) -> Diagnosis:
    """The verdict on a fit with several factors, by its own notes; its groups are not judged."""
    notes, nothing = posterior.notes, np.zeros(0)
    found = findings(posterior._judged, len(posterior.labels))
    drawn = len(posterior.pool.theta)
    good = (
        f"correcting Laplace's method for kept effects moved theta by {notes['laplace_sds']:.2g} of its "
        "posterior sds"
    )
    reasons = [finding.said for finding in found] or [good]
    own = verdict_of(found), reasons, notes["theta_k_hat"], notes["theta_effective_draws"], drawn
    shifts: tuple[dict[str, float], float] = {}, 0.0
    none = nothing, nothing.astype(np.int64), nothing, nothing, nothing, nothing, nothing > 0
    return Diagnosis(*own, *shifts, *shifts, posterior.by, *none)


def _judge_theta(
    posterior: Posterior, groups: Groups, key: PRNGKeyArray, draws: int | None
) -> Theta:
    """Weighs draws of theta against its marginal posterior."""
    family, model = posterior.family, posterior.model
    S, K = affordable(model, groups, draws)
    points = posterior.notes.get("quadrature_points", 0)
    if draws is None and has_rule(family, model):  # fewer points of z leave time for more draws
        work = (groups.n_rows + len(groups)) * max(points, 16)
        S = int(np.clip(budgets.THETA_CHECK_WORK // work, S, 4 * S))
    theta, sd = _proposal(posterior, key, S)
    log_weights, noise = theta_log_weights(family, model, groups, theta, K, points)
    own = k_hat(log_weights), effective_draws(log_weights), S
    return Theta(*own, *_changes(posterior, theta, sd, log_weights, noise))


def _judge_groups(posterior: Posterior, groups: Groups, key: PRNGKeyArray) -> tuple[Groups, Locals]:
    """Weighs each group's local draws, or those of a random sample of the groups if they are many."""
    family, model = posterior.family, posterior.model
    if not isinstance(family, Branched):
        none = np.zeros(0)
        return groups._take(np.zeros(0, np.int64)), Locals(none, none, none, none, none > 0)
    work, S = budgets.GROUP_CHECK_WORK, budgets.GROUP_CHECK_THETAS
    judged = some_groups(groups, 2 * work // (S * budgets.LOOK_DRAWS[1]), 0)
    thetas, rng = draw_theta(key, family, model, S).theta, generator(key)
    found = []
    for block in ranges(judged):
        known = condition(family, model, block.batches[0], posterior.local_draws)
        real = slice(0, block.stop - block.start)
        own, gap = _weigh_block(known, model, thetas, rng, posterior.local_draws > 1)
        own, gap = own[..., real], gap[real]
        # Weights are divided by their median at each theta: a mean would follow the tail that is judged.
        own = (own - np.median(own, 1, keepdims=True)).reshape(-1, own.shape[-1])
        share = effective_draws(own) / len(own)
        off = off_sds(share, posterior._local_draws(None))
        converged = True if known.site is None else np.asarray(known.site.converged)[real]
        found.append(Locals(k_hat(own), share, off, gap, np.broadcast_to(converged, gap.shape)))
    return judged, Locals(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _weigh_block(
    known: Conditioned,
    model: Model,
    thetas: Float[np.ndarray, "S D"],
    rng: np.random.Generator,
    tight: bool,
) -> tuple[Float64[np.ndarray, "S K B"], Float64[np.ndarray, " B"]]:
    """Log weights of draws of z at each theta; the Gaussian's gap, log p^(y_i | theta) less its ELBO."""
    weights, gaps = [], []
    for theta, *local in zip(thetas, *_conditionals(known, model, thetas), strict=True):
        own, ratio = weigh_groups(model, known.batch, theta, Local(*local), rng, tight)
        own, share = own.astype(np.float64), np.exp(ratio - np.logaddexp.reduce(ratio))
        weights.append(own)
        elbo = share @ (own - ratio[:, None])  # both from the same draws
        gaps.append(np.logaddexp.reduce(own, 0) - np.log(len(own)) - elbo)
    return np.stack(weights), np.mean(gaps, 0)


def _conditionals(
    known: Conditioned, model: Model, thetas: Float[np.ndarray, "S D"]
) -> tuple[Float[np.ndarray, "S B M"], Float[np.ndarray, "S B ..."]]:
    """Means and scales of q(z_i | theta) at each theta."""
    site, batch = known.site, known.batch
    if site is None or not known.local.follows_theta(model, batch):
        return jax.device_get(_recombined(known, model, thetas))
    found = [solved_at(known.local, model, batch, site, floats(theta)) for theta in thetas]
    means, scales = zip(*jax.device_get(found), strict=True)
    return np.stack(means), np.stack(scales)


@program
def _recombined(
    known: Conditioned, model: Model, thetas: Float[Array, "S D"]
) -> tuple[Float[Array, "S B M"], Float[Array, "S B ..."]]:
    """The same where nothing is solved again."""
    local = jax.lax.map(known.conditional(model), thetas)
    return local.mean, local.scale


def _proposal(posterior: Posterior, key: PRNGKeyArray, S: int) -> tuple[Draws, np.ndarray]:
    """Draws of theta to weigh, and theta's sds."""
    # From q(theta) or, if the fit has weighted draws, from a Student t fitted to them.
    drawn = draw_theta(key, posterior.family, posterior.model, S)
    weighted = getattr(posterior.family, "weighted", None)
    if weighted is None:
        covariance = np.asarray(posterior.family.theta.covariance, np.float64)
        return drawn, np.sqrt(np.diagonal(covariance))
    known = proposal_of(weighted)
    proposal = known or Proposal.symmetric(weighted.mean, weighted.covariance)
    points, log_q = proposal.sample(generator(key), S)
    theta = points.astype(drawn.theta.dtype)
    return drawn._replace(theta=theta, log_q=log_q), np.sqrt(np.diagonal(weighted.covariance))


def _changes(
    posterior: Posterior, theta: Draws, sd: np.ndarray, log_weights: np.ndarray, noise: np.ndarray
) -> tuple[dict[str, float], float, dict[str, float], float]:
    """How far weights move each coordinate's mean, in sds, and change its sd, each with its noise."""
    weight = np.exp(np.nan_to_num(log_weights - log_weights.max(), nan=-np.inf))
    weight /= max(weight.sum(), 1e-300)
    drawn = np.asarray(theta.theta, np.float64)
    apart, plain = drawn - weight @ drawn, drawn - drawn.mean(0)
    # Subtracting the draws' own mean leaves the effect of the weights.
    shift = (weight @ drawn - drawn.mean(0)) / sd
    shift_noise = np.linalg.norm(weight[:, None] * apart - plain / len(drawn), axis=0) / sd
    moved = weight @ (apart * (noise - weight @ noise)[:, None]) / sd
    # Likewise relative to the draws' own sd if they are from q(theta); a Student t is wider.
    of_q = getattr(posterior.family, "weighted", None) is None
    variance, own = weight @ apart**2, np.mean(plain**2, 0)
    widening = 0.5 * np.log(variance / (own if of_q else sd**2))
    spread = weight[:, None] * (apart**2 / variance - 1)
    spread -= of_q * (plain**2 / own - 1) / len(drawn)
    by_name = lambda x: dict(zip(posterior.adapter.coordinates(), x.tolist(), strict=True))
    loud = float(np.hypot(shift_noise.max(), np.sqrt(np.mean(moved**2))))
    wide = float(0.5 * np.linalg.norm(spread, axis=0).max())
    return by_name(shift), loud, by_name(np.expm1(widening)), wide


def _table(columns: dict[str, np.ndarray]) -> list[str]:
    """Columns as lines of text."""
    cells = [[name, *map(_shown, column.tolist())] for name, column in columns.items()]
    wide = [max(map(len, column)) for column in cells]
    line = lambda row: "  ".join(c.rjust(w) for c, w in zip(row, wide, strict=True)).rstrip()
    return [f"  {line(row)}" for row in zip(*cells, strict=True)]


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
