"""`posterior.plot`: the report's figures, and those of questions, from Python."""

from itertools import product
from typing import Any

import numpy as np

from ramify.plot import answers, categories, figures
from ramify.plot.answers import Curve
from ramify.plot.picture import Picture
from ramify.posterior import facts
from ramify.posterior.averages import Who

DRAWS = 200
_POINTS = 25  # of a curve


class Plots:
    """Pictures of a fit: `posterior.plot.effects()`, shown in a notebook, saved by `.save(path)`."""

    def __init__(self, posterior: Any):
        self._posterior = posterior

    def __repr__(self) -> str:
        return "posterior.plot: effects, groups, shrinkage, calibration, predictions, check"

    def effects(self, *, exponentiate: bool = False) -> Picture:
        """The common effects, or all globals, with 50% and 90% intervals."""
        posterior, levels = self._posterior, (0.05, 0.25, 0.5, 0.75, 0.95)
        summary = posterior.summary(quantiles=levels, exponentiate=exponentiate)
        section = posterior.adapter.sections(summary.names)[0]
        rows = [i for i in section.rows if summary.names[i] != "Intercept"] or section.rows
        own = {name: column[rows] for name, column in summary.columns.items()}
        shown = figures.forest([summary.names[i] for i in rows], own, section.zero)
        if exponentiate:  # no effect is a ratio of one
            axes = [name for name in shown["layout"] if name.startswith("xaxis")]
            shown["layout"]["shapes"] = [figures.upright(1.0, axis) for axis in axes]
        what = f"{section.title}, {summary.said[0]}" if exponentiate else section.title
        return Picture(shown, f"{what}: means, 50% and 90% intervals.")

    def groups(self, effect: str | None = None, *, seed: int = 0) -> Picture:
        """The groups in the order of an effect, each with its 90% interval."""
        posterior = self._posterior
        found = facts.effects_of(posterior, facts.check(posterior, None), DRAWS, seed)
        if effect is not None and effect not in found.names:
            raise ValueError(
                f'"{effect}" does not vary by group; there are {", ".join(found.names)}.'
            )
        e = 0 if effect is None else found.names.index(effect)
        deviations = posterior.adapter.describe().deviations
        centre = 0.0 if deviations else float(np.mean(found.centre[:, e]))
        title = found.names[e] + (": deviation from the population" if deviations else "")
        return Picture(figures.caterpillar(found, e, title, centre), f"{title}, by {posterior.by}.")

    def shrinkage(self, *, seed: int = 0) -> Picture:
        """Each group's own mean, joined to what the posterior expects for the same rows."""
        groups, observed = self._observed()
        if not self._posterior.adapter.numeric:
            raise ValueError(
                "shrinkage is that of groups' means, and categories have none: "
                'plot.check("group") has the shares of each level by group.'
            )
        found = facts.shrinkage_of(self._posterior, groups, observed, DRAWS, seed)
        shown = figures.shrinkage(found, self._outcome)
        return Picture(shown, "Own mean and posterior mean of groups, by their rows.")

    def calibration(self, *, seed: int = 0) -> Picture:
        """Whether predicted probabilities, or quantiles, agree with the outcomes."""
        groups, observed = self._observed()
        found = facts.calibration_of(self._posterior, groups, observed, DRAWS, seed)
        return Picture(*categories.calibration(found, seed))

    def predictions(
        self,
        variable: str,
        by: str | None = None,
        *,
        groups: Who = "population",
        kind: str | None = None,
    ) -> Picture:
        """The expected outcome along a predictor, others at typical values, a curve for each of `by`.

        `kind` is "mean", and for categories "probability", unless it is given.
        """
        posterior, frame = self._posterior, self._frame()
        kind = kind or ("mean" if posterior.adapter.numeric else "probability")
        at: dict[str, Any] = {variable: _values(frame, variable)}
        at |= {by: _levels(frame, by)} if by is not None else {}
        own = {"table": "typical", "groups": groups, "kind": kind}
        found = posterior.predictions(at, quantiles=(0.05, 0.95), **own)
        levels = [(by, level) for level in at.get(by or "", [])] or [None]
        kinds = posterior.adapter.categories(kind)
        parts = product(levels, [("category", name) for name in kinds] or [None])
        curves = []
        for i, own in enumerate(parts):
            part = [pair for pair in own if pair is not None]
            mine = np.ones(len(found), bool)
            for column, value in part:
                mine &= found[column] == value
            mean, low, high = (found[column][mine] for column in ("mean", "q5", "q95"))
            name = ", ".join(str(v) if c == "category" else f"{c} {v}" for c, v in part)
            style = (i % len(kinds), i // len(kinds)) if kinds else None
            curves.append(Curve(name, list(at[variable]), mean, low, high, style))
        named = {"mean": f"expected {self._outcome}", "probability": "probability"}
        y_title = named.get(kind, "linear predictor")
        said = f"{y_title} along {variable}, groups: {groups}; 90% intervals."
        return Picture(answers.curves(curves, variable, y_title), said)

    def check(self, by: str = "row", *, draws: int = 100, seed: int = 0) -> Picture:
        """Outcomes beside those predicted for the same rows; `by="group"` for the groups' means."""
        if by not in ("row", "group"):
            raise ValueError(f'by must be "row" or "group"; got {by!r}.')
        groups, observed = self._observed()
        found = facts.check_of(self._posterior, groups, observed, draws, seed)
        return Picture(categories.check(found, self._outcome, by), "Posterior predictive check.")

    @property
    def _outcome(self) -> str:
        return self._posterior.adapter.describe().response

    def _observed(self) -> tuple[Any, Any]:
        groups = facts.check(self._posterior, None)
        observed = facts.outcome_of(self._posterior, groups)
        if observed is None:
            raise ValueError("this picture needs a model that can simulate one number a row.")
        return groups, observed

    def _frame(self) -> Any:
        adapter = self._posterior.adapter
        adapter.variables()  # raises for models without formulas
        if adapter.table is None:
            raise ValueError("this fit was loaded from a file, which holds no table of predictors.")
        return adapter.frame(adapter.table)


def _values(frame: Any, name: str) -> list[Any]:
    """Values of a column to predict at: levels, or equal steps over most of its range."""
    column = _column(frame, name)
    if hasattr(column.dtype, "categories") or column.dtype == bool or column.nunique() <= 6:
        return _levels(frame, name)
    low, high = np.quantile(np.asarray(column, np.float64), [0.01, 0.99])
    return np.linspace(low, high, _POINTS).tolist()


def _column(frame: Any, name: str) -> Any:
    if name not in frame.columns:
        known = ", ".join(f'"{column}"' for column in frame.columns)
        raise ValueError(f'"{name}" is no predictor of this formula; it has {known}.')
    return frame[name]


def _levels(frame: Any, name: str) -> list[Any]:
    """The levels of a column; of many numbers, three quantiles."""
    column = _column(frame, name)
    if hasattr(column.dtype, "categories"):
        return list(column.cat.categories)
    found = np.unique(np.asarray(column))
    chosen = found if len(found) <= 6 else np.quantile(found, [0.1, 0.5, 0.9])
    return [value.item() for value in chosen]
