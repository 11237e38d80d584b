"""A verdict on a fit in words, from what its importance weights and its own notes say."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from ramify.data.groups import Groups
from ramify.families.branched import Branched
from ramify.numerics.thresholds import FAR, MOST_K_HAT, MOVED, NOISES, THIN, WIDTH
from ramify.posterior.posterior import Posterior
from ramify.posterior.trust import (
    Finding,
    Verdict,
    bad_groups,
    findings,
    level_of_groups,
    named,
    verdict_of,
)


class Theta(NamedTuple):
    """Statistics of theta's weights: `shift` and `widening` are by coordinate, each with its noise."""

    k_hat: float
    effective: float
    draws: int
    shift: dict[str, float]
    shift_noise: float
    widening: dict[str, float]
    widening_noise: float


class Locals(NamedTuple):
    """Statistics of each group's weights."""

    k_hat: Float64[np.ndarray, " N"]
    effective: Float64[np.ndarray, " N"]
    off: Float64[np.ndarray, " N"]
    gap: Float64[np.ndarray, " N"]
    converged: Bool[np.ndarray, " N"]

    @property
    def bad(self) -> Bool[np.ndarray, " N"]:
        """Groups with unreliable weights whose sampled z may therefore be wrong."""
        return bad_groups(self.k_hat, self.off)


def judge(
    posterior: Posterior, theta: Theta, judged: Groups, locals_: Locals, groups: Groups
) -> tuple[Verdict, list[str]]:
    """The verdict, and sentences that say why and what to do, the gravest first."""
    found = [_about_theta(posterior, theta), _about_groups(posterior, judged, locals_, groups)]
    noted = findings(posterior._judged, len(groups))
    found += [Finding(level, f"The fit says: {said}.") for level, said in noted]
    found.sort(key=lambda finding: -finding.level)
    return verdict_of(found), [finding.said for finding in found]


def _about_theta(posterior: Posterior, found: Theta) -> Finding:
    """The finding from theta's weights, or its chains: words first, then numbers."""
    if "theta_r_hat" in posterior.notes:
        return _about_chains(posterior.notes)
    numbers = f"k-hat {found.k_hat:.2f}; {found.draws:,} draws are worth {found.effective:,.0f}"
    numbers += "" if isinstance(posterior.family, Branched) else ", of everything together"
    (shift, first), (widening, second) = _largest(found.shift), _largest(found.widening)
    noise, wide_noise = found.shift_noise, found.widening_noise
    beyond = abs(shift) - NOISES * noise
    moved = f"move {first} by {abs(shift):.2g} of its sd, give or take {noise:.1g}"
    uneven = found.k_hat > MOST_K_HAT and found.effective < THIN * found.draws
    if uneven or not beyond <= FAR:
        return Finding(
            2,
            "The fit is far from the posterior of the global parameters: correcting it would "
            f"{moved} ({numbers}). {_cure(posterior)}.",
        )
    widened = f"change the sd of {second} by {widening:+.0%}, give or take {wide_noise:.0%}"
    wide = not abs(widening) - NOISES * wide_noise <= WIDTH
    doubts = [moved] * (not beyond <= MOVED) + [widened] * wide
    if doubts:
        said = f"Correcting the fit would {' and '.join(doubts)} ({numbers})."
        return Finding(1, f"{said} {_cure(posterior)}.")
    said = f"Correcting the fit would move no estimate by more than {abs(shift):.2g} of its sd"
    return Finding(0, f"{said}, give or take {noise:.1g} ({numbers}).")


def _largest(by_name: dict[str, float]) -> tuple[float, str]:
    """The number with the largest absolute value, or NaN, and its name."""
    size = lambda own: np.nan_to_num(abs(own[0]), nan=np.inf)
    return max(((value, name) for name, value in by_name.items()), key=size)


def _about_chains(notes: dict[str, Any]) -> Finding:
    """The finding on theta sampled by NUTS; weights do not judge it, and warnings tell what is wrong."""
    r_hat, effective = notes["theta_r_hat"], notes["theta_effective_draws"]
    said = "The global parameters were sampled by NUTS: "
    said += f"{effective:,.0f} effective draws, r-hat {r_hat:.3f}"
    return Finding(0, f"{said}, {notes['theta_divergences']} divergences.")


def _cure(posterior: Posterior) -> str:
    if posterior.local_draws == 1:
        return "Fit with solved(), or with local_draws= above 1"
    return (
        f"Raise local_draws= (now {posterior.local_draws}); if that changes nothing, fit with "
        'theta="nuts"'
    )


def _about_groups(posterior: Posterior, judged: Groups, found: Locals, groups: Groups) -> Finding:
    """The finding from the groups' weights."""
    if not len(judged):
        return Finding(
            0, "joint() has no q(z_i | theta), so its groups were not judged one by one."
        )
    of = f"{len(judged):,} groups" + ("" if len(judged) == len(groups) else " taken at random")
    loss = f"A Gaussian alone would lose {max(np.median(found.gap), 0.0):.2g} nats a group (median)"
    cure = "Use solved(), or posterior.refine(), or local_draws= above 1."
    if posterior.local_draws > 1:
        loss += ", which weighted draws make up for"
        cure = "Raise local_draws=, and look at these groups' rows."
    bad = found.bad
    if not bad.any():
        return Finding(0, f"The estimates of all {of} are accurate. {loss}.")
    names = named(judged.labels[np.argsort(-np.where(bad, found.off, -1))], int(bad.sum()))
    level = level_of_groups(bad.mean())
    few = cure if level else "Few enough for chance, or for groups that are odd."
    said = (
        f"Estimates may be off by more than {MOVED} of their sd in {bad.sum():,} of {of} ({names}"
    )
    return Finding(level, f"{said}; k-hat above {MOST_K_HAT}). {loss}. {few}")
