"""Simulated problems by formula. All but `shops` were chosen after the thresholds were fixed."""

import numpy as np

from benchmarks.right import glmm
from benchmarks.right.issue import bernoulli, intercepts, slopes
from benchmarks.right.problem import Problem, Table


def _rows(seed: int, N: int, low: int, high: int) -> tuple[np.random.Generator, np.ndarray]:
    """A generator, and the groups of rows: `low` to `high` of each."""
    rng = np.random.default_rng(seed)
    return rng, np.repeat(np.arange(N), rng.integers(low, high + 1, N))


def _by_group(
    formula: str, likelihood: str, table: Table, common: tuple[str, ...], **more: object
) -> Problem:
    """A model whose groups differ in their intercepts."""
    one = {"Intercept": np.ones(len(table["y"]))}
    columns = {name: table[name] for name in common}
    made = glmm.Formula(formula, likelihood, table, "g", "y", columns, one)
    return glmm.problem(made._replace(**more))


def shops() -> Problem:
    """README's example: 200 shops, counts, correlated slopes. Chosen before."""
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(200), rng.integers(5, 41, 200))
    discount = rng.uniform(0, 1, shop.size)
    own = rng.normal([1.0, 0.8], [0.6, 0.3], (200, 2))[shop]
    sold = rng.poisson(np.exp(own[:, 0] + own[:, 1] * discount))
    table = {"shop": shop, "discount": discount, "sold": sold}
    formula = "sold ~ 1 + discount + (1 + discount | shop)"
    common = {"discount": discount}
    varying = {"Intercept": np.ones(shop.size)} | common
    fixed = (formula, "poisson", table, "shop", "sold", common, varying)
    return glmm.problem(glmm.Formula(*fixed, centred=True))


def few_counts() -> Problem:
    """500 groups of one or two counts near one."""
    rng, g = _rows(21, 500, 1, 2)
    x = rng.normal(size=g.size).round(3)
    y = rng.poisson(np.exp(-0.2 + 0.4 * x + 0.8 * rng.normal(size=500)[g]))
    return _by_group("y ~ x + (1 | g)", "poisson", {"g": g, "x": x, "y": y}, ("x",))


def exposure() -> Problem:
    """Counts with an offset and a column of the groups: 150 groups of 1 to 12 rows."""
    rng, g = _rows(22, 150, 1, 12)
    area = rng.uniform(0.5, 2, 150).round(3)[g]
    log_time = rng.normal(0, 0.7, g.size).round(3)
    y = rng.poisson(np.exp(0.2 + 0.5 * area + log_time + 0.5 * rng.normal(size=150)[g]))
    table = {"g": g, "area": area, "log_time": log_time, "y": y}
    formula = "y ~ area + offset(log_time) + (1 | g)"
    return _by_group(formula, "poisson", table, ("area",), offset="log_time")


def negative_binomial() -> Problem:
    """150 groups of 4 to 12 counts, three correlated effects each (M = 3)."""
    rng, g = _rows(23, 150, 4, 12)
    x, w = rng.normal(size=(2, g.size)).round(3)
    own = rng.normal([1.0, 0.4, -0.3], [0.6, 0.3, 0.4], (150, 3))[g]
    mean = np.exp(own[:, 0] + own[:, 1] * x + own[:, 2] * w)
    y = rng.poisson(mean * rng.gamma(2.0, 0.5, g.size))
    table, common = {"g": g, "x": x, "w": w, "y": y}, {"x": x, "w": w}
    varying = {"Intercept": np.ones(g.size)} | common
    formula = "y ~ x + w + (1 + x + w | g)"
    fixed = (formula, "negative_binomial", table, "g", "y", common, varying)
    return glmm.problem(glmm.Formula(*fixed))


def student_t() -> Problem:
    """80 groups of 3 to 9 rows with outliers."""
    rng, g = _rows(24, 80, 3, 9)
    x = rng.normal(size=g.size).round(3)
    y = 5 + 0.8 * x + 0.7 * rng.normal(size=80)[g] + 0.6 * rng.standard_t(3, g.size)
    table = {"g": g, "x": x, "y": y.round(4)}
    return _by_group("y ~ x + (1 | g)", "student_t", table, ("x",))


def ordered() -> Problem:
    """120 groups of 3 to 10 answers on four levels."""
    rng, g = _rows(25, 120, 3, 10)
    x = rng.normal(size=g.size)
    x = (x - x.mean()).round(3)
    latent = 0.9 * x + 1.2 * rng.normal(size=120)[g] + rng.logistic(size=g.size)
    y = np.digitize(latent, [-1.0, 0.5, 2.0])
    return _by_group("y ~ x + (1 | g)", "ordered", {"g": g, "x": x, "y": y}, ("x",))


def binomial() -> Problem:
    """100 groups of 1 to 4 rows of 1 to 12 trials, independent slopes."""
    rng, g = _rows(26, 100, 1, 4)
    x, n = rng.normal(size=g.size).round(3), rng.integers(1, 13, g.size)
    own = rng.normal([-0.5, 0.6], [0.8, 0.4], (100, 2))[g]
    y = rng.binomial(n, 1 / (1 + np.exp(-own[:, 0] - own[:, 1] * x)))
    table = {"g": g, "x": x, "n": n, "y": y}
    return slopes(table, "binomial", independent=True, trials="n")


def probit() -> Problem:
    """400 groups of 2 to 5 Bernoulli rows with a probit link."""
    rng, g = _rows(27, 400, 2, 5)
    y = (0.4 + 1.3 * rng.normal(size=400)[g] + rng.normal(size=g.size) > 0).astype(int)
    return intercepts({"g": g, "y": y}, link="probit")


def ten_groups() -> Problem:
    """10 groups of 4 to 9 Gaussian rows, an intercept each."""
    rng, g = _rows(28, 10, 4, 9)
    x = rng.normal(size=g.size).round(3)
    y = 20 + 1.5 * x + 2.0 * rng.normal(size=10)[g] + 3.0 * rng.normal(size=g.size)
    return _by_group("y ~ x + (1 | g)", "gaussian", {"g": g, "x": x, "y": y.round(4)}, ("x",))


def four_effects() -> Problem:
    """60 groups of 5 to 15 Gaussian rows, four correlated effects each (M = 4)."""
    rng, g = _rows(29, 60, 5, 15)
    x = rng.normal(size=(3, g.size)).round(3)
    root = np.array([[0.9, 0, 0, 0], [0.3, 0.5, 0, 0], [-0.2, 0.1, 0.4, 0], [0, 0.2, 0, 0.1]])
    own = (np.array([3.0, 1.0, -0.5, 0.2]) + rng.normal(size=(60, 4)) @ root.T)[g]
    y = own[:, 0] + np.sum(own[:, 1:] * x.T, -1) + rng.normal(size=g.size)
    common = {"x": x[0], "w": x[1], "v": x[2]}
    table = {"g": g} | common | {"y": y.round(4)}
    varying = {"Intercept": np.ones(g.size)} | common
    formula = "y ~ x + w + v + (1 + x + w + v | g)"
    return glmm.problem(glmm.Formula(formula, "gaussian", table, "g", "y", common, varying))


def logistic() -> Problem:
    """1,000 groups of 5 to 60 Bernoulli rows, five correlated effects each (M = 5)."""
    rng, g = _rows(30, 1000, 5, 60)
    x = rng.normal(size=(4, g.size)).round(3)
    root = np.tril(rng.normal(0, 0.3, (5, 5)), -1) + np.diag(rng.uniform(0.3, 0.9, 5))
    own = (rng.normal(0, 0.7, 5) + rng.normal(size=(1000, 5)) @ root.T)[g]
    common = {f"x{k + 1}": x[k] for k in range(4)}
    table = {"g": g} | common | {"y": bernoulli(rng, own[:, 0] + np.sum(own[:, 1:] * x.T, -1))}
    varying = {"Intercept": np.ones(g.size)} | common
    right = " + ".join(common)
    formula = f"y ~ {right} + (1 + {right} | g)"
    fixed = (formula, "bernoulli", table, "g", "y", common, varying)
    return glmm.problem(glmm.Formula(*fixed, centred=True, chains=16))


def skewed_rows() -> Problem:
    """40 groups, one of them with half of all Bernoulli rows and most with two."""
    rng = np.random.default_rng(31)
    g = np.repeat(np.arange(40), [200, *[2] * 30, *[15] * 9])
    x = rng.normal(size=g.size).round(3)
    own = rng.normal([-1.0, 0.5], [1.0, 0.7], (40, 2))[g]
    y = bernoulli(rng, own[:, 0] + own[:, 1] * x)
    return slopes({"g": g, "x": x, "y": y}, "bernoulli")
