"""The tables that cases damage: one small data set, and models and fits of it that cases share."""

from functools import cache
from typing import Any

import numpy as np

import ramify as rf

FORMULA = "y ~ x + (1 | g)"
GROUPS, EACH = 12, 20
N = GROUPS * EACH


@cache
def _columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(GROUPS), EACH)
    x, n = rng.normal(size=N), rng.integers(3, 9, N)
    own = rng.normal(size=GROUPS)[g]
    eta = 0.5 + 0.8 * x + own
    p = 1 / (1 + np.exp(-eta))
    return {
        "g": np.asarray([f"g{i:02d}" for i in g]),
        "x": x,
        "u": rng.uniform(1, 2, N),
        "k": np.tile(["a", "b", "c", "b"], N // 4),
        "y": 2.0 + eta + 0.5 * rng.normal(size=N),
        "count": rng.poisson(np.exp(0.5 * eta)),
        "yes": (rng.random(N) < p).astype(int),
        "n": n,
        "hits": rng.binomial(n, p),
        "level": np.clip(np.round(eta + rng.logistic(size=N)), -2, 2).astype(int) + 2,
        "w": rng.uniform(0.5, 1.5, N),
    }


def table(**columns: Any) -> dict[str, Any]:
    """The data set as a dict of arrays, 240 rows of 12 groups, with some columns replaced."""
    return {**_columns(), **columns}


def changed(name: str, rows: Any, value: Any, dtype: Any = None) -> dict[str, Any]:
    """The data set with some values of a column replaced."""
    column = table()[name].astype(dtype or table()[name].dtype)
    column[rows] = value
    return table(**{name: column})


def build(formula: str = FORMULA, data: Any = None, **options: Any) -> Any:
    """A model and its groups."""
    return rf.from_formula(formula, table() if data is None else data, **options)


def fit(formula: str = FORMULA, data: Any = None, **options: Any) -> Any:
    """A posterior."""
    return rf.fit(*build(formula, data, **options), progress=False)


@cache
def fitted(likelihood: str = "gaussian", formula: str = FORMULA) -> Any:
    """The posterior of the data set, fitted once."""
    return fit(formula, likelihood=likelihood)


def means(posterior: Any) -> dict[str, float]:
    """The mean of each global parameter."""
    found = posterior.summary()
    return dict(zip(found.names, np.asarray(found.columns["mean"]).tolist()))


def same_design(model_and_groups: Any, data: Any = None, formula: str = FORMULA) -> bool:
    """Whether rows, outcomes and groups are those of the undamaged table."""
    expected, found = build(formula, data)[1], model_and_groups[1]
    assert len(found) == len(expected) and np.array_equal(found.sizes, expected.sizes)
    for name, column in expected.rows.items():
        np.testing.assert_allclose(found.rows[name], column, rtol=1e-4, atol=1e-5)
    return True
