"""Responses that a likelihood can't have, or that were meant otherwise."""

import numpy as np
import pandas as pd

from .case import Case
from .data import N, build, changed, fit, means, table

RIGHT = "u + (1 | g)"
# Arithmetic as a response -> what it must mean, if it is not refused.
ARITHMETIC = {
    "y - x": lambda t: t["y"] - t["x"],
    "y + x": lambda t: t["y"] + t["x"],
    "y / u": lambda t: t["y"] / t["u"],
    "y * u": lambda t: t["y"] * t["u"],
    "(y - x)": lambda t: t["y"] - t["x"],
    "y**2": lambda t: t["y"] ** 2,
    "y ** 2": lambda t: t["y"] ** 2,
    "-y": lambda t: -t["y"],
    "y - 1": lambda t: t["y"] - 1,
    "y + 1": lambda t: t["y"] + 1,
    "0 + y": lambda t: t["y"],
    "2 * y": lambda t: 2 * t["y"],
    "log(u) - x": lambda t: np.log(t["u"]) - t["x"],
    "u - log(u)": lambda t: t["u"] - np.log(t["u"]),
    "(y + x) / u": lambda t: (t["y"] + t["x"]) / t["u"],
    "y + x + u": lambda t: t["y"] + t["x"] + t["u"],
    "{y - x}": lambda t: t["y"] - t["x"],
    "I(y - x)": lambda t: t["y"] - t["x"],
    "log(y + 9)": lambda t: np.log(t["y"] + 9),
    "{log(u)}": lambda t: np.log(t["u"]),
    "abs(y)": lambda t: np.abs(t["y"]),
    "sqrt(u)": lambda t: np.sqrt(t["u"]),
    "{y / u}": lambda t: t["y"] / t["u"],
    "{y**2}": lambda t: t["y"] ** 2,
}
# (Formula's left side, likelihood, replaced columns) -> texts of the error.
REFUSED = [
    ("y:x", "gaussian", {}, ["':'", "column"]),
    ("y % x", "gaussian", {}, ["'%'", "column"]),
    ("y // x", "gaussian", {}, ["'//'", "column"]),
    ("y = x", "gaussian", {}, ["'='"]),
    ("y > x", "gaussian", {}, ["y > x", "bernoulli"]),
    ("poly(y, 2)", "gaussian", {}, ["poly()", "column"]),
    ("scale(y)", "gaussian", {}, ["scale()", "column"]),
    ("bs(y, df=4)", "gaussian", {}, ["bs()", "column"]),
    ("C(yes)", "bernoulli", {}, ["C()", "column"]),
    ("k", "gaussian", {}, ["k", "text or categories"]),
    ("k", "poisson", {}, ["k", "text or categories"]),
    ("k", "student_t", {}, ["k", "text or categories"]),
    ("k", "bernoulli", {}, ["k", "3 levels"]),
    ("k + x", "gaussian", {}, ["k + x"]),
    ("log(x)", "gaussian", {}, ["log(x)", "row"]),
    ("log(count)", "gaussian", {}, ["log(count)", "row"]),
    ("y", "poisson", {}, ["y", "whole numbers"]),
    ("y", "negative_binomial", {}, ["y", "whole numbers"]),
    ("y", "bernoulli", {}, ["y", "0 or 1"]),
    ("count", "bernoulli", {}, ["count", "0 or 1"]),
    ("count", "binomial", {}, ["trials"]),
    ("count | trials(1)", "binomial", {}, ["count", "trials"]),
    ("hits | trials(x)", "binomial", {}, ['"x"', "trials"]),
    ("hits | trials(0)", "binomial", {}, ["hits", "trials"]),
    ("hits | trials(n)", "poisson", {}, ["trials", "binomial"]),
    ("hits | trials(n)", "binomial", {"n": np.full(N, 2.5)}, ['"n"', "whole"]),
    ("hits | trials(n)", "binomial", {"n": np.full(N, -1)}, ['"n"', "-1"]),
    ("p(hits, x)", "binomial", {}, ['"x"', "trials"]),
    ("y", "ordered", {}, ["y", "240", "round"]),
    ("yes", "ordered", {}, ["yes", "2 levels", "bernoulli"]),
    ("k[zz]", "bernoulli", {}, ["k[zz]", "misspelt"]),
    ("k[]", "bernoulli", {}, ["k[]"]),
    ("y[1]", "gaussian", {}, ["y[1]", "bernoulli"]),
    ("k[b]", "gaussian", {}, ["k[b]", "bernoulli"]),
    ("y", "gaussian", {"y": np.ones(N)}, ["y", "same"]),
    ("yes", "bernoulli", {"yes": np.zeros(N)}, ["yes", "same"]),
    ("count", "poisson", {"count": np.zeros(N)}, ["count", "same"]),
    ("y", "gaussian", {"y": np.full(N, np.nan)}, ['"y"', "no value"]),
    ("y", "gaussian", {"y": [f"t{i}" for i in range(N)]}, ["y", "text"]),
    ("y", "gaussian", {"y": np.arange(N) * 1j}, ['"y"', "numbers"]),
    ("y", "gaussian", {"y": np.arange(N).astype("M8[D]")}, ['"y"', "convert"]),
    ("y", "gaussian", {"y": np.arange(N).astype("m8[s]")}, ['"y"', "convert"]),
    ("y", "gaussian", {"y": np.ones((N, 2))}, ['"y"', "shape"]),
    ("y", "gaussian", {"y": [[1.0], [2.0, 3.0]] * (N // 2)}, ['"y"']),
    ("y", "gaussian", {"y": [None] * N}, ['"y"', "no value"]),
    ("y", "gaussian", {"y": [object()] * N}, ['"y"', "numbers"]),
    ("y", "gaussian", {"y": 1e20 * np.arange(N)}, ["y", "e+2", "scale"]),
    ("y", "gaussian", {"y": 1e30 * np.arange(N)}, ["y", "scale"]),
    ("y", "gaussian", {"y": 1e200 * np.arange(N)}, ["y", "scale"]),
    ("y", "gaussian", {"y": 1e-300 * np.arange(N)}, ["y", "scale"]),
    ("y", "gaussian", {"y": 1e-30 * np.arange(N)}, ["y", "scale"]),
    ("y", "student_t", {"y": 1e-300 * np.arange(N)}, ["y", "scale"]),
    ("count", "poisson", {"count": np.arange(N) * 10**9}, ["count", "2,147,483,647"]),
    ("count", "poisson", {"count": np.arange(N) * 1e18}, ["count", "2,147,483,647"]),
    ("y", "gamma", {}, ["y", "above zero"]),
    ("y", "lognormal", {}, ["y", "above zero"]),
    ("count", "weibull", {}, ["count", "is 0 in", "above zero"]),
    ("y", "beta", {}, ["y", "between 0 and 1"]),
    ("yes", "beta", {}, ["yes", "between 0 and 1"]),
    ("y", "zero_inflated_poisson", {}, ["y", "whole numbers"]),
    ("y", "hurdle_negative_binomial", {}, ["y", "whole numbers"]),
    ("count", "beta_binomial", {}, ["trials"]),
    ("k", "exponential", {}, ["k", "text or categories"]),
    ("w | cens(yes)", "gamma", {}, ["cens(yes)", "'weibull'", "'gamma'"]),
    ("w | cens(x)", "weibull", {}, ['"x"', "censoring", "1 (or true)"]),
    ("w | cens(k)", "weibull", {}, ['"k"', "censoring", "text"]),
    ("w | cens(yes)", "weibull", {"yes": np.ones(N)}, ['"yes"', "all responses are censored"]),
    ("w | cens()", "weibull", {}, ["cens(column)"]),
    ("w | cens(nowhere)", "weibull", {}, ["nowhere"]),
    ("k, y", "gaussian", {}, ["','", "column"]),
    ("cbind(hits, n)", "binomial", {}, ["cbind"]),
    ("y | weights(w)", "gaussian", {"w": np.zeros(N)}, ['"w"', "weights", "zero"]),
    ("y | weights(w)", "gaussian", {"w": -np.ones(N)}, ['"w"', "weights", "-1"]),
    ("y | weights(w)", "gaussian", {"w": np.full(N, np.nan)}, ['"w"', "no value"]),
    ("y | weights(w)", "gaussian", {"w": np.full(N, np.inf)}, ['"w"', "infinite"]),
    ("y | weights(w)", "gaussian", {"w": np.full(N, "a")}, ['"w"', "weights"]),
    ("hits | trials(n)", "binomial", {"n": np.zeros(N), "hits": np.zeros(N)}, ["hits", "same"]),
]  # fmt: skip
BOOLEANS = {
    "booleans": np.arange(N) % 3 > 0,
    "two texts": np.where(np.arange(N) % 3 > 0, "yes", "no"),
    "two categories": pd.Categorical(np.where(np.arange(N) % 3 > 0, "yes", "no")),
    "Python booleans": [bool(i % 3) for i in range(N)],
    "pandas' booleans": pd.array(np.arange(N) % 3 > 0, "boolean"),
}


def equal(out, expected):
    model, groups = out
    found = groups.rows["y"] + model.formula.origin
    np.testing.assert_allclose(found, np.asarray(expected, float)[groups.row_order], rtol=1e-5)


def cases():
    for left, meant in ARITHMETIC.items():
        right = lambda out, meant=meant: equal(out, meant(table()))
        yield Case(f"{left} ~", lambda left=left: build(f"{left} ~ (1 | g)"), [f"{{{left.strip('{}')}}}"], right)  # fmt: skip
    for left, likelihood, columns, says in REFUSED:
        run = lambda left=left, likelihood=likelihood, columns=columns: fit(
            f"{left} ~ {RIGHT}", table(**columns), likelihood=likelihood
        )
        what = ", ".join(f"{n} {c[1]!r:.20}" for n, c in columns.items())
        yield Case(f"{left} ~, {likelihood} {what}", run, says)
    for name, column in BOOLEANS.items():
        run = lambda column=column: build(f"y ~ {RIGHT}", table(y=column))
        yield Case(f"{name} without likelihood=", run, ["y", "bernoulli"])
        run = lambda column=column: build(f"y ~ {RIGHT}", table(y=column), likelihood="bernoulli")
        yield Case(f"{name}, bernoulli", run, right=lambda out: equal(out, np.arange(N) % 3 > 0))
        run = lambda column=column: build(f"y ~ {RIGHT}", table(y=column), likelihood="poisson")
        yield Case(f"{name}, poisson", run, ["y", "bernoulli"])
    for value in (np.nan, np.inf, -np.inf):
        says = ['"y"', "row 3"]
        yield Case(f"y is {value} once", lambda v=value: build(data=changed("y", 3, v)), says)
    for scale in (1e-17, 1e-6, 1e6, 1e12, 1e17):
        run = lambda scale=scale: fit(data=table(y=scale * table()["y"]))
        close = lambda out, scale=scale: abs(means(out)["x"] / scale - 0.8) < 0.2
        yield Case(f"y times {scale:g}", run, right=close)
    far = lambda out: abs(means(out)["Intercept"] - 1e6 - 2.5) < 1.5
    yield Case("y far from zero", lambda: fit(data=table(y=1e6 + table()["y"])), right=far)
    for likelihood in ("normal", "Gaussian", "binom", "", None, 3):
        run = lambda name=likelihood: build(likelihood=name)
        yield Case(f"likelihood={likelihood!r}", run, ["likelihood", "gaussian", "from_numpyro"])
    for link in ("logit", "sqrt", "", 3):
        run = lambda link=link: build(link=link)
        yield Case(f"link={link!r}", run, ["link", "identity"])
