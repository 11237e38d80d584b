"""What Laplace's method leaves out for the kept effects, level by level.

For a level of a kept term, with z and the rest of b held, Laplace's method says that its effects are
normal with precision P: that of their prior, plus their rows' curvature. With phi the log likelihood of
its rows less its quadratic part at the mode, what the method leaves out of G is log E exp phi(delta),
delta ~ N(0, P^-1), found by quadrature; the sum over levels is added to G. Its slope in theta says by how
much that moves theta.
"""

import numpy as np
from jaxtyping import Float64

from ramify.levels.design import Design, KeptTerm
from ramify.levels.integral import root_of
from ramify.levels.marginal_state import State
from ramify.levels.model import Given, LevelsModel
from ramify.numerics.points import gauss_hermite

ORDER = {1: 7, 2: 5}  # points along each effect of a level; of more effects one by one
MOST = 3.0  # nats of a level, beyond which the quadrature is not believed


def correction(model: LevelsModel, given: Given, design: Design, state: State) -> float:
    """The sum over the levels of all kept terms, in nats."""
    if model.linear:
        return 0.0
    total = 0.0
    for term, own in zip(design.kept, given.kept, strict=True):
        blocks = own + design.level_products(term, state.integral.solved.rows.curvature)
        if term.effects in ORDER:
            total += _levels(model, given, design, state, term, blocks)
        else:
            for m in range(term.effects):
                total += _levels(model, given, design, state, term, blocks, m)
    return total


def _levels(
    model: LevelsModel,
    given: Given,
    design: Design,
    state: State,
    term: KeptTerm,
    blocks: Float64[np.ndarray, "L m m"],
    only: int | None = None,
) -> float:
    """The sum over the levels of one term, for all of its effects or only one."""
    effects = list(range(term.effects)) if only is None else [only]
    m = len(effects)
    rule = gauss_hermite(ORDER[m], m)
    points = np.asarray(rule.points)
    root = root_of(blocks[:, effects][:, :, effects])
    moved = design.moved_by(term, np.einsum("lij,kj->lki", root, points), effects)
    solved = state.integral.solved
    eta = design.with_z(state.base, solved.z)
    rows = solved.rows
    rest = model.log_lik(given, design, eta[:, None] + moved) - rows.value[:, None]
    rest -= design.expanded(rows.slope, rows.curvature, moved)
    phi = np.stack([design.by_level(term, column) for column in rest.T], 1)
    log_weight = np.asarray(rule.log_weight) - 0.5 * np.sum(points**2, 1)
    log_weight -= 0.5 * m * np.log(2 * np.pi)
    found = np.logaddexp.reduce(np.clip(phi, -50, 50) + log_weight, axis=1)
    return float(np.clip(found, -MOST, MOST).sum())
