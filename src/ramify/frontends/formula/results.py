"""Results of a formula in a statistician's terms: names of parameters, effects of groups."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ramify.data.tables import as_table, in_zone
from ramify.frontends.formula.formula import SD, Formula, are_numbers
from ramify.frontends.formula.layout import EffectLayout
from ramify.frontends.formula.likelihoods import INVERSE
from ramify.frontends.formula.priors import sd_name
from ramify.models.adapter import Section
from ramify.models.parameters import Named
from ramify.posterior.prediction import labelled, quantile_names

Values = dict[str, Any]  # draws by name: JAX's, or NumPy's where they need float64


def user_scale(formula: Formula, theta: Named) -> Named:
    """Effects, sds, correlations and family parameters of one theta on the user's scale.

    The intercept is less `far_intercept`, for which float32 has no room.
    """
    layout = formula.layout
    b = theta["b"] if layout.common else jnp.zeros(0)
    shift = layout.intercept_shift(b)
    values: Named = {}
    if layout.intercept:
        near = layout.shift - formula.far_intercept
        values["Intercept"] = near + layout.scale * (theta["intercept"] - shift)
    effects = layout.coefficients(b)
    values |= {name: effects[k] for k, name in enumerate(layout.common)}
    values["sd"] = layout.deviations(SD * theta["sd"])
    if "cor" in theta:
        values["cor"] = theta["cor"] @ theta["cor"].T
    values |= {name: formula.unit(name) * theta[name] for name in formula.family.parameters}
    if "cutpoints" in values:
        values["cutpoints"] = values["cutpoints"] + shift
    return values


def expected(
    formula: Formula, kind: str, theta: Named, z: Named, row: Named
) -> Float[Array, "*levels"]:
    """One row's mean outcome ("mean"), linear predictor ("link") or its levels' probabilities."""
    layout, eta = formula.layout, formula.predictor(theta, z, row)
    if formula.link == "identity":
        return layout.base - formula.origin + layout.scale * eta
    if kind == "link":
        centred = formula.has_cutpoints and "b" in theta
        return eta + (layout.intercept_shift(theta["b"]) if centred else 0)
    if formula.levels is not None and formula.has_cutpoints:
        probability = formula.family.distribution(formula.link, eta, theta, row).probs
        if kind == "probability":
            return probability
        numbers = formula.levels if are_numbers(formula.levels) else range(len(formula.levels))
        return probability @ jnp.asarray(list(numbers), eta.dtype)
    return INVERSE[formula.link](eta) * (row["trials"] if "trials" in row else 1.0)


def summary_rows(values: Values, formula: Formula) -> Values:
    """Draws [S] of every parameter: effects, sds, correlations, then those of the family.

    Args:
        values: draws as `user_scale` names them.
        formula: the formula.
    """
    layout, by, levels = formula.layout, formula.by, formula.levels
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


def sections(names: Sequence[str], formula: Formula) -> list[Section]:
    """The rows of a summary in parts that share a scale."""
    of = "effect sd cor family".split()
    common = {"Intercept", *formula.layout.common}
    kind = lambda n: n.split("(")[0] if n.startswith(("sd(", "cor(")) else "family"
    kinds = np.array(["effect" if name in common else kind(name) for name in names])
    rows = {kind: np.flatnonzero(kinds == kind).tolist() for kind in of}
    found = [
        Section("Population effects", rows["effect"], "line"),
        Section(f"Standard deviations between groups ({formula.by})", rows["sd"], "from"),
        Section("Correlations of group effects", rows["cor"], "unit"),
        Section("Parameters of the likelihood", rows["family"], "line"),
    ]
    return [section for section in found if section.rows]


def group_effects(
    formula: Formula,
    sampled: Iterable[tuple[np.ndarray, dict[str, np.ndarray]]],
    sizes: np.ndarray,
    totals: bool,
    quantiles: Sequence[float],
) -> Any:
    """One row for each group: label, rows, and mean, sd and quantiles of each effect."""
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


def _population(layout: EffectLayout, draws: dict[str, np.ndarray]) -> Shaped[np.ndarray, "S M"]:
    """The common effect of each column that varies by group; zero where there is none."""
    zero = np.zeros_like(draws["sd"][:, 0])
    return np.stack([draws.get(name, zero) for name in layout.group], 1)


def _statistics(
    effects: Shaped[np.ndarray, "S B M"], quantiles: Sequence[float]
) -> Shaped[np.ndarray, "statistics B M"]:
    levels = np.quantile(effects, np.asarray(quantiles, np.float64), axis=0)
    return np.stack([effects.mean(0), effects.std(0), *levels])
