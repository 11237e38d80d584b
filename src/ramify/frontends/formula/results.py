"""Results of a formula in a statistician's terms: names of parameters, effects of groups."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from ramify.data.tables import as_table, in_zone
from ramify.frontends.formula.layout import Layout
from ramify.frontends.formula.priors import sd_name

if TYPE_CHECKING:
    from ramify.frontends.formula.model import Formula


Values = dict[str, Any]  # draws by name: JAX's, or NumPy's where they need float64


def rows(values: Values, layout: Layout, by: str, levels: list[Any] | None) -> Values:
    """Draws [S] of every parameter: effects, sds, correlations, then those of the family.

    Args:
        values: draws as `FormulaModel.global_values` names them.
        layout: names of the effects.
        by: the grouping column.
        levels: of an ordered response: cutpoints are between them.
    """
    found: Values = {"Intercept": values["Intercept"]} if layout.intercept else {}
    found |= {name: values[name] for name in layout.common}
    found |= {sd_name(name, by): values["sd"][:, m] for m, name in enumerate(layout.group)}
    if "cor" in values:
        for i, first in enumerate(layout.group):
            for j, second in enumerate(layout.group[:i]):
                found[f"cor({second}, {first} | {by})"] = values["cor"][:, i, j]
    for name in ("sigma", "nu", "shape"):
        found |= {name: values[name]} if name in values else {}
    if "cutpoints" in values and levels is not None:
        for k, (low, high) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
            found[f"cutpoint({low}|{high})"] = values["cutpoints"][:, k]
    return found


def group_effects(
    formula: "Formula",
    sampled: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]],
    sizes: np.ndarray,
    totals: bool,
    quantiles: Sequence[float],
) -> Any:
    """One row for each group: label, rows, and mean, sd and quantiles of each effect."""
    from ramify.posterior.prediction import labelled, quantile_names

    statistics = ["mean", "sd", *quantile_names(quantiles)]
    labels, parts = [], []
    for names, draws in sampled:
        effects = draws["effects"]  # [S, B, M]
        if totals:
            effects = effects + _population(formula.layout, draws)[:, None]
        labels.append(names)
        parts.append(_statistics(effects, quantiles))
    table = np.concatenate(parts, 1)  # [statistics, N, M]
    columns: dict[str, Any] = {"n": np.asarray(sizes)}
    for m, effect in enumerate(formula.layout.group):
        for i, statistic in enumerate(statistics):
            columns[f"{effect}_{statistic}"] = table[i, :, m]
    own = in_zone(formula.table, np.concatenate(labels), formula.zone)
    return as_table(formula.table, labelled(formula.by, own, columns))


def _population(layout: Layout, draws: dict[str, np.ndarray]) -> Shaped[np.ndarray, "S M"]:
    """The common effect of each column that varies by group; zero where there is none."""
    zero = np.zeros_like(draws["sd"][:, 0])
    return np.stack([draws.get(name, zero) for name in layout.group], 1)


def _statistics(
    effects: Shaped[np.ndarray, "S B M"], quantiles: Sequence[float]
) -> Shaped[np.ndarray, "statistics B M"]:
    levels = np.quantile(effects, np.asarray(quantiles, np.float64), axis=0)
    return np.stack([effects.mean(0), effects.std(0), *levels])
