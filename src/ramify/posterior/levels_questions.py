"""Methods of a fit with several factors: questions about effects, pictures, metrics, ArviZ."""

from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ramify.data.groups import Groups
from ramify.io.arviz import begin_import
from ramify.levels.adapter import LevelsAdapter
from ramify.levels.condensed import condensed
from ramify.levels.design import Design
from ramify.levels.model import LevelsModel
from ramify.levels.shape import Pool
from ramify.numerics.memory import check_memory
from ramify.numerics.precision import computing
from ramify.posterior import levels_draws, levels_rows
from ramify.posterior.averages import Cells
from ramify.posterior.held_out import PredictiveForm
from ramify.posterior.interpret import Means, Settings
from ramify.posterior.levels_draws import Task, read
from ramify.posterior.levels_plots import LevelsPlots
from ramify.posterior.loo import By, Loo, with_facts
from ramify.posterior.metrics import Estimate
from ramify.posterior.posterior import Posterior
from ramify.posterior.summary import doubts_of


class LevelsQuestions(Posterior):
    """A base of `LevelsPosterior`, which documents the attributes."""

    model: LevelsModel
    adapter: LevelsAdapter
    groups: Groups
    pool: Pool

    @cached_property
    def design(self) -> Design:
        """The rows of the fit, with like rows added up."""
        return condensed(self.adapter.design(self.groups), self.model.form)

    def _rows(self, draws: int, seed: int) -> Any:
        """Numbers of the pool's draws."""
        raise NotImplementedError

    def _refuse(self, method: str, instead: str = "") -> NoReturn:
        raise NotImplementedError(
            f"{method} is not there yet for a fit with several grouping factors.{instead}"
        )

    @property
    def plot(self) -> LevelsPlots:
        """Pictures: `plot.effects()`, `.groups("movie")`, `.shrinkage()`, `.calibration()`, ..."""
        return LevelsPlots(self)

    @property
    def _responses(self) -> np.ndarray:
        return self.adapter.observed(self.groups)

    @property
    def _task(self) -> Task:
        return Task(self.model, self.adapter, self.design, self.pool)

    @property
    def _label_columns(self) -> list[str]:
        """The columns of all factors."""
        return [*dict.fromkeys(c for f in self.adapter.factors for c in f.name.split(":"))]

    @property
    def _normal_groups(self) -> bool:
        return True

    def _cell_means(self, asked: Settings, table: dict[str, Any], cells: Cells) -> Means:
        """Expected outcomes of the rows of all scenarios, averaged by cell."""
        rows, at = (
            self._rows(asked.draws, asked.seed),
            read(self._task, table, None, outcomes=False),
        )
        return levels_draws.cell_means(self._task, rows, asked, at[0], cells)

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
        """Leaves out each row, or each level of the integrated factor; see `Posterior.loo`.

        If a level is left out, its effects are integrated out; kept effects stay those of the draws.
        """
        if refit or groups is not None:
            self._refuse("loo with refit= or groups=")
        what = f"{draws:,} draws of {self.groups.n_rows:,} rows"
        count = len(self.labels) if by == "group" else self.groups.n_rows
        check_memory(8 * 4 * draws * count, None, what, "Ask for fewer draws")
        found = levels_rows.loo(self._task, self.groups, by, self._rows(draws, seed), seed)
        doubts = doubts_of(self._judged, len(self.labels))
        return with_facts(found, doubts, self._responses, self.groups)

    def log_evidence(self, *args: Any, **kwargs: Any) -> Estimate:
        """Log p(y), in nats: z by quadrature, b by Laplace's method, theta by weighted points."""
        if args or kwargs:
            self._refuse("log_evidence with arguments")
        if "log_evidence" not in self.notes:
            self._refuse("log_evidence of a fit that was saved before there was one")
        return Estimate(self.notes["log_evidence"], self.notes["log_evidence_se"])

    @computing
    def log_predictive(
        self,
        train: Any,
        test: Any,
        draws: int | None = None,
        form: PredictiveForm = "joint",
        seed: int = 0,
        *,
        local_draws: int | None = None,
    ) -> Estimate:
        """The log predictive density of rows, in nats; see `Posterior.log_predictive` for the forms.

        Args:
            train: rows that levels of the integrated factor are conditioned on, as `given` of `predict`;
                None for those of the fit.
            test: rows to predict, with any mix of known, new and absent levels. In all forms but
                "per_row" effects of new levels of the integrated factor are integrated out where the
                model is from a formula; all others are drawn.
            draws: S, by default 1,000.
            form: "joint", "per_group", by the integrated factor, or "per_row".
            seed: the estimate is a function of it.
            local_draws: only None.
        """
        only_none(local_draws)
        own = self._task, train, test, form, self._rows(draws or 1000, seed), seed
        return levels_rows.log_predictive(*own)

    @computing
    def to_arviz(
        self, groups: Groups | None = None, draws: int = 1000, seed: int = 0, *, rows: bool = True
    ) -> Any:
        """Draws and data as an ArviZ DataTree (needs arviz-base).

        Every factor is a dimension, with its labels, of its `effects(<factor>)`, and so are its effects,
        `<factor>_effect`; "row" has the rows' positions in their table. `rows=False` leaves
        posterior_predictive and log_likelihood out.
        """
        if groups is not None:
            self._refuse("to_arviz with groups=")
        begin_import()
        if rows:
            what = f"{draws:,} draws of {self.groups.n_rows:,} rows"
            check_memory(8 * 3 * draws * self.groups.n_rows, None, what, "Pass rows=False")
        found, chosen = self.sample(draws, seed=seed), self._rows(draws, seed)
        return levels_rows.tree(self._task, self.groups, found, chosen, seed, rows)

    def elbo(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available for several factors: theta and b are found on their marginals."""
        self._refuse("elbo", " log_evidence() is an estimate of log p(y) itself.")

    def refine(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available for several factors."""
        self._refuse("refine")


def only_none(local_draws: int | None) -> None:
    """Raises if local draws are asked for: there are none."""
    if local_draws is not None:
        raise ValueError("local_draws= is for fits with one grouping factor: leave it out.")
