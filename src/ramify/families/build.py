"""The functions that build families: the paper's nine (its table of families) and the solved one."""

from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.families import network
from ramify.families.branched import Branched
from ramify.families.conditional import Form
from ramify.families.gaussian import Gaussian, gaussian
from ramify.families.joint import Joint
from ramify.families.solver import Solver, solver
from ramify.families.table import Table
from ramify.models.model import Model, check_model_and_groups
from ramify.numerics.memory import check_memory
from ramify.numerics.precision import computing
from ramify.numerics.triangular import Covariance, ScaleMap

MAX_JOINT = 20_000  # a dense factor of this order is 1.6 GB in float32, before Adam's moments

Family = Branched | Joint


@computing
def joint(
    model: Model, groups: Groups, covariance: Covariance = "dense", *, scale_map: ScaleMap = "log"
) -> Joint:
    """One Gaussian over theta and every group's z (equation of the joint ELBO).

    A dense one has (D + N M)^2 / 2 numbers: for tens of groups, not thousands. It can't
    subsample and has no parameters for new groups.
    """
    check_model_and_groups(model, groups, "rf.joint")
    _check_covariance("joint", covariance)
    D, M, N = model.theta.size, model.z.size, len(groups)
    total, start = D + N * M, _theta_scale(N, scale_map)
    if covariance != "diagonal" and total > MAX_JOINT:
        raise ValueError(
            f"joint({covariance!r}) over {total} dimensions ({N} groups) needs a factor with "
            f"{total * (total + 1) // 2:,} entries; use branch(), amortized() or solved()."
        )
    diagonal = covariance == "diagonal"
    make = lambda dim, scale: gaussian(dim, diagonal=diagonal, scale=scale, map=scale_map)
    parts = (make(D, start), make(N * M, 1.0)) if covariance == "block" else (make(total, start),)
    return Joint(parts, D, M, N)


@computing
def branch(
    model: Model,
    groups: Groups,
    covariance: Covariance = "dense",
    *,
    scale_map: ScaleMap = "log",
    centred: bool = True,
) -> Branched:
    """q(theta) prod_i N(z_i | b_i + W_i (theta - centre), Sigma_i), parameters for each group.

    Parameters grow with N: see `Table`. `centred=False` is the paper's plain mu_i + A_i theta.
    """
    check_model_and_groups(model, groups, "rf.branch")
    _check_covariance("branch", covariance)
    form = Form(model.theta.size, model.z.size, covariance, scale_map, centred)
    check_memory(
        12 * len(groups) * sum(form.sizes),  # float32, with Adam's two moments
        None,
        f"branch({covariance!r}): the parameters of {len(groups):,} groups",
        "Use solved() or amortized()",
    )
    table = Table(jnp.tile(form.start(), (len(groups), 1)), form)
    return Branched(_theta(model, groups, covariance, scale_map), table, len(groups))


@computing
def amortized(
    model: Model,
    groups: Groups,
    covariance: Covariance = "dense",
    *,
    encoder: Any = None,
    scale_map: ScaleMap = "log",
    centred: bool = True,
    count_aware: bool = True,
    standardise: bool = True,
    seed: int = 0,
) -> Branched:
    """q(theta) prod_i q(z_i | theta) with parameters that one network computes from a group's rows.

    The default is the paper's network (64-64-64-128 on each row, squares appended, mean over rows,
    then 256-256-256) that also sees n_i; group columns enter after pooling. Where every group has
    exactly one row it is a plain network without pooling. For a symmetric model only: one whose
    densities do not use the identity of the group (the paper's table of applicability).

    Args:
        model: the model.
        groups: the data, for columns, sizes and scales.
        covariance: "dense", "block" or "diagonal".
        encoder: any Equinox module called as encoder(rows [R, F], batch) -> [B, E], invariant to the
            order of a group's rows (pool with `batch.segment`); the parameter network follows it.
        scale_map: "log", or "paper" for the paper's.
        centred: False for the paper's plain mu_i + A_i theta.
        count_aware: False for the paper's plain pooling.
        standardise: False feeds the columns as they are.
        seed: makes the initial weights.
    """
    check_model_and_groups(model, groups, "rf.amortized")
    _check_covariance("amortized", covariance)
    form = Form(model.theta.size, model.z.size, covariance, scale_map, centred)
    key_features, key_head = jax.random.split(jax.random.key(seed))
    if encoder is None:
        features = network.Layers(key_features, (_width(groups.rows), *network.FEATURE_WIDTHS))
        single = bool(np.all(groups.sizes == 1))
        encoder = network.Single(features) if single else network.Pooled(features, count_aware)
    embedding = _embedding_width(encoder, groups) + _width(groups.group)
    widths = embedding, *network.PARAMETER_WIDTHS, sum(form.sizes)
    head = network.Layers(key_head, widths, last_scale=0.001)
    columns = network.column_moments(groups.rows | groups.group, standardise)
    local = network.Amortizer(encoder, head, form.start(), columns, form)
    return Branched(_theta(model, groups, covariance, scale_map), local, len(groups))


@computing
def solved(model: Model, groups: Groups, *, rounds: int = 1, start: Any = None) -> Branched:
    """q(theta) prod_i q(z_i | theta) with the local conditional solved from the group's own rows.

    No local parameters are learned. Exact if p(z | theta) is Gaussian and the log likelihood
    quadratic in z; new groups need no refit. For likelihoods that are twice differentiable in z,
    with z of up to a few dozen dimensions.

    Args:
        model: the model.
        groups: the data.
        rounds: rounds of variational Newton after Newton; 0 is Laplace's approximation.
        start: a fitted amortized family whose network gives Newton its first guess.
    """
    check_model_and_groups(model, groups, "rf.solved")
    begin = None if start is None else start.local
    local = solver(model, example(groups), rounds=rounds, start=begin)
    return Branched(_theta(model, groups, "dense", "log"), local, len(groups))


def _theta(model: Model, groups: Groups, covariance: Covariance, scale_map: ScaleMap) -> Gaussian:
    scale = _theta_scale(len(groups), scale_map)
    return gaussian(model.theta.size, diagonal=covariance == "diagonal", scale=scale, map=scale_map)


def _theta_scale(N: int, scale_map: ScaleMap) -> float:
    """The initial sd of q(theta): 1/sqrt(N), near its final value; 1 for the paper's map."""
    return 1.0 if scale_map == "paper" else float(np.clip(N**-0.5, 0.01, 0.3))


def _check_covariance(family: str, covariance: str) -> None:
    if covariance not in get_args(Covariance):
        raise ValueError(
            f'{family}() expected covariance "dense", "block" or "diagonal"; got {covariance!r}.'
        )


def _width(columns: dict[str, np.ndarray]) -> int:
    return sum(int(np.prod(column.shape[1:])) for column in columns.values())


def _embedding_width(encoder: Any, groups: Groups) -> int:
    """The encoder's output width, found by tracing it."""
    rows = jax.ShapeDtypeStruct((2, _width(groups.rows)), jnp.result_type(float))
    out = eqx.filter_eval_shape(encoder, rows, example(groups))
    if getattr(out, "ndim", 0) != 2 or out.shape[0] != 2:
        raise ValueError(
            f"amortized() expected an encoder(rows [R, F], batch) that returns [B, E]; for 2 groups "
            f"it returned {getattr(out, 'shape', type(out).__name__)}."
        )
    return int(out.shape[1])


def method_of(family: Family) -> str:
    """The name of the function that makes such a family."""
    if isinstance(family, Joint):
        return "joint"
    if isinstance(family.local, Table):
        return "branch"
    return "solved" if isinstance(family.local, Solver) else "amortized"


def covariance_of(family: Family) -> str | None:
    """The structure of a learned family's covariance; a solved one has none to choose."""
    if isinstance(family, Joint):
        if family.parts[0].diagonal:
            return "diagonal"
        return "dense" if len(family.parts) == 1 else "block"
    return None if isinstance(family.local, Solver) else family.local.form.covariance


def is_fixed(family: Family) -> bool:
    """Whether the family has parameters for the groups of its fit, and for no others."""
    return method_of(family) in ("joint", "branch")
