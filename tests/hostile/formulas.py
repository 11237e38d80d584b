"""Formulas with mistakes, and unusual ones that must work."""

import numpy as np

from .case import Case
from .data import N, build, same_design, table

# Formula -> texts that the error must have.
REFUSED = {
    "y ~ zz + (1 | g)": ["zz", "no column"],
    "y ~ X + (1 | g)": ['"X"', "no column"],
    "y ~ x + (1 | group)": ["group", "no column"],
    "Y ~ x + (1 | g)": ['"Y"', "no column"],
    "y ~ x": ["(1 | user)"],
    "y ~ 1": ["(1 | user)"],
    "": ["~"],
    "   ": ["~"],
    "~": ["missing"],
    "~ x + (1 | g)": ["response"],
    "y": ["~"],
    "y ~": ["missing"],
    "y ~ x + (1 | g": ["never closed"],
    "y ~ x + 1 | g)": ["closes nothing"],
    "y ~ x + 1 | g": ["parentheses"],
    "y ~ x (1 | g)": ["+"],
    "y ~ x + + (1 | g)": ["missing"],
    "y ~ x x + (1 | g)": ["operator"],
    "y ~ x + (1 | g) x": ["operator"],
    "y ~ x + (1 | g) + (x | g)": ["two terms"],
    "y ~ x + (1 | g) + (1 | zz)": ["zz", "no column"],
    "y ~ x + (1 | g/zz)": ["zz", "no column"],
    "y ~ x + (1 | g:g)": ["named twice"],
    "y ~ x + (1 | g + k)": ["one grouping column"],
    "y ~ x + (1 | g*k)": ["one grouping column"],
    "y ~ x + (1 | 1)": ["name a column"],
    "y ~ x + (1 | 'g')": ["name a column"],
    "y ~ x + ( | g)": ["before '|'"],
    "y ~ x + (1 | )": ["missing"],
    "y ~ x + (1 | x | g)": ["one bar"],
    "y ~ x + (1 || x || g)": ["one bar"],
    "y ~ x + (0 | g)": ["nothing varies"],
    "y ~ x + (-1 | g)": ["nothing varies"],
    "y ~ x + ((1 | g))": ["inside another bracket"],
    "y ~ x - (1 | g)": ["added with +"],
    "y ~ x * (1 | g)": ["added with +"],
    "y ~ x + (1 | g) * x": ["expected +"],
    "y = x + (1 | g)": ["~"],
    "y ~ x ~ (1 | g)": ["one ~"],
    "y == x ~ (1 | g)": ["y == x"],
    "y ~ x @ u + (1 | g)": ["'@'"],
    "y ~ x $ u + (1 | g)": ["'$'"],
    "y ~ x; import os + (1 | g)": ["grouping term"],
    "y ~ x ^ 2 + (1 | g)": ["'^'", "**"],
    "y ~ x & u + (1 | g)": ["'&'"],
    "y ~ x . u + (1 | g)": ["'.'"],
    "y ~ . + (1 | g)": ["'.'", "name"],
    "y ~ 1e3 * x + (1 | g)": ["1000"],
    "y ~ s(x) + (1 | g)": ["unknown function 's'"],
    "y ~ sclae(x) + (1 | g)": ["scale"],
    "y ~ np.load(x) + (1 | g)": ["unknown function 'np.load'"],
    "y ~ __import__('os') + (1 | g)": ["__import__"],
    "y ~ eval('1') + (1 | g)": ["unknown function 'eval'"],
    "y ~ open('/etc/passwd') + (1 | g)": ["unknown function 'open'"],
    "y ~ x.__class__ + (1 | g)": ["x.__class__"],
    "y ~ np.log.__self__(x) + (1 | g)": ["unknown function"],
    "y ~ g + (1 | g)": ["'g' can't be a predictor"],
    "g ~ x + (1 | g)": ["'g' can't be"],
    "y ~ y + (1 | g)": ["y", "response", "predictor"],
    "y ~ y + x + (1 | g)": ["y", "response", "predictor"],
    "y ~ x + (y | g)": ["y", "response", "predictor"],
    "y ~ x:y + (1 | g)": ["y", "response", "predictor"],
    "y ~ log(y) + (1 | g)": ["y", "response", "predictor"],
    "y ~ poly(y, 2) + (1 | g)": ["y", "response", "predictor"],
    "log(y) ~ y + (1 | g)": ["y", "response", "predictor"],
    "log(y) ~ log(y) + (1 | g)": ["y", "response", "predictor"],
    "y ~ poly(x, 300) + (1 | g)": ["poly(x, 300)", "240"],
    "y ~ poly(x, 239) + (1 | g)": ["poly(x, 239)", "240"],
    "y ~ poly(x, 100) + (1 | g)": ["poly(x, 100)"],
    "y ~ poly(x, 0) + (1 | g)": ["poly(x, 0)"],
    "y ~ poly(x, -1) + (1 | g)": ["poly(x, -1)"],
    "y ~ poly(x, 1.5) + (1 | g)": ["poly(x, 1.5)"],
    "y ~ poly(k, 2) + (1 | g)": ["poly(k, 2)", '"k"', "numbers"],
    "y ~ poly() + (1 | g)": ["poly()"],
    "y ~ bs(x, df=2) + (1 | g)": ["df=2"],
    "y ~ bs(x, df=-4) + (1 | g)": ["df=-4"],
    "y ~ bs(x, df=400) + (1 | g)": ["bs(x, df=400)", "240"],
    "y ~ bs(x) + (1 | g)": ["bs(x)", "df"],
    "y ~ bs(k, df=4) + (1 | g)": ["bs(k", '"k"', "numbers"],
    "y ~ bs(x, knots=[0]) + bs(x, df=0) + (1 | g)": ["df"],
    "y ~ C(x) + (1 | g)": ["C(x)", "240", "categories"],
    "y ~ C(u) + (1 | g)": ["C(u)", "240", "categories"],
    "y ~ C(k, 'zz') + (1 | g)": ["zz", "C(k"],
    "y ~ C(k, 3) + (1 | g)": ["C(k, 3)"],
    "y ~ C() + (1 | g)": ["C()"],
    "y ~ C(k, k) + (1 | g)": ["C(k, k)"],
    "y ~ log(x) + (1 | g)": ["log(x)", '"x"', "row"],
    "y ~ sqrt(x) + (1 | g)": ["sqrt(x)", '"x"', "row"],
    "y ~ np.log(x) + (1 | g)": ["np.log(x)", '"x"', "row"],
    "y ~ log(x - 1) + (1 | g)": ["log(x - 1)", '"x"', "row"],
    "y ~ x + (log(x) | g)": ["log(x)", '"x"', "row"],
    "y ~ offset(log(x)) + (1 | g)": ["offset(log(x))", '"x"', "row"],
    "y ~ I(1 / count) + (1 | g)": ["1 / count", '"count"', "row"],
    "y ~ exp(1000 * u) + (1 | g)": ["exp(1000 * u)", '"u"', "row"],
    "y ~ log(k) + (1 | g)": ["log(k)", '"k"', "numbers"],
    "y ~ k + scale(k) + (1 | g)": ["scale(k)", '"k"', "numbers"],
    "y ~ center(k) + (1 | g)": ["center(k)", '"k"', "numbers"],
    "y ~ I(k + 1) + (1 | g)": ['"k"', "numbers"],
    "y ~ offset(k) + (1 | g)": ["offset(k)"],
    "y ~ log(x, u, n) + (1 | g)": ["log(x, u, n)"],
    "y ~ log() + (1 | g)": ["log()"],
    "y ~ 5 + (1 | g)": ["5"],
    "y ~ 2 * x + (1 | g)": ["2"],
    "y ~ x + 'a' + (1 | g)": ["'a'"],
    "y ~ True + (1 | g)": ["True"],
    "y ~ x[0] + (1 | g)": ["x[0]"],
    "y ~ {x + (1 | g)": ["never closed"],
    "y ~ x + (1 | g) + (1": ["never closed"],
    "y ~ `x + (1 | g)": ["`"],
    "y ~ x ** 2 + (1 | g)": ["{x ** 2}"],
    "y ~ x ** 0.5 + (1 | g)": ["x ** 0.5"],
    "y ~ x ** -1 + (1 | g)": ["**"],
    "y ~ x > 0 + (1 | g)": ["x > 0"],
    "y ~ 'x' > 0 + (1 | g)": ["'x' > 0"],
    "y ~ x % 2 + (1 | g)": ["x % 2"],
    "y | trials(n) ~ x + (1 | g)": ["trials", "binomial"],
    "y | foo(n) ~ x + (1 | g)": ["trials(column)"],
    "y | weights() ~ x + (1 | g)": ["weights"],
    "y | weights(zz) ~ x + (1 | g)": ["zz"],
    "y | weights(k) ~ x + (1 | g)": ['"k"', "weights", "numbers"],
    "y | weights(w, n) ~ x + (1 | g)": ["weights"],
    "y | weights(w) | trials(n) ~ x + (1 | g)": ["trials(column)"],
    "y | cens(n) ~ x + (1 | g)": ['"n"', "right censored"],
}
# Formula -> one with the same rows in plain words.
EQUAL = {
    "y~x+(1|g)": "y ~ x + (1 | g)",
    "y ~ 1 + x + (1 | g)": "y ~ x + (1 | g)",
    "y ~ x + 1 + (1 | g)": "y ~ x + (1 | g)",
    "y ~ (1 | g) + x": "y ~ x + (1 | g)",
    "y ~ x + x + (1 | g)": "y ~ x + (1 | g)",
    "`y` ~ `x` + (1 | `g`)": "y ~ x + (1 | g)",
    "y\n~ x\n+ (1 | g)": "y ~ x + (1 | g)",
    "y ~ (x) + (1 | g)": "y ~ x + (1 | g)",
    "y ~ x * k + (1 | g)": "y ~ x + k + x:k + (1 | g)",
    "y ~ x + u - u + (1 | g)": "y ~ x + (1 | g)",
    "y ~ poly(x) + (1 | g)": "y ~ x + (1 | g)",
    "y ~ I(x) + (1 | g)": "y ~ x + (1 | g)",
    "y ~ {x} + (1 | g)": "y ~ x + (1 | g)",
    "{y} ~ x + (1 | g)": "y ~ x + (1 | g)",
    "I(y) ~ x + (1 | g)": "y ~ x + (1 | g)",
    "y ~ np.exp(x) + (1 | g)": "y ~ exp(x) + (1 | g)",
    "y ~ C(k) + (1 | g)": "y ~ k + (1 | g)",
    "y ~ (x + u) ** 2 + (1 | g)": "y ~ x + u + x:u + (1 | g)",
}


def cases():
    for formula, says in REFUSED.items():
        yield Case(formula, lambda formula=formula: build(formula), says)
    for formula, plain in EQUAL.items():
        run = lambda formula=formula: build(formula)
        yield Case(formula, run, right=lambda out, plain=plain: same_design(out, formula=plain))
    for thing in (None, 3, b"y ~ x + (1 | g)", ["y", "x"], {"y": "x"}):
        says = [type(thing).__name__, "expected text"]
        yield Case(f"formula {thing!r}", lambda thing=thing: build(thing), says)
    ones = {f"x{i}": np.random.default_rng(i).normal(size=N) for i in range(300)}
    many = f"y ~ {' + '.join(ones)} + (1 | g)"
    scaled = lambda columns: (columns - columns.mean(0)) / columns.std(0)
    expected = scaled(np.stack(list(ones.values()), 1))
    right = lambda out: np.testing.assert_allclose(scaled(out[1].rows["X"]), expected, atol=1e-5)
    yield Case("300 predictors", lambda: build(many, table(**ones)), right=right)
    name = "x" * 5000
    long = lambda: build(f"y ~ {name} + (1 | g)", table(**{name: table()["x"]}))
    yield Case("a name of 5000 letters", long, right=same_design)
    deep = "y ~ " + "(" * 3000 + "x" + ")" * 3000 + " + (1 | g)"
    yield Case("3000 brackets", lambda: build(deep), ["bracket"])
    for name in ("Intercept", "sigma", "sd", "effects", "W", "offset", "weights", "trials"):
        own = table(**{name: table()["x"]})
        run = lambda name=name, own=own: build(f"y ~ {name} + (1 | g)", own)
        taken = name in ("Intercept", "sigma", "sd", "effects")
        yield Case(f"a predictor {name}", run, [name, "rename"] if taken else [], None if taken else same_design)  # fmt: skip
    for name in ("y", "X", "X_all", "W", "U", "offset"):
        own = table(**{name: table()["g"], "out": table()["y"]})
        run = lambda name=name, own=own: build(f"out ~ x + (1 | {name})", own)
        yield Case(f"a grouping column {name}", run, [f'"{name}"', "rename"])
    for name in ("größe", "x y", "x-1", "名前", "if", "None", "class", "1x", "np", "log", "C"):
        own = table(**{name: table()["x"]})
        run = lambda name=name, own=own: build(f"y ~ `{name}` + (1 | g)", own)
        yield Case(f"a predictor `{name}`", run, [name], same_design)
