"""The posterior of a model with several factors: a pool of draws of theta and b, and z given these."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Float64, Shaped

from ramify.data.groups import Groups
from ramify.data.tables import as_table
from ramify.io.levels import LevelsRecord, save_levels
from ramify.levels.adapter import LevelsAdapter
from ramify.levels.model import LevelsModel
from ramify.levels.shape import Pool
from ramify.numerics.memory import check_memory
from ramify.numerics.precision import computing
from ramify.posterior import levels_draws, prediction
from ramify.posterior.levels_questions import LevelsQuestions, only_none
from ramify.posterior.prediction import labelled, quantile_names
from ramify.posterior.summary import Summary, exponentiated, with_doubts, words

Named = dict[str, Shaped[np.ndarray, "..."]]


class LevelsPosterior(LevelsQuestions):
    """An approximation of p(theta, b, z | y) of a model with several factors.

    The fit made a pool of draws of theta and the kept effects b; methods use the first of them in an
    order that their seed decides, and draw z of the integrated factor given each.

    Attributes:
        model: the model.
        adapter: reads tables for the model and names its results.
        groups: the data of the fit.
        labels: labels of the levels of the integrated factor.
        pool: the draws.
        history: the trace: arrays by name.
        notes: how the fit went.
    """

    def __init__(
        self,
        model: LevelsModel,
        adapter: LevelsAdapter,
        groups: Groups,
        pool: Pool,
        notes: Mapping[str, Any],
        history: Mapping[str, np.ndarray] | None = None,
    ):
        self.model, self.adapter, self.groups, self.pool = model, adapter, groups, pool
        self.notes, self.history = dict(notes), dict(history or {})

    @property
    def family(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Raises: only fits with one grouping factor have a family."""
        raise ValueError("this is for fits with one grouping factor; this fit has several.")

    @property
    def by(self) -> str:
        """Name of the integrated factor."""
        return self.adapter.factors[self.adapter.integrated].name

    @property
    def labels(self) -> Shaped[np.ndarray, " N"]:
        """Labels of the levels of the integrated factor."""
        return self.adapter.factors[self.adapter.integrated].labels

    def __repr__(self) -> str:
        notes, counts = self.notes, []
        for f, factor in enumerate(self.adapter.factors):
            how = " (integrated out)" if f == self.adapter.integrated else ""
            counts.append(f"{len(factor.labels):,} {factor.name}{how}")
        first = f"Posterior by levels: {', '.join(counts)}; {self.groups.n_rows:,} rows"
        how = f"{notes['kept']:,} kept effects by {notes['algebra']} algebra, D = {self.model.theta.size}"
        return "\n".join([first, f"  {how}", *words(self._judged, self.history, len(self.labels))])

    def _rows(self, draws: int, seed: int) -> np.ndarray:
        """Numbers of the pool's draws, in an order that the seed decides; more than there are repeat."""
        count = len(self.pool.theta)
        order = np.random.default_rng([seed, 1]).permutation(count)
        return np.resize(order, draws)

    @computing
    def sample_theta(self, draws: int = 1000, seed: int = 0) -> Named:
        """Draws of the parameters and common effects, by the names of the summary, {"x": [S]}."""
        return self._named_theta(self._rows(draws, seed))

    def _named_theta(self, rows: np.ndarray) -> Named:
        values = self.model.values(np.asarray(self.pool.theta[rows], np.float64))
        return self.adapter.named_theta(values, self.pool.beta[rows])

    def _summary_rows(self, rows: np.ndarray) -> Named:
        values = self.model.values(np.asarray(self.pool.theta[rows], np.float64))
        return self.adapter.summary_rows(values, self.pool.beta[rows])

    @computing
    def sample(
        self,
        draws: int = 1000,
        groups: Groups | None = None,
        seed: int = 0,
        *,
        local_draws: int | None = None,
        max_bytes: int | float | None = None,
    ) -> Named:
        """Draws of all parameters by name, and the deviations of every factor's levels.

        Args:
            draws: S.
            groups: only None: the levels of the fit.
            seed: draws are a function of it.
            local_draws: only None.
            max_bytes: refuse to make more than that; half of the memory available by default.

        Returns:
            {"x": [S], "sd(Intercept | movie)": [S], ..., "effects(movie)": [S, levels, effects]}.
        """
        only_none(local_draws)
        if groups is not None:
            raise ValueError(
                "sample of a fit with several factors is for the levels of the fit; for rows of new "
                "levels use predict(at, given=...)."
            )
        sizes = [len(f.labels) * len(f.effects) for f in self.adapter.factors]
        what = f"{draws:,} draws of {sum(sizes):,} effects"
        check_memory(8 * draws * sum(sizes), max_bytes, what, "Ask for fewer draws")
        rows = self._rows(draws, seed)
        found = self._named_theta(rows)
        for f in range(len(self.adapter.factors)):
            found |= self.adapter.named_effects(f, self._effects(f, rows, seed))
        return found

    def _effects(self, factor: int, rows: np.ndarray, seed: int) -> Float64[np.ndarray, "S L m"]:
        """Deviations of the levels of a factor, on the user's scale."""
        own = self.adapter.factors[factor].terms
        if factor == self.adapter.integrated:
            every = np.arange(self.design.N)
            own_draws = self.model, self.design, self.pool, rows, every, (seed,)
            z = levels_draws.draw_groups(*own_draws)
            parts = np.split(z, np.cumsum([self.model.terms[t] for t in own])[:-1], -1)
        else:
            parts = [
                levels_draws.kept_effects(self.model, self.design, self.pool, rows, t) for t in own
            ]
        return np.concatenate(
            [self.adapter.deviations(t, part) for t, part in zip(own, parts, strict=True)], -1
        )

    @computing
    def group_effects(
        self,
        groups: str | None = None,
        totals: bool = False,
        draws: int = 500,
        seed: int = 0,
        *,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    ) -> Any:
        """A table of the effects of a factor's levels, a row for each level.

        Args:
            groups: the name of a factor, such as "movie" or "dept:service"; by default the integrated
                one.
            totals: False for deviations from the population, True for coefficients, population included.
            draws: S.
            seed: the table is a function of it.
            quantiles: of each effect.

        Returns:
            A table of the kind that the formula was given: the labels, `n`, the rows of the level, and
            `<effect>_mean`, `<effect>_sd`, `<effect>_q5`, ... of each effect.
        """
        place = self.adapter.integrated if groups is None else self._factor(groups)
        info = self.adapter.factors[place]
        if place != self.adapter.integrated:
            draws = max(draws, len(self.pool.theta))  # which are there already
        rows = self._rows(draws, seed)
        effects = self._effects(place, rows, seed)
        if totals:
            effects += self.adapter.population(place, self._summary_rows(rows))[:, None]
        columns: dict[str, Any] = {"n": self._sizes(place)}
        levels = np.quantile(effects, np.asarray(quantiles, np.float64), axis=0)
        table = np.stack([effects.mean(0), effects.std(0), *levels])
        for m, name in enumerate(info.effects):
            for i, statistic in enumerate(["mean", "sd", *quantile_names(quantiles)]):
                columns[f"{name}_{statistic}"] = table[i, :, m]
        return as_table(self.adapter.table_kind, labelled(info.name, info.labels, columns))

    def _factor(self, name: Any) -> int:
        names = [factor.name for factor in self.adapter.factors]
        if name not in names:
            raise ValueError(f"there is no factor {name!r} in this fit; it has {', '.join(names)}.")
        return names.index(name)

    def _sizes(self, factor: int) -> np.ndarray:
        """The rows of each level of a factor."""
        return self.adapter.level_sizes(self.groups, factor)

    @computing
    def summary(
        self,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        draws: int = 20_000,
        seed: int = 0,
        *,
        check: bool = False,
        exponentiate: bool = False,
    ) -> Summary:
        """A table of mean, sd and quantiles of common effects, sds, correlations and the likelihood's.

        From all draws of the pool, or the first `draws` of them; `check` has no effect, and
        `exponentiate` shows exp of the common effects: odds ratios where the link is a logit.
        """
        rows = self._rows(min(draws, len(self.pool.theta)), seed)
        found = self._summary_rows(rows)
        values = np.stack([np.asarray(own, np.float64) for own in found.values()], 1)
        said = exponentiated(self.adapter, list(found), values) if exponentiate else ()
        levels = np.quantile(values, np.asarray(quantiles, np.float64), axis=0)
        names = ["mean", "sd", *quantile_names(quantiles)]
        columns = dict(zip(names, [values.mean(0), values.std(0), *levels], strict=True))
        return with_doubts(Summary(list(found), columns, said=said), self._judged, len(self.labels))

    @computing
    def predict(
        self,
        at: Any,
        given: Any = None,
        draws: int = 1000,
        seed: int = 0,
        *,
        kind: prediction.Kind = "response",
        summary: bool = True,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        local_draws: int | None = None,
    ) -> Any:
        """Predicted outcomes at rows with any mix of known, new and absent levels.

        A known level has the effects of the fit. A new one is drawn from the population, the same in all
        its rows. A row without a label has a draw of its own; a table without the column does the same
        for all its rows, and warns. Levels of the integrated factor (`posterior.by`) that have rows in
        `given` are conditioned on these instead of on those of the fit: so a new user is predicted from
        a few ratings of known movies, without a refit.

        Args:
            at: where to predict: a dict of arrays, pandas, polars or Arrow table with the columns that
                the formula names.
            given: rows with outcomes to condition levels of the integrated factor on.
            draws: S.
            seed: predictions are a function of it.
            kind: "response" for new outcomes, "mean", "link", or "probability" of ordered levels.
            summary: False returns the draws themselves.
            quantiles: of the outcome.
            local_draws: only None.

        Returns:
            The table `at` with columns "mean", "sd", "q5", ... appended; with `summary=False` an array
            [S, rows].
        """
        only_none(local_draws)
        categories = prediction.categories_of(self.adapter, kind)
        names = prediction.summary_names(quantiles, categories)
        if summary:
            prediction.check_no_clash(at, names)
        if not prediction.has_rows(at, self.by, "at"):
            return prediction.nothing(at, names if summary else None, draws, len(categories))
        if given is not None and not prediction.has_rows(given, self.by, "given"):
            given = None
        rows = self._rows(draws, seed)
        out = levels_draws.predicted(self._task, at, given, rows, kind, seed)
        if not summary:
            return out
        columns = prediction.summarise(out, quantiles)
        if categories:
            apart = [columns[n][:, k] for k in range(len(categories)) for n in columns]
            columns = dict(zip(names, apart, strict=True))
        return prediction.appended(at, columns)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Writes the fit to a folder: see `load`. Replaces a fit there, unless `overwrite` is False."""
        more = lambda folder: self.adapter.save(folder, self.groups)
        pool = {name: np.asarray(own, np.float32) for name, own in self.pool._asdict().items()}
        record = LevelsRecord(pool, self.history, np.asarray(self.labels), self.by, self.notes)
        save_levels(Path(path), record, more, overwrite=overwrite)

    def sample_blocks(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Not available for several factors; see `sample`."""
        self._refuse("sample_blocks", " Use sample.")
