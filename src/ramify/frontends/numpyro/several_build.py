"""Makes a model of a NumPyro function with several group plates, and checks its densities."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.numpyro.arguments import Fn, Refused, warn_of_unread
from ramify.frontends.numpyro.several import (
    ROW,
    THETA,
    NumpyroSeveral,
    Several,
    block_of,
    columns_for,
    read_call,
    sort_sites,
)
from ramify.frontends.numpyro.sites import from_values, run


def several_from_numpyro(
    fn: Fn, groups: Groups, outcome: str | None, taken_off: Any
) -> NumpyroSeveral:
    """The model; `taken_off(names)(fn)` is the function without LocScaleReparam, None to keep it."""
    call = read_call(fn, groups)
    sites = sort_sites(fn, call, groups)
    if taken_off is not None and sites.decentred:
        fn = taken_off(sites.decentred)(fn)
        sites = sort_sites(fn, call, groups)
    model = NumpyroSeveral(fn, call, sites, groups, outcome)
    check_agreement(model, groups)
    warn_of_unread(call.unread, call.empty)
    return model


def check_agreement(model: NumpyroSeveral, groups: Groups) -> None:
    """Refuses a function whose densities on a block differ from those of single rows and levels."""
    count = len(model.factors)
    block = block_of(tuple(3 * 2**f for f in range(count)), 3 * 2 ** (count - 1) + 5)
    columns = columns_for(model.call, groups, block)
    rng = np.random.default_rng(0)
    noise = lambda *shape: jnp.asarray(0.3 * rng.normal(size=shape), jnp.result_type(float))
    theta = noise(model.theta.size)
    flat = [noise(size, s.size) for size, s in zip(block.sizes, model.z.values(), strict=True)]
    values = model.theta.values(theta)
    for space, own in zip(model.z.values(), flat, strict=True):
        for name, value in jax.vmap(space.values)(own).items():
            values[name] = jnp.moveaxis(value, 0, model.sites.axes[name])
    whole = run(model.fn, model.call.bind(block, *columns), from_values(values))
    own = [n for n, where in model.sites.places.items() if where == THETA]
    alone = model.log_prior(theta) - model.theta.constrain(theta)[1]
    if not np.isclose(alone, sum(whole[n].log_prob.sum() for n in own), rtol=1e-3):
        raise Refused(
            f"the log density of {', '.join(own)}, which belong to no level, depends on the rows or on "
            "how many rows or levels there are. Compute what it needs beforehand and pass it as a "
            "constant, by functools.partial."
        )
    for place in sorted({*model.sites.places.values()} - {THETA}):
        names = [n for n, where in model.sites.places.items() if where == place]
        found = _one_by_one(model, block, columns, (theta, flat), place)
        if not np.isclose(found, sum(whole[n].log_prob.sum() for n in names), rtol=1e-3):
            what = "rows" if place == ROW else f"levels of {model.factors[place]}"
            raise Refused(
                f"the log density of {', '.join(names)} on a block is not the sum over its {what}, one "
                "by one: a site mixes rows or levels (a mean or a sum over them, or an order of them). "
                "Each row may see its own levels only, and a level those that it is nested in."
            )


def _one_by_one(
    model: NumpyroSeveral, block: Several, columns: Any, at: Any, place: int
) -> np.ndarray:
    """The sum of the log densities of a place, as a fit computes them."""
    (rows, group), (theta, flat), order = columns, at, tuple(range(len(model.factors)))
    if place == ROW:
        level = block.index
    else:
        level = [np.arange(block.sizes[place]) % size for size in block.sizes]
    v = jnp.concatenate([own[k] for own, k in zip(flat, level, strict=True)], 1)
    read = {n: jnp.asarray(c)[level[model.call.group[n]]] for n, c in group.items()}
    read |= {n: jnp.asarray(c) for n, c in rows.items()} if place == ROW else {}
    named = model.theta.values(theta)
    one = lambda v, row: model.terms(named, model.effects(v, order), row, place)
    return np.asarray(jax.vmap(one)(v, read).sum())
