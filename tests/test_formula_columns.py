"""Columns that a formula refuses by their name, and those that it need not warn of."""

import numpy as np
import pytest

from ramify import from_formula
from test_formula_input import N, fails, table


@pytest.mark.parametrize("name", ["intercept", "cutpoints", "effects", "sigma"])
def test_predictors_named_as_parameters_inside(name):
    """The effect of a column "cutpoints" was off by the shift of centring, without a word."""
    says = f'predictor "{name}" has the name of a parameter: rename the column'
    fails(ValueError, says, f"y ~ {name} + (1 | user)", table(**{name: table()["x"]}))


def test_a_constant_column_separates_nothing(recwarn):
    data = table(one=np.ones(N))
    from_formula("yes ~ 0 + one + (0 + one | user)", data, likelihood="bernoulli")
    assert not [w for w in recwarn if "separates" in str(w.message)]
