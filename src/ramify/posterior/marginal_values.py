"""Log p(y | theta) at many thetas by quadrature, for solved fits of one or two local dimensions.

The points of z are those of a rule around the modes at the centre of q(theta), the same for all thetas:
a likelihood without theta is then evaluated once. The rule is finer than that of the fit.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.branched import Branched
from ramify.families.build import Family
from ramify.families.conditional import Local
from ramify.families.solver import Solver
from ramify.inference.local_integral import quadrature
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.chunks import in_chunks
from ramify.numerics.points import Rule, gauss_hermite
from ramify.numerics.programs import program
from ramify.numerics.sums import precise_sum
from ramify.posterior.conditioned import Conditioned, condition

AT_ONCE = 64  # thetas that are worked on together


def has_rule(family: Family, model: Model) -> bool:
    """Whether each group's z can be integrated by quadrature around its solved mode."""
    solved = isinstance(family, Branched) and isinstance(family.local, Solver)
    return solved and model.z.size in budgets.FIRST_ORDER


def marginal_log_liks(
    family: Family, model: Model, groups: Groups, thetas: Float[np.ndarray, "S D"]
) -> Float64[np.ndarray, " S"]:
    """The sum over groups of log p(y_i | theta) at each theta."""
    M, kind = model.z.size, jnp.result_type(float)
    rule = Rule(*(x.astype(kind) for x in gauss_hermite(budgets.FIRST_ORDER[M] + 2, M)))
    total = np.zeros(len(thetas))
    for block in ranges(groups):
        known = condition(family, model, block.batches[0], local_draws=2)
        sums = lambda chunk: _block_sums(known, model, chunk, rule)  # noqa: B023
        total += sum(np.asarray(part, np.float64) for part in in_chunks(sums, thetas))
    return total


@program
def _block_sums(
    known: Conditioned, model: Model, thetas: Float[Array, "C D"], rule: Rule
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """The sum over a block's groups, in two float32 parts."""
    site, batch = known.site, known.batch
    assert site is not None
    again = known.local.follows_theta(model, batch)
    log_mass = quadrature(model, again, batch, Local(site.anchor, site.scale), rule)
    one = lambda theta: precise_sum(jnp.where(batch.group_mask, log_mass(theta), 0))
    return jax.lax.map(one, thetas, batch_size=AT_ONCE)
