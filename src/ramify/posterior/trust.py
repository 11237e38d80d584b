"""The verdict on a fit from its own notes, by one set of thresholds for all that show its numbers.

`print`, `summary`, the command and the report show the verdict of these findings; `diagnose` adds
findings from importance weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from ramify.numerics.thresholds import (
    EFFECTIVE,
    FAR,
    LAPLACE,
    MANY,
    MIRRORED,
    MOST_K_HAT,
    MOVED,
    R_HATS,
    SOME,
    WIDTH,
)

Verdict = Literal["trust", "check", "do not trust"]


class Finding(NamedTuple):
    """A sentence, and its gravity: the position of its verdict in `Verdict`."""

    level: int
    said: str


def verdict_of(found: Sequence[Finding]) -> Verdict:
    """The gravest of the findings.

    Example:
        >>> verdict_of([]), verdict_of([Finding(1, "a bias")])
        ('trust', 'check')
    """
    return get_args(Verdict)[max((finding.level for finding in found), default=0)]


def findings(notes: Mapping[str, Any], N: int) -> list[Finding]:
    """The findings on what is or may be wrong, from the notes of a fit of N groups."""
    found = [_unfinished(notes), _bias(notes), _noise(notes), _unconverged(notes, N)]
    found += [_width(notes), _uneven_theta(notes), _second_modes(notes), _uneven(notes)]
    found += [_laplace(notes), _profile(notes), _stalled(notes), _rising_prior(notes)]
    found += [_changed(notes), _curves(notes), _chains(notes), _other_mode(notes)]
    found += [_unsolved_nodes(notes)]
    warnings = [Finding(1, line) for line in notes.get("warnings", [])]
    return [finding for finding in found if finding is not None] + warnings


def _unfinished(notes: Mapping[str, Any]) -> Finding | None:
    left, noisy = float(notes.get("left_sds", 0.0)), _over(_size(notes, "noise_sds"), MOVED)
    if notes.get("converged") is not False:
        return None
    if not left <= FAR:
        return Finding(
            2,
            f"the search for the global parameters ended {left:.2g} of their sds short of where it was "
            "going; raise local_draws, or give it more steps if it had a budget",
        )
    if noisy:  # noise is the reason, and `_noise` reports it
        return None
    return Finding(1, "it had not converged when its budget ended; give it more steps")


def _bias(notes: Mapping[str, Any]) -> Finding | None:
    bias = _size(notes, "bias_sds")
    what = f"an estimate may be off by {bias:.2g} of its sd, for too few local draws; raise local_draws"
    return Finding(1 + _over(bias, FAR), what) if _over(bias, MOVED) else None


def _noise(notes: Mapping[str, Any]) -> Finding | None:
    noise = _size(notes, "noise_sds")
    what = f"another seed would move an estimate by some {noise:.2g} of its sd; raise local_draws"
    if "probes" in notes:
        what = (
            f"a log determinant is estimated by {notes['probes']} random probes, which may move theta by "
            f'{noise:.2g} posterior sds; fit with algebra="dense"'
        )
    return Finding(1 + _over(noise, FAR), what) if _over(noise, MOVED) else None


def _stalled(notes: Mapping[str, Any]) -> Finding | None:
    said = (
        f"conjugate gradients did not come to their end at {notes.get('stalled', 0):,} of "
        f"{notes.get('evaluations', 0):,} thetas: some levels are nearly confounded, or not connected by "
        'rows. Merge rare levels, or fit with algebra="dense"'
    )
    return Finding(1, said) if notes.get("stalled") else None


def _unconverged(notes: Mapping[str, Any], N: int) -> Finding | None:
    count = notes.get("unconverged", 0)
    if not count:
        return None
    labels = list(notes.get("unconverged_groups", ()))
    who = f"{count:,} groups" + (f" ({named(labels, count)})" if labels else "")
    return Finding(1 + (count > MANY * N), f"the local solution of {who} did not converge")


def _width(notes: Mapping[str, Any]) -> Finding | None:
    off = float(notes.get("theta_width", 1.0)) - 1
    size = f"{abs(off):.0%} too {'small' if off < 0 else 'large'}"
    said = (
        f"sds of the global parameters are some {size}, by the posterior's slopes one sd from the mean; "
        'fit with theta="nuts"'
    )
    return Finding(1 + _over(abs(off), FAR), said) if _over(abs(off), WIDTH) else None


def _uneven_theta(notes: Mapping[str, Any]) -> Finding | None:
    k, chains = float(notes.get("theta_k_hat", 0.0)), "theta_r_hat" in notes
    said = (
        "the posterior of the global parameters is far from a Gaussian, and from a Student t "
        f"(k-hat {k:.2f})"
    )
    # With several factors there is no other way to fit.
    said += "" if notes.get("method") == "levels" else ': fit with theta="nuts"'
    return Finding(2, said) if _over(k, MOST_K_HAT) and not chains else None


def _chains(notes: Mapping[str, Any]) -> Finding | None:
    if "theta_r_hat" not in notes:
        return None
    r_hat = float(notes["theta_r_hat"])
    effective = float(notes.get("theta_effective_draws", np.nan))
    limits = zip(R_HATS, EFFECTIVE, strict=True)
    wrong = [not (r_hat <= most and effective >= least) for most, least in limits]  # NaN is wrong
    said = (
        f"NUTS on theta has {effective:,.0f} effective draws of {notes.get('theta_worst', 'theta')}, "
        f"and an r-hat of {r_hat:.3f}: its mean and sd are not known well"
    )
    return Finding(1 + wrong[1], said) if wrong[0] else None


def _laplace(notes: Mapping[str, Any]) -> Finding | None:
    moved = _size(notes, "laplace_sds")
    said = (
        "the effects of kept factors are not normal: correcting for that moved an estimate by "
        f"{moved:.2g} of its sd, and a part of that may be left. Levels with few rows are the cause"
    )
    return Finding(1 + _over(moved, 2 * FAR), said) if _over(moved, LAPLACE) else None


def _profile(notes: Mapping[str, Any]) -> Finding | None:
    off = _size(notes, "theta_profile_nats")
    said = (
        f"the posterior of the global parameters differs by {off:.2g} nats from the one that their "
        "draws are from: intervals may be off"
    )
    return Finding(1 + _over(off, 2 * FAR), said) if _over(off, FAR) else None


def _curves(notes: Mapping[str, Any]) -> Finding | None:
    names = notes.get("theta_curves", [])
    said = (
        f"the posterior of {named(names, len(names))} is skewed, and its draws are an approximation, by "
        'curves: sds may be off by a tenth; fit with theta="nuts" to be sure'
    )
    return Finding(1, said) if names else None


def _rising_prior(notes: Mapping[str, Any]) -> Finding | None:
    names = notes.get("rising_priors", [])
    said = (
        f"log_prior is not a density: it rises without bound as {named(names, len(names))} goes to one "
        "side, where it must fall; look for a wrong sign"
    )
    return Finding(2, said) if names else None


def _changed(notes: Mapping[str, Any]) -> Finding | None:
    times = float(notes.get("theta_sds_changed", 1.0))
    said = (
        f"sds of the global parameters are {times:.2g} times those that the fit found: the family was "
        "changed since"
    )
    return Finding(1 + _over(abs(times - 1), FAR), said) if _over(abs(times - 1), WIDTH) else None


def _second_modes(notes: Mapping[str, Any]) -> Finding | None:
    level, who = _sampled(notes, "second_modes")
    said = (
        f"the posterior of {notes.get('z_names', 'z')} has a second mode, which this fit misses, in "
        f"{who}: write the model so that there is one (rf.positive() where a sign is not seen), or use "
        "NUTS for all of it"
    )
    return Finding(level, said) if level else None


def _unsolved_nodes(notes: Mapping[str, Any]) -> Finding | None:
    count, nodes = notes.get("unsolved_nodes", 0), notes.get("nodes", 1)
    said = (
        f"kept effects could not be found at {count} of {nodes} draws of theta: there they are those at "
        "theta's mode. Merge rare levels, or look for effects that the data do not tell apart"
    )
    return Finding(1 + (count > MANY * nodes), said) if count else None


def _other_mode(notes: Mapping[str, Any]) -> Finding | None:
    names, nats = notes.get("other_mode", []), float(notes.get("other_mode_nats", 0.0))
    mirrored = abs(nats) < MIRRORED
    what = "a mirror image" if mirrored else f"another mode, {nats:+.2g} nats from the first one,"
    said = (
        f"the posterior of {named(names, len(names))} has {what} that this fit misses: their means and "
        "sds are those of one mode. Write the model so that there is one (rf.positive() where a sign is "
        "not seen)"
    )
    return Finding(1 if mirrored else 2, said) if names else None


def _uneven(notes: Mapping[str, Any]) -> Finding | None:
    level, who = _sampled(notes, "uneven")
    said = (
        f"estimates of {notes.get('z_names', 'z')} may be off by more than {MOVED} of their sd in {who} "
        f"(k-hat above {MOST_K_HAT}): raise local_draws"
    )
    return Finding(level, said) if level else None


def _sampled(notes: Mapping[str, Any], what: str) -> tuple[int, str]:
    """The gravity of the number of wrong groups among those looked at, and their names."""
    number, looked = int(notes.get(what, 0)), max(int(notes.get("looked_at", 0)), 1)
    some = named(notes.get(f"{what}_groups", []), number)
    return level_of_groups(number / looked), f"{number:,} of {looked:,} groups looked at ({some})"


def bad_groups(
    k_hat: Float64[np.ndarray, " N"], off: Float64[np.ndarray, " N"]
) -> Bool[np.ndarray, " N"]:
    """Groups with unreliable weights whose sampled z may therefore be wrong."""
    return ~((k_hat <= MOST_K_HAT) | (off <= MOVED))


def off_sds(effective: Float64[np.ndarray, " N"], local_draws: int) -> Float64[np.ndarray, " N"]:
    """The possible error, in sds, of averages over a group's sampled z, by its effective share of draws.

    With v the variance of its weights, one of K draws chosen by weight may be off by max(sqrt(v), v) / K.
    """
    variance = 1 / np.maximum(effective, 1e-12) - 1
    return np.maximum(np.sqrt(np.maximum(variance, 0)), variance) / local_draws


def level_of_groups(share: float) -> int:
    """The gravity of this share of wrong groups."""
    return int(share >= SOME) + int(share >= MANY)


def named(labels: Sequence[Any] | Shaped[np.ndarray, " n"], count: int) -> str:
    """The first three labels in words, with dots if there are more than three."""
    return ", ".join(map(str, labels[: min(3, count)])) + (", ..." if count > 3 else "")


def _over(size: float, limit: float) -> bool:
    """Whether a size is above its limit; so is NaN, of which nothing is known."""
    return not size <= limit


def _size(notes: Mapping[str, Any], name: str) -> float:
    return float(np.max(np.abs(notes.get(name, 0.0))))
