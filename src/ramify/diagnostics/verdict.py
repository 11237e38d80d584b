"""A verdict on a fit in words, from what its importance weights and its own notes say."""

from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float64

from ramify.data.groups import Groups
from ramify.families.branched import Branched
from ramify.posterior.posterior import Posterior
from ramify.posterior.trust import Verdict, findings

GOOD, BAD = 0.5, 0.7  # k-hat: weights with a variance; the most that averages can stand
MOVED, FAR = 0.5, 1.0  # sds by which weights move a mean: worth a look; too far


class Theta(NamedTuple):
    """What is known of theta's weights."""

    k_hat: float
    effective: float
    draws: int
    shift: dict[str, float]
    shift_noise: float


class Locals(NamedTuple):
    """What is known of each group's weights."""

    k_hat: Float64[np.ndarray, " N"]
    effective: Float64[np.ndarray, " N"]
    gap: Float64[np.ndarray, " N"]
    converged: Bool[np.ndarray, " N"]


def judge(
    posterior: Posterior, theta: Theta, judged: Groups, locals_: Locals, groups: Groups
) -> tuple[Verdict, list[str]]:
    """The verdict, and sentences that say why and what to do, the gravest first."""
    findings = [_about_theta(posterior, theta), *_about_groups(posterior, judged, locals_, groups)]
    findings += _about_notes(posterior.notes, len(groups))
    findings.sort(key=lambda finding: -finding[0])
    return get_args(Verdict)[findings[0][0]], [said for _, said in findings]


def _about_theta(posterior: Posterior, found: Theta) -> tuple[int, str]:
    """Level and sentence of what the weights of theta say, or its chains."""
    if "theta_r_hat" in posterior.notes:
        return _about_chains(posterior.notes)
    what = "theta" if isinstance(posterior.family, Branched) else "everything together"
    said = (
        f"k-hat of {what} is {found.k_hat:.2f}: its {found.draws:,} draws are worth "
        f"{found.effective:,.0f} by importance weight"
    )
    name = max(found.shift, key=lambda n: abs(found.shift[n]))
    most = abs(found.shift[name])
    beyond_noise = most - 2 * found.shift_noise
    moved = f"would move the mean of {name} by {most:.2g} sds, give or take {found.shift_noise:.1g}"
    if found.k_hat > BAD or beyond_noise > FAR:
        cure = _cure(posterior)
        return 2, f"{said}: q(theta) is not near the posterior. The weights {moved}. {cure}."
    weighted = getattr(posterior.family, "weighted", None) is not None
    uneven = not weighted and found.k_hat > GOOD and found.effective < 0.5 * found.draws
    if uneven or beyond_noise > MOVED:
        return 1, f"{said}, and the weights {moved}. {_cure(posterior)}."
    return 0, f"{said}, and the weights move no mean by more than {most:.2g} sds."


def _about_chains(notes: dict[str, Any]) -> tuple[int, str]:
    """Theta was sampled: weights of a Student t do not judge it. What is wrong is among the warnings."""
    r_hat, effective = notes["theta_r_hat"], notes["theta_effective_draws"]
    said = f"theta was sampled by NUTS: {effective:,.0f} effective draws, r-hat {r_hat:.3f}"
    return 0, f"{said}, {notes['theta_divergences']} divergences."


def _cure(posterior: Posterior) -> str:
    if posterior.local_draws == 1:
        return "Fit with solved(), or with local_draws= above 1"
    return (
        f"Raise local_draws= (now {posterior.local_draws}); where that changes nothing, theta's "
        "posterior is not Gaussian: compare with NUTS on a part of the groups"
    )


def _about_groups(
    posterior: Posterior, judged: Groups, found: Locals, groups: Groups
) -> list[tuple[int, str]]:
    """Levels and sentences of what the groups' weights say."""
    if not len(judged):
        return [(0, "joint() has no q(z_i | theta), so its groups were not judged one by one.")]
    bad = found.k_hat > BAD
    of = f"{len(judged):,} groups" + ("" if len(judged) == len(groups) else " taken at random")
    loss = f"Their Gaussians lose {max(np.median(found.gap), 0.0):.2g} nats each (median)"
    cure = " Use solved(), or posterior.refine(), or local_draws= above 1."
    if posterior.local_draws > 1:
        loss += ", which the importance draws make up for"
        cure = " Raise local_draws=, and look at these groups' rows."
    if not bad.any():
        return [(0, f"k-hat is below {BAD} in all {of}. {loss}.")]
    names = ", ".join(str(x) for x in judged.labels[np.argsort(-found.k_hat)][: min(3, bad.sum())])
    level = 0 if bad.mean() < 0.01 else 1 if bad.mean() < 0.1 else 2
    few = " Few enough for chance, or for groups that are odd." if level == 0 else cure
    said = f"k-hat is above {BAD} in {bad.sum():,} of {of} ({names}{', ...' if bad.sum() > 3 else ''})."
    return [(level, f"{said} {loss}.{few}")]


def _about_notes(notes: dict[str, Any], N: int) -> list[tuple[int, str]]:
    """Levels and sentences of what the fit itself had to say."""
    return [(level, f"The fit says: {said}.") for level, said in findings(notes, N)]
