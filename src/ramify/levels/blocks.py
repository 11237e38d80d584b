"""The integral over z block by block: as many groups at once as stay in a processor's cache.

The z of a group with many rows is nearly normal, so a rule of fewer points is enough. The error of this
rule moves theta by about 4 sqrt(N) / n^2 posterior sds if all N groups have n rows (logistic, on
MovieLens); `left_out` measures it.
"""

from typing import Any, NamedTuple

import numpy as np

from ramify.levels.design import Design
from ramify.levels.integral import Integral, Solved, integrate, solve
from ramify.levels.model import Derivatives, Given, LevelsModel
from ramify.numerics.points import Rule, gauss_hermite

FEW = 3  # points along each dimension of z, of groups with many rows
MANY = 200.0  # a group has many rows if their squared number is above this times sqrt(N)
TOGETHER = 2**17  # evaluations of rows in a block


class Block(NamedTuple):
    """Some groups, their rows, and the rule for their z."""

    rows: Any  # their numbers, or a slice
    groups: Any
    design: Design
    rule: Rule | None

    @property
    def points(self) -> int:
        """The number of points of the rule."""
        return 1 if self.rule is None else len(self.rule.log_weight)

    def taken(self, solved: Solved) -> Solved:
        """The part of the solutions of all groups that is about these groups."""
        own = Derivatives(*(values[self.rows] for values in solved.rows))
        at = self.groups
        return Solved(solved.z[at], own, solved.root[at], solved.value[at])


def blocks_of(model: LevelsModel, design: Design, rule: Rule | None) -> list[Block]:
    """Blocks with this rule, or with a coarser one for groups of many rows."""
    if rule is None or not design.may_be_cut:
        return [Block(slice(None), slice(None), design, rule)]
    coarse = gauss_hermite(FEW, model.M)
    rules = [rule, coarse if len(coarse.log_weight) < len(rule.log_weight) else rule]
    sizes = np.bincount(design.code, minlength=design.N)
    many = (design.group_sizes**2 > MANY * np.sqrt(design.N)).astype(np.int64)
    number = np.zeros(design.N, np.int64)
    for kind, own in enumerate(rules):
        inside, most = many == kind, TOGETHER // len(own.log_weight)
        # Groups of one kind share a block if they begin within the same run of `most` rows.
        before = np.cumsum(sizes[inside]) - sizes[inside]
        number[inside] = 2 * (before // most) + kind
    found = np.unique(number, return_inverse=True)
    parts = design.cut(found[1], len(found[0]))
    return [Block(*part, rules[kind % 2]) for part, kind in zip(parts, found[0], strict=True)]


def integrated(
    model: LevelsModel, given: Given, blocks: list[Block], base: np.ndarray, z: np.ndarray
) -> Integral:
    """The integrals of all groups, from z near their modes, given the rest of the linear predictor."""
    found = []
    for block in blocks:
        own = model, given, block.design, base[block.rows]
        found.append(integrate(*own, solve(*own, z[block.groups]), block.rule))
    return found[0] if len(blocks) == 1 else _joined(blocks, found, base, z)


def _joined(
    blocks: list[Block], found: list[Integral], base: np.ndarray, z: np.ndarray
) -> Integral:
    """The integrals of blocks as one, in the order of rows and groups."""

    def rows(*parts: np.ndarray) -> np.ndarray:
        whole = np.empty((*parts[0].shape[:-1], len(base)))
        for block, part in zip(blocks, parts, strict=True):
            whole[..., block.rows] = part
        return whole

    def groups(*parts: np.ndarray) -> np.ndarray:
        whole = np.empty((len(z), *parts[0].shape[1:]))
        for block, part in zip(blocks, parts, strict=True):
            whole[block.groups] = part
        return whole

    solved = [own.solved for own in found]
    derivatives = (rows(*parts) for parts in zip(*(own.rows for own in solved), strict=True))
    return Integral(
        groups(*(own.groups for own in found)),
        rows(*(own.slope for own in found)),
        rows(*(own.curvature for own in found)),
        rows(*(own.shared for own in found)),
        Solved(
            groups(*(own.z for own in solved)),
            Derivatives(*derivatives),
            groups(*(own.root for own in solved)),
            groups(*(own.value for own in solved)),
        ),
    )


def left_out(
    model: LevelsModel,
    given: Given,
    blocks: list[Block],
    base: np.ndarray,
    found: Integral,
    rule: Rule | None,
) -> float:
    """How much the finer rule adds to the integrals of blocks with a coarser rule, in nats."""
    total = 0.0
    for block in blocks:
        if block.rule is not rule:
            own = model, given, block.design, base[block.rows], block.taken(found.solved)
            total += float(np.sum(integrate(*own, rule).groups - found.groups[block.groups]))
    return total
