"""Checks of a saved formula and its rows: config.json and rows.safetensors must hold a possible fit."""

import json
import warnings
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.formula.design import Coding, components
from ramify.frontends.formula.formula import EffectLayout, Formula, Units
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from ramify.frontends.formula.parameter_formulas import ParameterFormula, category_names
from ramify.frontends.formula.reading import unsupported
from ramify.frontends.formula.saved_coding import to_plain
from ramify.io.fields import Check, check_each, is_count, is_list_of, is_number, is_text, one_of

_OPTIONAL: Check = lambda value: value is None or is_text(value)
_LEVEL: Check = lambda value: is_text(value) or type(value) is bool or is_number(value)
_FIELDS: dict[str, Check] = {
    "formula": is_text,
    "likelihood": one_of(*LIKELIHOODS),
    "group": is_text,
    "trials": _OPTIONAL,
    "weights": _OPTIONAL,
    "levels": lambda value: value is None or is_list_of(_LEVEL)(value),
    "table": one_of("dict", "pandas", "polars", "pyarrow"),
    "zone": lambda value: value is None or _is_zone(value),
}
_PARAMETER: Check = lambda value: is_number(value) and abs(value) < np.inf


def _is_zone(value: Any) -> bool:
    try:
        return is_text(value) and (value[:1] in "+-" or bool(ZoneInfo(value)))
    except (KeyError, ValueError, OSError):
        return False


def check_config(path: Path, config: dict[str, Any], by: str) -> None:
    """Raises if a field has a value that no formula has; `by` is the fit's label column."""
    check_each(path, config, _FIELDS)
    check_each(path, config, {"link": one_of(*LIKELIHOODS[config["likelihood"]].links)})
    own = config.get("parameters", [])
    sizes = {len(config["layout"]["group"]), *(len(part["group_unit"]) for part in own)}
    for prior in config["priors"].values():
        _check_prior(path, prior, sizes)
    if (config["trials"] is None) != (LIKELIHOODS[config["likelihood"]].support != "trials"):
        raise ValueError(
            f"{path} is damaged: trials are for binomial likelihoods, which have some."
        )
    if config["group"] != by:
        raise ValueError(
            f'{path} is damaged: it groups by "{config["group"]}"; the fit has groups by "{by}".'
        )


def _check_prior(path: Path, prior: dict[str, Any], sizes: set[int]) -> None:
    """A prior's parameters are numbers, so that it takes no memory to speak of."""
    own = dict(prior["parameters"])
    if "base_dist" in own:
        _check_prior(path, own.pop("base_dist"), sizes)
    size = own.pop("dimension", min(sizes))
    if type(size) is not int or size not in sizes or not all(map(_PARAMETER, own.values())):
        raise ValueError(f"{path} is damaged: a prior has a value that no fit has.")


def check_formula(path: Path, formula: Formula) -> None:
    """Raises if the parts of a formula do not fit together."""
    parts, layout, units = formula.parts, formula.layout, formula.units
    if (formula.common.text, formula.group.text) != (parts.common, parts.group):
        raise ValueError(f"{path} is damaged: its terms are not those of its formula.")
    if parts.cens is not None and formula.family.log_survival is None:
        raise ValueError(f"{path} is damaged: its likelihood takes no censored responses.")
    names = [name for name in formula.common.names if name != "Intercept"], formula.group.names
    levels = len(formula.levels or ())
    support, ours = formula.family.support, [own.name for own in formula.own]
    known = {"levels": levels > 2, "binary": levels in (0, 2)}
    known["categories"] = levels > 2 and ours == category_names(formula.levels or [])
    enough = known.get(support, True) and (bool(names[1]) or support == "categories")
    if not (enough and _laid_out(layout, *names) and _in_range(units, *map(len, names))):
        raise ValueError(f"{path} is damaged: its layout has values that no formula has.")
    for own in formula.own:
        _check_parameter(path, formula, own)
    for coding in formula.codings:
        _try(path, coding)


def _check_parameter(path: Path, formula: Formula, own: ParameterFormula) -> None:
    """Raises where a formula of a parameter is not one of this likelihood, or has impossible values."""
    columns = len(own.effects), len(own.effects), len(own.varying)
    sizes = len(own.centre), len(own.unit), len(own.group_unit)
    numbers = (*own.centre, *own.unit, *own.group_unit, own.shift)
    texts = (own.common.text, own.group.text, own.name)
    if (
        (own.name not in formula.family.parameters and formula.family.support != "categories")
        or texts != (own.parts.common, own.parts.group, own.parts.response)
        or sizes != columns
        or not all(map(_PARAMETER, numbers))
        or min((*own.unit, *own.group_unit), default=1.0) <= 0
    ):
        raise ValueError(f"{path} is damaged: its formula of a parameter has values of no fit.")


def _laid_out(layout: EffectLayout, common: list[str], group: list[str]) -> bool:
    """Whether every common effect has one place."""
    P, M = len(common), len(group)
    places = [*layout.grouped, *layout.rest, *(k for k, _ in layout.shared)]
    return (
        (list(layout.common), list(layout.group)) == (common, group)
        and all(map(is_text, (*common, *group)))
        and type(layout.intercept) is bool
        and all(map(is_count, places))
        and sorted(places) == list(range(P))
        and all(is_count(w) and w < M for _, w in layout.shared)
    )


def _in_range(units: Units, P: int, M: int) -> bool:
    """Whether centres are numbers and units positive."""
    numbers = (*units.centre, *units.unit, *units.group_unit, units.shift, units.offset_centre)
    positive = (*units.unit, *units.group_unit, units.scale)
    sizes = (len(units.centre), len(units.unit), len(units.group_unit)) == (P, P, M)
    return sizes and all(map(_PARAMETER, (*numbers, units.scale))) and min(positive) > 0


def _try(path: Path, coding: Coding) -> None:
    """Codes two rows, to check that the saved state is enough for this."""
    import pandas as pd

    known = {c.name: list(c.levels or ())[:1] for c in components(coding.terms)}
    column = lambda name, kind: [1.0] * 2 if kind == "number" else (known.get(name) or ["a"]) * 2
    frame = pd.DataFrame({name: column(name, kind) for name, kind in coding.kinds.items()})
    frame = frame if len(frame) else pd.DataFrame(index=range(2))
    before, columns = json.dumps(to_plain(coding)), len(coding.names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns = coding.matrix(frame).shape[1]
    except ValueError:  # 1 may be beyond the knots of a spline
        pass
    except Exception as error:
        raise ValueError(f"{path} is damaged: {coding.text!r} can't be evaluated.") from error
    if json.dumps(to_plain(coding)) != before:  # it took constants from these rows
        raise ValueError(f"{path} is damaged: {coding.text!r} lacks constants of its data.")
    if not len(coding.names) == len(coding.owners) == columns:
        raise ValueError(
            f"{path} is damaged: {coding.text!r} has {columns} columns and other names."
        )


def check_rows(path: Path, groups: Groups) -> None:
    """Raises where saved rows are not the rows of groups."""
    order, number = groups.row_order, groups.number
    for name, array in {**groups.rows, **groups.group}.items():
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ValueError(f"{path} is damaged: {name} holds values that are not finite numbers.")
    for name, array in (("row_order", order), ("number", number)):
        if (array < 0).any() or len(np.unique(array)) < len(array):
            raise ValueError(f"{path} is damaged: {name} does not number the rows or groups.")


def check_outcomes(path: Path, formula: Formula, groups: Groups) -> None:
    """Raises where outcomes, trials or weights are out of their range."""
    rows, zero = groups.rows, np.zeros(1)
    outcomes, trials = np.asarray(rows["y"], np.float64), rows.get("trials")
    bad, _ = unsupported(formula.family.support, outcomes, trials)
    known = range(len(formula.levels or ()))
    beyond = formula.has_cutpoints and not np.isin(outcomes, known).all()
    negative = min(rows.get(name, zero).min(initial=0) for name in ("trials", "weights")) < 0
    odd = not np.isin(rows.get("cens", zero), (0, 1)).all()
    if bad.any() or beyond or negative or odd or ("cens" in rows) != bool(formula.parts.cens):
        raise ValueError(
            f"{path} is damaged: its outcomes are not of likelihood={formula.likelihood!r}."
        )
