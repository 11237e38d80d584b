"""Design matrices: coded as the grammar says, and coded the same again from what was saved."""

import json

import numpy as np
import pandas as pd
import pytest

from ramify.frontends.formula.design import check_levels, code
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.saved_coding import from_plain, to_plain
from ramify.frontends.formula.text import FormulaError

N = 60


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(2, 3, N),
        "w": rng.uniform(0, 5, N),
        "n": rng.integers(1, 9, N),
        "kind": rng.choice(["b", "c", "a"], N),
        "size": pd.Series(
            pd.Categorical(rng.choice(["small", "large"], N), categories=["small", "large"])
        ),
        "flag": rng.random(N) < 0.5,
    }


def coded(part, table):
    frame = read_frame(table, list(table))
    coding, matrix = code(part, f"y ~ {part} + (1 | g)", frame)
    return coding, matrix, frame


def test_categories_interactions_and_their_names(table):
    coding, matrix, _ = coded("x*kind + size + flag", table)
    kind = table["kind"]
    expected = {
        "Intercept": np.ones(N),
        "x": table["x"],
        "kind[b]": kind == "b",
        "kind[c]": kind == "c",
        "x:kind[b]": table["x"] * (kind == "b"),
        "x:kind[c]": table["x"] * (kind == "c"),
        "size[large]": table["size"] == "large",  # declared order: small is the reference
        "flag": table["flag"],
    }
    assert set(coding.names) == set(expected)
    for name, column in zip(coding.names, matrix.T, strict=True):
        np.testing.assert_array_equal(column, np.asarray(expected[name], float), err_msg=name)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint64", "float32"])
@pytest.mark.parametrize(
    "part, expected",
    [
        ("I(n * n)", lambda n, m: n * n),
        ("I(n - 100)", lambda n, m: n - 100),
        ("{n ** 3 + m}", lambda n, m: n**3 + m),
        ("n:m", lambda n, m: n * m),
        ("log(n)", lambda n, m: np.log(n)),
        ("I(flag + flag)", lambda n, m: 2.0 * (n > 50)),
        ("power(n, 3)", lambda n, m: n**3),
        ("np.square(1000000 * n)", lambda n, m: 1e12 * n**2),
        ("maximum(flag, n)", lambda n, m: n),
        ("where(n > m, square(n), 0)", lambda n, m: (n > m) * n**2),
    ],
)
def test_arithmetic_is_in_double_precision(part, expected, kind):
    n = np.random.default_rng(0).integers(1, 100, N)
    n, m = n * (10**6 if kind in ("int32", "uint64") else 1), n[::-1]
    rows = {"n": n.astype(kind), "m": m.astype(kind), "flag": n > 50}
    exact = expected(np.float64(rows["n"]), np.float64(rows["m"]))
    coding, matrix, frame = coded(f"0 + {part}", rows)
    again = from_plain(json.loads(json.dumps(to_plain(coding))))
    for found in (matrix, coding.matrix(frame), again.matrix(frame)):
        np.testing.assert_allclose(found[:, 0], exact, rtol=1e-12)


def test_nested_terms_are_those_written_out(table):
    for nested, plain in [
        ("kind/x", "kind + kind:x"),
        ("kind/size", "kind + kind:size"),
        ("0 + kind/x", "0 + kind + kind:x"),
        ("x/kind", "x + x:kind"),
    ]:
        (coding, matrix, frame), (expected, by_hand, _) = coded(nested, table), coded(plain, table)
        assert (coding.names, coding.owners) == (expected.names, expected.owners)
        np.testing.assert_array_equal(matrix, by_hand)
        np.testing.assert_array_equal(coding.matrix(frame), matrix)


def test_no_intercept_codes_every_level(table):
    coding, _, _ = coded("0 + kind", table)
    assert coding.names == ["kind[a]", "kind[b]", "kind[c]"]


PARTS = [
    "1",
    "0 + x",
    "x*kind + size + size:flag",
    "kind/x + size/flag",
    "scale(x) + center(w) + I(x**2) + {x / w}",
    "poly(x, 3) + poly(w, 2)",
    "bs(w, df=5)",
    "bs(w, df=4, degree=2)",
    "cr(w, df=5) + kind",
    "cc(w, 6, df=5)",
    "tp(w, df=5)",
    "C(n) + T(kind, ref='c') + S(size)",
    "log(w + 1) + np.exp(scale(x)) + sqrt(w):kind",
    "x + offset(log(n)) + offset(w)",
    "scale(log(w + 1)):kind",
    "binary(kind) + binary(kind, 'c'):x + scale(binary(n))",
    "I((x + w) * n) + I(x + w * n) + I(x - (w - n))",
    "x + offset(log(n)) + offset((w + x) * n) + offset(w + x * n)",
]


@pytest.mark.parametrize("part", PARTS)
def test_saved_codings_code_the_same(part, table):
    coding, matrix, frame = coded(part, table)
    np.testing.assert_allclose(coding.matrix(frame), matrix, rtol=1e-12, atol=1e-12)
    again = from_plain(json.loads(json.dumps(to_plain(coding), allow_nan=False)))
    assert again.names == coding.names
    few = frame.iloc[[7, 3, 50]].reset_index(drop=True)
    np.testing.assert_array_equal(again.matrix(few), coding.matrix(few))
    np.testing.assert_allclose(again.matrix(few), matrix[[7, 3, 50]], rtol=1e-9, atol=1e-9)
    offset = coding.offset(few)
    if part == "x + offset(log(n)) + offset(w)":
        np.testing.assert_allclose(offset, (np.log(table["n"]) + table["w"])[[7, 3, 50]])
        np.testing.assert_array_equal(again.offset(few), offset)
    elif "offset" in part:
        np.testing.assert_array_equal(again.offset(few), offset)
    else:
        assert offset is None and again.offset(few) is None


@pytest.mark.parametrize(
    ("part", "name", "of"),
    [
        ("I(-x ** 2)", "I(-(x ** 2))", lambda x, w: -(x**2)),
        ("I((-x) ** 2)", "I((-x) ** 2)", lambda x, w: x**2),
        ("{w ** 2 ** 3}", "I(w ** (2 ** 3))", lambda x, w: w**8),
        ("I((w ** 2) ** 3)", "I((w ** 2) ** 3)", lambda x, w: w**6),
        ("I(w + 1 - x * -w / 2)", "I(w + 1 - x * -w / 2)", lambda x, w: w + 1 + x * w / 2),
        ("I(w - (x - 1))", "I(w - (x - 1))", lambda x, w: w - x + 1),
        ("I(w * (x > 0))", "I(w * (x > 0))", lambda x, w: w * (x > 0)),
        ("I(w ** -1)", "I(w ** (-1))", lambda x, w: 1 / w),
    ],
)
def test_powers_and_brackets_are_those_of_r(part, name, of, table):
    coding, matrix, _ = coded(f"0 + {part}", table)
    assert coding.names == [name]
    np.testing.assert_allclose(matrix[:, 0], of(table["x"], table["w"]), rtol=1e-12)


def test_a_coding_that_an_earlier_version_saved_is_read_as_it_was(table):
    """Its names have no brackets; where it read a power otherwise it is refused."""

    def before(part):
        plain = json.loads(json.dumps(to_plain(coded(part, table)[0])))
        for term in plain["terms"]:
            for component in term["components"]:
                call, rest = component["name"].split("(", 1)
                component["name"] = f"{call}({rest[:-1].replace('(', '').replace(')', '')})"
        return plain

    coding, matrix, frame = coded("0 + I((x + w) * n)", table)
    np.testing.assert_array_equal(from_plain(before(coding.text)).matrix(frame), matrix)
    for part in ("0 + I(-x ** 2)", "0 + I(w ** 2 ** 3)"):
        with pytest.raises(ValueError, match="an earlier version read .* Fit the model again"):
            from_plain(before(part))


def test_unseen_categories_of_a_call(table):
    for part, odd in (("C(n)", "C(n)"), ("x:S(n)", "S(n)"), ("T(n + 100, 101)", "T(n + 100, 101)")):
        coding, _, _ = coded(part, {**table, "n": table["n"].astype(np.int8)})
        frame = read_frame({"x": [0.0, 0.0], "n": np.array([1, 70], np.int8)}, ["x", "n"])
        with pytest.raises(ValueError) as refused:
            check_levels(coding, frame, "at")
        assert f"{odd} of at is {70 + 100 * ('100' in part)} in row 1, a category" in str(
            refused.value
        )


def test_unseen_categories_and_other_kinds(table):
    coding, _, _ = coded("x + kind", table)
    row = lambda **columns: read_frame(
        {"x": [1.0, 2.0], "kind": ["a", "b"], **columns}, ["x", "kind"]
    )
    check_levels(coding, row(), "at")
    with pytest.raises(
        ValueError, match="\"kind\" of at is 'd' in row 1, a category that the fit has"
    ):
        check_levels(coding, row(kind=["a", "d"]), "at")
    with pytest.raises(
        TypeError, match='column "x" of at holds categories; in the fit it held numbers'
    ):
        check_levels(coding, row(x=["1", "2"]), "at")


def test_a_saved_coding_calls_only_what_a_formula_may():
    plain = {"text": "np.fromfile(x)", "names": [], "owners": [], "kinds": {}, "terms": []}
    with pytest.raises(ValueError, match="unknown function 'np.fromfile'"):
        from_plain(plain)


@pytest.mark.parametrize(
    "part, says",
    [
        ("maximum(x, w, n)", r"maximum\(\) takes 2 arguments, and got 3"),
        ("np.log(x, w)", r"log\(\) takes 1 argument, and got 2"),
        ("power(x)", r"power\(\) takes 2 arguments, and got 1"),
        ("exp(x, where=flag)", r"exp\(\) takes 1 argument, and got 1 and where"),
    ],
)
def test_functions_take_their_inputs_alone(part, says, table):
    with pytest.raises(FormulaError, match=says):
        coded(part, table)
