"""Posterior, the result of a fit: draws, predictions, a summary, the paper's metrics, a file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.build import covariance_of, method_of
from ramify.inference.refinement import Gaps, refine
from ramify.io.arviz import begin_import
from ramify.io.saving import save
from ramify.numerics import budgets
from ramify.numerics.precision import computing
from ramify.posterior import metrics, prediction
from ramify.posterior.arviz_tree import arviz_tree, drawn_rows
from ramify.posterior.conditioned import condition
from ramify.posterior.draws import draw_theta, posterior_theta, sample_block
from ramify.posterior.group_table import group_table
from ramify.posterior.held_out import PredictiveForm, log_predictive
from ramify.posterior.matching import check_columns, largest_group, matched
from ramify.posterior.metrics import DRAWS, Estimate, EvidenceForm
from ramify.posterior.notebook import html_lines
from ramify.posterior.questions import Questions
from ramify.posterior.summary import Summary, summarise_theta, with_doubts, with_reliability, words
from ramify.posterior.theta_check import affordable, theta_log_weights

Named = dict[str, Shaped[np.ndarray, "..."]]


class Posterior(Questions):
    """An approximation of p(theta, z_1 .. z_N | y): a fitted family, its model and its data.

    Data passed to a method are matched to those of the fit by label. A draw of group i depends on
    the seed, the number of the draw and the group, not on which other groups are asked for. Where
    the fit used K > 1 local draws, so do draws of z: each is one of K, chosen by importance weight.
    Default: 16, more for data of few rows, or K if the fit had to raise it; `local_draws=` asks for
    another. The error of a group, of order 1/K, does not accumulate over groups as in theta.

    Attributes:
        model: the model.
        adapter: reads tables for the model and names its results.
        family: the fitted family.
        groups: the data of the fit; None in a fit that was loaded from a file.
        labels: labels of the groups of the fit, [N].
        local_draws: K, the local importance draws of the fit; 1 is the paper.
        history: the trace: arrays by name, such as "step", "elbo", "seconds".
        notes: how the fit went.
    """

    def __repr__(self) -> str:
        D, M, N = self.model.theta.size, self.model.z.size, len(self.labels)
        points = self.notes.get("quadrature_points")
        integral = f"K = {self.local_draws}" if points is None else f"{points} points of z"
        sizes = f"N = {N:,} groups, D = {D}, M = {M}, {integral}"
        covariance = f'"{covariance_of(self.family)}"' if covariance_of(self.family) else ""
        first = f"Posterior by {method_of(self.family)}({covariance}): {sizes}"
        return "\n".join([first, *words(self._judged, self.history, N)])

    def _repr_html_(self) -> str:
        first, *rest = repr(self).splitlines()
        return html_lines(first, rest)

    @computing
    def sample_theta(self, draws: int = 1000, seed: int = 0) -> Named:
        """Draws of the globals alone, {"mu": [S, ...]}; the same as `sample` gives."""
        theta = posterior_theta(jax.random.key(seed), self.family, self.model, draws).theta
        return jax.tree.map(np.asarray, self.adapter.global_values(theta))

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
        """Draws of all parameters, by name and constrained, as NumPy arrays.

        Args:
            draws: S.
            groups: the groups whose z to draw, conditioned on their rows here; those of the fit by
                default.
            seed: draws are a function of it.
            local_draws: K, of which one z is chosen by weight; 1 draws from the family itself.
            max_bytes: refuse to make more than that; half of the memory available by default.

        Returns:
            {"mu": [S, ...], "beta": [S, N, ...]}: float32, or float64 where JAX has x64 on; the
            intercept of a formula also where the outcome is far from zero.
        """
        K = self._local_draws(local_draws)
        groups = self._for_locals(groups, K)
        self._check_bytes(draws, len(groups), max_bytes)
        out: Named = self.sample_theta(draws, seed)
        at = 0
        for labels, block in self._blocks(draws, groups, seed, K):
            for name, value in block.items():
                if at == 0:
                    out[name] = np.empty((draws, len(groups), *value.shape[2:]), value.dtype)
                out[name][:, at : at + len(labels)] = value
            at += len(labels)
        return out

    def sample_blocks(
        self,
        draws: int = 1000,
        groups: Groups | None = None,
        seed: int = 0,
        *,
        local_draws: int | None = None,
    ) -> Iterator[tuple[Shaped[np.ndarray, " B"], Named]]:
        """The draws of `sample` block by block, for more groups than fit into memory.

        Yields:
            The labels of some groups and {"mu": [S, ...], "beta": [S, B, ...]}; the draws of theta
            are the same in every block.
        """
        K = self._local_draws(local_draws)
        theta = self.sample_theta(draws, seed)
        for labels, block in self._blocks(draws, self._for_locals(groups, K), seed, K):
            yield labels, theta | block

    def _blocks(
        self, draws: int, groups: Groups, seed: int, K: int, small: bool = False
    ) -> Iterator[tuple[Shaped[np.ndarray, " B"], Named]]:
        # Each block is computed separately: the caller's code runs between two blocks.
        key = jax.random.key(seed)
        theta = computing(posterior_theta)(key, self.family, self.model, draws)
        places = max(budgets.SAMPLED_NUMBERS // (draws * self.model.z.size), 1)
        for block in ranges(groups, places=places, small=small, largest=largest_group(self.groups)):
            known = computing(condition)(self.family, self.model, block.batches[0], K)
            z = computing(sample_block)(known, self.adapter, theta, K)
            labels = groups.labels[block.start : block.stop]
            yield labels, {name: value[:, : len(labels)] for name, value in z.items()}

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
        """Predicted outcomes at rows, by the model's `simulate`.

        A group is conditioned on its rows in `given`; if it is not there, on its rows in the fit;
        a group seen in neither is drawn from the population, p(z | theta, u_i). With `branch` and
        `joint` only groups of the fit can be predicted, from what was learned of them.

        Args:
            at: where to predict: a dict of arrays, pandas, polars or Arrow table with the fit's
                label column and the columns `simulate` reads (not the outcome), or Groups. For a
                model from a formula, the columns that the formula names. Without the label column
                all rows are those of one new group.
            given: rows to condition the groups on, in any of these forms.
            draws: S.
            seed: predictions are a function of it.
            kind: "response" for new outcomes; of a model from a formula also "mean", the mean of
                the outcome, "link", the linear predictor, and where the outcome has ordered levels
                "probability", that of each level.
            summary: False returns the draws themselves.
            quantiles: of the outcome.
            local_draws: as in `sample`.

        Returns:
            The table `at`, of the same kind and in the same order, with columns "mean", "sd" and
            "q5", "q50", "q95" of the outcome's draws appended; for probabilities "<level>_mean",
            "<level>_sd", ... of each level. For Groups a dict of columns, rows in the order of
            `at.rows`. With `summary=False` an array in that order, [S, rows, ...]; of probabilities
            [S, rows, levels].
        """
        categories = prediction.categories_of(self.adapter, kind)
        names = prediction.summary_names(quantiles, categories)
        if summary:
            prediction.check_no_clash(at, names)
        if not prediction.has_rows(at, self.by, "at"):
            return prediction.nothing(at, names if summary else None, draws, len(categories))
        where = self._at(at)
        given = None if given is None else self._given(given)
        K = self._local_draws(local_draws)
        found = self._parts(where, given, K)
        outcome = prediction.outcome_of(self.adapter, self._schema, found[0], kind, self._outcomes)
        how = where.n_rows, outcome, kind, draws, K, seed, categories
        task = prediction.Task(self.adapter, self.family, found, *how)
        if summary:
            return prediction.appended(at, prediction.summaries(task, quantiles))
        return prediction.draws(task)

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
        """A table of mean, sd and quantiles of every global, constrained, by name.

        Those of real parameters are exact, from the Gaussian q(theta); the others come from draws.
        Columns `ess` and `k_hat` say how reliable each mean is: `ess` independent draws would give it
        the same accuracy, and above a `k_hat` of 0.7 it can't be trusted. Fits on small data have
        weighted draws of theta and always show them; `check=True` weighs some draws for other fits,
        which takes seconds (see also `diagnose`).

        `exponentiate=True` shows exp of the common effects of a formula: odds ratios where the link
        is a logit, ratios of means where it is a log.
        """
        own = self.family, self.adapter, quantiles, draws, seed
        table = summarise_theta(*own, exponentiate)
        table = with_doubts(table, self._judged, len(self.labels))
        if not check or "ess" in table.columns:
            return table
        groups = self._for_metrics(None)
        S, K = affordable(self.model, groups, None)
        theta = draw_theta(jax.random.fold_in(jax.random.key(seed), 1), self.family, self.model, S)
        log_weight, _ = theta_log_weights(self.family, self.model, groups, theta, K)
        return with_reliability(table, self.adapter, theta.theta, log_weight)

    @computing
    def group_effects(
        self,
        groups: Any = None,
        totals: bool = False,
        draws: int = 500,
        seed: int = 0,
        *,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    ) -> Any:
        """A table of the effects that vary by group, a row for each group.

        Args:
            groups: the groups, Groups or a table whose rows to condition them on; the fit's by
                default.
            totals: of a formula, False for deviations from the population (lme4's `ranef`), True for
                the coefficients of each group, population included (`coef`).
            draws: S.
            seed: the table is a function of it.
            quantiles: of each effect.

        Returns:
            A table of the kind that the formula was given (of other models a dict): the label
            column, `n`, the rows of the group (`group_n` where the labels are called `n`), and
            `<effect>_mean`, `<effect>_sd`, `<effect>_q5`, ... of each effect, or entry of z.
        """
        data = self._default(groups)
        sampled = self.sample_blocks(draws, data, seed)
        found = self.adapter.group_effects(sampled, data.sizes, totals, quantiles)
        if found is not None:
            return found
        known = {*self.sample_theta(draws, seed)}
        return group_table(self, known, sampled, data.sizes, quantiles)

    @computing
    def elbo(
        self, groups: Groups | None = None, draws: int = 1000, local_draws: int = 1, seed: int = 0
    ) -> Estimate:
        """The paper's train ELBO: E_q[log p(y, z, theta) - log q(z, theta)], in nats.

        With `local_draws=K` each group's term is the importance-weighted bound on
        log p(y_i | theta), which converges to it as K grows. The default is the paper's K = 1,
        whatever the fit used.

        Args:
            groups: the data; those of the fit by default.
            draws: draws of theta.
            local_draws: K.
            seed: the estimate is a function of it.
        """
        groups = self._for_metrics(groups)
        key = jax.random.key(seed)
        return metrics.elbo(self.family, self.model, groups, draws, local_draws, key)

    @computing
    def log_evidence(
        self,
        groups: Groups | None = None,
        draws: int | None = None,
        form: EvidenceForm = "joint",
        local_draws: int | None = None,
        seed: int = 0,
    ) -> Estimate:
        """The paper's train likelihood, an importance-weighted estimate of log p(y), in nats.

        - "joint", the paper's definition: log mean_k p(y, z^k, theta^k) / q(z^k, theta^k). One weight
          for all groups, whose variance grows with N: if they are many, a loose lower bound (see `ess`).
        - "per_group": log mean_k [p(theta^k) / q(theta^k) prod_i mean_l w_il], where w_il are the weights
          p(y_i, z_il | theta^k) / q(z_il | theta^k) of `local_draws` local draws, by default 64. They are
          averaged before they are multiplied: also a lower bound on average, and tight. All draws of
          theta share the groups' noise, which `se` includes. Solved fits of one or two local dimensions
          integrate z by quadrature instead, unless `local_draws` is given. If the fit has draws of
          theta, a Student t fitted to them replaces q(theta).
        - "mean_likelihood", what the paper's printed values suggest:
          log mean_k p(y | z^k, theta^k). Not an estimate of the evidence, since the draws have seen y.
        `draws` are 10,000 by default; for "per_group" 1,000 or more, as long as more reduce `se`, or by
        quadrature until, corrected by a regression on theta, they have the `se` of 10,000 from q(theta).
        """
        groups = self._for_metrics(groups)
        asked = draws, form, local_draws, jax.random.key(seed)
        return metrics.log_evidence(self.family, self.model, groups, *asked)

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
        """The paper's test likelihood, in nats, with z conditioned on the rows of `train`.

        - "joint", the paper's definition: log mean_k p(y_test | z^k, theta^k), all test rows
          together. Its variance grows with N: few draws dominate where there are many groups.
        - "per_group": sum_i log mean_k p(y_i,test | z_i^k, theta^k), each group's rows together.
        - "per_row": sum_ij log mean_k p(y_ij | z_i^k, theta^k), the usual log predictive density.

        Args:
            train: rows to condition each group on, Groups or a table; None for those of the fit.
            test: rows to predict, Groups or a table; of new groups as in `predict`.
            draws: S, by default 10,000, or fewer with the `se` of 10,000 as in `log_evidence`.
            form: see above.
            seed: the estimate is a function of it.
            local_draws: as in `sample`. Solved fits integrate z instead: by default by quadrature for
                M <= 2, in "per_row" if the likelihood does not involve theta; else, but in "per_row",
                by so many draws around its mode given all rows of the group; 1 is the paper's form.
        """
        train = None if train is None else self._given(train)
        rows = prediction.read(self._schema, self.adapter, test, "test", outcomes=True)
        check_columns(self._schema.rows, rows.rows, "row column of test")
        K = self._local_draws(local_draws)
        found = self._parts(rows, train, K)
        theta = posterior_theta(jax.random.key(seed), self.family, self.model, draws or DRAWS)
        return log_predictive(self.model, found, theta, form, K, local_draws is not None, not draws)

    @computing
    def to_arviz(
        self, groups: Groups | None = None, draws: int = 1000, seed: int = 0, *, rows: bool = True
    ) -> Any:
        """Draws and data as an ArviZ DataTree, for its summaries, plots and loo (needs arviz-base).

        Args:
            groups: the data whose z to draw, conditioned on their rows here; by default the fit's.
            draws: S, all in one chain.
            seed: draws are a function of it.
            rows: False leaves out what has a number for each draw and row: the groups
                posterior_predictive and log_likelihood.

        Returns:
            A tree with posterior, posterior_predictive, log_likelihood, observed_data and
            constant_data. Dimensions are the label column, with the groups' labels, and "row", with
            the rows' positions in the table they came from. Of a formula also "effect", with the
            names of the effects; outcome and predictors have their own names and scales.
        """
        begin_import()
        data = self.groups if groups is None else groups
        theta = self.sample_theta(draws, seed)
        if rows and data is not None and data.n_rows:
            z, by_row = drawn_rows(self, data, draws, seed)
        else:
            sampled, by_row = self.sample(draws, groups, seed), {}
            z = {name: value for name, value in sampled.items() if name not in theta}
        return arviz_tree(self, data, theta, z, by_row)

    @computing
    def refine(self, groups: Groups | None = None) -> "tuple[Posterior, Gaps]":
        """Optimises each group's own parameters inside the fitted family, q(theta) held fixed.

        For amortized and branch fits. Returns a branch posterior of these groups, and per group
        in nats the amortization gap that this closed and the structure gap to the solved
        conditional (None where z is too large to solve for).
        """
        groups = matched(self._schema, self.family, self._default(groups))
        family, gaps = refine(self.model, self.family, groups)
        own = groups.renumbered(groups.labels)
        notes = {"method": "branch", "why": "refined from a fit by " + method_of(self.family)}
        # Doubts about q(theta), which stays, are those of the fit before.
        notes |= {n: self.notes[n] for n in ("converged", "warnings") if n in self.notes}
        return Posterior(self.model, family, own, history=self.history, notes=notes), gaps

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Writes the fit to a folder: see `load`. Replaces a fit there, unless `overwrite` is False."""
        more = lambda folder: self.adapter.save(folder, self.groups)
        save(self._record(), Path(path), more, overwrite=overwrite)
