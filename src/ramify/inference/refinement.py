"""Semi-amortized inference: each group's own parameters optimised inside the fitted family.

With q(theta) held fixed the groups are independent problems (equation of the optimal w_i). The gain
of the optimum over the network's answer is the group's amortization gap; the further gain of the
solved conditional is the structure gap, the cost of the family's shape.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch, example
from ramify.data.groups import Groups
from ramify.data.partition import block_shape, sequential
from ramify.data.resident import Resident, cut, to_device
from ramify.families.branched import Branched
from ramify.families.network import Amortizer
from ramify.families.solver import MAX_DIM, solver
from ramify.families.table import Table
from ramify.models.densities import log_joint
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.hashing import normals
from ramify.numerics.programs import training_program


class Gaps(NamedTuple):
    """Per group, in nats: the gain by refining, and the further gain of the solved conditional."""

    amortization: np.ndarray
    structure: np.ndarray | None


def local_elbo(
    key: PRNGKeyArray, family: Branched, model: Model, batch: Batch, draws: int, stl: bool = False
) -> Float[Array, " B"]:
    """Each group's term of the ELBO, E_q[log p(z_i, y_i | theta) - log q(z_i | theta)]."""
    conditional = family.conditional(model, batch)
    fixed = jax.lax.stop_gradient(family).conditional(model, batch)

    def one(key: PRNGKeyArray) -> Float[Array, " B"]:
        key_theta, key_z = jax.random.split(key)
        theta, _ = family.theta.draw(jax.random.normal(key_theta, (family.theta.dim,)))
        noise = normals(key_z, batch.index, (model.z.size,))
        z, log_q = conditional(theta).draw(noise)
        log_q = fixed(theta).log_prob(z, noise) if stl else log_q
        return log_joint(model, batch, theta, z) - log_q

    return jnp.mean(jax.lax.map(one, jax.random.split(key, draws), batch_size=8), 0)


@training_program
def refine_block(
    family: Branched,
    judge: Branched | None,
    model: Model,
    data: Resident,
    members: Array,
    rows: int,
) -> tuple[Float[Array, "B P"], Float[Array, " B"], Float[Array, " B"]]:
    """The block's refined parameters and both gaps, measured with draws not used to refine."""
    batch = cut(data, members, 1.0, rows)
    place = batch._replace(index=jnp.arange(members.shape[0], dtype=batch.index.dtype))
    q = jax.lax.stop_gradient(family.theta)
    start = family.local.parameters(batch)
    own = lambda w: Branched(q, Table(w, family.local.form), members.shape[0])
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, budgets.REFINING_STEPS))

    def step(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        w, state = carry
        elbo = lambda w: local_elbo(key, own(w), model, place, budgets.REFINING_DRAWS, stl=True)
        loss = lambda w: -jnp.sum(elbo(w))
        updates, state = optimizer.update(jax.grad(loss)(w), state)
        return (optax.apply_updates(w, updates), state), None

    keys = jax.random.split(jax.random.key(1), budgets.REFINING_STEPS)
    (w, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), keys)
    score = lambda f, b: local_elbo(jax.random.key(2), f, model, b, budgets.REFINED_JUDGES)
    before, after = score(own(start), place), score(own(w), place)
    # A group whose bound fell keeps its old parameters, so refining never loses.
    w = jnp.where((after >= before)[:, None], w, start)
    after = jnp.maximum(before, after)
    best = after if judge is None else score(judge, place)
    return w, after - before, best - after


def refine(model: Model, family: Any, groups: Groups) -> tuple[Branched, Gaps]:
    """A branch family with every group refined, and the gaps."""
    if not isinstance(family, Branched) or not isinstance(family.local, Table | Amortizer):
        raise ValueError(
            "refine() improves the local parameters of amortized() and branch() fits; joint() has no "
            "local ones and solved() already solves for each group's."
        )
    form, data, judge = family.local.form, to_device(groups), None
    if model.z.size <= MAX_DIM:
        judge = Branched(family.theta, solver(model, example(groups)), len(groups))
    R, B = block_shape(groups.sizes)
    blocks = sequential(groups.sizes, R, B)
    w = np.zeros((len(groups), sum(form.sizes)), np.float32)
    gaps = np.zeros((2, len(groups)))
    for members in blocks:
        real = members >= 0
        out = refine_block(family, judge, model, data, jnp.asarray(members), R)
        w[members[real]] = np.asarray(out[0])[real]
        gaps[:, members[real]] = np.asarray(out[1:])[:, real]
    refined = Branched(family.theta, Table(jnp.asarray(w), form), len(groups))
    return refined, Gaps(gaps[0], None if judge is None else gaps[1])
