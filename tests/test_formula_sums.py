"""Sums and products of terms mean what they mean in R, or say why not."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import ramify as rf
from ramify.frontends.formula.design import described


def names(part):
    return [getattr(term, "name", "0") for term in described(part, part).common_terms]


@pytest.mark.parametrize(
    "written, meant",
    [
        ("(1 + x)*kind", "1 + x + kind + x:kind"),
        ("(x + z)*(1 + kind)", "x + z + kind + x:kind + z:kind"),
        ("(0 + x)*kind", "0 + x + kind + x:kind"),
        ("(x - 1)*kind", "0 + x + kind + x:kind"),
        ("kind/(1 + x)", "kind + kind:x"),
        ("(1 + x)**2", "x"),
        ("(x + z + 1)**2", "x + z + x:z"),
        ("(x + z + w)**3 - x:w:z", "x + z + w + x:z + x:w + z:w"),
        ("(x*kind)**2", "x*kind"),
        ("x:kind + kind:x", "x:kind"),
        ("x*kind - kind:x", "x + kind"),
        ("(x + z)/(kind*size)", "x + z + x:z:kind + x:z:size + x:z:kind:size"),
        ("a*b*c", "a + b + a:b + c + a:c + b:c + a:b:c"),
        ("x + (0 + z)", "x + z - 1"),
        ("x - 1 + 1", "x"),
        ("x - (1 + z)", "0 + x"),
        ("x + -1 - z", "0 + x"),
        ("0 + 1", "1"),
        ("scale(x) + scale(x) + scale(z)", "scale(x) + scale(z)"),
    ],
)
def test_sums_and_products_are_those_of_r(written, meant):
    assert names(written) == names(meant)


@pytest.mark.parametrize(
    "part, says",
    [
        ("1:x", "1 and 0 stand for the intercept, which has no product 1 : x: write x alone"),
        ("(x + z)*1", r"no product \(x \+ z\) \* 1: write \(x \+ z\) alone"),
        ("0/x", "no product 0 / x"),
        (
            "(1 + x):kind",
            r"\(1 \+ x\):kind has the intercept in a product.*1 \+ x:kind or kind \+ x:kind",
        ),
        ("kind*2", r"2 is neither a column nor 0 or 1; arithmetic goes into I\(\)"),
        ("x > 0", r"'>' has no meaning between terms: write it in I\(\), as I\(x > 0\)"),
        ("-x", "-x takes a term away that is not there"),
        ("(x)**2", r"write \{x \*\* 2\}"),
        ("kind['b']", r"kind\[b\] is for a response; for a predictor write I\(kind == 'b'\)"),
        ("scale(x[b])", r"x\[b\] is for a response"),
        ("offset(x)*kind", r"offset\(x\):kind has an offset in a product: add offsets"),
        ("C(kind, Sum)", r"Sum in C\(\) is no column: contrasts are written Sum\(\)"),
        ("T(kind, b)", r"b in T\(\) is no column.*levels as text, T\(kind, 'a'\)"),
        ("factor(kind)", r"unknown function 'factor': write C\(\), as C\(kind\)"),
    ],
)
def test_what_has_no_meaning_is_said_in_the_users_words(part, says):
    with pytest.raises(ValueError, match=says):
        described(part, f"y ~ {part} + (1 | g)")
    with pytest.raises(ValueError, match=says):  # and where effects vary by group
        rf.from_formula(
            f"y ~ x + (0 + {part} | g)", {"g": [0, 0, 1, 1], "x": [0, 1, 2, 3], "y": [0, 1, 3, 2]}
        )


def test_an_indicator_of_a_level_is_a_predictor():
    """A level in brackets was ignored: kind['b'] was all of kind."""
    table = pd.DataFrame(
        {"g": np.arange(30) % 5, "kind": list("abc") * 10, "y": np.arange(30.0) % 7}
    )
    model, groups = rf.from_formula("y ~ I(kind == 'b') + (1 | g)", table)
    assert model.formula.common.names == ["Intercept", "I(kind == 'b')"]
    matrix = model.formula.common.matrix(table)
    np.testing.assert_array_equal(matrix[:, 1], (table.kind == "b").astype(float))


def test_a_thousand_terms_are_read():
    assert len(names(" + ".join(f"x{i}" for i in range(1000)))) == 1001


BOOLEANS = {
    "x:flag": "flag:x has no effect where it is false",
    "0 + flag": r"0 \+ flag has no effect where",
    "kind:flag + flag": "flag:kind has no effect",
    "x*flag": None,
    "flag + x + flag:kind + kind": None,
    "x:C(flag)": None,
    "kind/flag": None,
    "I(flag)": None,
}


@pytest.mark.parametrize("effects, says", BOOLEANS.items(), ids=BOOLEANS)
def test_a_boolean_without_its_margin_warns(effects, says):
    """R codes both values of a logical there; here it is a number, and its false rows had no slope."""
    n = np.arange(40)
    table = pd.DataFrame(
        {"g": n % 5, "x": np.sin(n), "flag": n % 3 == 0, "kind": n % 4 > 1, "y": n % 7}
    )
    table["kind"] = np.where(table.kind, "a", "b")
    for formula in (f"y ~ {effects} + (1 | g)", f"y ~ 1 + ({effects} | g)"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rf.from_formula(formula, table)
        said = [str(warning.message) for warning in said]
        assert len(said) == (says is not None), said
        assert says is None or re.search(f'"flag" is boolean.*{says}', said[0])


DEPENDENT = {
    "x + z": '"x", "z" are combinations of each other \\(and a constant\\)',
    "x + I(2 * x - 1) + year": '"x", "I\\(2 \\* x - 1\\)" are',
    "kind + other": '"kind\\[b\\]", "other\\[v\\]"',
    "0 + x + z": None,  # z = 2 x + 1 is no multiple of x
    "x + year + stamp + kind": None,
    "poly(x, 3) + bs(year, df=5)": None,
}


@pytest.mark.parametrize("effects, says", DEPENDENT.items(), ids=DEPENDENT)
def test_columns_that_are_combinations_of_each_other_warn(effects, says):
    """lme4 drops one of them; here each had a wide posterior, and nobody was told why."""
    n = np.arange(90)
    table = pd.DataFrame(
        {"g": n % 5, "x": np.sin(n), "year": 2000 + n % 7, "stamp": 1.6e9 + n**2 % 97}
    )
    table = table.assign(z=2 * table.x + 1, y=np.cos(3 * n), kind=np.where(n % 3, "a", "b"))
    table["other"] = np.where(table.kind == "a", "u", "v")
    for formula in (f"y ~ {effects} + (1 | g)", f"y ~ {effects} + (1 | g) + (1 | kind:year)"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rf.from_formula(formula, table)
        said = [str(warning.message) for warning in said]
        assert len(said) == (says is not None), said
        assert says is None or re.search(f"columns {says}", said[0]), said
