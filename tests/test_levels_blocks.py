"""The integrals of several factors block by block, values of G, and profiles that stand for it."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ramify as rf
from levels_tables import apart, problem, table
from ramify.data.levels import encoded
from ramify.fitting.levels import start
from ramify.levels import blocks, shape
from ramify.levels.blocks import blocks_of, integrated
from ramify.levels.coarse import Coarse
from ramify.levels.integral import integrate, rule_for, solve
from ramify.levels.marginal import Marginal, NotSolved
from ramify.levels.model import LevelsModel
from ramify.levels.search import search
from ramify.numerics.points import student_sample
from ramify.posterior.trust import findings

SLOPES = "yes ~ x + (1 + x | a) + (1 | b)"


def test_blocks_are_the_whole(monkeypatch):
    model, design = problem(SLOPES, "bernoulli")
    monkeypatch.setattr(blocks, "TOGETHER", 700)
    monkeypatch.setattr(blocks, "MANY", np.inf)
    given, rule = model.at(apart(model)), rule_for(model, len(design.offset), design.N)
    base, z = np.random.default_rng(0).normal(size=len(design.offset)), np.zeros((design.N, 2))
    cut = blocks_of(model, design, rule)
    assert len(cut) > 3
    own = model, given, design, base
    whole = integrate(*own, solve(*own, z), rule)
    found = integrated(model, given, cut, base, z)
    for name in ("groups", "slope", "curvature", "shared"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-5)
    for mine, theirs in zip(found.solved.rows, whole.solved.rows, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.slow
def test_what_a_coarser_rule_leaves_out_is_measured(monkeypatch):
    rng, n = np.random.default_rng(3), 3000
    rows = {"a": np.arange(n) % 60, "b": rng.integers(0, 12, n), "x": rng.normal(size=n)}
    z = 1.2 * rng.normal(size=(2, 60))[:, rows["a"]]
    eta = z[0] + z[1] * rows["x"] + 0.5 * rng.normal(size=12)[rows["b"]]
    rows["yes"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    model, design = problem(SLOPES, "bernoulli", rows=rows)
    coarse = Marginal(model, design)
    assert coarse.points == 9
    found = search(coarse, start(model))
    sd = np.sqrt(np.diag(np.linalg.inv(found.precision)))
    said = shape.moved_sds(coarse, found)[:, 1]
    monkeypatch.setattr(blocks, "MANY", np.inf)
    fine = search(Marginal(model, design), found.mean)
    moved = (fine.mean - found.mean) / sd
    # Both searches end where one more step would gain some thousandths of a nat.
    assert np.abs(moved - said).max() < 0.05
    assert 0.001 < np.abs(said).max() < 0.1


def test_values_of_a_linear_model_are_those_of_its_optima():
    model, design = problem("y ~ x + (1 + x | a) + (1 | b)")
    G = Marginal(model, design)
    thetas = np.stack([apart(model, seed) for seed in range(4)])
    begin = G.optimum(start(model))
    truth = [G.optimum(theta).value for theta in thetas]
    np.testing.assert_allclose(G.values(thetas, begin), truth, rtol=1e-10)


def test_normal_priors_of_common_effects_need_no_program():
    model, _ = rf.from_formula("y ~ x + w + (1 | a) + (1 | b)", table())
    beta = np.array([0.3, -1.0, 2.0])
    truth = LevelsModel._common_prior(model, beta)
    for mine, theirs in zip(model._common_prior(beta), truth, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_a_profile_is_the_marginal_at_its_points_and_corners():
    model, design = problem("y ~ x + (1 | a) + (1 | b)")
    G = Marginal(model, design)
    found = search(G, start(model))
    height = lambda thetas: shape.risen(G, found, thetas)
    profile = shape.Profile.through(height, model.transformed, found, between=True)
    ends = [shape.ALONG[0], shape.ALONG[-1]]
    t = np.concatenate([np.diag([end] * 3) for end in ends])
    corners = shape.CORNER * np.array([(1, 1, 0), (-1, 1, 0), (0, -1, 1), (-1, 0, -1)])
    thetas = found.mean + np.concatenate([t, corners]) @ profile.axes.T
    truth = G.values(thetas, found.optimum) - found.optimum.value
    np.testing.assert_allclose(profile.values(thetas), truth, atol=1e-6)


def test_draws_of_theta_without_kept_effects_of_their_own_are_told(monkeypatch):
    """They are given those at theta's mode."""
    model, design = problem("y ~ x + (1 | a) + (1 | b)")
    G = Marginal(model, design)
    found = search(G, start(model))
    cloud = shape.cloud(G, found, 0)
    assert "unsolved_nodes" not in shape.pool(G, found, cloud, 0)[1]
    solve, calls = G.optimum, iter(range(1000))

    def failing(*own):
        if next(calls) % 4 == 0:
            raise NotSolved
        return solve(*own)

    monkeypatch.setattr(G, "optimum", failing)
    notes = shape.pool(G, found, cloud, 0)[1]
    assert 0 < notes["unsolved_nodes"] < notes["nodes"] / 3
    (told,) = findings(notes, 10)
    assert (
        told.level == 2 and f"found at {notes['unsolved_nodes']} of {notes['nodes']}" in told.said
    )
    assert findings(notes | {"unsolved_nodes": 1, "nodes": 64}, 10)[0].level == 1


@pytest.mark.slow
def test_corners_bring_a_profile_to_the_sds_of_the_marginal(monkeypatch):
    rng, n, levels = np.random.default_rng(1), 1200, 24
    a, b, x = rng.integers(0, 40, n), rng.integers(0, levels, n), rng.normal(size=n)
    own = rng.normal(size=(levels, 2)) * [0.5, 0.12]
    y = 0.5 * rng.normal(size=40)[a] + own[b, 0] + own[b, 1] * x + rng.normal(size=n)
    rows = {"a": a, "b": b, "x": x, "y": y}
    model, design = problem("y ~ x + (1 | a) + (1 + x | b)", rows=rows)
    G = Marginal(model, design)
    found = search(G, start(model))
    spread = []
    for cheap in (1e30, 0.0):
        for name, value in {"CHEAP": cheap, "CHEAP_WIDE": cheap, "NOISE": 0.0}.items():
            monkeypatch.setattr(shape, name, value)  # 2,000 points of G, or a profile
        cloud = shape.cloud(G, found, 0)
        values = [v.reshape(len(v), -1) for v in model.values(cloud.points).values()]
        apart = np.concatenate(values, 1) - cloud.weight @ np.concatenate(values, 1)
        spread.append(np.sqrt(cloud.weight @ apart**2))
    free = spread[0] > 1e-6
    ratio = spread[1][free] / spread[0][free]
    assert np.abs(ratio - 1).max() < 0.11  # 0.15 without corners


def ten_levels(seed=2):
    """Slopes of sixty groups, which are integrated, and of ten levels, which are kept."""
    rng, n = np.random.default_rng(seed), 1500
    rows = {"a": np.arange(n) % 60, "b": rng.integers(0, 10, n), "x": rng.normal(size=n)}
    own, others = rng.normal(size=(60, 2)) * [0.8, 0.5], rng.normal(size=(10, 2)) * [0.7, 0.4]
    both = own[rows["a"]] + others[rows["b"]]
    eta = both[:, 0] + both[:, 1] * rows["x"]
    rows["yes"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    return problem("yes ~ x + (1 + x | a) + (1 + x | b)", "bernoulli", rows=rows)


@pytest.mark.slow
def test_a_coarse_marginal_has_the_shape_of_the_marginal():
    model, design = ten_levels()
    G, coarse = Marginal(model, design), Marginal(model, design, coarse=True)
    assert (round(G.points), round(coarse.points)) == (25, 9)
    found = search(G, start(model))
    near = Coarse.near(G, coarse, found)
    ends = found.mean + np.concatenate([1.8 * near.axes.T, -1.8 * near.axes.T])
    alone = near._replace(coefficients=np.zeros((2, 6)))
    apart = [own.values(ends) - shape.risen(G, found, ends) for own in (near, alone)]
    assert np.abs(apart[0]).max() < 0.015 and np.abs(apart[1]).max() > 0.03  # nats
    profile = shape.Profile.through(near.values, model.transformed, found, True)
    covariance = np.linalg.inv(found.precision)
    points, log_t = student_sample(np.random.default_rng(0), found.mean, covariance, 300)
    exact = shape.risen(G, found, points)
    off, spread = [], []
    for height in (exact, near.values(points), profile.values(points)):
        log_weight = height - log_t
        weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
        off.append(np.sqrt(weight @ (height - exact) ** 2))
        spread.append(np.sqrt(weight @ (points - weight @ points) ** 2))
    assert off[1] < 0.03 and off[2] > 0.1  # nats
    assert np.abs(spread[1] / spread[0] - 1).max() < 0.01
    assert np.abs(spread[2] / spread[0] - 1).max() > 0.03


@pytest.mark.slow
def test_points_are_weighted_by_a_coarse_marginal_where_that_pays(monkeypatch):
    model, design = ten_levels()
    G = Marginal(model, design)
    found = search(G, start(model))
    for name, value in {"CHEAP": 0.0, "CHEAP_WIDE": 0.0, "COARSE_POINTS": 200}.items():
        monkeypatch.setattr(shape, name, value)
    cloud = shape.cloud(G, found, 0)
    assert 200 < cloud.notes["theta_coarse"] < 1000
    off = shape.pool(G, found, cloud, 0)[1]["theta_profile_nats"]
    assert off < 0.03  # nats from G, where the draws are
    monkeypatch.setattr(shape, "COARSE", 0.0)
    cloud = shape.cloud(G, found, 0)
    assert "theta_coarse" not in cloud.notes
    assert shape.pool(G, found, cloud, 0)[1]["theta_profile_nats"] > 0.03


def test_large_ids_beside_a_null_are_exact():
    ids = [1234567890123456789, None, 3]
    for raw in (pa.array(ids), pd.Series(ids, dtype="Int64"), pl.Series(ids), ids):
        factor, absent = encoded("id", raw)
        assert factor.labels.tolist() == [3, ids[0]] and absent.tolist() == [False, True, False]
    factor, _ = encoded("id", np.array([2.0, np.nan]))  # integers that a NaN made floats
    assert factor.labels.tolist() == [2] and factor.labels.dtype == np.int64
