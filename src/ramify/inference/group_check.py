"""Checks a sample of the groups after the search: the quality of their proposals, and other modes.

Newton is started again far from each group's mode, on both sides, by the program of a sweep. If it
ends at another mode with much of the mass, the points of z around the first mode miss that mass.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ramify.data.batch import Batch
from ramify.families.conditional import Local
from ramify.inference.marginal import Marginal
from ramify.models.densities import log_joints
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.programs import program
from ramify.numerics.psis import effective_draws, k_hat
from ramify.numerics.triangular import FREEDOM, gaussian_over_t

FAR_STARTS = 3.0  # sds of z over the groups, to both sides of their mean, where Newton starts
# The points around the first mode reach a second one within this many of the first one's sds.
APART = 3.0
SHARE = 0.05  # of the mass of both modes: a second mode with less is ignored


class Look(NamedTuple):
    """Results of the check of some groups."""

    groups: Int[np.ndarray, " n"]  # their numbers
    k_hat: Float[np.ndarray, " n"]  # of the importance weights of their proposals
    effective: Float[np.ndarray, " n"]  # effective draws by weight, as a share of all
    second: Bool[np.ndarray, " n"]  # groups with a second mode that the points of z miss


def look_at_groups(F: Marginal, centre: Float[np.ndarray, " D"]) -> Look:
    """Checks the groups of the first blocks, a random sample, with theta at `centre`."""
    known = F.modes
    known = known[np.isfinite(known).all(1)]
    if not len(known):
        none = np.zeros(0)
        return Look(none.astype(int), none, none, none > 0)
    middle, spread = known.mean(0), known.std(0)
    found, seen = [], 0
    for number in range(len(F.source)):
        found.append(_look_at_block(F, number, centre, middle, spread))
        seen += len(found[-1].groups)
        if seen >= budgets.LOOKED_AT_GROUPS:
            break
    return Look(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _look_at_block(
    F: Marginal, number: int, centre: np.ndarray, middle: np.ndarray, spread: np.ndarray
) -> Look:
    members, rng = F.members[number], np.random.default_rng(number)
    here = F.solve(number, centre, None)
    sds = np.sqrt(np.einsum("bij,bij->bi", here.scale, here.scale))
    second, wide = np.zeros(len(members), bool), F.problem.solver.widened
    reached = APART
    if wide > 1:
        reached = wide * (budgets.WIDENED_REACH[F.model.z.size] - budgets.WIDENED_MARGIN)
    for sign in _signs(rng, *sds.shape):
        begin = middle + FAR_STARTS * sign * np.hypot(spread, sds)
        there = F.solve(number, centre, begin)
        with np.errstate(all="ignore"):  # where no mode was found
            apart = np.abs((there.mode - here.mode) / sds).max(1)
            share = 1 / (1 + np.exp(here.log_mass - there.log_mass))
        second |= there.converged & (apart > reached) & (share > SHARE)
    own = (members >= 0) & here.converged
    own &= np.cumsum(own) <= budgets.LOOKED_AT_GROUPS
    local = Local(here.mode, wide * here.scale)
    weights, _ = weigh_groups(F.model, F.source.block(number), centre, local, rng)
    weights = np.nan_to_num(weights[:, own], nan=-np.inf)
    share = effective_draws(weights) / len(weights)
    return Look(members[own], k_hat(weights), share, second[own])


def weigh_groups(
    model: Model,
    batch: Batch,
    theta: np.ndarray,
    local: Local,
    rng: np.random.Generator,
    student: bool = True,
) -> tuple[Float[np.ndarray, "K B"], Float[np.ndarray, " K"]]:
    """Log weights of draws of z from groups' proposals, and logs of Gaussian over proposal density.

    The proposal is a Student t around the Gaussian `local`, or `local` itself.
    """
    rows, (_, M) = len(batch.segment), local.mean.shape
    # Fewer draws for large blocks.
    K = int(np.clip(budgets.LOOK_NUMBERS // (rows * M), *budgets.LOOK_DRAWS))
    points = rng.normal(size=(K, M))  # the same for all groups
    if student:
        points /= np.sqrt(rng.chisquare(FREEDOM, (K, 1)) / FREEDOM)
    kind = local.mean.dtype
    at = theta.astype(kind), local, points.astype(kind)
    found = np.asarray(_log_weights(model, batch, *at, student))
    return found, gaussian_over_t(points) if student else np.zeros(K)


@program
def _log_weights(
    model: Model,
    batch: Batch,
    theta: Float[Array, " D"],
    local: Local,
    points: Float[Array, "K M"],
    student: bool,
) -> Float[Array, "K B"]:
    every = jnp.broadcast_to(points[:, None], (len(points), *local.mean.shape))
    z, log_q = jax.vmap(local.propose if student else local.draw)(every)
    return log_joints(model, batch, theta, z) - log_q


def _signs(rng: np.random.Generator, B: int, M: int) -> np.ndarray:
    """The sides on which Newton starts: [starts, B, M], each with its opposite."""
    half = rng.choice([-1.0, 1.0], (min(M, 2), B, M))
    return np.concatenate([half, -half])
