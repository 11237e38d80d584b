"""Tables and models with several grouping factors, for tests."""

import numpy as np

import ramify as rf
from ramify.fitting.levels import sizes_of, start
from ramify.frontends.densities.adapter import prepared
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.levels.shape import Pool
from ramify.posterior.levels import LevelsPosterior


def table(n=160, seed=0):
    """Rows of three crossed factors, and of classes in schools of different sizes."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers(0, 20, n), rng.integers(0, 7, n), rng.integers(0, 4, n)
    school = np.sort(rng.integers(0, 6, n))
    klass = rng.integers(0, 2 + school % 3)
    x, w = rng.normal(size=n), rng.normal(size=n)
    y = 3 + 0.5 * x + rng.normal(size=20)[a] + rng.normal(size=7)[b] * (1 + 0.3 * x)
    y = (
        y
        + 0.4 * rng.normal(size=4)[c]
        + 0.7 * rng.normal(size=(6, 5))[school, klass]
        + rng.normal(size=n)
    )
    columns = {"a": a, "b": b, "c": c, "school": school, "klass": klass, "x": x, "w": w, "y": y}
    return {**columns, "yes": (y > 3).astype(float), "count": np.round(np.exp(0.3 * y)).clip(0, 20)}


def problem(text, likelihood="gaussian", n=160, rows=None):
    model, groups = rf.from_formula(text, rows or table(n), likelihood=likelihood)
    return model, FormulaLevelsAdapter(model).design(groups)


def apart(model, seed=1):
    """A theta away from the start, with correlations."""
    theta = start(model)
    return theta + 0.4 * np.random.default_rng(seed).normal(size=len(theta))


def pretended(model, groups, draws=60):
    """A posterior with some draws, for tests of what is made of them."""
    adapter, rng = FormulaLevelsAdapter(model), np.random.default_rng(0)
    sizes = sizes_of(model, adapter.design(groups))
    noise = {name: 0.3 * rng.normal(size=(draws, size)) for name, size in sizes.items()}
    pool = Pool(**{**noise, "theta": start(model) + 0.3 * noise["theta"]})
    notes = {"method": "levels", "kept": 1, "algebra": "dense", "laplace_sds": 0.0}
    return LevelsPosterior(model, adapter, groups, pool, notes)


def pretended_densities(several, groups, draws=60):
    """The same of a model of log densities."""
    model, adapter = prepared(several, groups)
    rng = np.random.default_rng(0)
    sizes = sizes_of(model, adapter.design(groups))
    noise = {name: 0.3 * rng.normal(size=(draws, size)) for name, size in sizes.items()}
    notes = {"method": "levels", "kept": 1, "algebra": "dense", "laplace_sds": 0.0}
    return LevelsPosterior(model, adapter, groups, Pool(**noise), notes)
