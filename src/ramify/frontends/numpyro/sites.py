"""Runs a NumPyro model on a block and records its sites; normal sites in closed form."""

import traceback
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import biject_to

from ramify.frontends.numpyro.arguments import Arguments, Block, Fn, Refused
from ramify.frontends.numpyro.program import Program
from ramify.models.parameters import Named
from ramify.models.structure import Normal, diagonal
from ramify.numerics.small_linalg import inverse_lower

Supply = Callable[[dict[str, Any]], Any]


class Seen(NamedTuple):
    """A site after one run; `look` returns shapes in place of arrays."""

    kind: str  # "sample" or "deterministic"
    observed: bool  # whether its value was given
    value: Any
    log_prob: Any  # not summed, masks and scales included; None if deterministic
    support: Any  # the constraint on its values
    plates: tuple[str, ...]  # names of the plates it is in
    factor: bool  # whether it is a numpyro.factor
    fn: Any = None  # its distribution
    scaled: bool = False  # whether a scale or mask changes its log density


def run(fn: Fn, named: dict[str, Any], supply: Supply) -> dict[str, Seen]:
    """Runs the model once; `supply` gives the values of latent sites."""
    with handlers.trace() as sites, handlers.substitute(substitute_fn=supply):
        fn(**named)
    return {n: _seen(s) for n, s in sites.items() if s["type"] in ("sample", "deterministic")}


def _seen(site: dict[str, Any]) -> Seen:
    plates = tuple(frame.name for frame in site["cond_indep_stack"])
    value = jnp.asarray(site["value"])
    if site["type"] == "deterministic":
        return Seen("deterministic", False, value, None, None, plates, False)
    log_prob = site["fn"].log_prob(site["value"])
    scaled, factor = site["scale"] is not None, bool(site["infer"].get("is_auxiliary"))
    log_prob = site["scale"] * log_prob if scaled else log_prob
    own = site["fn"].support, plates, factor, site["fn"], scaled
    return Seen("sample", site["is_observed"], value, log_prob, *own)


def from_values(values: Named) -> Supply:
    """Supplies latent sites with given values; the data stay as they are."""
    return lambda site: None if site.get("is_observed", True) else values.get(site["name"])


def from_noise(key: PRNGKeyArray) -> Supply:
    """Supplies latent sites with small noise, and refuses sites that can't be inferred."""

    def supply(site: dict[str, Any]) -> Any:
        _check_site(site)
        if site["type"] != "sample" or site["is_observed"]:
            return None
        shape = (*site["kwargs"]["sample_shape"], *site["fn"].shape())
        bijection = biject_to(site["fn"].support)
        own = _own_key(key, site["name"])
        return bijection(0.3 * jax.random.normal(own, bijection.inverse_shape(shape)))

    return supply


def _own_key(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    return jax.random.fold_in(key, zlib.crc32(name.encode()) % 2**31)


def draw(
    key: PRNGKeyArray, fn: Fn, named: dict[str, Any], values: Named, again: frozenset[str]
) -> Named:
    """Runs the model forward with given latent sites; draws the observed sites in `again`."""

    def supply(site: dict[str, Any]) -> Any:
        if site["name"] not in again:
            return from_values(values)(site)
        if site["kwargs"].get("rng_key") is not None:
            # From a `seed` within the model, whose noise would be the same in every draw.
            site["kwargs"]["rng_key"] = _own_key(key, site["name"])
        if site["is_observed"]:
            site["is_observed"], site["value"] = False, None
        return None

    with handlers.seed(rng_seed=key), handlers.trace() as sites:
        with handlers.substitute(substitute_fn=supply):
            fn(**named)
    return {name: sites[name]["value"] for name in again}


def _check_site(site: dict[str, Any]) -> None:
    """Refuses sites that can't be part of (theta, z)."""
    name = site.get("name")
    if site["type"] == "plate":
        size, part = site["args"]
        if part is not None and part != size:
            raise Refused(
                f'plate "{name}" draws a subsample of {part} from {size}. Remove subsample_size: '
                "rf.fit cuts the data into blocks itself, and scales them."
            )
    if site["type"] in ("param", "mutable"):
        raise Refused(
            f'"{name}" is a numpyro.{site["type"]}, which has no prior. Make it a sample site '
            "(numpyro.handlers.lift does), or fix it: LocScaleReparam(0) in place of "
            "LocScaleReparam()."
        )
    if site["type"] == "sample" and not site["is_observed"]:
        _check_latent(name, site["fn"])


def _check_latent(name: Any, fn: Any) -> None:
    base = fn
    while hasattr(base, "base_dist") and not isinstance(base, dist.TransformedDistribution):
        base = base.base_dist
    if fn.support is not None and getattr(fn.support, "is_discrete", False):
        raise Refused(
            f'site "{name}" is discrete ({type(base).__name__}) and not observed; only continuous '
            "sites can be inferred. Sum it out: dist.MixtureSameFamily or MixtureGeneral, or "
            "logsumexp over its values in a numpyro.factor."
        )
    if isinstance(base, dist.ImproperUniform):
        raise Refused(
            f'site "{name}" has an improper prior (ImproperUniform), under which the posterior need '
            "not exist. Give it a proper one, however wide: dist.Normal(0, 100)."
        )
    try:
        biject_to(fn.support)
    except NotImplementedError as error:
        raise Refused(
            f'site "{name}" has support {fn.support}, which has no map from the real numbers. Write '
            "it in terms of a site that has: reals, positives, an interval, a simplex, ..."
        ) from error


def look(fn: Fn, arguments: Arguments, block: Block) -> tuple[dict[str, Seen], Program]:
    """The sites of a run on a block, shapes in place of arrays, and the program of that run."""
    # The program takes (key, rows, group) and returns for each site its "value", its "log_prob" and
    # the "bounds" of its support. Nothing is computed here.
    seen: dict[str, Seen] = {}

    def probe(key: PRNGKeyArray, rows: Any, group: Any) -> dict[str, dict[str, Any]]:
        found = run(fn, arguments.bind(block.index, block.n_group, rows, group), from_noise(key))
        seen.update(found)
        bounds = lambda s: [jnp.asarray(leaf) for leaf in jax.tree.leaves(s.support)]
        told = lambda s: {"value": s.value, "log_prob": s.log_prob, "bounds": bounds(s)}
        return {name: told(s) for name, s in found.items()}

    program = _traced(probe, arguments, block)
    shapes = program.shapes
    keep = lambda n, s: s._replace(value=shapes[n]["value"], log_prob=shapes[n]["log_prob"])
    return {name: keep(name, site) for name, site in seen.items()}, program


def _traced(probe: Fn, arguments: Arguments, block: Block) -> Program:
    """The program of a run, or why there is none."""
    try:
        return Program(probe, jax.random.key(0), block.rows, block.group)
    except Refused:
        raise
    except jax.errors.ConcretizationTypeError as error:
        raise Refused(
            "the model needs the values of its arguments before it runs (a Python `if` on an array, "
            "np.unique, int(...)). Ramify compiles it, so only shapes may decide: pass such numbers "
            f"as constants, functools.partial(model, n_items=...). {_first_line(error)}"
        ) from error
    except Exception as error:
        raise Refused(_hidden(error) or _failed(arguments, block, error)) from error


def _hidden(error: Exception) -> str | None:
    """The message for a random site that a handler hides from us, such as block; else None."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    drawn = isinstance(error, AssertionError) and frames[-1].f_code.co_name == "sample"
    sites = [f.f_locals["name"] for f in frames if f.f_code is numpyro.sample.__code__]
    if not drawn or not sites:
        return None
    return (
        f'site "{sites[-1]}" is hidden from Ramify, as by numpyro.handlers.block, so that its value '
        "can't be inferred. Take the handler off, or the site out of the model."
    )


def _failed(arguments: Arguments, block: Block, error: Exception) -> str:
    named = arguments.bind(block.index, block.n_group, block.rows, block.group)
    show = lambda v: v if isinstance(v, int) else list(jnp.shape(v))
    called = ", ".join(f"{name}: {show(value)}" for name, value in named.items())
    return (
        f"the model failed on a block of {block.n_group} groups and {block.n_rows} rows ({called}): "
        f"{_first_line(error)} Ramify calls a model on blocks of the data, so every size inside it "
        f"must come from its arguments: {arguments.size_name} groups and as many rows as a column "
        "has, never the numbers of the whole data written out, and no whole-data array from outside."
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:300]
    return f"{type(error).__name__}: {text}" + ("" if text.endswith(".") else ".")


def normal_of(
    site: Seen, axis: int
) -> tuple[Float[Array, "n m"], Float[Array, "n_or_1 m m"]] | None:
    """Mean and root of a normal site for each group (one root if all share it); None for other sites."""
    # Masks and scales (`handlers.mask`, `handlers.scale`) make a density that is not normal.
    base = site.fn
    while type(base) in (dist.Independent, dist.ExpandedDistribution):
        base = base.base_dist
    if type(base) not in (dist.Normal, dist.MultivariateNormal) or site.scaled:
        return None
    correlated = type(base) is dist.MultivariateNormal  # the last axis of the value
    scale = base.scale_tril if correlated else base.scale
    loc, scale = (jnp.asarray(x, jnp.result_type(x, float)) for x in (base.loc, scale))
    shape = site.value.shape
    mean = jnp.moveaxis(jnp.broadcast_to(loc, shape), axis, 0).reshape(shape[axis], -1)
    if not correlated:
        sds = _groups_first(scale, shape, axis)
        return mean, diagonal(1 / sds.reshape(len(sds), -1))
    k = shape[-1]
    blocks = _groups_first(inverse_lower(scale), (*shape, k), axis)
    blocks = blocks.reshape(len(blocks), -1, k, k)
    apart = jnp.eye(blocks.shape[1], dtype=blocks.dtype)[:, None, :, None]
    m = blocks.shape[1] * k
    return mean, (apart * blocks[:, :, :, None, :]).reshape(-1, m, m)


def joined(parts: Sequence[tuple[Array, Array]]) -> Normal:
    """The normal distribution of all sites of each group, of which `normal_of` gives the parts."""
    count = max(len(root) for _, root in parts)
    roots = [jnp.broadcast_to(root, (count, *root.shape[1:])) for _, root in parts]
    root = jax.vmap(jax.scipy.linalg.block_diag)(*roots) if len(roots) > 1 else roots[0]
    mean = jnp.concatenate([mean for mean, _ in parts], -1)
    return Normal(mean, root[0] if count == 1 else root)


def _groups_first(values: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Values broadcast to a shape and their axis of groups moved first, where it may stay 1."""
    values = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    moved = jnp.moveaxis(values, axis, 0)
    return jnp.broadcast_to(moved, (len(moved), *shape[:axis], *shape[axis + 1 :]))
