"""A small table of the globals: mean, sd and quantiles of every entry."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, final

import jax
import numpy as np
from jaxtyping import Float, Float64
from numpyro.distributions import constraints

from ramify.data.tables import as_table
from ramify.families.build import Family
from ramify.families.weighted_theta import WeightedTheta, weighted_quantiles
from ramify.inference.theta_nuts import agreement
from ramify.models.adapter import Adapter
from ramify.models.model import Model
from ramify.models.parameters import entry_names
from ramify.numerics import budgets
from ramify.numerics.psis import k_hat
from ramify.posterior.draws import draw_theta
from ramify.posterior.notebook import html_lines, html_table
from ramify.posterior.prediction import quantile_names
from ramify.posterior.trust import findings, verdict_of

Quantiles = Sequence[float]
Weight = Float64[np.ndarray, " S"]  # of each draw

_DIGITS = {"ess": 0, "k_hat": 2, "r_hat": 3}  # of columns that are not in the parameter's units


@final
@dataclass(frozen=True, repr=False)
class Summary:
    """Mean, sd and quantiles of every global.

    Attributes:
        names: `mu[0]`, `mu[1]`, `tau`, ...: one for each entry of the constrained values.
        columns: "mean", "sd", "q5", ...: an array [entries] each.
        doubts: the verdict and its reasons, of a fit that is not to be trusted.
        said: lines about the numbers themselves, such as that they are odds ratios.

    Example:
        >>> columns = {"mean": np.array([0.5, 2.0]), "sd": np.array([0.1, 0.2])}
        >>> table = Summary(["mu", "tau"], columns)
        >>> table
              mean     sd
        mu   0.500  0.100
        tau  2.000  0.200
        >>> float(table["mean"][1]), table["tau"]
        (2.0, {'mean': 2.0, 'sd': 0.2})
        >>> table.loc["mu", "sd"], list(table), len(table)
        (0.1, ['mean', 'sd'], 2)
    """

    names: list[str]
    columns: dict[str, Float64[np.ndarray, " entries"]]
    doubts: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    def __getitem__(self, name: str | list[str]) -> Any:
        """A column by its name, or as a dict the row of the parameter with that name.

        A list of names of parameters gives a smaller summary.
        """
        if isinstance(name, list):
            return self._some([self._row(one) for one in name])
        if name in self.columns:
            return self.columns[name]
        row = self._row(name)
        return {column: float(values[row]) for column, values in self.columns.items()}

    def _row(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(
                f"{name!r} is neither a column nor a parameter of this summary; parameters: "
                f"{', '.join(self.names[:10])}{', ...' if len(self.names) > 10 else ''}."
            )
        return self.names.index(name)

    def _some(self, rows: list[int]) -> "Summary":
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, names=[self.names[row] for row in rows], columns=columns)

    def __iter__(self) -> Iterator[str]:
        """The names of the columns, as those of a data frame."""
        return iter(self.columns)

    def __len__(self) -> int:
        """The number of parameters."""
        return len(self.names)

    @property
    def index(self) -> list[str]:
        """The names of the parameters, as a data frame calls them."""
        return self.names

    @property
    def loc(self) -> "Rows":
        """Rows by name: `summary.loc["x"]`, `summary.loc["x", "mean"]`."""
        return Rows(self)

    def keys(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def __getattr__(self, name: str) -> Any:
        """Any attribute of a data frame: `summary.sort_values("sd")`, `.iloc`, `.to_dict()`, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.to_pandas(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The numbers, [parameters, columns]."""
        del copy  # it is a new array in any case
        return np.stack([*self.columns.values()], 1).astype(dtype or np.float64)

    def __repr__(self) -> str:
        """The table as text; the digits of a row follow its sd."""
        lines = [["", *self.columns], *([name, *row] for name, row in self._body())]
        wide = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
        rest = lambda line: [cell.rjust(w) for cell, w in zip(line[1:], wide[1:], strict=True)]
        table = ["  ".join([line[0].ljust(wide[0]), *rest(line)]) for line in lines]
        return "\n".join([*table, *self.said, *self.doubts])

    def _repr_html_(self) -> str:
        lines = [f"<div>{escape(line)}</div>" for line in self.said]
        lines += [html_lines(self.doubts[0], self.doubts[1:])] if self.doubts else []
        return html_table([*self.columns], self._body()) + "".join(lines)

    def _body(self) -> list[tuple[str, list[str]]]:
        digits = [_digits(sd) for sd in self.columns["sd"]]
        cells = lambda i: [
            f"{values[i]:.{_DIGITS.get(name, digits[i])}f}" for name, values in self.columns.items()
        ]
        return [(name, cells(i)) for i, name in enumerate(self.names)]

    def to_pandas(self) -> Any:
        """The summary as a pandas DataFrame with the names as index."""
        import pandas as pd

        return pd.DataFrame(self.columns, index=pd.Index(self.names, name="parameter"))

    def to_frame(self, kind: Literal["pandas", "polars", "pyarrow", "dict"] = "pandas") -> Any:
        """The summary as a table of this library, with the names in a column `parameter`."""
        return as_table(kind, {"parameter": np.array(self.names), **self.columns})


class Rows(NamedTuple):
    """The rows of a summary, by name."""

    summary: Summary

    def __getitem__(self, key: Any) -> Any:
        """A row as a dict, a list of rows as a summary, or one number by row and column."""
        name, column = key if isinstance(key, tuple) else (key, None)
        row = self.summary._some([self.summary._row(name)]) if isinstance(name, str) else None
        if row is None:
            return self.summary[list(name)] if column is None else self.summary[list(name)][column]
        return row[name] if column is None else float(row.columns[column][0])


def summarise_theta(
    family: Family,
    adapter: Adapter,
    quantiles: Quantiles,
    draws: int,
    seed: int,
    exponentiate: bool = False,
) -> Summary:
    """The summary: real parameters exactly from q(theta); others, or all of a weighted theta, from draws.

    `exponentiate` shows exp of effects on a log or logit scale, which are ratios.
    """
    model, weighted = adapter.model, getattr(family, "weighted", None)
    columns = ["mean", "sd", *quantile_names(quantiles)]
    if weighted is not None:
        theta, weight = np.asarray(weighted.points), weighted.weight
    else:
        draws = int(min(draws, max(budgets.SUMMARY_NUMBERS // model.theta.size, 100)))
        theta, weight = draw_theta(jax.random.key(seed), family, model, draws).theta, None
    values = adapter.global_values(theta)
    names, flat = list(summary_draws(adapter, values)), _flat(adapter, values)
    said = exponentiated(adapter, names, flat) if exponentiate else ()
    if adapter.summary_rows(values) is not None:
        table = _from_draws(flat, quantiles, weight)
    else:
        table = _by_parameter(family, model, values, quantiles, weight)
    more = {} if weighted is None else _reliability(flat, weighted)
    return Summary(names, dict(zip(columns, table, strict=True)) | more, said=said)


def summary_of_draws(adapter: Adapter, values: dict[str, Any], quantiles: Quantiles) -> Summary:
    """A summary of draws of the globals without weights; `values` has them by name."""
    columns = ["mean", "sd", *quantile_names(quantiles)]
    names, flat = list(summary_draws(adapter, values)), _flat(adapter, values)
    table = _from_draws(flat, quantiles, None)
    return Summary(names, dict(zip(columns, table, strict=True)))


def exponentiated(
    adapter: Any, names: list[str], draws: Float64[np.ndarray, "S n"]
) -> tuple[str, ...]:
    """Exponentiates the effects among the draws, in place; returns a line on what they are now."""
    what, effects = adapter.ratios()
    own = [i for i, name in enumerate(names) if name in effects]
    draws[:, own] = np.exp(draws[:, own])
    return (f"{what}: exp of {', '.join(names[i] for i in own)}; 1 stands for no effect.",)


def with_doubts(summary: Summary, notes: Mapping[str, Any], N: int) -> Summary:
    """The summary with the verdict and its reasons, if there is any doubt."""
    return replace(summary, doubts=doubts_of(notes, N))


def doubts_of(notes: Mapping[str, Any], N: int) -> tuple[str, ...]:
    """The verdict on a fit of N groups and its reasons, if there is any doubt."""
    found = findings(notes, N)
    if not found:
        return ()
    first = f"Verdict: {verdict_of(found)}" if judged(notes) else "Of this fit:"
    return (first, *(f"  - {finding.said}" for finding in found))


def _by_parameter(
    family: Family, model: Model, values: Any, quantiles: Quantiles, weight: Weight | None
) -> np.ndarray:
    """[statistics, entries] of theta: real parameters without weights exactly from q(theta)."""
    mean = np.asarray(family.theta.mean, np.float64)
    sd = np.sqrt(np.diagonal(np.asarray(family.theta.covariance, np.float64)))
    rows, start = [], 0
    for name, parameter in model.theta.parameters.items():
        stop = start + int(np.prod(parameter.unconstrained_shape))
        if parameter.constraint is constraints.real and weight is None:
            rows.append(_exact(mean[start:stop], sd[start:stop], quantiles))
        else:
            rows.append(_from_draws(np.asarray(values[name], np.float64), quantiles, weight))
        start = stop
    return np.concatenate(rows, 1)


def with_reliability(
    summary: Summary, adapter: Adapter, theta: Float[np.ndarray, "S D"], log_weight: Weight
) -> Summary:
    """The summary with columns `ess` and `k_hat`, from draws of q(theta) weighed by the posterior."""
    draws = shown_values(adapter, theta)
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weight = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    return replace(summary, columns=summary.columns | reliability(draws, weight))


def summary_draws(adapter: Adapter, values: Mapping[str, Any]) -> dict[str, Any]:
    """Draws of the globals [S, ...] as the rows of a summary, [S] each, by name."""
    named = adapter.summary_rows(dict(values))
    if named is not None:
        return named
    # The values come from a compiled function, which returns them sorted by name.
    rows = {}
    for name, parameter in adapter.model.theta.parameters.items():
        flat = np.asarray(values[name], np.float64).reshape(len(values[name]), -1)
        rows |= dict(zip(entry_names(name, parameter.shape), flat.T, strict=True))
    return rows


def shown_values(adapter: Adapter, theta: Float[np.ndarray, "S D"]) -> Float64[np.ndarray, "S n"]:
    """The columns of a summary for draws of theta, side by side."""
    return _flat(adapter, adapter.global_values(theta))


def _flat(adapter: Adapter, values: dict[str, Any]) -> Float64[np.ndarray, "S n"]:
    """The rows of a summary as columns, side by side."""
    rows = summary_draws(adapter, values).values()
    return np.stack([np.asarray(draws, np.float64) for draws in rows], 1)


def _reliability(values: Float64[np.ndarray, "T n"], weighted: WeightedTheta) -> dict[str, Any]:
    """How reliable the mean of each column is: `ess`, with `k_hat`, or of chains `r_hat`."""
    if not weighted.chains:
        return reliability(values, weighted.weight)
    r_hat, ess = agreement(values.reshape(weighted.chains, -1, values.shape[1]))
    return {"ess": ess, "r_hat": r_hat}


def reliability(
    values: Float64[np.ndarray, "S n"], weight: Weight
) -> dict[str, Float64[np.ndarray, " n"]]:
    """How reliable the weighted mean of each column is.

    `ess` is the number of independent draws that would give it the same standard error, and `k_hat`
    the shape of the tail of |value - mean| times its weight: above 0.7 the mean can't be trusted.

    Example:
        >>> found = reliability(np.random.default_rng(0).normal(size=(400, 1)), np.full(400, 1 / 400))
        >>> float(found["ess"][0].round()), bool(found["k_hat"][0] < 0.5)
        (400.0, True)
    """
    # The weights alone judge a column that is the same in all draws.
    apart = np.where(np.ptp(values, 0) == 0, 1.0, values - weight @ values)
    error = (weight**2) @ apart**2
    ess = (weight @ apart**2) / np.where(error > 0, error, np.inf)
    with np.errstate(divide="ignore"):  # the log of a weight of zero
        log_weight, log_apart = np.log(weight), np.log(np.abs(apart))
    tail = k_hat(log_weight[:, None] + log_apart)
    return {"ess": ess, "k_hat": np.maximum(tail, k_hat(log_weight))}


def _exact(mean: np.ndarray, sd: np.ndarray, quantiles: Quantiles) -> np.ndarray:
    """[statistics, entries] of independent normal entries."""
    level = lambda q: NormalDist().inv_cdf(q) if 0 < q < 1 else np.copysign(np.inf, q - 0.5)
    return np.stack([mean, sd, *(mean + sd * level(q) for q in quantiles)])


def _from_draws(values: np.ndarray, quantiles: Quantiles, weight: Weight | None) -> np.ndarray:
    """[statistics, entries] of draws [S, ...], weighted or not."""
    flat = values.reshape(len(values), -1)
    if weight is None:
        levels = np.quantile(flat, np.asarray(quantiles, np.float64), axis=0)
        return np.stack([flat.mean(0), flat.std(0), *levels])
    mean = weight @ flat
    sd = np.sqrt(weight @ (flat - mean) ** 2)
    return np.stack([mean, sd, *weighted_quantiles(flat, weight, list(quantiles))])


def _digits(sd: float) -> int:
    """Decimals that show three digits of the sd."""
    return int(np.clip(2 - np.floor(np.log10(sd)), 1, 8)) if 0 < sd < np.inf else 4


def words(notes: Mapping[str, Any], history: Mapping[str, np.ndarray], N: int) -> list[str]:
    """Lines about a fit: how it was made, its ELBO, its verdict and the reasons for it."""
    lines = []
    if notes.get("why", "as asked") != "as asked":
        lines.append(f"chosen because {notes['why']}")
    elbo = np.asarray(history.get("elbo", []))
    spent = [f"{notes[unit]:,} {unit}" for unit in ("steps", "sweeps") if unit in notes]
    spent += [f"{notes['seconds']:.3g} s"] if "seconds" in notes else []
    if len(elbo):
        last = float(elbo[-100:].mean() if "steps" in notes else elbo[-1])
        lines.append(f"ELBO {last:,.2f} nats" + (f" after {', '.join(spent)}" if spent else ""))
    found = findings(notes, N)
    if judged(notes):
        lines.append(f"verdict: {verdict_of(found)}{_small_errors(notes) if not found else ''}")
    return [f"  {line}" for line in [*lines, *(f"warning: {finding.said}" for finding in found)]]


def _small_errors(notes: Mapping[str, Any]) -> str:
    """The size of the known errors of a fit without findings, in words."""
    known = [np.max(np.abs(notes[n])) for n in ("bias_sds", "noise_sds") if n in notes]
    size = max(map(float, known), default=np.nan)
    if not np.isfinite(size):
        return ""
    shown = f"{size:.1g}" if size >= 0.01 else "0.01"
    return f" (what the method leaves out moves no estimate by more than {shown} of its sd)"


def judged(notes: Mapping[str, Any]) -> bool:
    """Whether a fit's notes are enough for a verdict: a known bias, or no convergence."""
    return "bias_sds" in notes or notes.get("converged") is False
