"""Groups of fewer rows than z has dimensions: z in the directions that rows see, and its moments."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ramify as rf
from quick import slow
from ramify.data.batch import example
from ramify.data.resident import whole
from ramify.families.matched import can_match
from ramify.families.solver import solver
from ramify.inference.local_integral import log_integral, weigh_block
from ramify.models.expansion import expand_local
from ramify.models.seen import SeenModel, in_seen_directions
from ramify.numerics.points import group_points

N, P = 120, 4  # groups of one or two rows, an intercept and slopes
THETA = np.concatenate([[0.3, -0.5, 0.4, 0.8, -0.2], np.log([2.0, 3.0, 1.0, 2.5, 1.5])])


def data(groups: int, rows: int, slopes: int, sd: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Bernoulli rows, up to `rows` in a group."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), rng.integers(max(rows // 2, 1), rows + 1, groups))
    x = rng.normal(size=(len(g), slopes))
    own = 0.4 + sd * rng.normal(size=(groups, slopes + 1))
    eta = own[g, 0] + np.sum(own[g, 1:] * x, 1)
    y = (rng.random(len(g)) < 1 / (1 + np.exp(-eta))).astype(int)
    return {"g": g, "y": y} | {f"x{k}": x[:, k] for k in range(slopes)}


def made(table, slopes: int):
    right = " + ".join(f"x{k}" for k in range(slopes))
    formula = f"y ~ 1 + {right} + (1 + {right} || g)"
    return rf.from_formula(formula, table, likelihood="bernoulli")


@pytest.fixture(scope="module")
def pair():
    """A model and its groups, and both in the two directions that rows see."""
    own = made(data(N, 2, P, 1.0), P)
    return own, in_seen_directions(*own)


def exact(model, batch, theta) -> np.ndarray:
    """Log p(y_i | theta) by Gauss-Hermite over the predictors of a group's rows, in float64."""
    mean, covariance = predictors(model, batch, theta)
    node, weight = np.polynomial.hermite_e.hermegauss(40)
    node, weight = node, weight / weight.sum()
    y, segment = np.asarray(batch.rows["y"]), np.asarray(batch.segment)
    found = np.zeros(N)
    for i in range(N):
        own = np.flatnonzero((segment == i) & np.asarray(batch.row_mask))
        root = np.linalg.cholesky(covariance[np.ix_(own, own)])
        grid = np.stack(np.meshgrid(*[node] * len(own), indexing="ij"), -1).reshape(-1, len(own))
        mass = np.stack(np.meshgrid(*[weight] * len(own), indexing="ij"), -1).reshape(grid.shape)
        eta = mean[own] + grid @ root.T
        sign = 2 * y[own] - 1
        found[i] = np.log(np.sum(mass.prod(1) / np.prod(1 + np.exp(-sign * eta), 1)))
    return found


def predictors(model, batch, theta) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of all rows' linear predictors, given theta."""
    normal = model.structure.prior(jnp.asarray(theta, jnp.result_type(float)), batch)
    places, M = len(batch.index), model.z.size
    root = np.broadcast_to(np.asarray(normal.root, np.float64), (places, M, M))
    spread = np.linalg.inv(root)[np.asarray(batch.segment)]
    w = np.asarray(model.structure.likelihood.weights(batch), np.float64)[:, 0]
    offset = np.asarray(model.structure.likelihood.offsets(jnp.asarray(theta), batch))[:, 0]
    centre = np.broadcast_to(np.asarray(normal.mean, np.float64), (places, M))
    parts = np.einsum("ri,rij->rj", w, spread)
    same = np.asarray(batch.segment)[:, None] == np.asarray(batch.segment)[None]
    mean = np.sum(w * centre[np.asarray(batch.segment)], 1) + offset
    return mean, np.where(same, parts @ parts.T, 0.0)


def test_rows_see_the_same(pair) -> None:
    (model, groups), (seen, few) = pair
    assert isinstance(seen, SeenModel)
    assert (model.z.size, seen.z.size) == (P + 1, 2)
    own, other = whole(groups), whole(few)
    for mine, its in zip(
        predictors(model, own, THETA), predictors(seen, other, THETA), strict=True
    ):
        np.testing.assert_allclose(mine, its, atol=2e-4, rtol=2e-4)


def test_models_whose_rows_see_all_stay() -> None:
    model, groups = made(data(20, 9, 1, 1.0), 1)
    assert in_seen_directions(model, groups) == (model, groups)


def weighed(seen, few, centre, theta, K: int, key: int):
    """The draws of a block around conditionals at theta, of sites solved for at the centre."""
    batch = whole(few)
    own = solver(seen, example(few), rounds=0)
    own = own.__class__(own.points, None, 0, 40, False, matched=True)
    site = own.solve(seen, batch, centre, own.begin(seen, batch, centre))
    points = group_points(jax.random.key(key), batch.index, K, seen.z.size)
    return weigh_block(seen, own, batch, *own.follow(seen, batch, site, theta, False), points), site


def test_moments_give_the_integral(pair) -> None:
    seen, few = pair[1]
    batch, theta = whole(few), jnp.asarray(THETA, jnp.result_type(float))
    assert can_match(seen, example(few))
    weigh, site = jax.jit(lambda t: _plain(weighed(seen, few, t, t, 16, 0)))(theta)
    prior = expand_local(seen, batch, theta)(site.anchor)
    found = log_integral(prior + site.likelihood, site.converged)
    right = exact(seen, batch, THETA)
    # Laplace's approximation is off by 0.1 and more; expectation propagation by hundredths.
    np.testing.assert_allclose(found, right, atol=0.02)
    assert np.abs(np.sum(found - right)) < 0.1
    # The ratio of a row's likelihood to its site is one on average.
    np.testing.assert_allclose(weigh, 0.0, atol=2e-3)


def _plain(found):
    """What a compiled function may return of weighed draws: the log mean of ratios, and the site."""
    weigh, site = found
    both = weigh.prior(jnp.asarray(THETA)) + weigh.likelihood(jnp.asarray(THETA)).expansion
    return weigh.ratios.log_mean(both, weigh.definite), site


@pytest.mark.parametrize("moved", [slow(0.0), slow(0.4)])
def test_ratios_take_off_noise_and_no_more(pair, moved: float) -> None:
    seen, few = pair[1]
    batch, centre = whole(few), jnp.asarray(THETA, jnp.result_type(float))
    theta = centre + moved * jnp.where(jnp.arange(len(THETA)) > P, 1.0, -1.0)

    @partial(jax.jit, static_argnums=1)
    def total(key, plain):
        def value(t):
            weigh, _ = weighed(seen, few, centre, theta, 64, key)
            weigh = weigh._replace(ratios=None) if plain else weigh
            return jnp.sum(weigh.bound(t)[0])

        return jax.value_and_grad(value)(theta)

    keys = np.arange(16)
    own, plain = (jax.vmap(partial(total, plain=p))(keys) for p in (False, True))
    right = exact(seen, batch, np.asarray(theta, np.float64)).sum()
    step = 0.02 * np.eye(len(THETA))
    slope = [
        (exact(seen, batch, np.asarray(theta) + s).sum() - exact(seen, batch, theta - s).sum())
        / 0.04
        for s in step[[0, P + 1, 2 * P]]
    ]
    for found, wanted in ((own[0], right), (own[1][:, [0, P + 1, 2 * P]], np.array(slope))):
        error = np.std(found, 0, ddof=1) / np.sqrt(len(keys))
        assert np.all(np.abs(np.mean(found, 0) - wanted) < 5 * error + 2e-3 * (1 + abs(wanted)))
    # Most of the noise is of the first order, which is taken off.
    assert np.std(own[0]) < 0.5 * np.std(plain[0])
    assert np.all(np.std(own[1], 0) < 0.7 * np.std(plain[1], 0))


@pytest.mark.slow
def test_seeds_agree() -> None:
    model, groups = made(data(2100, 6, 7, 0.8), 7)
    fits = [rf.fit(model, groups, seed=seed, theta="gaussian") for seed in (0, 1)]
    assert all(fit.notes["seen_directions"] == 6 and fit.notes["converged"] for fit in fits)
    means = np.array([np.asarray(fit.family.theta.mean, np.float64) for fit in fits])
    sds = np.sqrt(np.diag(np.asarray(fits[0].family.theta.covariance, np.float64)))
    noise = np.hypot(*(fit.notes["noise_sds"] for fit in fits))
    assert noise < 0.05
    assert np.abs((means[1] - means[0]) / sds).max() < 4 * noise
