"""Coefficients of groups: deviations with the population's part, however either is coded."""

import numpy as np
import pandas as pd
import pytest

import ramify as rf
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.frontends.formula.saved_coding import from_plain, to_plain
from ramify.frontends.formula.totals import population


def table(n=240, seed=0):
    rng = np.random.default_rng(seed)
    columns = {"g": np.arange(n) % 12, "x": rng.normal(50, 3, n), "k": rng.integers(1, 4, n)}
    columns |= {"kind": rng.choice(["a", "b", "c"], n), "size": rng.choice(["l", "s"], n)}
    columns |= {"age": np.arange(n) % 12 * 1.5, "h": np.arange(n) % 5}
    return pd.DataFrame({**columns, "y": rng.normal(size=n)})


# The common part, what varies, and the common columns that the varying ones don't span.
CODED = {
    "no varying intercept": ("kind", "0 + kind", []),
    "no common intercept": ("0 + kind", "1 + kind", []),
    "neither": ("0 + kind", "0 + kind", []),
    "more than varies": ("kind + x + age", "0 + kind", ["x", "age"]),
    "a slope by level": ("x + kind + x:kind", "0 + kind + kind:x", []),
    "another order": ("x:kind", "1 + kind:x", []),
    "two categories": ("kind * size", "0 + kind:size", []),
    "other contrasts": ("S(kind)", "0 + kind", []),
    "others in both": ("S(kind)", "0 + S(kind)", []),
    "scaled": ("scale(x)", "1 + x", []),
    "standardized": ("standardize(x)", "1 + x", []),
    "shifted": ("I(x - 40) + kind", "0 + kind + {x / 10}", []),
    "numbers as levels": ("k", "0 + C(k)", []),
    "levels of an expression": ("C(floor(x / 5))", "0 + C(floor(x / 5))", []),
    "curved": ("poly(x, 2) + log(x) + abs(x - 50)", "1 + x", ["poly", "log", "abs"]),
    "curves of one kind": ("bs(age, df=5) + poly(x, 2):kind", "1 + poly(x, 2):kind", ["bs"]),
    "no intercept in common": ("0 + x", "1 + x", []),
    "an intercept only": ("0 + kind", "1", ["kind"]),
    "offset": ("kind + offset(x)", "0 + kind", []),
}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("case", CODED.values(), ids=CODED)
def test_totals_give_the_predictor_of_the_columns_that_vary(case, loaded):
    common, varying, apart = case
    rows = table()
    spec = rf.from_formula(f"y ~ {common} + ({varying} | g)", rows)[0].formula
    X, W = (spec.common, spec.group) if not loaded else map(again, (spec.common, spec.group))
    draws = {name: np.array([1.0 + k, -0.5 * k]) for k, name in enumerate(X.names)}
    found = population(X, [W], draws)
    inside = [k for k, name in enumerate(X.names) if not name.startswith(tuple(apart) or "?")]
    b = np.stack([draws[X.names[k]] for k in inside], 1) if inside else np.zeros((2, 0))
    exact = X.matrix(rows)[:, inside] @ b.T
    np.testing.assert_allclose(
        W.matrix(rows) @ found.T, exact, atol=1e-8 * np.abs(exact).max(initial=1.0)
    )


def again(coding):
    return from_plain(to_plain(coding))


@pytest.mark.parametrize("factors", ["(0 + kind | g)", "(1 | g) + (0 + kind | g)"])
def test_a_factor_of_several_has_the_population_in_its_totals(factors):
    rows = table()
    adapter = FormulaLevelsAdapter(rf.from_formula(f"y ~ kind + {factors} + (1 | h)", rows)[0])
    place = [factor.name for factor in adapter.factors].index("g")
    draws = {"Intercept": np.array([10.0]), "kind[b]": np.array([1.0]), "kind[c]": np.array([2.0])}
    found = dict(
        zip(adapter.factors[place].effects, adapter.population(place, draws)[0], strict=True)
    )
    first = found.pop("Intercept", 0.0)
    assert {name: first + own for name, own in found.items()} == pytest.approx(
        {"kind[a]": 10.0, "kind[b]": 11.0, "kind[c]": 12.0}
    )


@pytest.mark.slow
def test_totals_are_the_predictor_of_each_group():
    """Each level's effect was without the common intercept: 100 less than what is predicted."""
    rows = table().assign(y=lambda t: t.y + 100)
    model, groups = rf.from_formula(
        "y ~ kind + (0 + kind | g); sigma ~ 0 + size + (size | g)", rows
    )
    posterior = rf.Posterior(model, rf.solved(model, groups), groups, local_draws=16)
    draws, S = posterior.sample(20), 20
    found = posterior.group_effects(totals=True, draws=S)
    at = pd.DataFrame({"g": range(12), "kind": "b", "size": "l"})
    np.testing.assert_allclose(
        found["kind[b]_mean"], posterior.predict(at, draws=S, kind="link")["mean"], rtol=1e-5
    )
    own = draws["effects"][:, :, 3] + draws["sigma_size[l]"][:, None]
    np.testing.assert_allclose(found["sigma_Intercept_mean"], own.mean(0), rtol=1e-4)
