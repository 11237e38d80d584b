"""Point sets: quadrature rules, Student t points of each group, fixed normal points."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.special import betaincinv, fdtri, roots_genlaguerre

from ramify.numerics.hashing import normals, standard_normal, uniforms
from ramify.numerics.triangular import FREEDOM, constant_t

COARSER = 2.5  # times as far apart as in the middle are points at the ends of `wide_rule`
TURNED_DIMS = range(3, 8)  # of `turned_rule`


class Rule(NamedTuple):
    """Points x_k and log weights: the integral of f is about sum_k exp(log_weight_k) f(x_k).

    Exact if f is a standard normal density times a polynomial of low enough degree.
    """

    points: Float[np.ndarray, "K M"] | Float[Array, "K M"]
    log_weight: Float[np.ndarray, " K"] | Float[Array, " K"]  # minus infinity for filler


def gauss_hermite(order: int, dim: int, room: int | None = None) -> Rule:
    """The product rule with `order` points along each coordinate, filled up to `room` points.

    Example:
        >>> rule = gauss_hermite(5, 1)
        >>> density = np.exp(-0.5 * rule.points[:, 0] ** 2) / np.sqrt(2 * np.pi)
        >>> float(np.sum(np.exp(rule.log_weight) * density * rule.points[:, 0] ** 4))
        3.0
    """
    node, weight = np.polynomial.hermite_e.hermegauss(order)
    return _product(node, np.log(weight) + 0.5 * node**2, dim, room)


def wide_rule(order: int, dim: int, reach: float, room: int | None = None) -> Rule:
    """The product rule for peaks up to about `reach` from zero; points are closer near zero.

    Trapezoids along sinh, which are exact to rounding where points are close enough.

    Example:
        >>> rule = wide_rule(101, 1, 30.0)
        >>> density = np.exp(-0.5 * (rule.points[:, 0] - 20) ** 2) / np.sqrt(2 * np.pi)
        >>> round(float(np.sum(np.exp(rule.log_weight) * density)), 6)
        1.0
    """
    most = np.arccosh(COARSER)
    place = np.linspace(-most, most, order)
    spacing = np.cosh(place) * (place[1] - place[0])
    unit = reach / np.sinh(most)
    return _product(unit * np.sinh(place), np.log(unit * spacing), dim, room)


def _product(
    node: Float[np.ndarray, " n"], log_weight: Float[np.ndarray, " n"], dim: int, room: int | None
) -> Rule:
    grid = np.stack(np.meshgrid(*[np.arange(len(node))] * dim, indexing="ij"), -1).reshape(-1, dim)
    filler = (0, (room or len(grid)) - len(grid))
    return Rule(
        np.pad(node[grid], (filler, (0, 0))),
        np.pad(log_weight[grid].sum(1), filler, constant_values=-np.inf),
    )


def sigma_points(dim: int) -> Rule:
    """The rule of 2 M points, exact if f is a standard normal density times a quadratic.

    Example:
        >>> rule = sigma_points(3)
        >>> density = np.exp(-0.5 * np.sum(rule.points**2, 1)) / (2 * np.pi) ** 1.5
        >>> float(np.sum(np.exp(rule.log_weight) * density * rule.points[:, 0] ** 2).round(6))
        1.0
    """
    points = np.sqrt(dim) * np.concatenate([np.eye(dim), -np.eye(dim)])
    log_weight = 0.5 * dim * (1 + np.log(2 * np.pi)) - np.log(2 * dim)
    return Rule(points, np.full(2 * dim, log_weight))


def turned_rule(order: int, dim: int, room: int | None = None) -> Rule:
    """A rule of `order` radii, each with the directions of `sphere_rule`, in 3 to 7 dimensions.

    Exact if f is a standard normal density times a polynomial of degree five, or one of degree
    4 order - 2 in the length of x alone. Filled up to `room` points, by whole radii.

    Example:
        >>> rule = turned_rule(3, 4)
        >>> density = np.exp(-0.5 * np.sum(rule.points**2, 1)) / (2 * np.pi) ** 2
        >>> square = (rule.points[:, 0] * rule.points[:, 1]) ** 2
        >>> float(np.sum(np.exp(rule.log_weight) * density * square).round(6))
        1.0
    """
    directions, share = sphere_rule(dim)
    half_square, weight = roots_genlaguerre(order, dim / 2 - 1)
    radius = np.sqrt(2 * half_square)
    log_weight = np.log(weight / weight.sum()) + half_square + 0.5 * dim * np.log(2 * np.pi)
    filler = (0, (room or order * len(share)) - order * len(share))
    return Rule(
        np.pad((radius[:, None, None] * directions).reshape(-1, dim), (filler, (0, 0))),
        np.pad((log_weight[:, None] + np.log(share)).ravel(), filler, constant_values=-np.inf),
    )


def sphere_rule(dim: int) -> tuple[Float[np.ndarray, "n M"], Float[np.ndarray, " n"]]:
    """Directions and positive weights that average polynomials of degree five over the sphere.

    Corners of a simplex and the midpoints of its edges, both ways (Mysovskikh, 1980; Genz and Monahan,
    "A stochastic algorithm for high-dimensional integrals over unbounded regions", 1999).
    """
    if dim not in TURNED_DIMS:
        raise ValueError(
            f"expected 3 to 7 dimensions, got {dim}: in more, some weights are negative."
        )
    corner = np.linalg.svd(np.eye(dim + 1) - 1 / (dim + 1))[0][:, :dim] * np.sqrt(1 + 1 / dim)
    first, second = np.triu_indices(dim + 1, 1)
    middle = corner[first] + corner[second]
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    each = 2 * (dim + 1) ** 2 * (dim + 2)
    kinds = [(middle, 4 * (dim - 1) ** 2 / dim / each), (corner, dim * (7 - dim) / each)]
    kinds = [(x, weight) for x, weight in kinds if weight > 0]
    both = np.concatenate([np.concatenate([x, -x]) for x, _ in kinds])
    return both, np.concatenate([np.full(2 * len(x), weight) for x, weight in kinds])


def group_turns(
    key: PRNGKeyArray, number: Int[Array, ""], index: Int[Array, " B"], shape: tuple[int, int]
) -> Float[Array, "B order M M"]:
    """Set `number` of random rotations, one for each radius and group; `shape` is (order, M)."""
    words = jax.random.key_data(key)
    own = jax.random.wrap_key_data(words.at[-1].add(number.astype(words.dtype)))
    return orthogonal(normals(own, index, (*shape, shape[1])))


def spread_points(count: int, dim: int) -> np.ndarray:
    """Random antithetic normal points, rescaled so that each coordinate has unit second moment."""
    half = np.random.default_rng(0).normal(size=(count // 2, dim))
    if count // 2 >= dim:
        half = np.linalg.qr(half)[0] * np.sqrt(count // 2)
    else:
        half /= np.sqrt(np.mean(half**2, 0, keepdims=True))
    return np.concatenate([half, -half])


def student_points(
    key: PRNGKeyArray, index: Int[Array, " B"], K: int, M: int
) -> tuple[Float[Array, "K B M"], Float[Array, "K B"]]:
    """K independent points of a standard Student t for each group, and a uniform number with each."""
    half = int(FREEDOM) // 2
    chance = jnp.moveaxis(uniforms(key, index, (K, M + half + 1)), 1, 0)
    chi2 = -2 * jnp.sum(jnp.log(chance[..., M:-1]), -1)  # of FREEDOM degrees, an even number
    return standard_normal(chance[..., :M]) * jnp.sqrt(FREEDOM / chi2)[..., None], chance[..., -1]


def box_points(
    key: PRNGKeyArray, index: Int[Array, " B"], K: int, M: int, reach: float
) -> tuple[Float[Array, "K B M"], Float[Array, "K B"]]:
    """K points of each group, evenly spread over a box, and a uniform number with each.

    A lattice of M irrational steps, shifted at random for each group: each point alone is uniform
    from -reach to reach.
    """
    root = {1: (1 + 5**0.5) / 2, 2: 1.324717957244746}[M]  # of x^(M + 1) = x + 1
    chance = uniforms(key, index, (K + M,))
    step = jnp.asarray(np.arange(K)[:, None] * root ** -np.arange(1.0, M + 1) % 1, chance.dtype)
    place = (step[:, None] + chance[:, K:]) % 1
    return reach * (2 * place - 1), chance[:, :K].T


def student_sample(
    rng: np.random.Generator, mean: np.ndarray, covariance: np.ndarray, count: int
) -> tuple[Float[np.ndarray, "count D"], Float[np.ndarray, " count"]]:
    """Draws from a Student t with this mean and covariance, and its log density."""
    # Computed in units of the sds, which may differ by orders of magnitude. The covariance of a t
    # is its shape matrix times FREEDOM / (FREEDOM - 2).
    sd = np.sqrt(np.diag(covariance))
    shape = covariance / np.outer(sd, sd) * (FREEDOM - 2) / FREEDOM
    noise, factor = _even_student(rng, count, len(mean)), np.linalg.cholesky(shape)
    log_density = -0.5 * (FREEDOM + len(mean)) * np.log1p(np.sum(noise**2, 1) / FREEDOM)
    height = constant_t(len(mean)) - np.log(sd * np.diag(factor)).sum()
    return mean + sd * (noise @ factor.T), height + log_density


def _even_student(rng: np.random.Generator, count: int, D: int) -> Float[np.ndarray, "count D"]:
    """Evenly spread points of a standard t: antithetic random frames with stratified lengths."""
    frames = -(-count // (2 * D))
    directions = np.linalg.qr(rng.normal(size=(frames, D, D)))[0].reshape(-1, D)
    level = (rng.permutation(len(directions)) + rng.random(len(directions))) / len(directions)
    half = directions * np.sqrt(D * fdtri(D, FREEDOM, level))[:, None]
    return np.stack([half, -half], 1).reshape(-1, D)[:count]


def group_points(
    key: PRNGKeyArray, index: Int[Array, " B"], K: int, M: int
) -> Float[Array, "K B M"]:
    """K evenly spread points of a standard multivariate Student t for each group."""
    # Random orthogonal frames in antithetic pairs, with stratified radii. Each point alone is
    # t-distributed, so averages are unbiased; together the points leave little noise in averages of
    # a nearly Gaussian integrand. The heavy tail bounds the importance weights: with a Gaussian
    # proposal that is too narrow in one direction (separated data) they would have infinite
    # variance. The four quarters are independent, which the correction of the 1/K bias needs.
    own = quarter_sizes(K)
    frames = -(-own[0] // (2 * M))
    strata = frames * M

    sizes = 4 * strata * M, 4 * strata, 4

    def one(chance: Float[Array, " n"]) -> Float[Array, "K M"]:
        noise, within, turn = jnp.split(chance, np.cumsum(sizes)[:-1])
        directions = orthogonal(ndtri(noise).reshape(4 * frames, M, M))
        # Strata are shifted at random: if K is no multiple of 8 M, the last directions are cut off.
        turn = jnp.floor(turn * strata).astype(int)
        stratum = (jnp.arange(strata)[None] + turn[:, None]) % strata
        level = stratum + within.reshape(4, strata)
        radius = _radius_quantile(level.ravel() / strata, M).reshape(4, M, frames).swapaxes(1, 2)
        points = directions.reshape(4, strata, M) * radius.reshape(4, strata, 1)
        both = jnp.stack([points, -points], 2).reshape(4, 2 * strata, M)
        if K % 4 == 0:
            return both[:, : own[0]].reshape(K, M)
        return jnp.concatenate([both[i, :n] for i, n in enumerate(own)])

    return jax.vmap(one, out_axes=1)(uniforms(key, index, (sum(sizes),)))


def quarter_sizes(K: int) -> list[int]:
    """Sizes of the four independent quarters of K draws; both halves are equal if K is even."""
    return [(K + 3 - i) // 4 for i in (0, 2, 1, 3)]


def orthogonal(noise: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """Uniform random orthogonal matrices: the rows of Gaussian matrices, by Gram and Schmidt."""
    # M fused steps: accelerators are slow at small QR factorisations. Each row is projected twice,
    # which keeps float32 rows orthogonal to rounding.
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


def normal_points(count: int, dim: int) -> np.ndarray:
    """`count` normal points in antithetic pairs, orthogonal where possible; for count 1, zero."""
    if count == 1:
        return np.zeros((1, dim))
    rng = np.random.default_rng(1)
    pairs = []
    while len(pairs) < count // 2:
        directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        lengths = np.sqrt(rng.chisquare(dim, size=dim))
        pairs += list(directions * lengths[:, None])
    half = np.asarray(pairs[: count // 2])
    half *= np.sqrt(half.size / np.sum(half**2))  # unit second moment on average
    return np.concatenate([half, -half])
