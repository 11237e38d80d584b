"""Leaving out a row, or a group, by importance weights; and comparing models by it.

The posterior without y_i is the posterior times 1 / p(y_i | theta), so weighted draws of the posterior
are draws without y_i: elpd_i = log p(y_i | y_-i) = log sum_s w_s p(y_i | theta_s) with weights w_s ~
1 / p(y_i | theta_s). The weights are Pareto-smoothed, and their k-hat tells whether they are reliable
(Vehtari, Gelman and Gabry, 2017). For groups z is integrated out; for rows z is drawn with theta.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final, get_args

import jax
import numpy as np
from jaxtyping import Float64, Shaped

from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.families.build import method_of
from ramify.numerics import budgets
from ramify.numerics.psis import log_sum, smoothed
from ramify.numerics.thresholds import MOST_K_HAT
from ramify.posterior.conditioned import blocks_of, condition
from ramify.posterior.drawn_masses import masses
from ramify.posterior.draws import map_draws, posterior_theta
from ramify.posterior.fitted import Fitted
from ramify.posterior.held_out import test_values
from ramify.posterior.marginal_values import has_rule, log_mass_by_group
from ramify.posterior.notebook import html_lines, html_table
from ramify.posterior.trust import named

By = Literal["row", "group"]
_LOCAL_DRAWS = 128  # of each group's z, where it is not integrated by quadrature


@final
@dataclass(frozen=True, repr=False)
class Loo:
    """The expected log predictive density of rows, or groups, that were left out one by one.

    Attributes:
        by: "row" or "group".
        labels: positions of the rows in their table, or labels of the groups, [n].
        elpd: log p(y_i | all others) of each, in nats, [n].
        k_hat: of the weights of each; NaN where it was refitted.
        lpd: log p(y_i | all), with nothing left out, [n].
        column: name of the label column.
        doubts: the verdict and its reasons, of a fit that is not to be trusted.
        outcomes: of all rows, in the order of their table, where they are known.
    """

    by: By
    labels: Shaped[np.ndarray, " n"]
    elpd: Float64[np.ndarray, " n"]
    k_hat: Float64[np.ndarray, " n"]
    lpd: Float64[np.ndarray, " n"]
    column: str
    doubts: tuple[str, ...] = ()
    outcomes: Shaped[np.ndarray, "rows ..."] | None = None

    @property
    def total(self) -> float:
        """The sum over rows, or groups; larger is better."""
        return float(self.elpd.sum())

    @property
    def se(self) -> float:
        """Standard error of the total, from the spread of its terms."""
        return float(np.sqrt(len(self.elpd)) * self.elpd.std())

    @property
    def p(self) -> float:
        """The effective number of parameters: by how much leaving out lowers the density."""
        return float((self.lpd - self.elpd).sum())

    @property
    def bad(self) -> Shaped[np.ndarray, " m"]:
        """Labels of the rows or groups with unreliable weights."""
        return self.labels[self.k_hat > MOST_K_HAT]

    def _lines(self) -> list[str]:
        what = "rows" if self.by == "row" else f'groups by "{self.column}"'
        lines = [f"elpd {self.total:,.1f} ± {self.se:.1f} nats, {len(self.elpd):,} {what} left out"]
        lines.append(f"effective parameters {self.p:.1f}")
        again, bad = int(np.isnan(self.k_hat).sum()), self.bad
        lines += [f"{again:,} fitted again without them"] if again else []
        if not len(bad):
            return [*lines, f"no k-hat above {MOST_K_HAT}: the weights can be relied upon"]
        cure = (
            "refit=True fits again without each" if self.by == "group" else "rely on no difference"
        )
        cure += " of a few nats" if self.by == "row" else ""
        who = f"{len(bad):,} of {len(self.elpd):,} ({named(bad, len(bad))})"
        return [
            *lines,
            f"k-hat above {MOST_K_HAT} in {who}, whose densities may be too high: {cure}",
        ]

    def __repr__(self) -> str:
        return "\n".join(["\n  ".join(self._lines()), *self.doubts])

    def _repr_html_(self) -> str:
        first, *rest = self._lines()
        said = html_lines(self.doubts[0], self.doubts[1:]) if self.doubts else ""
        return html_lines(first, rest) + said


def loo(fit: Fitted, groups: Groups, by: By, draws: int, seed: int) -> Loo:
    """Leaves out each row, or each group, by importance weights."""
    if by not in get_args(By):
        raise ValueError(f'by must be "row" or "group"; got {by!r}.')
    if by == "row":
        labels, count = np.arange(groups.n_rows), groups.n_rows
        blocks = _rows(fit, groups, draws, seed)
    else:
        labels, count = groups.labels, len(groups)
        blocks = _groups(fit, groups, draws, seed)
    found = np.full((3, count), np.nan)
    for places, values in blocks:
        found[:, places] = left_out(np.asarray(values, np.float64))
    if by == "row":  # in the order of the table
        order = np.argsort(groups.row_order, kind="stable")
        labels, found = groups.row_order[order], found[:, order]
    elpd, k_hat, lpd = found
    return Loo(by, labels, elpd, k_hat, lpd, fit.by)


def left_out(log_lik: Float64[np.ndarray, "S n"]) -> Float64[np.ndarray, "3 n"]:
    """Elpd, k-hat and lpd of each column of log densities."""
    log_weight, k = smoothed(-log_lik)
    lpd = log_sum(log_lik.T) - np.log(len(log_lik))
    return np.stack([log_sum((log_weight + log_lik).T), k, lpd])


def with_facts(
    found: Loo, doubts: tuple[str, ...], outcomes: np.ndarray | None, groups: Groups
) -> Loo:
    """The same with what is known of the fit, and outcomes of the groups' rows."""
    order = np.argsort(groups.row_order, kind="stable")
    own = None if outcomes is None else np.asarray(outcomes)[order]
    return replace(found, doubts=doubts, outcomes=own)


def _rows(
    fit: Fitted, groups: Groups, draws: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields places of rows and their log p(y | theta, z) at draws of both, [S, rows]."""
    model, K = fit.model, fit._local_draws(None)
    theta = posterior_theta(jax.random.key(seed), fit.family, model, draws)
    rows = int(np.clip(budgets.DENSITY_NUMBERS // draws, 1, budgets.result_rows()))
    parts = fit._parts(replace(groups, row_order=np.arange(groups.n_rows)), groups, K)
    for given, at, places in blocks_of(parts, model, K, rows=rows):
        use = lambda chunk, z, _: test_values(model, chunk, z, at, True)  # noqa: B023
        yield places, map_draws(use, given, model, theta, K)[:, : len(places)]


def _groups(
    fit: Fitted, groups: Groups, draws: int, seed: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields places of groups and their log p^(y_i | theta) at draws of theta, [S, groups]."""
    key, model, family = jax.random.key(seed), fit.model, fit.family
    if method_of(family) == "joint":
        raise ValueError(
            "joint() has no q(z_i | theta) to integrate a group by: fit a solved() family, or leave "
            'out rows by by="row".'
        )
    theta = posterior_theta(key, family, model, draws)
    for block in ranges(groups):
        known = condition(family, model, block.batches[0], 2)
        if has_rule(family, model):
            points = int(fit.notes.get("quadrature_points", 0))
            values = log_mass_by_group(known, model, theta.theta, points)
        else:
            values = masses(known, model, theta, _LOCAL_DRAWS, key).whole
        yield slice(block.start, block.stop), values[:, : block.stop - block.start]


def refitted(found: Loo, groups: Groups, again: Callable[[Groups], Any], draws: int) -> Loo:
    """Fits again without each group whose weights are unreliable."""
    elpd, k_hat = found.elpd.copy(), found.k_hat.copy()
    for i in np.flatnonzero(k_hat > MOST_K_HAT):
        rest = np.arange(len(groups)) != i
        without, one = groups.subset(positions=rest), groups.subset(positions=~rest)
        elpd[i] = again(without).log_predictive(None, one, draws, "per_group")
        k_hat[i] = np.nan
    return replace(found, elpd=elpd, k_hat=k_hat)


@final
@dataclass(frozen=True, repr=False)
class Comparison:
    """Models by their expected log predictive density, the best first.

    Attributes:
        names: of the models.
        columns: "elpd", "se", "difference" from the best and "difference_se", an array each.
        doubts: lines on models with unreliable weights or a doubtful fit.
    """

    names: list[str]
    columns: dict[str, Float64[np.ndarray, " models"]]
    doubts: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """A column, or as a dict the row of a model."""
        if name in self.columns:
            return self.columns[name]
        row = self.names.index(name)
        return {column: float(values[row]) for column, values in self.columns.items()}

    def _cells(self) -> list[tuple[str, list[str]]]:
        cells = lambda i: [f"{values[i]:,.1f}" for values in self.columns.values()]
        return [(name, cells(i)) for i, name in enumerate(self.names)]

    def __repr__(self) -> str:
        lines = [["", *self.columns], *([name, *cells] for name, cells in self._cells())]
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(c.rjust(w) for c, w in zip(line, wide, strict=True)) for line in lines]
        return "\n".join([*text, *self.doubts])

    def _repr_html_(self) -> str:
        said = html_lines(self.doubts[0], self.doubts[1:]) if self.doubts else ""
        return html_table([*self.columns], self._cells()) + said


def compare(models: Mapping[str, Any], by: By | None = None) -> Comparison:
    """Compares fits of the same data by leaving out rows, or groups.

    Args:
        models: name -> posterior, or what its `loo` returned.
        by: what to leave out of posteriors: "row" or "group"; by default what was left out of the
            others, or "row".

    Returns:
        Models by elpd, the best first, each with its difference from the best. The standard error of a
        difference is that of the sum of the terms' differences.
    """
    known = lambda m: isinstance(m, Loo | Fitted)
    if not isinstance(models, Mapping) or not all(map(known, models.values())):
        expected = 'a dict of posteriors, or of what their loo() returned: {"a": one, "b": other}'
        raise TypeError(f"models is not what rf.compare takes; expected {expected}.")
    if len(models) < 2:
        raise ValueError(f"compare expected two models or more; got {len(models)}.")
    by = _left_out_by(models, by)
    found = {n: m if isinstance(m, Loo) else m.loo(by=by) for n, m in models.items()}
    _check_alike(found)
    _check_outcomes(found)
    names = sorted(found, key=lambda name: -found[name].total)
    best = found[names[0]]
    apart, n = [found[name].elpd - best.elpd for name in names], len(best.elpd)
    columns = {
        "elpd": [found[name].total for name in names],
        "se": [found[name].se for name in names],
        "difference": [d.sum() for d in apart],
        "difference_se": [np.sqrt(n) * d.std() for d in apart],
    }
    many = {name: len(found[name].bad) for name in names}
    said = [line for name in names for line in _doubted(name, found[name])]
    bad = [f"{name}: k-hat above {MOST_K_HAT} in {m:,} of {n:,}" for name, m in many.items() if m]
    return Comparison(
        names, {c: np.asarray(v, np.float64) for c, v in columns.items()}, (*bad, *said)
    )


def _left_out_by(models: Mapping[str, Any], by: By | None) -> By:
    """What to leave out; raises where another was asked for than was left out already."""
    if by is not None and str(by) not in get_args(By):
        raise ValueError(f'by must be "row" or "group"; got {by!r}.')
    done: dict[str, By] = {name: m.by for name, m in models.items() if isinstance(m, Loo)}
    for name, own in done.items():
        if own != (by or own):
            raise ValueError(
                f'by="{by}", but "{name}" left out {own}s: pass its posterior, or loo("{by}") of it.'
            )
    left: list[By] = [*done.values(), "row"]
    return left[0] if by is None else by


def _check_alike(found: dict[str, Loo]) -> None:
    """Raises where not the same was left out of all."""
    (begin, first), *others = found.items()
    for name, other in others:
        columns = first.column, other.column
        if (first.by, other.by) == ("group", "group") and columns[0] != columns[1]:
            raise ValueError(
                f'"{name}" left out groups by "{columns[1]}", "{begin}" by "{columns[0]}": compare by '
                "the same groups, or by rows."
            )
        if other.by != first.by or not np.array_equal(other.labels, first.labels):
            raise ValueError(
                f'"{name}" left out other {other.by}s ({len(other.labels):,}) than "{begin}" '
                f"({len(first.labels):,} {first.by}s): compare fits of the same rows."
            )


def _check_outcomes(found: dict[str, Loo]) -> None:
    """Raises where fits have different outcomes in the same rows, such as log(y) and y."""
    known = {name: loo.outcomes for name, loo in found.items() if loo.outcomes is not None}
    for name, y in known.items():
        first = next(iter(known))
        if y.shape != known[first].shape or not np.allclose(y, known[first], rtol=1e-5):
            raise ValueError(
                f'"{name}" has other outcomes than "{first}" in the same rows, and densities of '
                "different outcomes can't be compared: write both for one."
            )


def _doubted(name: str, found: Loo) -> list[str]:
    """The doubts about a model's fit, as lines that begin with its name."""
    return [f"{name}: {line.strip().removeprefix('- ')}" for line in found.doubts[1:]]
