"""The problems that were wrong in the first release. Chosen before the thresholds were fixed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm

import ramify as rf
from benchmarks.right import glmm
from benchmarks.right.problem import (
    Data,
    Problem,
    Sample,
    Table,
    Target,
    by_normal,
    entries,
    on_grid,
    shown,
    sums,
)


def bernoulli(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    """Zeros and ones of given log odds."""
    return (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(int)


def intercepts(table: Table, **more: object) -> Problem:
    """Bernoulli rows whose groups differ in their intercepts, and nothing else."""
    one = {"Intercept": np.ones(len(table["y"]))}
    fixed = ("y ~ 1 + (1 | g)", "bernoulli", table, "g", "y", {}, one)
    return glmm.problem(glmm.Formula(*fixed)._replace(**more))


def slopes(table: Table, likelihood: str, independent: bool = False, **more: object) -> Problem:
    """An intercept and a slope that vary by group."""
    one, bar = np.ones(len(table["y"])), "||" if independent else "|"
    own = (f"y ~ 1 + x + (1 + x {bar} g)", likelihood, table, "g", "y", {"x": table["x"]})
    made = glmm.Formula(*own, {"Intercept": one, "x": table["x"]}, independent=independent)
    return glmm.problem(made._replace(**more))


def many_slopes() -> Problem:
    """3,000 groups of 10 Bernoulli rows: an intercept and 20 slopes each, independent (M = 21)."""
    rng = np.random.default_rng(1)
    N, n, P = 3000, 10, 20
    g = np.repeat(np.arange(N), n)
    x = rng.normal(size=(N * n, P)).round(3)
    common, sd = rng.normal(0, 0.5, P + 1), rng.uniform(0.2, 1.0, P + 1)
    own = (common + sd * rng.normal(size=(N, P + 1)))[g]
    table = {"g": g} | {f"x{k + 1}": x[:, k] for k in range(P)}
    table["y"] = bernoulli(rng, own[:, 0] + np.sum(own[:, 1:] * x, -1))
    columns = {f"x{k + 1}": x[:, k] for k in range(P)}
    right = " + ".join(columns)
    one = {"Intercept": np.ones(N * n)}
    fixed = (f"y ~ 1 + {right} + (1 + {right} || g)", "bernoulli", table, "g", "y", columns)
    return glmm.problem(glmm.Formula(*fixed, one | columns, independent=True, chains=16))


def mothers() -> Problem:
    """A look-alike of 2,159 children of 1,595 mothers, immunised or not: most mothers have one."""
    rng = np.random.default_rng(2)
    size = np.concatenate([np.full(1595 - 564, 1), np.full(564, 2)])
    g = np.repeat(np.arange(1595), rng.permutation(size))
    return intercepts({"g": g, "y": bernoulli(rng, -0.3 + 2.5 * rng.normal(size=1595)[g])})


def pairs() -> Problem:
    """2,000 groups of two Bernoulli rows, sd 3."""
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(2000), 2)
    return intercepts({"g": g, "y": bernoulli(rng, 0.5 + 3 * rng.normal(size=2000)[g])})


def single_rows() -> Problem:
    """300 groups of one Bernoulli row: the data say nothing of the sd."""
    rng = np.random.default_rng(4)
    return intercepts({"g": np.arange(300), "y": bernoulli(rng, 0.8 + rng.normal(size=300))})


def all_or_none() -> Problem:
    """60 groups of 4 to 8 Bernoulli rows, each all 0 or all 1."""
    rng = np.random.default_rng(5)
    g = np.repeat(np.arange(60), rng.integers(4, 9, 60))
    return intercepts({"g": g, "y": (rng.random(60) < 0.6).astype(int)[g]})


def _lines(seed: int, N: int, n: int, sd: tuple[float, float], sigma: float) -> Table:
    """Gaussian rows around a line for each group."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(N), n)
    x = rng.normal(size=N * n).round(3)
    own = (np.array([2.0, 0.7]) + np.array(sd) * rng.normal(size=(N, 2)))[g]
    y = own[:, 0] + own[:, 1] * x + sigma * rng.normal(size=N * n)
    return {"g": g, "x": x, "y": y.round(4)}


def three_groups() -> Problem:
    """3 groups of 20 Gaussian rows, slopes."""
    return slopes(_lines(6, 3, 20, (1.0, 0.5), 1.0), "gaussian")


def five_large_groups() -> Problem:
    """5 groups of 4,000 Gaussian rows, slopes."""
    return slopes(_lines(7, 5, 4000, (0.8, 0.4), 1.5), "gaussian")


def no_slopes() -> Problem:
    """3,000 groups of 5 Gaussian rows whose slopes do not vary: an sd of zero."""
    return slopes(_lines(8, 3000, 5, (0.7, 0.0), 1.0), "gaussian", independent=True)


# Schools above classes: a global vector with an sd of its own


def _classes() -> Table:
    """60 classes of 12 schools with 6 to 14 pupils each."""
    rng = np.random.default_rng(9)
    size = rng.integers(6, 15, 60)
    g, school = np.repeat(np.arange(60), size), np.arange(60) // 5
    level = 0.25 * rng.normal(size=12)[school] + 0.5 * rng.normal(size=60)
    y = 1.0 + level[g] + rng.normal(size=g.size)
    return {"g": g, "school": school[g], "y": y.round(4)}


def schools_centred_model(school, y=None, *, g, n_g):
    """Centred: the vector is drawn around its mean."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    school_sd = numpyro.sample("school_sd", dist.HalfNormal(1))
    class_sd = numpyro.sample("class_sd", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    level = numpyro.sample("level", dist.Normal(mu, school_sd).expand([12]).to_event(1))
    with numpyro.plate("classes", n_g):
        a = numpyro.sample("a", dist.Normal(level[school], class_sd))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], sigma), obs=y)


def schools_non_centred_model(school, y=None, *, g, n_g):
    """Non-centred: the same model by a standardised vector."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    school_sd = numpyro.sample("school_sd", dist.HalfNormal(1))
    class_sd = numpyro.sample("class_sd", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([12]).to_event(1))
    level = numpyro.deterministic("level", mu + school_sd * raw)
    with numpyro.plate("classes", n_g):
        a = numpyro.sample("a", dist.Normal(level[school], class_sd))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], sigma), obs=y)


def _schools(model, vector: str) -> Problem:
    table = _classes()

    def fit():
        groups = rf.Groups.from_table(table, by="g", rows=["y"], group=["school"])
        return rf.from_numpyro(model, groups), groups

    return Problem(table, "g", fit, lambda: _schools_target(table, vector))


def _schools_target(table: Table, vector: str) -> Target:
    """With the classes integrated out: their means are normal around the schools'."""
    n = np.bincount(table["g"])
    data = {
        "n": n,
        "sum": sums(table["g"], table["y"]),
        "squares": sums(table["g"], table["y"] ** 2),
    }
    return Target(_schools_marginal, data, partial(_schools_theta, vector), _schools_z)


def _schools_marginal(data: Data) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    school_sd = numpyro.sample("school_sd", dist.HalfNormal(1))
    class_sd = numpyro.sample("class_sd", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([12]).to_event(1))
    level = (mu + school_sd * raw)[np.arange(60) // 5]
    numpyro.factor("y", _class_evidence(data, level, class_sd, sigma).sum())


def _class_evidence(data: Data, level, sd, sigma) -> jax.Array:
    """Log density of each group's rows, whose mean is normal around a level: p(y, a) / p(a | y)."""
    mean, scale = _class_given(data, level, sd, sigma)
    n, total, squares = data["n"], data["sum"], data["squares"]
    inside = by_normal(n, total, squares, mean, sigma) + norm.logpdf(mean, level, sd)
    return inside - norm.logpdf(0.0, 0.0, scale)


def _class_given(data: Data, level, sd, sigma) -> tuple[jax.Array, jax.Array]:
    """Mean and sd of a group's a given the globals."""
    variance = 1 / (data["n"] / sigma**2 + 1 / sd**2)
    return variance * (data["sum"] / sigma**2 + level / sd**2), jnp.sqrt(variance)


def _schools_theta(vector: str, sample: Sample, data: Data) -> dict[str, jax.Array]:
    """With the vector that the model samples: the levels, or the standardised ones."""
    own = {name: sample[name] for name in ("mu", "school_sd", "class_sd", "sigma")}
    if vector == "raw":
        return own | entries("raw", sample["raw"])
    return own | entries("level", sample["mu"] + sample["school_sd"] * sample["raw"])


def _schools_z(key: jax.Array, sample: Sample, data: Data) -> dict[str, jax.Array]:
    level = (sample["mu"] + sample["school_sd"] * sample["raw"])[np.arange(60) // 5]
    mean, sd = _class_given(data, level, sample["class_sd"], sample["sigma"])
    return {"a": shown(mean + sd * jax.random.normal(key, mean.shape))}


def schools_centred() -> Problem:
    """12 schools above 60 classes, written centred."""
    return _schools(schools_centred_model, "level")


def schools_non_centred() -> Problem:
    """The same, written non-centred."""
    return _schools(schools_non_centred_model, "raw")


# Local posteriors that are not near a Gaussian


def two_modes_model(y=None, *, g, n_g):
    """The sign of a is not seen."""
    mu = numpyro.sample("mu", dist.HalfNormal(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("groups", n_g):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] ** 2, sigma), obs=y)


TWO_MODES = np.arange(-5, 5.01, 0.02)


def _two_modes_inside(sample: Sample, data: Data) -> jax.Array:
    """Log p(y_i, a) of every group at the grid, [N, K]."""
    n, total, squares = (data[name][:, None] for name in ("n", "sum", "squares"))
    rows = by_normal(n, total, squares, TWO_MODES**2, sample["sigma"])
    return rows + norm.logpdf(TWO_MODES, sample["mu"], sample["tau"])


def _two_modes_marginal(data: Data) -> None:
    scales = ("mu", "tau", "sigma")
    sample = {name: numpyro.sample(name, dist.HalfNormal(1)) for name in scales}
    numpyro.factor("y", jax.nn.logsumexp(_two_modes_inside(sample, data), -1).sum())


def two_modes() -> Problem:
    """100 groups of 4 rows y ~ N(a^2, sigma): the posterior of each a has two modes."""
    rng = np.random.default_rng(10)
    g = np.repeat(np.arange(100), 4)
    y = (0.4 + 1.0 * rng.normal(size=100))[g] ** 2 + 0.6 * rng.normal(size=400)
    table = {"g": g, "y": y.round(4)}
    theta = lambda sample, data: {name: sample[name] for name in ("mu", "tau", "sigma")}

    def z(key, sample, data):
        return {"a": on_grid(key, shown(_two_modes_inside(sample, data)), jnp.asarray(TWO_MODES))}

    return from_numpyro(two_modes_model, table, lambda d: Target(_two_modes_marginal, d, theta, z))


def from_numpyro(model, table: Table, target) -> Problem:
    """A NumPyro model of rows `y` in groups `g`; its target gets sizes, sums and sums of squares."""

    def fit():
        groups = rf.Groups.from_table(table, by="g", rows=[n for n in table if n != "g"])
        return rf.from_numpyro(model, groups), groups

    g, y = table["g"], table["y"].astype(float)
    data = {"n": np.bincount(g), "sum": sums(g, y), "squares": sums(g, y**2)}
    return Problem(table, "g", fit, lambda: target(data))


def mixture_model(y=None, *, g, n_g):
    """Effects of two kinds of groups."""
    share = numpyro.sample("share", dist.Beta(2, 2))
    low = numpyro.sample("low", dist.Normal(0, 2))
    gap = numpyro.sample("gap", dist.HalfNormal(3))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    kinds = dist.Categorical(probs=jnp.stack([1 - share, share]))
    with numpyro.plate("groups", n_g):
        centres = dist.Normal(jnp.stack([low, low + gap]), tau)
        a = numpyro.sample("a", dist.MixtureSameFamily(kinds, centres))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], sigma), obs=y)


def _mixture_inside(sample: Sample, data: Data) -> jax.Array:
    """Log p(y_i, kind) of every group, [N, 2]."""
    own = sample["tau"], sample["sigma"]
    low = _class_evidence(data, sample["low"], *own) + jnp.log1p(-sample["share"])
    high = _class_evidence(data, sample["low"] + sample["gap"], *own) + jnp.log(sample["share"])
    return jnp.stack([low, high], -1)


def _mixture_marginal(data: Data) -> None:
    sample = {"share": numpyro.sample("share", dist.Beta(2, 2))}
    sample["low"] = numpyro.sample("low", dist.Normal(0, 2))
    for name, scale in (("gap", 3), ("tau", 1), ("sigma", 2)):
        sample[name] = numpyro.sample(name, dist.HalfNormal(scale))
    numpyro.factor("y", jax.nn.logsumexp(_mixture_inside(sample, data), -1).sum())


def mixture() -> Problem:
    """150 groups of 3 Gaussian rows whose effects have two peaks."""
    rng = np.random.default_rng(11)
    g = np.repeat(np.arange(150), 3)
    a = np.where(rng.random(150) < 0.35, 2.0, -1.0) + 0.4 * rng.normal(size=150)
    table = {"g": g, "y": (a[g] + 1.2 * rng.normal(size=450)).round(4)}
    names = ("share", "low", "gap", "tau", "sigma")
    theta = lambda sample, data: {name: sample[name] for name in names}

    def z(key, sample, data):
        of_kind, of_a = jax.random.split(key)
        high = jax.random.categorical(of_kind, _mixture_inside(sample, data), axis=-1)
        level = sample["low"] + high * sample["gap"]
        mean, sd = _class_given(data, level, sample["tau"], sample["sigma"])
        return {"a": shown(mean + sd * jax.random.normal(of_a, mean.shape))}

    return from_numpyro(mixture_model, table, lambda d: Target(_mixture_marginal, d, theta, z))


def horseshoe_model(y=None, *, g, n_g):
    """Each group has a scale of its own with a heavy tail."""
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_g):
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        a = numpyro.sample("a", dist.Normal(0.0, tau * scale))
    with numpyro.plate("rows", g.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], sigma), obs=y)


LOG_SCALES = np.arange(-12, 12.01, 0.1)


def _horseshoe_inside(sample: Sample, data: Data) -> jax.Array:
    """Log p(y_i, log scale) of every group at the grid, a integrated out, [N, K]."""
    own = {name: data[name][:, None] for name in ("n", "sum", "squares")}
    scale = jnp.exp(LOG_SCALES)
    rows = _class_evidence(own, 0.0, sample["tau"] * scale, sample["sigma"])
    return rows + dist.HalfCauchy(1.0).log_prob(scale) + LOG_SCALES


def _horseshoe_marginal(data: Data) -> None:
    sample = {"tau": numpyro.sample("tau", dist.HalfNormal(1))}
    sample["sigma"] = numpyro.sample("sigma", dist.HalfNormal(2))
    numpyro.factor("y", jax.nn.logsumexp(_horseshoe_inside(sample, data), -1).sum())


def horseshoe() -> Problem:
    """100 groups of 3 Gaussian rows, most of them near zero and some far away (M = 2)."""
    rng = np.random.default_rng(12)
    g = np.repeat(np.arange(100), 3)
    a = np.where(rng.random(100) < 0.15, rng.normal(0, 4, 100), rng.normal(0, 0.1, 100))
    table = {"g": g, "y": (a[g] + rng.normal(size=300)).round(4)}
    theta = lambda sample, data: {name: sample[name] for name in ("tau", "sigma")}

    def z(key, sample, data):
        of_scale, of_a = jax.random.split(key)
        log_scale = on_grid(of_scale, _horseshoe_inside(sample, data), jnp.asarray(LOG_SCALES))
        mean, sd = _class_given(data, 0.0, sample["tau"] * jnp.exp(log_scale), sample["sigma"])
        return {"a": shown(mean + sd * jax.random.normal(of_a, mean.shape))}

    return from_numpyro(horseshoe_model, table, lambda d: Target(_horseshoe_marginal, d, theta, z))
