"""Results of a formula by the user's names: rows of a summary, sections of a report, groups."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.data.tables import as_table, in_zone
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.priors import sd_name
from ramify.frontends.formula.totals import population
from ramify.models.adapter import Section
from ramify.posterior.prediction import labelled, quantile_names


def coordinates(formula: Formula, entries: list[str]) -> list[str]:
    """The name in messages of each entry of the flat theta; `entries` are its names inside."""
    layout, by = formula.layout, formula.by
    pairs = [(b, a) for i, a in enumerate(layout.group) for b in layout.group[:i]]
    own = {"intercept": "Intercept"} | {f"b[{k}]": name for k, name in enumerate(layout.common)}
    own |= {f"sd[{m}]": sd_name(name, by) for m, name in enumerate(layout.group)}
    own |= {f"cor[{k}]": f"cor({a}, {b} | {by})" for k, (a, b) in enumerate(pairs)}
    for part in formula.own:
        p, varying = part.name, part.varying
        own |= {f"{p}_intercept": f"{p}_Intercept"}
        own |= {f"{p}_b[{k}]": name for k, name in enumerate(part.effects)}
        own |= {f"{p}_sd[{m}]": sd_name(name, by) for m, name in enumerate(varying)}
        pairs = [(b, a) for i, a in enumerate(varying) for b in varying[:i]]
        own |= {f"{p}_cor[{k}]": f"cor({a}, {b} | {by})" for k, (a, b) in enumerate(pairs)}
    return [own.get(name, name) for name in entries]


def summary_rows(formula: Formula, values: dict[str, Any]) -> dict[str, Any]:
    """Draws of every parameter: effects, sds, correlations, then those of the likelihood."""
    layout, by, levels = formula.layout, formula.by, formula.levels
    found = {"Intercept": values["Intercept"]} if layout.intercept else {}
    found |= {name: values[name] for name in common(formula)[1:]}
    parts = [("", layout.group), *((f"{own.name}_", own.varying) for own in formula.own)]
    for prefix, names in parts:
        found |= {sd_name(n, by): values[f"{prefix}sd"][:, m] for m, n in enumerate(names)}
    for prefix, names in parts:
        if f"{prefix}cor" in values:
            for i, first in enumerate(names):
                for j, second in enumerate(names[:i]):
                    found[f"cor({second}, {first} | {by})"] = values[f"{prefix}cor"][:, i, j]
    family = (name for name in formula.parameters if name != "cutpoints")
    found |= {name: values[name] for name in family}
    if "cutpoints" in values and levels is not None:
        for k, (low, high) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
            found[f"cutpoint({low}|{high})"] = values["cutpoints"][:, k]
    return found


RATIOS = {"logit": "odds ratios", "log": "ratios of means", "cloglog": "hazard ratios"}


def ratios(link: str, names: list[str]) -> tuple[str, list[str]]:
    """The name of exp of a common effect, such as odds ratios, and the names of these effects."""
    if link not in RATIOS:
        raise ValueError(
            f"exponentiate= is for a link of {', '.join(RATIOS)}, where exp of an effect is a ratio; "
            f"this formula's is {link!r}."
        )
    return RATIOS[link], names


def has_odds(support: str, kind: str) -> bool:
    """Whether the expected outcome of a row is a share or a probability; with trials it is a count."""
    return kind == "probability" or (kind == "mean" and support in ("binary", "unit"))


def named_axes(formula: Formula) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
    """Names of a parameter's axes, and what they count: for ArviZ."""
    effects, levels = list(formula.layout.group), formula.levels or []
    between = [f"{low}|{high}" for low, high in zip(levels[:-1], levels[1:], strict=True)]
    dims = {"effects": ["effect"], "sd": ["effect"], "cor": ["effect", "other_effect"]}
    coords = {"effect": effects, "other_effect": effects, "cutpoint": between}
    for own in formula.own:  # whose effects are in z after those of the mean
        p, names = own.name, own.varying
        dims |= {"effects": ["group_effect"], f"{p}_sd": [f"{p}_effect"]}
        dims |= {f"{p}_cor": [f"{p}_effect", f"{p}_other_effect"]}
        coords |= {"group_effect": formula.varying}
        coords |= {f"{p}_effect": names, f"{p}_other_effect": names}
    return {**dims, "cutpoints": ["cutpoint"]}, coords


def predictors(
    formula: Formula, groups: Groups
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The columns of the design by name, on the user's scale: of rows, and of groups."""
    layout, units, parts, given = formula.layout, formula.units, formula.parts, groups.rows
    # Columns are stored in float32, in units of their sds; a zero should come back as exactly zero.
    digits = lambda unit: int(5 - np.floor(np.log10(unit)))
    column = lambda x, unit, centre: np.round(
        np.asarray(x, np.float64) * unit + centre, digits(unit)
    )
    back = lambda x, own: {
        layout.common[k]: column(x[:, i], units.unit[k], units.centre[k]) for i, k in enumerate(own)
    }
    rows = back(given["X"], layout.rest) if "X" in given else {}
    group = back(groups.group["U"], layout.grouped) if "U" in groups.group else {}
    for m, name in enumerate(layout.group):
        if name != "Intercept":
            rows[name] = column(given["W"][:, m], units.group_unit[m], 0.0)
    for own in formula.own:
        for k, name in enumerate(own.effects):
            rows[name] = column(given[f"{own.name}_X"][:, k], own.unit[k], own.centre[k])
    for role, name in (("trials", parts.trials), ("weights", parts.weights), ("cens", parts.cens)):
        if role in given:
            rows[role if name is None or name.isdigit() else name] = given[role]
    if "offset" in given:
        rows["offset"] = given["offset"] * units.scale + units.offset_centre
    return rows, group


def common(formula: Formula) -> list[str]:
    """Names of the intercept and of all common effects, also of those in formulas of parameters."""
    found = ["Intercept", *formula.layout.common]
    for own in formula.own:
        found += [f"{own.name}_Intercept"] if own.intercept else []
        found += own.effects
    return found


def sections(names: Sequence[str], effects: set[str], by: str) -> list[Section]:
    """The rows of a summary, given by name, in parts that share a scale; `effects` are common."""
    rows: dict[str, list[int]] = {"effect": [], "sd": [], "cor": [], "family": []}
    for i, name in enumerate(names):
        kind = name.split("(")[0] if name.startswith(("sd(", "cor(")) else "family"
        rows["effect" if name in effects else kind].append(i)
    found = [
        Section("Population effects", rows["effect"], "line"),
        Section(f"Standard deviations between groups{by}", rows["sd"], "from"),
        Section("Correlations of group effects", rows["cor"], "unit"),
        Section("Parameters of the likelihood", rows["family"], "line"),
    ]
    return [section for section in found if section.rows]


def group_effects(
    formula: Formula,
    sampled: Iterable[Any],
    sizes: np.ndarray,
    totals: bool,
    quantiles: Sequence[float],
) -> Any:
    """The table of `Posterior.group_effects`; `sampled` is what `sample_blocks` yields."""
    labels, parts = [], []
    for names, draws in sampled:
        effects = draws["effects"]  # [S, B, M]
        effects = effects + _population(formula, draws)[:, None] if totals else effects
        levels = np.quantile(effects, np.asarray(quantiles, np.float64), axis=0)
        labels.append(names)
        parts.append(np.stack([effects.mean(0), effects.std(0), *levels]))
    table = np.concatenate(parts, 1)  # [statistics, N, M]
    columns: dict[str, Any] = {"n": np.asarray(sizes)}
    for m, effect in enumerate(formula.varying):
        for i, statistic in enumerate(["mean", "sd", *quantile_names(quantiles)]):
            columns[f"{effect}_{statistic}"] = table[i, :, m]
    own = in_zone(formula.table, np.concatenate(labels), formula.zone)
    return as_table(formula.table, labelled(formula.by, own, columns))


def _population(formula: Formula, draws: Mapping[str, Any]) -> np.ndarray:
    """The population's part of all effects that vary by group, [S, M]."""
    own = [(part.common, part.group, f"{part.name}_") for part in formula.own]
    every = [(formula.common, formula.group, ""), *own]
    return np.concatenate([population(x, [w], draws, p) for x, w, p in every if w.names], 1)
