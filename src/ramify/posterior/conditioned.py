"""A family prepared for a block: q(z_i | theta) is prepared once, for every use after the fit.

Solving a block, or running a network over it, is a separate program, compiled once. Draws, predictions,
metrics and diagnoses are small programs that use its result.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int

from ramify.data.batch import Batch
from ramify.data.host import ranges
from ramify.data.labels import show
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.conditional import Conditional
from ramify.families.solver import Site, Solver, solve_block
from ramify.models.model import Model
from ramify.numerics.programs import program
from ramify.posterior.matching import Part


class Conditioned(eqx.Module):
    """A family, a block, and what the family's supplier prepared for the block."""

    family: Family  # the family, without modes and weighted draws of theta
    batch: Batch  # the block
    prepared: Any  # a solver's sites, or the parameters of each group; None for a joint family

    def conditional(self, model: Model) -> Conditional:
        """Theta -> q(z_i | theta) of the block's groups."""
        assert isinstance(self.family, Branched)
        return self.family.conditional(model, self.batch, self.prepared)

    @property
    def local(self) -> Any:
        """The supplier of a branched family."""
        assert isinstance(self.family, Branched)
        return self.family.local

    @property
    def site(self) -> Site | None:
        """The sites of the block's groups; None for suppliers other than a solver."""
        return self.prepared if isinstance(self.prepared, Site) else None


def condition(family: Family, model: Model, batch: Batch, local_draws: int = 1) -> Conditioned:
    """Prepares the family for a block, for draws from q(z | theta) or for K weighted draws."""
    if not isinstance(family, Branched):
        return Conditioned(family, batch, None)
    # Without N and weighted draws of theta, whose sizes would make other programs for other data.
    family = Branched(family.theta, family.local, 0)
    if not isinstance(family.local, Solver):
        return Conditioned(family, batch, _prepare(family, model, batch))
    own = replace(family.local, modes=None)
    lean, begin = own.lean(), family.local.modes_of(np.asarray(batch.index))
    prepared = solve_block(lean, model, batch, family.theta.mean, begin)
    if local_draws > 1 or not own.rounds:
        return Conditioned(replace(family, local=lean), batch, prepared)
    family = replace(family, local=own)
    return Conditioned(family, batch, _polish(family, model, batch, prepared))


@program
def _prepare(family: Branched, model: Model, batch: Batch) -> Any:
    return family.prepare(model, batch)


@program
def _polish(family: Branched, model: Model, batch: Batch, site: Site) -> Site:
    return family.local.polished(model, batch, family.theta.mean, site)


def blocks_of(
    parts: Iterable[Part],
    model: Model,
    local_draws: int,
    *,
    rows: int | None = None,
    places: int | None = None,
) -> Iterator[tuple[Conditioned, Batch, Int[np.ndarray, " rows"]]]:
    """Yields conditioned blocks of the parts, rows to predict, and the places of these in the result."""
    for part in parts:
        own = {"rows": rows, "places": places, "largest": part.largest}
        for block in ranges(part.given, part.at, **own):
            given, at = block.batches
            taken = part.at._rows_of(np.arange(block.start, block.stop))
            known = condition(part.family, model, given, local_draws)
            _check_finite(known, part.given.labels[block.start : block.stop])
            yield known, at, part.at.row_order[taken]


def _check_finite(known: Conditioned, labels: np.ndarray) -> None:
    """Raises where a solver met a density that is not finite: it gives draws no weights."""
    if known.site is None:
        return
    height = np.asarray(known.site.height)[: len(labels)]
    if not np.isfinite(height).all():
        first = int(np.argmax(~np.isfinite(height)))
        raise ValueError(
            f"log_lik or log_local of the rows of group {show(labels[first])} is {height[first]}: "
            "nothing follows from them. Check these rows, and the densities' behaviour there."
        )
