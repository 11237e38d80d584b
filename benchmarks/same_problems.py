"""Ten small models with data, for `python -m benchmarks same`: every family, every way to say a model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import ramify as rf

NEW = 900  # label of a group that no fit has seen

Named = dict[str, np.ndarray]


class Problem(NamedTuple):
    """A model with its data: rows of a fit, rows to predict and how to fit it."""

    model: Any
    groups: rf.Groups
    known: Named  # rows of groups of the fit, without outcome
    new: Named  # a row of a group that the fit has not seen
    given: Named  # the rows of that group to condition it on
    fits: dict[str, dict[str, Any]]  # "method covariance": options of `rf.fit`
    kind: str = "response"  # of `predict`
    brief: bool = False  # one of the estimates is enough


def table(seed: int, N: int, most: int) -> Named:
    """Rows of N groups, 1 to `most` each; `eta` is what outcomes are drawn from."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(N), rng.integers(1, most + 1, N))
    x = rng.normal(size=g.size).round(2)
    kind = rng.choice(["a", "b", "c"], g.size)
    area = rng.uniform(0.5, 2, N).round(2)[g]
    own = rng.normal([0.3, 0.5], [0.7, 0.3], (N, 2))[g]
    eta = own[:, 0] + own[:, 1] * x + 0.4 * (kind == "b") + 0.3 * area
    return {"g": g, "x": x, "kind": kind, "area": area, "eta": eta}


def new_rows(table: Named, rows: int, without: tuple[str, ...] = ()) -> Named:
    """The first rows of a table as those of one new group."""
    kept = {name: column[:rows] for name, column in table.items() if name not in without}
    return kept | {"g": np.full(rows, NEW), "area": np.full(rows, 1.2)}


def problem(model: Any, groups: rf.Groups, table: Named, fits: Any, kind: str) -> Problem:
    """With rows to predict from the table: two groups of the fit, and a new one."""
    hidden = "y", "eta"
    known = {name: column[:3] for name, column in table.items() if name not in hidden}
    known["g"] = np.array([3, 3, 1])
    known["area"] = np.array([table["area"][table["g"] == g][0] for g in known["g"]])
    new, given = new_rows(table, 1, hidden), new_rows(table, 3, ("eta",))
    return Problem(model, groups, known, new, given, fits, kind)


def formula(text: str, likelihood: str, data: Named, fits: Any, kind: str = "response") -> Problem:
    """A model from a formula."""
    model, groups = rf.from_formula(text, data, likelihood=likelihood)
    return problem(model, groups, data, fits, kind)._replace(brief=len(fits) == 1)


def densities(
    model: rf.Model, data: Named, fits: Any, rows: list[str], group: list[str] | None = None
) -> Problem:
    """A model of three densities."""
    groups = rf.Groups.from_table(data, by="g", rows=rows, group=group or [])
    return problem(model, groups, data, fits, "response")


def conjugate() -> Problem:
    """Gaussian with known scales: exact answers are known."""
    data = table(0, 12, 6)
    data["y"] = data["eta"] + 0.5 * np.random.default_rng(10).normal(size=data["g"].size)
    outcome = lambda z, row: dist.Normal(z["b"][0] + z["b"][1] * row["x"], 0.5)
    model = rf.Model(
        theta={"mu": rf.real(2)},
        z={"b": rf.real(2)},
        log_prior=lambda t: dist.Normal(0, 2).log_prob(t["mu"]).sum(),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 0.7).log_prob(z["b"]).sum(),
        log_lik=lambda t, z, row: outcome(z, row).log_prob(row["y"]),
        simulate=lambda key, t, z, row: outcome(z, row).sample(key),
    )
    fits = {"joint dense": {}, "branch dense": {}, "amortized dense": {}, "solved": {}}
    return densities(model, data, fits, ["x", "y"])


def bernoulli() -> Problem:
    """Logistic regression whose slopes vary, with learned scales."""
    data = table(1, 40, 8)
    p = 1 / (1 + np.exp(-data["eta"]))
    data["y"] = (np.random.default_rng(11).random(p.size) < p).astype(np.int32)
    outcome = lambda z, row: dist.Bernoulli(logits=z["b"][0] + z["b"][1] * row["x"])
    model = rf.Model(
        theta={"mu": rf.real(2), "scale": rf.positive(2)},
        z={"b": rf.real(2)},
        log_prior=lambda t: (
            dist.Normal(0, 2).log_prob(t["mu"]).sum()
            + dist.HalfNormal(1).log_prob(t["scale"]).sum()
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["scale"]).log_prob(z["b"]).sum(),
        log_lik=lambda t, z, row: outcome(z, row).log_prob(row["y"]),
        simulate=lambda key, t, z, row: outcome(z, row).sample(key),
    )
    paper = {"minibatch": 10, "estimator": "total", "draws": 4}
    tight = {"local_draws": 4}
    fits = {"joint block": {}, "branch block": paper, "amortized diagonal": tight, "solved": {}}
    return densities(model, data, fits, ["x", "y"])


def group_columns() -> Problem:
    """Counts of groups with a column of their own; rows come in several blocks."""
    data = table(2, 50, 8)
    data["y"] = np.random.default_rng(12).poisson(np.exp(0.5 * data["eta"]))
    outcome = lambda t, z, row: dist.Poisson(jnp.exp(z["level"] + t["slope"] * row["x"]))
    mean = lambda t, group: t["mu"][0] + t["mu"][1] * group["area"]
    model = rf.Model(
        theta={"mu": rf.real(2), "tau": rf.positive(), "slope": rf.real()},
        z={"level": rf.real()},
        log_prior=lambda t: (
            dist.Normal(0, 1).log_prob(t["mu"]).sum()
            + dist.HalfNormal(1).log_prob(t["tau"])
            + dist.Normal(0, 1).log_prob(t["slope"])
        ),
        log_local=lambda t, z, group: dist.Normal(mean(t, group), t["tau"]).log_prob(z["level"]),
        log_lik=lambda t, z, row: outcome(t, z, row).log_prob(row["y"]),
        simulate=lambda key, t, z, row: outcome(t, z, row).sample(key),
    )
    fits = {
        "branch diagonal": {"rows": 64},
        "amortized block": {"rows": 64},
        "solved": {"rows": 64},
    }
    return densities(model, data, fits, ["x", "y"], ["area"])


def gaussian() -> Problem:
    """A formula with common effects, a category and a column of the groups among them."""
    data = table(3, 20, 6)
    data["y"] = 40 + data["eta"] + 0.6 * np.random.default_rng(13).normal(size=data["g"].size)
    return formula("y ~ x + kind + area + (1 | g)", "gaussian", data, {"solved": {}})


def poisson() -> Problem:
    """The example of the README: correlated intercepts and slopes."""
    data = table(4, 60, 8)
    data["y"] = np.random.default_rng(14).poisson(np.exp(data["eta"]))
    return formula("y ~ 1 + x + (1 + x | g)", "poisson", data, {"solved": {}, "branch dense": {}})


def negative_binomial() -> Problem:
    """Counts that vary more than Poisson's, with independent slopes and an offset."""
    data = table(5, 30, 8)
    rng = np.random.default_rng(15)
    data["y"] = rng.poisson(np.exp(1.5 * data["eta"]) * rng.gamma(2, 0.5, data["g"].size))
    return formula("y ~ x + offset(area) + (1 + x || g)", "negative_binomial", data, {"solved": {}})


def ordered() -> Problem:
    """Three levels, and the probability of each as what is predicted."""
    data = table(6, 60, 8)
    noise = np.random.default_rng(16).logistic(size=data["g"].size)
    data["y"] = np.digitize(2 * data["eta"] + noise, [0, 3])
    return formula("y ~ x + (1 | g)", "ordered", data, {"solved": {}}, "probability")


def binomial() -> Problem:
    """Successes of trials whose number differs by row."""
    data, rng = table(7, 25, 5), np.random.default_rng(17)
    data["n"] = rng.integers(1, 9, data["g"].size)
    data["y"] = rng.binomial(data["n"], 1 / (1 + np.exp(-data["eta"])))
    fits = {"solved": {"local_draws": 8}, "joint diagonal": {}}
    return formula("p(y, n) ~ x + (1 | g)", "binomial", data, fits, "mean")


def student_t() -> Problem:
    """Outcomes with outliers."""
    data = table(8, 25, 6)
    data["y"] = data["eta"] + 0.5 * np.random.default_rng(18).standard_t(3, data["g"].size)
    return formula("y ~ x + (1 | g)", "student_t", data, {"solved": {}}, "link")


def lkj(x, y=None, *, g, n_g):
    """The model of `docs/translating.md`."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2.5))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", n_g):
        r = numpyro.sample("r", dist.MultivariateNormal(0.0, scale_tril=sd[:, None] * L))
    numpyro.deterministic("correlation", (L @ L.T)[0, 1])
    with numpyro.plate("rows", x.shape[0]):
        logits = intercept + r[g, 0] + (slope + r[g, 1]) * x
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def numpyro_model() -> Problem:
    """A NumPyro model with an LKJ prior of the slopes' correlation."""
    data = table(9, 30, 10)
    p = 1 / (1 + np.exp(-data["eta"]))
    data["y"] = (np.random.default_rng(19).random(p.size) < p).astype(np.int32)
    groups = rf.Groups.from_table(data, by="g", rows=["x", "y"])
    model = rf.from_numpyro(lkj, groups)
    return problem(model, groups, data, {"solved": {}, "branch block": {}}, "response")


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "conjugate": conjugate,
    "bernoulli": bernoulli,
    "group_columns": group_columns,
    "gaussian": gaussian,
    "poisson": poisson,
    "negative_binomial": negative_binomial,
    "ordered": ordered,
    "binomial": binomial,
    "student_t": student_t,
    "numpyro": numpyro_model,
}
