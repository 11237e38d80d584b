"""`fit` with a formula and a table: the same as `from_formula` and `fit`, and what it refuses."""

import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.fitting.fit import model_and_groups

FORMULA = "y ~ x + (1 | user)"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(12), 6)
    x = rng.normal(size=user.size)
    y = rng.normal(size=12)[user] + 0.5 * x + rng.normal(size=user.size)
    return {"user": user, "x": x, "y": y}


def test_a_formula_and_a_table_are_fitted(table):
    priors = {"x": dist.Normal(0, 0.1)}
    short = rf.fit(FORMULA, table, priors=priors, theta="gaussian")
    model, groups = rf.from_formula(FORMULA, table, priors=priors)
    long = rf.fit(model, groups, theta="gaussian")
    assert repr(short.summary()) == repr(long.summary())
    assert "Normal(0, 0.1)" in repr(short.model.priors)


def test_options_of_a_formula_need_one(table):
    model, groups = rf.from_formula(FORMULA, table)
    for option in (
        {"likelihood": "gaussian"},
        {"link": "log"},
        {"priors": {}},
        {"missing": "drop"},
        {"store": "folder"},
    ):
        with pytest.raises(TypeError, match=f"{next(iter(option))}= goes with a formula"):
            rf.fit(model, groups, **option)
    with pytest.raises(TypeError, match=r"expected rf.fit\(formula, table\)"):
        model_and_groups(table, FORMULA, None, {})
    with pytest.raises(TypeError, match=r"rf\.Groups in memory; expected a table"):
        rf.fit(FORMULA, groups)
    with pytest.raises(TypeError, match=r"expected rf.fit\(model, groups\) with rf.Groups"):
        rf.fit(model, table)
