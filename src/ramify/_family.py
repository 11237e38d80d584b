"""The variational families: Joint and Branched, and the functions that build them.

Two classes make all of the paper's nine families (its table of variational families) and the
solved one. A family draws (theta, z) for a block together with log q, split into the part that
belongs to theta and a part for each group.
"""

from collections.abc import Callable
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.special import betaincinv

from ramify._cloud import Cloud
from ramify._computing import computing
from ramify._data import Groups
from ramify._gaussian import FREEDOM, Covariance, Gaussian, ScaleMap, gaussian
from ramify._local import (
    FEATURE_WIDTHS,
    PARAMETER_WIDTHS,
    Amortizer,
    Form,
    Layers,
    Local,
    Pooled,
    Single,
    Table,
    column_moments,
)
from ramify._model import Model
from ramify._solver import solver
from ramify._types import Batch, Draw

MAX_JOINT = 20_000  # a dense factor of this order is 1.6 GB in float32, before Adam's moments


def group_noise(
    key: PRNGKeyArray, index: Int[Array, " B"], shape: tuple[int, ...]
) -> Float[Array, "B *shape"]:
    """Standard normal noise that belongs to the group: a function of (key, group number) alone.

    So an estimate does not depend on the order of groups, the block they are in or the device.
    """
    return jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), shape))(index)


def group_points(
    key: PRNGKeyArray, index: Int[Array, " B"], K: int, M: int
) -> Float[Array, "K B M"]:
    """K points of a standard multivariate Student t for each group, spread evenly together.

    Random orthogonal frames, each direction taken both ways, with stratified radii. Every point
    alone is t-distributed, so averages over them are unbiased, but together they are balanced, so
    that for a nearly Gaussian integrand little noise is left.
    The heavy tail bounds the importance weights of targets with Gaussian tails: a Gaussian
    proposal that is too narrow in one direction (separated data) has weights without a variance.
    The four quarters are independent, which is what the correction of the 1/K bias needs.
    """
    own = quarter_sizes(K)
    frames = -(-own[0] // (2 * M))
    strata = frames * M

    def one(i: Int[Array, ""]) -> Float[Array, "K M"]:
        # One call for all the randomness: each would cost a third of a second to compile.
        sizes = 4 * strata * M, 4 * strata, 4
        chance = jax.random.uniform(jax.random.fold_in(key, i), (sum(sizes),), minval=1e-7)
        noise, within, turn = jnp.split(chance, np.cumsum(sizes)[:-1])
        directions = orthogonal(ndtri(noise).reshape(4 * frames, M, M))
        # Turned at random, since where K is no multiple of 8 M the last directions are cut off.
        turn = jnp.floor(turn * strata).astype(int)
        stratum = (jnp.arange(strata)[None] + turn[:, None]) % strata
        level = stratum + within.reshape(4, strata)
        radius = _radius_quantile(level.ravel() / strata, M).reshape(4, M, frames).swapaxes(1, 2)
        points = directions.reshape(4, strata, M) * radius.reshape(4, strata, 1)
        both = jnp.stack([points, -points], 2).reshape(4, 2 * strata, M)
        if K % 4 == 0:
            return both[:, : own[0]].reshape(K, M)
        return jnp.concatenate([both[i, :n] for i, n in enumerate(own)])

    return jax.vmap(one, out_axes=1)(index)


def quarter_sizes(K: int) -> list[int]:
    """How many of K draws are in each of their four independent quarters; halves are even where K is."""
    return [(K + 3 - i) // 4 for i in (0, 2, 1, 3)]


def orthogonal(noise: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """Uniform random orthogonal matrices: the rows of Gaussian matrices, by Gram and Schmidt.

    A batch of small QR factorisations is what accelerators are slowest at; this is M fused steps.
    Each row is projected twice, which keeps float32 orthogonal to rounding.
    """
    M = noise.shape[-1]

    def row(j: Array, q: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
        v = noise[..., j, :]
        for _ in range(2):
            v = v - jnp.einsum("...k,...km->...m", jnp.einsum("...km,...m->...k", q, v), q)
        v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
        return q.at[..., j, :].set(v)

    return jax.lax.fori_loop(0, M, row, jnp.zeros_like(noise))


def _radius_quantile(level: Float[Array, " n"], M: int) -> Float[Array, " n"]:
    """Quantiles of the length of an M-dimensional Student t vector, from a fine table."""
    ends = np.geomspace(1e-7, 0.01, 200)
    levels = np.concatenate([ends, np.linspace(0.01, 0.99, 2001)[1:-1], 1 - ends[::-1]])
    share = betaincinv(M / 2, FREEDOM / 2, levels)
    table = np.sqrt(FREEDOM * share / (1 - share))
    dtype = level.dtype
    return jnp.interp(level, jnp.asarray(levels, dtype), jnp.asarray(table, dtype))


class Branched(eqx.Module):
    """q(theta) prod_i q(z_i | theta): the structure of the posterior itself (Definition 1)."""

    theta: Gaussian
    local: Any  # Table | Amortizer | Solver: whoever has `conditional`
    N: int = eqx.field(static=True)
    cloud: Cloud | None = None  # weighted draws that correct q(theta), where there are any

    def theta_moments(self) -> tuple[Array, Array]:
        """Mean and covariance of theta, unconstrained: of the cloud, where there is one."""
        said = self.theta if self.cloud is None else self.cloud
        return jnp.asarray(said.mean), jnp.asarray(said.covariance)

    def conditional(self, model: Model, batch: Batch) -> Callable[[Array], Local]:
        """Theta -> q(z_i | theta) of the block's groups."""
        return self.local.conditional(model, batch, self.theta.mean)

    def draw(
        self, key: PRNGKeyArray, model: Model, batch: Batch, sign: float | Array = 1.0
    ) -> Draw:
        """Theta ~ q(theta), then z_i ~ q(z_i | theta) of the block; with sign -1 the mirror image."""
        key_theta, key_z = jax.random.split(key)
        noise = sign * jax.random.normal(key_theta, (self.theta.dim,))
        theta, log_q_theta = self.theta.draw(noise)
        local = self.conditional(model, batch)(theta)
        noise_z = sign * group_noise(key_z, batch.index, (local.mean.shape[-1],))
        z, log_q_z = local.draw(noise_z)
        return Draw(theta, z, log_q_theta, log_q_z, (noise, noise_z))

    def log_q(
        self, model: Model, batch: Batch, draw: Draw, *, own: bool = False
    ) -> tuple[Array, Float[Array, " B"]]:
        """Log q(theta) and log q(z_i | theta) at a draw, by triangular solves; or at its `own`."""
        local = self.conditional(model, batch)(draw.theta)
        noise = draw.noise if own else (None, None)
        return self.theta.log_prob(draw.theta, noise[0]), local.log_prob(draw.z, noise[1])


class Joint(eqx.Module):
    """q(theta, z_1..z_N) as one Gaussian or independent ones; needs every group in every step.

    `parts` are laid end to end over (theta, z_1, ..., z_N): dense is one full Gaussian, block is one
    for theta and one over *all* of z, diagonal is one with independent entries.
    """

    parts: tuple[Gaussian, ...]
    D: int = eqx.field(static=True)
    M: int = eqx.field(static=True)
    N: int = eqx.field(static=True)

    @property
    def theta(self) -> Gaussian:
        """The marginal q(theta)."""
        first = self.parts[0]
        D = self.D
        if first.diagonal:
            return Gaussian(first.mean[:D], first.free[:D], D, True, first.map)
        # The leading block of a lower triangular factor is the factor of the leading block.
        below = D * (D - 1) // 2
        free = jnp.concatenate([first.free[:D], first.free[first.dim : first.dim + below]])
        return Gaussian(first.mean[:D], free, D, False, first.map)

    def draw(
        self, key: PRNGKeyArray, model: Model, batch: Batch, sign: float | Array = 1.0
    ) -> Draw:
        """Draws everything; z is then looked up by group number, never by place."""
        del model
        if batch.index.shape[0] < self.N:
            raise ValueError(
                f"joint() draws all {self.N} groups at once; got a block of at most "
                f"{batch.index.shape[0]}. Use branch(), amortized() or solved() to subsample."
            )
        keys = jax.random.split(key, len(self.parts))
        pairs = list(zip(self.parts, keys, strict=True))
        noise = [sign * jax.random.normal(k, (q.dim,)) for q, k in pairs]
        draws = [q.draw(e) for q, e in zip(self.parts, noise, strict=True)]
        whole = jnp.concatenate([x for x, _ in draws])
        z = whole[self.D :].reshape(self.N, self.M)[batch.index]
        log_q = jnp.sum(jnp.stack([q for _, q in draws]))
        every = jnp.concatenate(noise), jnp.zeros((len(z), 0))
        return Draw(whole[: self.D], z, log_q, jnp.zeros(len(z)), every)

    def log_q(
        self, model: Model, batch: Batch, draw: Draw, *, own: bool = False
    ) -> tuple[Array, Float[Array, " B"]]:
        """Log q of the whole draw, counted once with theta's part."""
        del model
        z = jnp.zeros((self.N, self.M)).at[batch.index].set(draw.z)
        whole = jnp.concatenate([draw.theta, z.ravel()])
        ends = np.cumsum([q.dim for q in self.parts])
        places = [slice(end - q.dim, end) for q, end in zip(self.parts, ends, strict=True)]
        noise = [draw.noise[0][at] if own else None for at in places]
        parts = zip(self.parts, places, noise, strict=True)
        log_q = jnp.stack([q.log_prob(whole[at], e) for q, at, e in parts])
        return jnp.sum(log_q), jnp.zeros(len(draw.z))


Family = Branched | Joint


def joint(
    model: Model, groups: Groups, covariance: Covariance = "dense", *, scale_map: ScaleMap = "log"
) -> Joint:
    """One Gaussian over theta and every group's z (equation of the joint ELBO).

    Costs (D + N M)^2 / 2 numbers when dense: for tens of groups, not thousands. It can't
    subsample and knows nothing of new groups.

    Example:
        joint(model, groups, covariance="block")
    """
    _check_covariance("joint", covariance)
    D, M, N = model.theta.size, model.z.size, len(groups)
    total, start = D + N * M, _theta_scale(N, scale_map)
    if covariance != "diagonal" and total > MAX_JOINT:
        raise ValueError(
            f"joint({covariance!r}) over {total} dimensions ({N} groups) needs a factor with "
            f"{total * (total + 1) // 2:,} entries; use branch(), amortized() or solved()."
        )
    make = lambda dim, scale: gaussian(
        dim, diagonal=covariance == "diagonal", scale=scale, map=scale_map
    )
    parts = (make(D, start), make(N * M, 1.0)) if covariance == "block" else (make(total, start),)
    return Joint(parts, D, M, N)


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
    _check_covariance("branch", covariance)
    form = Form(model.theta.size, model.z.size, covariance, scale_map, centred)
    table = Table(jnp.tile(form.start(), (len(groups), 1)), form)
    return Branched(_theta(model, groups, covariance, scale_map), table, len(groups))


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
    """q(theta) prod_i q(z_i | theta) with parameters read from the group's rows by one network.

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
    _check_covariance("amortized", covariance)
    form = Form(model.theta.size, model.z.size, covariance, scale_map, centred)
    key_features, key_head = jax.random.split(jax.random.key(seed))
    width = lambda columns: sum(int(np.prod(c.shape[1:])) for c in columns.values())
    if encoder is None:
        encoder = _default_encoder(key_features, groups, width(groups.rows), count_aware)
    embedding = _embedding_width(encoder, groups) + width(groups.group)
    head = Layers(key_head, (embedding, *PARAMETER_WIDTHS, sum(form.sizes)), last_scale=0.001)
    columns = column_moments(groups.rows | groups.group, standardise)
    local = Amortizer(encoder, head, form.start(), columns, form)
    return Branched(_theta(model, groups, covariance, scale_map), local, len(groups))


def solved(model: Model, groups: Groups, *, rounds: int = 1, start: Any = None) -> Branched:
    """q(theta) prod_i q(z_i | theta) with the local conditional solved for on the group's own rows.

    Nothing local is learned: see `_solver`. Exact where p(z | theta) is Gaussian and the likelihood
    quadratic in z; new groups need no refit. For likelihoods twice differentiable in a z of up to a
    few dozen dimensions.

    Args:
        model: the model.
        groups: the data.
        rounds: rounds of variational Newton after Newton; 0 is Laplace's approximation.
        start: a fitted amortized family whose network gives Newton its first guess.
    """
    local = solver(
        model, example(groups), rounds=rounds, start=None if start is None else start.local
    )
    return Branched(_theta(model, groups, "dense", "log"), local, len(groups))


@computing
def joint_to_branch(
    mean: Float[Array, " total"], covariance: Float[Array, "total total"], D: int, M: int
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """The branch Gaussian that corresponds to a joint one (Corollary 3, appendix E).

    q(z_i | theta) of N(mean, covariance) is N(mu_i + A_i theta, Sigma_i) with
    A_i = S_zi,theta S_theta^-1, mu_i = m_zi - A_i m_theta, Sigma_i = S_zi - A_i S_theta,zi.

    Returns:
        (mu_0 [D], Sigma_0 [D, D]) and (mu_i [N, M], A_i [N, M, D], Sigma_i [N, M, M]).
    """
    S_theta, cross = covariance[:D, :D], covariance[D:, :D].reshape(-1, M, D)
    A = jnp.linalg.solve(S_theta, cross.swapaxes(-1, -2)).swapaxes(-1, -2)
    mu = mean[D:].reshape(-1, M) - A @ mean[:D]
    N = mu.shape[0]
    own = covariance[D:, D:].reshape(N, M, N, M)[jnp.arange(N), :, jnp.arange(N), :]
    return (mean[:D], S_theta), (mu, A, own - A @ cross.swapaxes(-1, -2))


def _theta(model: Model, groups: Groups, covariance: Covariance, scale_map: ScaleMap) -> Gaussian:
    scale = _theta_scale(len(groups), scale_map)
    return gaussian(model.theta.size, diagonal=covariance == "diagonal", scale=scale, map=scale_map)


def _theta_scale(N: int, scale_map: ScaleMap) -> float:
    """Where q(theta)'s sd starts: near its end 1/sqrt(N) for ours, at one for the paper's map."""
    return 1.0 if scale_map == "paper" else float(np.clip(N**-0.5, 0.01, 0.3))


def _check_covariance(family: str, covariance: str) -> None:
    if covariance not in get_args(Covariance):
        raise ValueError(
            f'{family}() expected covariance "dense", "block" or "diagonal"; got {covariance!r}.'
        )


def _default_encoder(key: PRNGKeyArray, groups: Groups, width: int, count_aware: bool) -> Any:
    if np.all(groups.sizes == 1):
        return Single(Layers(key, (width, *FEATURE_WIDTHS)))
    return Pooled(Layers(key, (width, *FEATURE_WIDTHS)), count_aware)


def example(groups: Groups) -> Batch:
    """The shapes and types of a batch of two groups with two rows: enough to trace a model."""
    shapes = lambda columns: {
        name: jax.ShapeDtypeStruct(
            (2, *column.shape[1:]), jax.dtypes.canonicalize_dtype(column.dtype)
        )
        for name, column in columns.items()
    }
    ints, flags = jax.ShapeDtypeStruct((2,), np.int32), jax.ShapeDtypeStruct((2,), bool)
    scale = jax.ShapeDtypeStruct((), jnp.zeros(()).dtype)
    rows, group = shapes(groups.rows), shapes(groups.group)
    return Batch(rows, group, ints, ints, ints, flags, flags, scale)  # pyright: ignore[reportArgumentType]


def _embedding_width(encoder: Any, groups: Groups) -> int:
    """The encoder's output width, found by tracing it."""
    width = sum(int(np.prod(c.shape[1:])) for c in groups.rows.values())
    rows = jax.ShapeDtypeStruct((2, width), jnp.zeros(()).dtype)
    out = eqx.filter_eval_shape(encoder, rows, example(groups))
    if getattr(out, "ndim", 0) != 2 or out.shape[0] != 2:
        raise ValueError(
            f"amortized() expected an encoder(rows [R, F], batch) that returns [B, E]; for 2 groups "
            f"it returned {getattr(out, 'shape', type(out).__name__)}."
        )
    return int(out.shape[1])
