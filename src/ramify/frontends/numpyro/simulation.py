"""Draws of theta, z and outcomes from a NumPyro function, run forward: data from its prior."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.frontends.numpyro.arguments import small_block
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.frontends.numpyro.sites import draw, from_noise, run
from ramify.models.parameters import Named
from ramify.models.simulation import Simulated, Simulator, ThetaSampler
from ramify.numerics.programs import program


def simulator(own: Evaluator, observed: Named, groups: Groups) -> Simulator:
    """Draws all sites of the function at the rows of these groups; `observed` has their outcomes."""
    _check_drawable(own, groups)
    columns = {site: _column_of(site, value, groups) for site, value in observed.items()}
    batch = whole(groups)
    index = np.asarray(batch.segment)  # a constant: a model may use it by NumPy
    forward = program(lambda key, batch: _forward(own, index, batch, key))

    def simulated(rng: np.random.Generator) -> Simulated:
        theta, z, drawn = forward(jax.random.key(int(rng.integers(2**32))), batch)
        return Simulated(theta, z, {columns[site]: np.asarray(y) for site, y in drawn.items()})

    return simulated


def theta_sampler(own: Evaluator) -> ThetaSampler:
    """Draws the global sites of the function, run on one row."""

    def draw_theta(key: PRNGKeyArray) -> Array:
        named = own.arguments.bind(np.zeros(1, np.int32), 1, own.row, own.group)
        return own.theta.unconstrain(draw(key, own.fn, named, {}, frozenset(own.layout.theta)))

    one = program(draw_theta)
    return lambda rng: one(jax.random.key(int(rng.integers(2**32))))


def _forward(
    own: Evaluator, index: np.ndarray, batch: Batch, key: PRNGKeyArray
) -> tuple[Array, Array, Named]:
    """The flat theta, the z of each group, and the outcomes of each row by site."""
    layout, told = own.layout, {c for columns in own.layout.outcomes.values() for c in columns}
    rows = {c: v for c, v in batch.rows.items() if c not in told & own.arguments.optional}
    again = frozenset([*layout.theta, *layout.z, *layout.outcomes])
    named = own.arguments.bind(index, len(batch.index), rows, batch.group)
    values = draw(key, own.fn, named, {}, again)
    local = {n: jnp.moveaxis(values[n], layout.axes[n], 0) for n in layout.z}
    z = jax.vmap(own.z.unconstrain)(local)
    outcomes = {n: layout.terms[n].per_item(values[n]) for n in layout.outcomes}
    return own.theta.unconstrain(values), z, outcomes


def _check_drawable(own: Evaluator, groups: Groups) -> None:
    """Raises if a site has a density but can't be drawn, or is not drawn from its density."""
    layout = own.layout
    drawn = {*layout.theta, *layout.z, *layout.outcomes}
    other = [name for name in layout.terms if name not in drawn]
    block = small_block(own.arguments, groups, 3, 7)
    named = own.arguments.bind(block.index, block.n_group, block.rows, block.group)
    seen = run(own.fn, named, from_noise(jax.random.key(0)))
    scaled = [name for name in layout.terms if seen[name].scaled]
    why = "is observed, but not one value in each row, or is a numpyro.factor"
    for name, wrong in (*((n, why) for n in other), *((n, "has a scale") for n in scaled)):
        raise ValueError(
            f"data can't be drawn from the prior: can't draw site \"{name}\", which {wrong}."
        )


def _column_of(site: str, observed: Array, groups: Groups) -> str:
    """The row column whose values the site observes as they are."""
    values = np.asarray(observed)
    for name, column in groups.rows.items():
        if column.shape == values.shape and np.array_equal(column.astype(values.dtype), values):
            return name
    raise ValueError(
        f'data drawn from the prior replace the column that site "{site}" observes, and what it observes '
        f"is no column of the data as it is ({', '.join(groups.rows)}). Add that column."
    )
