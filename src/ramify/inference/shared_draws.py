"""F at many thetas with the same draws of z for all, if the likelihood does not involve theta.

The likelihood of each group at its draws is then evaluated only once. So there can be many more
draws than in a sweep, which makes new ones around each group's conditional at every theta.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.inference.local_integral import weigh_block
from ramify.inference.marginal import Marginal
from ramify.inference.sweep import Modes, Problem, ready
from ramify.inference.theta_search import Learned
from ramify.models.model import log_priors
from ramify.numerics import budgets
from ramify.numerics.arrays import floats
from ramify.numerics.chunks import in_chunks
from ramify.numerics.programs import program
from ramify.numerics.sums import precise_sum

CHUNK, AT_ONCE = 256, 8  # thetas of a call, and of one batch within it

NEAR = 0.1  # distance in sds of the values that tell a slope
FARTHEST = 2.5  # sds beyond which the correction of a slope is held

Values = Callable[[np.ndarray], np.ndarray]  # thetas [n, D] -> F of each, [n]


def can_share(problem: Problem) -> bool:
    """Whether z is integrated by draws and the likelihood does not involve theta."""
    return problem.rule is None and not problem.solver.uses_theta


def by_shared_draws(F: Marginal, theta: np.ndarray) -> Values:
    """A function for F near this theta, by shared draws."""
    F.expand(theta[None])  # leaves the modes there
    modes_of = F.known_modes
    problem = F.problem._replace(local_draws=budgets.SHARED_DRAWS, hessian=False)
    centre = floats(theta)

    def values(thetas: np.ndarray) -> np.ndarray:
        F.check_budget()
        own = thetas.astype(centre.dtype)
        total = np.asarray(log_priors(F.model, own), np.float64)
        for number, modes in enumerate(modes_of):
            fixed = problem, F.source.block(number), Modes(*map(jnp.asarray, modes)), F.key, centre
            some = lambda chunk, count: _block_values(*fixed, chunk, count)  # noqa: B023
            sums = in_chunks(some, own, CHUNK, counted=True)
            total += np.asarray(sums, np.float64).sum(0)
        return total

    return values


def with_slope(values: Values, F: Marginal, learned: Learned) -> Values:
    """These values, with a term that gives them F's slope at q(theta)'s mean.

    F's slope is an average over many more draws. The term is linear near the mean, and held far out.
    """
    covariance = np.linalg.inv(learned.precision)
    root, sd = np.linalg.cholesky(covariance), np.sqrt(np.diag(covariance))
    step = NEAR * root.T
    ahead, behind = np.split(values(learned.mean + np.concatenate([step, -step])), 2)
    lacking = F.expand(learned.mean[None])[1][0] - np.linalg.solve(
        root.T, (ahead - behind) / (2 * NEAR)
    )

    def sloped(thetas: np.ndarray) -> np.ndarray:
        apart = thetas - learned.mean
        return values(thetas) + (apart / (1 + (apart / (FARTHEST * sd)) ** 2) ** 0.5) @ lacking

    return sloped


@program
def _block_values(
    problem: Problem,
    batch: Batch,
    modes: Modes,
    key: PRNGKeyArray,
    centre: Float[Array, " D"],
    thetas: Float[Array, "C D"],
    count: Int[Array, ""],
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """The share of a block's groups in F at the first `count` thetas, in two float32 parts."""
    model, solver = problem.model, problem.solver
    site, draws = ready(problem, batch, centre, modes, key)
    assert draws is not None
    site, local = solver.follow(model, batch, site, centre, False)
    weigh = weigh_block(model, solver, batch, site, local, draws)
    one = lambda theta: precise_sum(jnp.where(batch.group_mask, weigh.bound(theta)[0], 0))

    def some(j: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        own = jax.lax.dynamic_slice_in_dim(thetas, j * AT_ONCE, AT_ONCE)
        put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, j * AT_ONCE, 0)
        return jax.tree.map(put, found, jax.vmap(one)(own))

    none = jnp.zeros(CHUNK, thetas.dtype)
    return jax.lax.fori_loop(0, -(-count // AT_ONCE), some, (none, none))
