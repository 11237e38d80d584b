"""A formula on disk: `config.json` for people and programs, the rows of the fit beside it.

With both, a saved fit needs neither the model nor the table to predict again, known groups included.
Nothing in them can execute code: a formula calls functions of a fixed list only.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ramify._version import __version__
from ramify.data.groups import Groups
from ramify.frontends.formula import priors as priors_of
from ramify.frontends.formula.design import from_plain, to_plain
from ramify.frontends.formula.layout import Layout
from ramify.frontends.formula.model import Formula, FormulaModel
from ramify.frontends.formula.priors import Priors
from ramify.frontends.formula.text import FormulaText, parse
from ramify.io.folder import CONFIG, ROWS
from ramify.models.model import Model

FORMAT_VERSION = 1


def save(model: FormulaModel, groups: Groups | None, folder: Path) -> None:
    """Writes the formula with all it remembers, and the columns of the fit."""
    from importlib.metadata import version

    spec = model.formula
    config = {
        "formula": spec.text,
        "likelihood": spec.likelihood,
        "link": spec.link,
        "group": spec.by,
        "trials": spec.parts.trials,
        "weights": spec.parts.weights,
        "levels": spec.levels,
        "table": spec.table,
        "zone": spec.zone,
        "priors": {name: priors_of.to_plain(prior) for name, prior in model.priors.items()},
        "priors_in_words": {name: priors_of.in_words(p) for name, p in model.priors.items()},
        "layout": asdict(spec.layout),
        "common": to_plain(spec.common),
        "varying": to_plain(spec.group),
        "format_version": FORMAT_VERSION,
        "versions": {"ramify": __version__, "formulae": version("formulae")},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False))
    if groups is not None:
        _save_rows(model, groups, folder)


def load(folder: Path) -> FormulaModel:
    """The model of a saved formula fit."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"the fit in {folder} was not made from a formula: bring its model, load(path, model)."
        )
    try:
        config = json.loads(path.read_text())
        parts: FormulaText = parse(config["formula"])
        parts = parts._replace(trials=config["trials"], weights=config["weights"])
        layout = Layout(**{name: _tuples(v) for name, v in config["layout"].items()})
        codings = from_plain(config["common"]), from_plain(config["varying"])
        own = parts, config["likelihood"], config["link"], *codings
        spec = Formula(*own, layout, config["levels"], config["table"], config.get("zone"))
        priors = {name: priors_of.from_plain(plain) for name, plain in config["priors"].items()}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or not of a formula: {error}.") from error
    return FormulaModel(spec, Priors(priors))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def _save_rows(model: FormulaModel, groups: Groups, folder: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {"sizes": groups.sizes, "number": groups.number, "row_order": groups.row_order}
    arrays |= {f"rows/{name}": column for name, column in groups.rows.items()}
    arrays |= {f"group/{name}": column for name, column in groups.group.items()}
    arrays["origin"] = np.array([model.origin])
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, folder / ROWS)


def load_rows(folder: Path, by: str, labels: np.ndarray, model: Model) -> Groups | None:
    """The data of the fit, if they were saved with it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / ROWS
    if not path.is_file():
        return None
    try:
        arrays = load_file(path)
        sizes, number, order = (arrays[name] for name in ("sizes", "number", "row_order"))
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}.") from error
    part = lambda kind: {
        name.removeprefix(kind): value for name, value in arrays.items() if name.startswith(kind)
    }
    rows, group = part("rows/"), part("group/")
    _check_lengths(path, (labels, sizes, number, *group.values()), (order, *rows.values()))
    # Fits were once saved with the outcomes as they came, whatever their distance from zero.
    apart = arrays.get("origin", np.zeros(1))[0] - model.origin
    rows |= {"y": rows["y"] + apart} if apart else {}
    return Groups(by, labels, sizes, rows, group, number, order)


def _check_lengths(path: Path, of_groups: tuple[Any, ...], of_rows: tuple[Any, ...]) -> None:
    labels, sizes, *_ = of_groups
    if {len(a) for a in of_groups} != {len(labels)} or {len(a) for a in of_rows} != {sizes.sum()}:
        raise ValueError(
            f"{path} does not have the groups of the fit, or as many rows as they have. The folder's "
            "files do not belong together."
        )
