"""A formula on disk: `config.json`, and the rows of the fit beside it.

With both, a saved fit predicts without the model and the table, also for known groups. Neither can
execute code: a formula calls only functions of a fixed list.
"""

import json
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ramify._version import __version__
from ramify.data.groups import Groups
from ramify.frontends.formula import design, priors, saved_coding
from ramify.frontends.formula.checks import check_config, check_formula, check_rows
from ramify.frontends.formula.design import Coding
from ramify.frontends.formula.formula import EffectLayout, Formula, Units
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from ramify.frontends.formula.parameter_formulas import NOTHING, ParameterFormula
from ramify.frontends.formula.text import (
    FormulaText,
    parse,
    parse_parameter,
    split,
    without_effects,
)
from ramify.io.fields import is_list_of, is_text
from ramify.io.folder import CONFIG, ROWS, SavedFit, check_version, read_json
from ramify.io.saving import part_of, read_arrays, write_arrays
from ramify.numerics.user_warning import warn_user

FORMAT_VERSION = 1


def save(formula: Formula, given: priors.Priors, groups: Groups | None, folder: Path) -> None:
    """Writes a formula with its state and its priors, and the columns of the fit."""
    config = {
        **of_columns(formula),
        "table": formula.table,
        "zone": formula.zone,
        "priors": {name: priors.to_plain(prior) for name, prior in given.items()},
        "priors_in_words": {name: priors.in_words(p) for name, p in given.items()},
        "format_version": FORMAT_VERSION,
        "versions": {"ramify": __version__, "formulae": version("formulae")},
    }
    if groups is not None and groups.store is not None:  # its rows stay where they are
        config["store"] = [str(groups.store.folder.absolute()), groups.store.content]
    (folder / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False))
    if groups is not None and groups.store is None:
        arrays = {"sizes": groups.sizes, "number": groups.number, "row_order": groups.row_order}
        arrays |= {f"rows/{name}": column for name, column in groups.rows.items()}
        arrays |= {f"group/{name}": column for name, column in groups.group.items()}
        write_arrays(folder / ROWS, {**arrays, "origin": np.array([formula.origin])})


def of_columns(formula: Formula) -> dict[str, Any]:
    """All that the columns of a model depend on, as JSON values."""
    return {
        "formula": formula.text,
        "likelihood": formula.likelihood,
        "link": formula.link,
        "group": formula.by,
        "trials": formula.parts.trials,
        "weights": formula.parts.weights,
        "levels": formula.levels,
        "layout": asdict(formula.layout) | asdict(formula.units),
        "common": saved_coding.to_plain(formula.common),
        "varying": saved_coding.to_plain(formula.group),
        "parameters": [_plain(own) for own in formula.own],
    }


def load(saved: SavedFit) -> tuple[Formula, priors.Priors]:
    """The formula of a saved fit, and its priors."""
    path = saved.file(CONFIG)
    if path is None:
        raise ValueError(
            f"the fit in {saved.folder} was not made from a formula: bring its model, "
            "load(path, model)."
        )
    design.check_installed()
    config = read_json(path)
    check_version(path, config, FORMAT_VERSION, saved.fit.get("ramify_version"))
    try:
        return _checked(path, config, saved.fit["by"])
    except saved_coding.ReadOtherwise:
        raise
    except Exception as error:  # other libraries may raise anything on bad input
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} is damaged or not of a formula.") from error


def _checked(path: Path, config: dict[str, Any], by: str) -> tuple[Formula, priors.Priors]:
    check_config(path, config, by)
    formula = _formula(config)
    check_formula(path, formula)
    found = {name: priors.from_plain(plain) for name, plain in config["priors"].items()}
    known = priors.defaults(formula, 1.0)
    if {*found} != {*known}:
        raise ValueError(
            f"{path} is damaged: its priors are not those of its formula's parameters."
        )
    return formula, priors.replaced(known, found, formula)


def _formula(config: dict[str, Any]) -> Formula:
    text, *others = split(config["formula"])
    parts: FormulaText = parse(text)
    parts = parts._replace(trials=config["trials"], weights=config["weights"])
    saved = {name: _tuples(v) for name, v in config["layout"].items()}
    part = lambda kind: kind(**{field.name: saved[field.name] for field in fields(kind)})
    if LIKELIHOODS[config["likelihood"]].support == "categories":
        parts = without_effects(parts)
    codings = _coding(config["common"]), _coding(config["varying"])
    own = parts, config["likelihood"], config["link"], *codings, part(EffectLayout), part(Units)
    formulas = [parse_parameter(other, parts.by) for other in others]
    parameters = zip(formulas, config.get("parameters", []), strict=True)
    found = tuple(_parameter(parts, plain) for parts, plain in parameters)
    return Formula(*own, config["levels"], config["table"], config.get("zone"), found)


def _plain(own: ParameterFormula) -> dict[str, Any]:
    """A formula of a parameter as JSON values."""
    numbers = {name: list(getattr(own, name)) for name in ("centre", "unit", "group_unit")}
    codings = {
        "common": saved_coding.to_plain(own.common),
        "varying": saved_coding.to_plain(own.group),
    }
    return {"name": own.name, "shift": own.shift, **numbers, **codings}


def _coding(plain: dict[str, Any]) -> Coding:
    return saved_coding.from_plain(plain) if plain["text"] else NOTHING


def _parameter(parts: FormulaText, plain: dict[str, Any]) -> ParameterFormula:
    """The inverse of `_plain`."""
    common, group = _coding(plain["common"]), _coding(plain["varying"])
    sizes = ("centre", "unit", "group_unit")
    numbers = [*(_tuples(plain[name]) for name in sizes), plain["shift"]]
    return ParameterFormula(plain["name"], parts, common, group, *numbers)


def _from_store(saved: SavedFit, labels: np.ndarray) -> Groups | None:
    """The data of a fit of a store, if they are still there."""
    path = saved.file(CONFIG)
    where = None if path is None else read_json(path).get("store")
    if where is None:
        return None
    if not is_list_of(is_text)(where) or len(where) != 2:
        raise ValueError(f"{path} is damaged: it does not say where the rows of the fit are.")
    try:
        groups = Groups.from_store(where[0])
        same = groups.store is not None and groups.store.content == where[1]
    except (OSError, ValueError):
        groups, same = None, False
    if groups is None or not same or not np.array_equal(groups.labels, labels):
        warn_user(
            f"the rows of this fit were in the store {where[0]}, which is gone or another one now: for "
            "groups of the fit pass their rows as given=, or fit again."
        )
        return None
    return groups


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def load_rows(saved: SavedFit, labels: np.ndarray, origin: float) -> Groups | None:
    """The data of the fit, if they were saved; `origin` is subtracted from the outcomes."""
    path = saved.file(ROWS)
    if path is None:
        return _from_store(saved, labels)
    arrays = read_arrays(path)
    names, nothing = ("sizes", "number", "row_order"), np.zeros(0)
    sizes, number, order = own = [arrays.get(name, nothing) for name in names]
    rows, group = part_of(arrays, "rows/"), part_of(arrays, "group/")
    whole = all(array.dtype.kind in "iu" and array.ndim == 1 for array in own)
    of_groups = {len(array) for array in (sizes, number, *group.values()) if array.ndim}
    of_rows = {len(array) for array in (order, *rows.values()) if array.ndim}
    if not whole or (sizes < 0).any() or of_groups != {len(labels)} or of_rows != {sizes.sum()}:
        raise ValueError(
            f"{path} does not have the groups of the fit, or as many rows as they have. The folder's "
            "files do not belong together."
        )
    # Fits of early versions were saved with the outcomes as they were, far from zero or not.
    apart = float(arrays.get("origin", np.zeros(1)).ravel()[0]) - origin
    rows |= {"y": rows["y"] + apart} if apart and "y" in rows else {}
    groups = Groups(saved.fit["by"], labels, sizes, rows, group, number, order)
    check_rows(path, groups)
    return groups
