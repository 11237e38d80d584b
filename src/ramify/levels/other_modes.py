"""A look for other modes of the effects, of a model of log densities, which a fit around one mode misses.

At theta's mode the search for b is started again: with all signs turned, with those of one effect turned,
and some sds away. Then Newton for z of every group is started far from its mode, on both sides.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.density import DensityLevels
from ramify.levels.marginal import Marginal, NotSolved, Optimum
from ramify.levels.marginal_state import Effects
from ramify.levels.shape import work

FAR = 3.0  # sds away, where a search starts
APART = 3.0  # sds: a maximum nearer than that is within the Gaussian around the first one
SHARE = 0.05  # of the mass of both modes: another mode with less is ignored
DRAWS = 32  # that tell the sds of b
NAMED = 20  # labels of groups that are noted
# Newton steps of a search; the work of all, which limits how many there are.
MOST_STEPS, WORK = 20, 3e10


class Other(NamedTuple):
    """Another mode of b."""

    nats: float  # how much higher it is
    terms: dict[int, list[int]]  # the terms and their effects that differ


def other_modes(G: Marginal, at: Optimum, factors: Any) -> dict[str, Any]:
    """Notes on other modes at an optimum; `factors` name the terms, their effects and their labels."""
    if G.model.linear or not isinstance(G.model, DensityLevels):
        return {}
    second = groups_with_another(G, at)
    own = factors[G.model.integrated[0]]
    labels = own.labels[second][:NAMED]
    notes = {"looked_at": len(second), "second_modes": int(second.sum())}
    notes |= {"second_modes_groups": [str(x) for x in labels], "z_names": ", ".join(own.effects)}
    other = another(G, at)
    if other is None:
        return notes
    who = [
        f"{factors[t].effects[e]} of {factors[t].name}"
        for t, own in other.terms.items()
        for e in own
    ]
    return notes | {"other_mode": who, "other_mode_nats": other.nats}


def another(G: Marginal, at: Optimum) -> Other | None:
    """The highest other mode of b, if one has a share of the mass."""
    sd = np.sqrt(np.mean(at.kept.noise(np.random.default_rng(0), DRAWS)[1] ** 2, 1))
    first, found = at.value - at.correction, None
    count = max(int(WORK / (MOST_STEPS * work(G))), 1)
    for start in islice(_starts(G, at, sd), count):
        try:
            there = G.maximum(at.theta, at.given, start, most=MOST_STEPS)
        except (NotSolved, np.linalg.LinAlgError, FloatingPointError):
            continue
        moved, nats = np.abs(there.effects.u - at.effects.u) / sd, float(there.value - first)
        higher = nats > (np.log(SHARE / (1 - SHARE)) if found is None else found.nats)
        if higher and np.sum(moved**2) > APART**2:
            found = Other(nats, _moved_terms(G, at, there, moved))
    return found


def _starts(G: Marginal, at: Optimum, sd: Float64[np.ndarray, " q"]) -> Iterator[Effects]:
    beta, u, z = at.effects
    yield Effects(beta, -u, -z)
    if sum(term.effects for term in G.design.kept) > 1:
        for term in G.design.kept:
            for e in range(term.effects):
                turned = u.copy()
                turned[term.start + e : term.stop : term.effects] *= -1
                yield Effects(beta, turned, -z)
    yield Effects(beta, u + FAR * sd * np.random.default_rng(0).choice([-1.0, 1.0], len(u)), z)


def _moved_terms(
    G: Marginal, at: Optimum, there: Optimum, moved: Float64[np.ndarray, " q"]
) -> dict[int, list[int]]:
    """The terms and effects that differ by more than an sd, in the root mean square over levels."""
    size = {
        t: np.sqrt(np.mean(moved[term.start : term.stop].reshape(-1, term.effects) ** 2, 0))
        for t, term in zip(G.model.kept, G.design.kept, strict=True)
    }
    root = at.state.integral.solved.root
    away = (there.effects.z - at.effects.z) / np.sqrt(np.einsum("nij,nij->ni", root, root))
    size[G.model.integrated[0]] = np.sqrt(np.mean(away**2, 0))
    found = {t: np.flatnonzero(own > 1).tolist() for t, own in size.items()}
    return {t: own for t, own in found.items() if own}


def groups_with_another(G: Marginal, at: Optimum) -> np.ndarray:
    """Which groups of the integrated factor have another mode of z given b, with a share of the mass."""
    z, here = at.effects.z, at.state.integral
    sd = np.sqrt(np.einsum("nij,nij->ni", here.solved.root, here.solved.root))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], z.shape)
    away, precision = FAR * signs * np.hypot(z.std(0), sd), G.precision(at.given)
    second = np.zeros(len(z), bool)
    for sign in (1, -1):
        start = at.effects._replace(z=z.mean(0) + sign * away)
        with np.errstate(all="ignore"):  # where no mode was found
            there = G.state(at.given, precision, start).integral
            apart = np.abs((there.solved.z - z) / sd).max(1)
            share = 1 / (1 + np.exp(here.groups - there.groups))
        second |= (apart > APART) & (share > SHARE)
    return second
