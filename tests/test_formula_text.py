"""Formulas as text: the parts they are taken into, and errors that point at the place."""

import pytest

from ramify.frontends.formula.text import FormulaError, parse


@pytest.mark.parametrize(
    "text, common, group, by, independent",
    [
        ("y ~ 1 + x + (1 + x | user)", "1 + x", "1 + x", "user", False),
        ("y ~ x + (x || user)", "x", "x", "user", True),
        ("y ~ (1 | g)", "1", "1", "g", False),
        ("y~(1|g)+x*z", "x*z", "1", "g", False),
        ("y ~ a:b + (0 + a | g) - 1", "a:b - 1", "0 + a", "g", False),
        ("y ~ poly(x, 2) + bs(z, df=4) + (1 | `a b`)", "poly(x, 2) + bs(z, df=4)", "1", "a b", False),
        ("y ~ x + (1 | g) + offset(log(n))", "x + offset(log(n))", "1", "g", False),
        ("y ~ 0 + (1 | g)", "0", "1", "g", False),
    ],
)  # fmt: skip
def test_right_side(text, common, group, by, independent):
    parts = parse(text)
    assert (parts.common, parts.group, parts.by, parts.independent) == (
        common,
        group,
        by,
        independent,
    )


@pytest.mark.parametrize(
    "text, response, trials, weights",
    [
        ("y ~ (1 | g)", "y", None, None),
        ("log(y) ~ (1 | g)", "log(y)", None, None),
        ("y | trials(n) ~ (1 | g)", "y", "n", None),
        ("y | trials(10) + weights(w) ~ (1 | g)", "y", "10", "w"),
        ("y|weights(`my w`) ~ (1 | g)", "y", None, "my w"),
        ("p(y, n) ~ (1 | g)", "y", "n", None),
        ("proportion(y, 8) ~ (1 | g)", "y", "8", None),
        ("y['yes'] ~ (1 | g)", "y['yes']", None, None),
    ],
)
def test_left_side(text, response, trials, weights):
    parts = parse(text)
    assert (parts.response, parts.trials, parts.weights) == (response, trials, weights)


@pytest.mark.parametrize(
    "text, caret, says",
    [
        ("y ~ x + (1 | g", 8, "never closed"),
        ("y ~ x + 1 | g)", 13, "closes nothing"),
        ("y ~ x", 5, "no grouping term"),
        ("y ~ x + 1 | g", 10, "parentheses"),
        ("y ~ (1 | g) * (1 | h)", 11, "expected + after"),
        ("y ~ (1 | g) - (1 | h)", 14, "added with +"),
        ("y ~ x + (1 | g + h)", 15, "a term for each"),
        ("y ~ x + (1 | g:g)", 13, "named twice"),
        ("y ~ x * (1 | g)", 8, "added with +"),
        ("y ~ x + + z + (1 | g)", 8, "missing before '+'"),
        ("y ~ x z + (1 | g)", 6, "expected an operator"),
        ("y ~ x + (1 | g) +", 17, "missing after '+'"),
        ("y ~ x ~ z + (1 | g)", 6, "one ~"),
        ("y x + (1 | g)", 2, "expected an operator"),
        ("y ~ x $ z + (1 | g)", 6, "can't read '$'"),
        ("y ~ I(1e2 * x) + (1 | g)", 6, "write 100 in place of 1e2"),
        ("y ~ I(.5e-3*x) + (1 | g)", 6, "write 0.0005 in place of .5e-3"),
        (" ~ x + (1 | g)", 1, "no response"),
        ("y | censored(c) ~ (1 | g)", 2, "cens(column)"),
        ("y ~ log((1 | g))", 8, "inside another bracket"),
        ("y ~ ( | g)", 6, "missing before '|'"),
        ("y ~ x + (1 | 3)", 13, "grouping column"),
    ],
)
def test_errors_point_at_the_place(text, caret, says):
    with pytest.raises(FormulaError) as found:
        parse(text)
    first, shown, pointer = str(found.value).split("\n")
    assert says in first
    assert shown == f"  {text}"
    assert pointer == f"  {' ' * caret}^"


@pytest.mark.parametrize(
    "text, common, factors",
    [
        ("y ~ x + (1 | a) + (1 + x || b)", "x", ["a", "b"]),
        ("y ~ (1 | a) + x + (1 | b:c) - 1", "x - 1", ["a", "b:c"]),
        ("y ~ (1 | a/b/c)", "1", ["a", "a:b", "a:b:c"]),
        ("y ~ x + (1 | g) + (0 + x | g)", "x", ["g", "g"]),
    ],
)
def test_several_grouping_terms(text, common, factors):
    parts = parse(text)
    assert parts.several and parts.common == common
    assert [term.by for term in parts.terms] == factors
