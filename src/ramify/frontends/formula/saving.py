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
from ramify.frontends.formula import design, priors
from ramify.frontends.formula.formula import EffectLayout, Formula, Units
from ramify.frontends.formula.text import FormulaText, parse
from ramify.io.folder import CONFIG, ROWS
from ramify.io.saving import part_of, read_arrays, write_arrays

FORMAT_VERSION = 1


def save(formula: Formula, given: priors.Priors, groups: Groups | None, folder: Path) -> None:
    """Writes a formula with its state and its priors, and the columns of the fit."""
    config = {
        "formula": formula.parts.text,
        "likelihood": formula.likelihood,
        "link": formula.link,
        "group": formula.by,
        "trials": formula.parts.trials,
        "weights": formula.parts.weights,
        "levels": formula.levels,
        "table": formula.table,
        "zone": formula.zone,
        "priors": {name: priors.to_plain(prior) for name, prior in given.items()},
        "priors_in_words": {name: priors.in_words(p) for name, p in given.items()},
        "layout": asdict(formula.layout) | asdict(formula.units),
        "common": design.to_plain(formula.common),
        "varying": design.to_plain(formula.group),
        "format_version": FORMAT_VERSION,
        "versions": {"ramify": __version__, "formulae": version("formulae")},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False))
    if groups is not None:
        arrays = {"sizes": groups.sizes, "number": groups.number, "row_order": groups.row_order}
        arrays |= {f"rows/{name}": column for name, column in groups.rows.items()}
        arrays |= {f"group/{name}": column for name, column in groups.group.items()}
        write_arrays(folder / ROWS, {**arrays, "origin": np.array([formula.origin])})


def load(folder: Path) -> tuple[Formula, priors.Priors]:
    """The formula of a saved fit, and its priors."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"the fit in {folder} was not made from a formula: bring its model, load(path, model)."
        )
    design.check_installed()
    try:
        config = json.loads(path.read_text())
        parts: FormulaText = parse(config["formula"])
        parts = parts._replace(trials=config["trials"], weights=config["weights"])
        saved = {name: _tuples(v) for name, v in config["layout"].items()}
        part = lambda kind: kind(**{field.name: saved[field.name] for field in fields(kind)})
        codings = design.from_plain(config["common"]), design.from_plain(config["varying"])
        own = parts, config["likelihood"], config["link"], *codings, part(EffectLayout), part(Units)
        formula = Formula(*own, config["levels"], config["table"], config.get("zone"))
        found = {name: priors.from_plain(plain) for name, plain in config["priors"].items()}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or not of a formula: {error}.") from error
    return formula, priors.Priors(found)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def load_rows(folder: Path, by: str, labels: np.ndarray, origin: float) -> Groups | None:
    """The data of the fit, if they were saved; `origin` is subtracted from the outcomes."""
    path = folder / ROWS
    if not path.is_file():
        return None
    arrays = read_arrays(path)
    try:
        sizes, number, order = (arrays[name] for name in ("sizes", "number", "row_order"))
    except KeyError as error:
        raise ValueError(f"{path} is truncated or damaged: {error}.") from error
    rows, group = part_of(arrays, "rows/"), part_of(arrays, "group/")
    of_groups = {len(array) for array in (sizes, number, *group.values())}
    of_rows = {len(array) for array in (order, *rows.values())}
    if of_groups != {len(labels)} or of_rows != {sizes.sum()}:
        raise ValueError(
            f"{path} does not have the groups of the fit, or as many rows as they have. The folder's "
            "files do not belong together."
        )
    # Fits of early versions were saved with the outcomes as they were, far from zero or not.
    apart = arrays.get("origin", np.zeros(1))[0] - origin
    rows |= {"y": rows["y"] + apart} if apart else {}
    return Groups(by, labels, sizes, rows, group, number, order)
