"""The error of Laplace's method for the kept effects, estimated level by level.

For a level of a kept term, with z and the rest of b fixed, Laplace's method assumes that its effects are
normal with precision P, the prior's precision plus the curvature of the level's rows. Let phi be the log
likelihood of these rows less its quadratic expansion at the mode. The method then misses
log E exp phi(delta) of G, delta ~ N(0, P^-1), found by quadrature. The sum over levels is added to G; its
slope in theta tells how far it moves theta.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ramify.levels.blocks import Block
from ramify.levels.design import Design, KeptTerm
from ramify.levels.integral import root_of
from ramify.levels.marginal_state import State
from ramify.levels.model import Given, LevelsModel
from ramify.numerics.points import gauss_hermite

ORDER = {1: 7, 2: 5}  # points along each effect of a level; three or more effects go one by one
MOST = 3.0  # nats: the correction of a level is limited to this


class Held(NamedTuple):
    """What stays fixed while a level's effects vary."""

    model: LevelsModel
    given: Given
    design: Design
    blocks: list[Block]
    state: State


def correction(held: Held) -> float:
    """The correction of G: the sum over the levels of all kept terms, in nats."""
    model, given, design, _, state = held
    if model.linear:
        return 0.0
    total = 0.0
    for term, own in zip(design.kept, given.kept, strict=True):
        products = own + design.level_products(term, state.integral.solved.rows.curvature)
        every = list(range(term.effects))
        for effects in [every] if term.effects in ORDER else [[m] for m in every]:
            total += _levels(held, term, products, effects)
    return total


def _levels(
    held: Held, term: KeptTerm, products: Float64[np.ndarray, "L m m"], effects: list[int]
) -> float:
    """The sum over the levels of one term, for some of its effects."""
    m = len(effects)
    rule = gauss_hermite(ORDER[m], m)
    points = np.asarray(rule.points)
    root = root_of(products[:, effects][:, :, effects])
    delta = np.einsum("lij,kj->lki", root, points)
    phi = sum(_rest(held, term, delta, effects, block) for block in held.blocks)
    log_weight = np.asarray(rule.log_weight) - 0.5 * np.sum(points**2, 1)
    log_weight -= 0.5 * m * np.log(2 * np.pi)
    found = np.logaddexp.reduce(np.clip(phi, -50, 50) + log_weight, axis=1)
    return float(np.clip(found, -MOST, MOST).sum())


def _rest(
    held: Held,
    term: KeptTerm,
    delta: Float64[np.ndarray, "L K m"],
    effects: list[int],
    block: Block,
) -> Float64[np.ndarray, "L K"]:
    """The share of phi of a block's rows, if the levels' effects change by delta."""
    model, given, design, _, state = held
    solved, base = block.taken(state.integral.solved), state.base[block.rows]
    eta, rows = block.design.with_z(base, solved.z), solved.rows
    moved = design.moved_by(term, delta, effects, block.rows)
    rest = model.log_lik(given, block.design, eta[:, None] + moved) - rows.value[:, None]
    rest -= design.expanded(rows.slope, rows.curvature, moved)
    return np.stack([design.by_level(term, column, block.rows) for column in rest.T], 1)
