"""Log p(y | theta) at many thetas by quadrature, for solved fits of one or two local dimensions.

That of later rows given those of the fit is a difference: log p(y, y' | theta) - log p(y | theta).

The points of z are those of a rule around each group's conditional at each theta: points around that at
another one would miss a narrow p(z | theta), or a z that theta moves. The rule is finer than the fit's.
"""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.solver import Solver
from ramify.inference.local_integral import quadrature
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.chunks import in_chunks
from ramify.numerics.points import Rule, gauss_hermite
from ramify.numerics.programs import program
from ramify.numerics.sums import precise_sum
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.matching import Part

AT_ONCE = 16  # thetas that are worked on together
THETAS = 64  # of a call


def has_rule(family: Family, model: Model) -> bool:
    """Whether each group's z can be integrated by quadrature around its solved mode."""
    solved = isinstance(family, Branched) and isinstance(family.local, Solver)
    return solved and model.z.size in budgets.FIRST_ORDER


def marginal_log_liks(
    family: Family,
    model: Model,
    groups: Groups,
    thetas: Float[np.ndarray, "S D"],
    points: int = 0,
) -> Float64[np.ndarray, " S"]:
    """The sum over groups of log p(y_i | theta) at each theta, by at least so many points of z."""
    rule, total = _rule(model, points), np.zeros(len(thetas))
    for block in ranges(groups):
        known = condition(family, model, block.batches[0], local_draws=2)
        sums = lambda chunk: _summed(_by_group(known, model, chunk, rule), known.batch)  # noqa: B023
        found = in_chunks(sums, thetas, THETAS)
        total += sum(np.asarray(part, np.float64) for part in found)
    return total


def predictive_log_liks(
    model: Model, part: Part, thetas: Float[np.ndarray, "S D"]
) -> Float64[np.ndarray, " S"]:
    """The sum over groups of log p(y_i,test | theta, y_i) at each theta."""
    both, given = _together(part.given, part.at), part.given
    total = marginal_log_liks(part.family, model, both, thetas)
    return total - marginal_log_liks(part.family, model, given, thetas) if given.n_rows else total


def predictive_by_group(
    model: Model, part: Part, thetas: Float[np.ndarray, "S D"]
) -> Iterator[Float[np.ndarray, "S B"]]:
    """Log p(y_i,test | theta, y_i) of some groups after the other."""
    for block in ranges(_together(part.given, part.at), part.given):
        found = []
        for batch in block.batches:
            known = condition(part.family, model, batch, local_draws=2)
            found.append(log_mass_by_group(known, model, thetas))
        yield (found[0] - found[1])[:, : block.stop - block.start]


def log_mass_by_group(
    known: Conditioned, model: Model, thetas: Float[np.ndarray, "S D"], points: int = 0
) -> Float[np.ndarray, "S B"]:
    """Log p(y_i | theta) of a block's groups at each theta, by at least so many points of z."""
    rule = _rule(model, points)
    return in_chunks(lambda chunk: _by_group(known, model, chunk, rule), thetas, THETAS)


def follows_theta(model: Model, part: Part) -> bool:
    """Whether theta has a part in the likelihood of rows given or to predict."""
    local = part.family.local  # pyright: ignore[reportAttributeAccessIssue]
    return any(local.follows_theta(model, example(rows)) for rows in (part.given, part.at))


def one_group_a_row(part: Part) -> Part:
    """The part with each row to predict as a group of its own, given the rows of its group."""
    given, at = part.given, part.at
    owner, one = np.repeat(np.arange(len(at)), at.sizes), np.ones(at.n_rows, np.int64)
    single = replace(at._take(owner), sizes=one, rows=at.rows, row_order=at.row_order)
    return Part(given._take(owner), single, part.family)


def rows_given(part: Part) -> int:
    """Rows that `one_group_a_row` has to condition on."""
    return int(part.given.sizes @ part.at.sizes)


def _rule(model: Model, points: int) -> Rule:
    M, kind = model.z.size, jnp.result_type(float)
    order = max(budgets.FIRST_ORDER[M] + 2, round(points ** (1 / M)))
    return Rule(*(x.astype(kind) for x in gauss_hermite(order, M)))


def _together(given: Groups, at: Groups) -> Groups:
    """The groups of a part with the rows of both data sets."""
    owner = np.repeat(np.tile(np.arange(len(given)), 2), np.append(given.sizes, at.sizes))
    order = np.argsort(owner, kind="stable")
    # A column that only new rows have, such as `U_apart` of a formula, is zero in the others.
    of_given = {
        n: given.rows.get(n, np.zeros((given.n_rows, *c.shape[1:]), c.dtype))
        for n, c in at.rows.items()
    }
    rows = {n: np.concatenate([c, at.rows[n]])[order] for n, c in of_given.items()}
    return replace(given, sizes=given.sizes + at.sizes, rows=rows, row_order=order)


@program
def _by_group(
    known: Conditioned, model: Model, thetas: Float[Array, "C D"], rule: Rule
) -> Float[Array, "C B"]:
    site, batch = known.site, known.batch
    assert site is not None
    again = known.local.follows_theta(model, batch)

    def one(theta: Float[Array, " D"]) -> Float[Array, " B"]:
        local = known.local.follow(model, batch, site, theta, again)[1]
        return quadrature(model, True, batch, local, rule)(theta)

    return jax.lax.map(one, thetas, batch_size=AT_ONCE)


@program
def _summed(
    log_mass: Float[Array, "C B"], batch: Batch
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """The sum over a block's groups, in two float32 parts."""
    return precise_sum(jnp.where(batch.group_mask, log_mass, 0))
