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
from ramify.levels.marginal_state import State
from ramify.levels.model import Given, LevelsModel, differentiate
from ramify.numerics.points import gauss_hermite

ORDER = {1: 7, 2: 5}  # points along each effect of a level; of more effects one by one
MOST = 3.0  # nats of a level, beyond which the quadrature is not believed


def correction(model: LevelsModel, given: Given, design: Design, state: State) -> float:
    """The sum over the levels of all kept terms, in nats."""
    if model.linear:
        return 0.0
    total = 0.0
    for term, own in zip(design.kept, given.kept, strict=True):
        blocks = own + _curvatures(design, term, state.integral.solved.rows.curvature)
        if term.effects in ORDER:
            total += _levels(model, given, design, state, term, blocks)
        else:
            for m in range(term.effects):
                total += _levels(model, given, design, state, term, blocks, m)
    return total


def _curvatures(
    design: Design, term: KeptTerm, curvature: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, "L m m"]:
    """Sums over the rows of each level of curvature times w w'."""
    level, columns = design.of_term(term)
    found = np.empty((term.levels, term.effects, term.effects))
    for i, j in zip(*np.tril_indices(term.effects), strict=True):
        own = np.bincount(level, curvature * columns[:, i] * columns[:, j], term.levels)
        found[:, i, j] = found[:, j, i] = own
    return found


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
    level, columns = design.of_term(term)
    if only is not None:
        columns, blocks = columns[:, [only]], blocks[:, [only]][:, :, [only]]
    m = columns.shape[1]
    rule = gauss_hermite(ORDER[m], m)
    points = np.asarray(rule.points)
    root = np.swapaxes(np.linalg.inv(np.linalg.cholesky(blocks)), 1, 2)  # root root' = block^-1
    delta = np.einsum("lij,kj->lki", root, points)[level]  # [n, K, m]
    moved = np.einsum("rm,rkm->rk", columns, delta)
    solved = state.integral.solved
    eta = state.base + design.of_z(solved.z)
    rows = solved.rows
    there = differentiate(model, given, design, eta[:, None] + moved).value
    rest = there - rows.value[:, None] - rows.slope[:, None] * moved
    rest += 0.5 * rows.curvature[:, None] * moved**2
    phi = np.stack([np.bincount(level, column, term.levels) for column in rest.T], 1)
    log_weight = np.asarray(rule.log_weight) - 0.5 * np.sum(points**2, 1)
    log_weight -= 0.5 * m * np.log(2 * np.pi)
    found = np.logaddexp.reduce(np.clip(phi, -50, 50) + log_weight, axis=1)
    return float(np.clip(found, -MOST, MOST).sum())
