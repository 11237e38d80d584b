"""`posterior.plot` of a fit with several factors, and the numbers behind it."""

from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.data.host import some_groups
from ramify.levels.adapter import RowsAt
from ramify.numerics.memory import check_memory
from ramify.plot import categories, figures
from ramify.plot.numbers import Calibration, Check, Effects, Shrinkage
from ramify.plot.picture import Picture
from ramify.posterior.facts import JUDGED, SHRUNK
from ramify.posterior.levels_draws import Task
from ramify.posterior.levels_rows import fitted_eta
from ramify.posterior.plots import DRAWS, Plots


class LevelsPlots(Plots):
    """Pictures of a fit with several factors: `posterior.plot.groups("movie")`."""

    def groups(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, factor: str | None = None, effect: str | None = None, *, seed: int = 0
    ) -> Picture:
        """The levels of a factor, by default the integrated one, in the order of an effect."""
        posterior = self._posterior
        place = posterior.adapter.integrated if factor is None else posterior._factor(factor)
        info = posterior.adapter.factors[place]
        if effect is not None and effect not in info.effects:
            known = ", ".join(info.effects)
            raise ValueError(f'"{effect}" does not vary by {info.name}; there are {known}.')
        found = effects_of(posterior, place, DRAWS, seed)
        e = 0 if effect is None else info.effects.index(effect)
        title = f"{info.effects[e]}: deviation from the population"
        return Picture(figures.caterpillar(found, e, title, 0.0), f"{title}, by {info.name}.")

    def shrinkage(self, *, seed: int = 0) -> Picture:
        """Own mean of each level of the integrated factor, and what is expected for its rows."""
        shown = figures.shrinkage(shrinkage_of(self._posterior, DRAWS, seed), self._outcome)
        return Picture(shown, "Own mean and posterior mean of groups, by their rows.")

    def calibration(self, *, seed: int = 0) -> Picture:
        """Whether predicted probabilities, or quantiles, agree with the outcomes of the fit's rows."""
        found = calibration_of(self._posterior, DRAWS, seed)
        return Picture(*categories.calibration(found, seed))

    def check(self, by: str = "row", *, draws: int = 100, seed: int = 0) -> Picture:
        """Outcomes beside those predicted for the same rows; `by="group"` for the groups' means."""
        if by not in ("row", "group"):
            raise ValueError(f'by must be "row" or "group"; got {by!r}.')
        found = check_of(self._posterior, draws, seed)
        return Picture(categories.check(found, self._outcome, by), "Posterior predictive check.")


def effects_of(posterior: Any, factor: int, draws: int, seed: int) -> Effects:
    """Deviations of all levels of a factor."""
    info = posterior.adapter.factors[factor]
    N = len(info.labels)
    what = f"{draws:,} draws of {N:,} levels"
    check_memory(8 * 2 * draws * N * len(info.effects), None, what, "Use group_effects")
    drawn = posterior._effects(factor, posterior._rows(draws, seed), seed)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    mean, sizes = drawn.mean(0), posterior._sizes(factor)
    return Effects(list(info.effects), info.labels, sizes, mean, np.arange(N), mean, low, high)


def rows_of(
    posterior: Any, kind: str, most: int, draws: int, seed: int
) -> tuple[Groups, Float64[np.ndarray, "S n"]]:
    """Some groups of the fit, of at most so many rows, and draws of this kind for their rows."""
    some = some_groups(posterior.groups, most, seed)
    task, rows = posterior._task, posterior._rows(draws, seed)
    design = task.adapter.design(posterior.groups).subset(some.number).observed()
    few = Task(task.model, task.adapter, task.design.subset(some.number), task.pool)
    eta, values = fitted_eta(few, design, rows, (seed,)), task.model.values(task.pool.theta[rows])
    at = RowsAt(design, [], [])
    if kind == "response":
        rng = np.random.default_rng([seed, 4])
        return some, task.adapter.outcomes(rng, eta, values, at).astype(np.float64)
    return some, task.adapter.expected(kind, eta, values, at)


def _observed(posterior: Any, some: Groups) -> Float64[np.ndarray, " n"]:
    return np.asarray(posterior.adapter.observed(some), np.float64)


def check_of(posterior: Any, draws: int, seed: int) -> Check:
    """Outcomes of some rows, and new ones that the posterior predicts for the same rows."""
    some, drawn = rows_of(posterior, "response", JUDGED, draws, seed)
    owner = np.repeat(np.arange(len(some)), some.sizes)
    return Check(_observed(posterior, some), drawn, owner, some.labels)


def shrinkage_of(posterior: Any, draws: int, seed: int) -> Shrinkage:
    """Raw means of some groups, and the posterior means for the same rows."""
    some, expected = rows_of(posterior, "mean", JUDGED, draws, seed)
    observed = _observed(posterior, some)
    owner = np.repeat(np.arange(len(some)), some.sizes)
    mean = lambda values: np.bincount(owner, values, len(some)) / np.maximum(some.sizes, 1)
    shown = np.flatnonzero(some.sizes > 0)[:SHRUNK]
    own = mean(observed)[shown], mean(expected.mean(0))[shown], float(observed.mean())
    return Shrinkage(some.labels[shown], some.sizes[shown], *own)


def calibration_of(posterior: Any, draws: int, seed: int) -> Calibration:
    """Predictions of some of the fit's own rows, beside their outcomes."""
    binary = bool(np.isin(_observed(posterior, posterior.groups), (0, 1)).all())
    kind = "mean" if binary else "response"
    some, drawn = rows_of(posterior, kind, JUDGED, draws, seed)
    return Calibration(_observed(posterior, some), drawn, False, binary)
