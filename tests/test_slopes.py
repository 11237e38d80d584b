"""Steps of slopes: against derivatives in closed form, and measured by the design."""

import numpy as np
import pandas as pd

import ramify as rf

S = 40


def test_slopes_at_any_table_are_those_of_the_curve(tmp_path):
    """A step was part of the table's own sd: nothing of use for one row, or where log(x) bends."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"g": np.arange(120) % 12, "x": np.exp(1.5 * rng.normal(size=120))})
    table = table.assign(
        year=rng.normal(2000, 5, 120), y=2 * np.log(table.x) + rng.normal(size=120)
    )
    fit = rf.fit("y ~ log(x) + I(year**2) + (1 | g)", table, theta="gaussian")
    fit.save(tmp_path / "fit")
    effects, row = fit.sample_theta(S), table[:1]
    curve = effects["log(x)"][:, None] / table.x.to_numpy()
    square = 2 * effects["I(year ** 2)"] * row.year.iloc[0]
    close = {"rtol": 1e-3, "atol": 1e-4}
    for one in (fit, rf.load(tmp_path / "fit")):
        np.testing.assert_allclose(
            one.slopes("x", table=table, draws=S).draws[:, 0], curve.mean(1), **close
        )
        np.testing.assert_allclose(
            one.slopes("x", table=row, draws=S).draws[:, 0], curve[:, 0], **close
        )
        np.testing.assert_allclose(
            one.slopes("year", table=row, draws=S).draws[:, 0], square, **close
        )
    apart = fit.slopes("x", average=False, draws=S).draws
    np.testing.assert_allclose(apart, curve, **close)


def test_steps_are_measured_by_the_design():
    rows = {
        "g": [0, 0, 1, 1],
        "x": [0.01, 1.0, 10.0, 100.0],
        "w": [-1.0, 0.0, 1.0, 0.0],
        "y": [1, 2, 4, 3],
    }
    steps = lambda formula, name, frame: rf.from_formula(formula, rows)[0].adapter.steps(
        pd.DataFrame(frame), name, 0.01
    )
    np.testing.assert_allclose(
        steps("y ~ x + (1 | g)", "x", rows), 0.01 * np.std(rows["x"]), rtol=1e-6
    )
    own = 0.01 * np.std(np.log(rows["x"])) * np.asarray(rows["x"])
    np.testing.assert_allclose(steps("y ~ 1 + (0 + log(x) | g)", "x", rows), own, rtol=0.01)
    flat = steps("y ~ I(w**2) + (1 | g)", "w", {"w": [0.0]})  # where the square is flat
    assert 0.05 < flat[0] < 0.2
    assert (steps("y ~ w + offset(x) + (1 | g)", "x", rows) > 0).all()
