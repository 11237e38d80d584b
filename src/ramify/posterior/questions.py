"""Questions about the effects of a fitted formula: expected outcomes, contrasts and slopes."""

from collections.abc import Mapping, Sequence
from typing import Any

from ramify.numerics.precision import computing
from ramify.plot.picture import Picture
from ramify.posterior import interpret
from ramify.posterior.answer import Answer
from ramify.posterior.averages import Cells, Who
from ramify.posterior.fitted import Fitted
from ramify.posterior.interpret import Compare
from ramify.posterior.loo import By, Loo, loo, refitted, with_facts
from ramify.posterior.plots import Plots
from ramify.posterior.poststratified import PostKind, Wanted, poststratified
from ramify.posterior.prediction import Kind
from ramify.posterior.settings import Settings, check_settings, columns_named
from ramify.posterior.summary import doubts_of

Quantiles = Sequence[float]


class Questions(Fitted):
    """Questions about effects, for models from formulas; a base of `Posterior`.

    They share these arguments:

    - `table`: the rows to average over: by default those of the fit; "typical" for one row with the
      mean of each number and the most frequent of each category; or any table.
    - `at`: columns that are set to given values in all rows, one or more for each: the answer has a row
      for every combination.
    - `by`: a column, or several: an average for each of its values. `average=False` gives an answer for
      each row, beside its values of `by`.
    - `groups`: whose effects. "own": those of each row's group, known or new; "average": those of a group
      without deviations; "new": those of one new group, the same for all rows, so that intervals
      include the differences between groups; "population": an average over all possible groups.
    - `kind`: "mean" for the scale of the response, "link" for that of the linear predictor, or
      "probability", that of each level of an ordered response.
    """

    @property
    def plot(self) -> Plots:
        """Pictures: `plot.effects()`, `.groups()`, `.shrinkage()`, `.calibration()`, `.check()`, ..."""
        return Plots(self)

    def check(self, by: str = "row", *, draws: int = 100, seed: int = 0) -> Picture:
        """A posterior predictive check: outcomes beside those predicted for the same rows.

        Bars for few different outcomes, a rootogram for counts, outlines for others; `by="group"`
        compares the groups' means.
        """
        return self.plot.check(by, draws=draws, seed=seed)

    @computing
    def predictions(
        self,
        at: Mapping[str, Any] | None = None,
        by: str | Sequence[str] = (),
        *,
        table: Any = None,
        average: bool = True,
        groups: Who = "own",
        kind: Kind = "mean",
        draws: int = 500,
        quantiles: Quantiles = (0.05, 0.5, 0.95),
        seed: int = 0,
    ) -> Answer:
        """The expected outcome: its average over the rows, for each draw of the posterior.

        Example:
            posterior.predictions({"age": [20, 40, 60]}, by="sex", groups="population")
        """
        asked = self._asked(at, by, table, average, groups, kind, (draws, quantiles, seed))
        return interpret.predictions(self, asked)

    @computing
    def comparisons(
        self,
        variables: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
        at: Mapping[str, Any] | None = None,
        by: str | Sequence[str] = (),
        *,
        compare: Compare = "difference",
        table: Any = None,
        average: bool = True,
        groups: Who = "own",
        kind: Kind = "mean",
        draws: int = 500,
        quantiles: Quantiles = (0.05, 0.5, 0.95),
        seed: int = 0,
    ) -> Answer:
        """By how much the expected outcome changes with a column, all others as they are.

        Args:
            variables: a column, several, or `{"age": [20, 40]}` with values to compare; all
                predictors by default. Without values a number is raised by 1, and each category is
                compared with the first.
            at: see above, as `by`, `table`, `average`, `groups` and `kind`.
            by: see above.
            compare: "difference", "ratio" or "odds_ratio" of the two averages.
            table: see above.
            average: see above.
            groups: see above.
            kind: see above.
            draws: S.
            quantiles: of the answer.
            seed: the answer is a function of it.

        Example:
            posterior.comparisons({"treated": [0, 1]}, compare="ratio", groups="population")
        """
        asked = self._asked(at, by, table, average, groups, kind, (draws, quantiles, seed))
        return interpret.comparisons(self, asked, variables, compare)

    @computing
    def slopes(
        self,
        variables: str | Sequence[str] | None = None,
        at: Mapping[str, Any] | None = None,
        by: str | Sequence[str] = (),
        *,
        table: Any = None,
        average: bool = True,
        groups: Who = "own",
        kind: Kind = "mean",
        draws: int = 500,
        quantiles: Quantiles = (0.05, 0.5, 0.95),
        seed: int = 0,
    ) -> Answer:
        """The derivative of the expected outcome in a column of numbers; all such by default.

        Example:
            posterior.slopes("age", by="sex")
        """
        asked = self._asked(at, by, table, average, groups, kind, (draws, quantiles, seed))
        return interpret.slopes(self, asked, variables)

    @computing
    def poststratify(
        self,
        cells: Any,
        weights: str | None = "n",
        by: str | Sequence[str] = (),
        *,
        kind: PostKind = "mean",
        draws: int = 1000,
        quantiles: Quantiles = (0.05, 0.5, 0.95),
        seed: int = 0,
    ) -> Answer:
        """Estimates for a population, from a table of its cells and their sizes.

        The expected outcome of every cell, averaged with the cells' sizes as weights, draw by draw:
        multilevel regression and poststratification. Levels that the fit has not seen are drawn from
        their population, once for all cells that have them. Of binomial outcomes it is the probability.

        Args:
            cells: a row for each cell, with the columns that `predict` needs, and its size.
            weights: the column of sizes; None for cells of equal size.
            by: a column, or several: an estimate for each of its values; by default one for all.
            kind: "mean", or of an ordered response "probability", that of each level.
            draws: S.
            quantiles: of the estimates.
            seed: the answer is a function of it.

        Example:
            posterior.poststratify(census, weights="n", by="state")
        """
        wanted = Wanted(weights, columns_named(by), kind, draws, quantiles, seed)
        return poststratified(self, cells, wanted)

    @computing
    def loo(
        self,
        by: By = "row",
        groups: Any = None,
        draws: int = 1000,
        seed: int = 0,
        *,
        refit: bool = False,
    ) -> Loo:
        """Leaves out each row, or each group, and says how probable the others make it.

        By importance weights of this fit's draws, Pareto-smoothed: no refits, in blocks. Of a group
        z is integrated out, so that it is predicted as a new one is.

        Args:
            by: "row" or "group".
            groups: the data; those of the fit by default.
            draws: S.
            seed: the answer is a function of it.
            refit: fit again without each group whose k-hat is above 0.7.
        """
        data = self._for_metrics(groups)
        found = loo(self, data, by, draws, seed)
        doubts = doubts_of(self._judged, len(self.labels))
        found = with_facts(found, doubts, self.adapter.outcomes(data), data)
        if not refit or not len(found.bad):
            return found
        if by == "row" or self.again is None:
            raise ValueError(
                'refit=True is for by="group", of a solved fit that was made in this process.'
            )
        return refitted(found, data, self.again, draws)

    @property
    def _label_columns(self) -> list[str]:
        """The columns of a table that say whose rows they are."""
        return [self.by]

    @property
    def _normal_groups(self) -> bool:
        """Whether groups have a normal distribution, whose population can be averaged over."""
        return self.model.structure.prior is not None

    def _cell_means(self, asked: Settings, table: dict[str, Any], cells: Cells) -> interpret.Means:
        """Expected outcomes of the rows of all scenarios, averaged by cell."""
        return interpret.means_of(self, asked, table, cells)

    def _asked(
        self,
        at: Mapping[str, Any] | None,
        by: str | Sequence[str],
        table: Any,
        average: bool,
        groups: Who,
        kind: Kind,
        how: tuple[int, Quantiles, int],
    ) -> Settings:
        """The arguments together; raises where they do not fit the model."""
        by, at = columns_named(by), {} if at is None else at
        asked = Settings(table, at, by, average, kind, groups, *how)
        check_settings(self, asked)
        return asked
