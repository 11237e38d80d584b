"""A formula with several grouping terms on disk: `config.json`, and the rows of the fit beside it."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ramify._version import __version__
from ramify.data.groups import Groups
from ramify.data.levels import from_plain, to_plain
from ramify.frontends.formula import design, priors, saved_coding
from ramify.frontends.formula.levels_build import defaults, replaced
from ramify.frontends.formula.levels_formula import CommonUnits, LevelsFormula, TermSpec
from ramify.frontends.formula.likelihoods import LIKELIHOODS
from ramify.frontends.formula.text import parse
from ramify.io.folder import CONFIG, ROWS, SavedFit, check_version, read_json
from ramify.io.saving import part_of, read_arrays, write_arrays

FORMAT_VERSION = 2  # the first with several grouping terms


def save(formula: LevelsFormula, given: priors.Priors, groups: Groups | None, folder: Path) -> None:
    """Writes a formula with its state, its levels and its priors, and the columns of the fit."""
    config = {
        **of_columns(formula),
        "table": formula.table,
        "priors": {name: priors.to_plain(prior) for name, prior in given.items()},
        "priors_in_words": {name: priors.in_words(p) for name, p in given.items()},
        "format_version": FORMAT_VERSION,
        "versions": {"ramify": __version__, "formulae": version("formulae")},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False))
    if groups is not None:
        arrays = {"sizes": groups.sizes, "row_order": groups.row_order}
        write_arrays(folder / ROWS, arrays | {f"rows/{n}": c for n, c in groups.rows.items()})


def of_columns(formula: LevelsFormula) -> dict[str, Any]:
    """All that the columns of a model depend on, as JSON values."""
    return {
        "formula": formula.parts.text,
        "likelihood": formula.likelihood,
        "link": formula.link,
        "trials": formula.parts.trials,
        "weights": formula.parts.weights,
        "levels": formula.levels,
        "units": formula.units._asdict(),
        "common": saved_coding.to_plain(formula.common),
        "terms": [
            {
                "coding": saved_coding.to_plain(term.coding),
                "factor": term.factor,
                "correlated": term.correlated,
                "unit": term.unit,
            }
            for term in formula.terms
        ],
        "factors": [to_plain(factor) for factor in formula.factors],
        "integrated": formula.integrated,
    }


def load(saved: SavedFit) -> tuple[LevelsFormula, priors.Priors]:
    """The formula of a saved fit, and its priors."""
    path = saved.needed(CONFIG)
    design.check_installed()
    config = read_json(path)
    check_version(path, config, FORMAT_VERSION, saved.fit.get("ramify_version"))
    try:
        formula = _formula(config)
        found = {name: priors.from_plain(plain) for name, plain in config["priors"].items()}
        known = defaults(formula, 1.0)
        if {*found} != {*known}:
            raise ValueError("its priors are not those of its formula's parameters")
        return formula, replaced(known, found, formula)
    except saved_coding.ReadOtherwise:
        raise
    except Exception as error:  # other libraries may raise anything on bad input
        raise ValueError(f"{path} is damaged or not of a formula.") from error


def _formula(config: dict[str, Any]) -> LevelsFormula:
    parts = parse(config["formula"])
    parts = parts._replace(trials=config["trials"], weights=config["weights"])
    units: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in config["units"].items()
    }
    terms = tuple(
        TermSpec(
            saved_coding.from_plain(term["coding"]),
            int(term["factor"]),
            bool(term["correlated"]),
            tuple(map(float, term["unit"])),
        )
        for term in config["terms"]
    )
    factors = tuple(from_plain(plain) for plain in config["factors"])
    if config["likelihood"] not in LIKELIHOODS or not 0 <= config["integrated"] < len(factors):
        raise ValueError("it names no likelihood or no factor")
    if [term.columns for term in parts.terms] != [factors[t.factor].columns for t in terms]:
        raise ValueError("its terms are not those of its formula")
    return LevelsFormula(
        parts,
        config["likelihood"],
        config["link"],
        saved_coding.from_plain(config["common"]),
        terms,
        factors,
        int(config["integrated"]),
        CommonUnits(**units),
        config["levels"],
        config["table"],
    )


def load_rows(saved: SavedFit, formula: LevelsFormula) -> Groups:
    """The data of the fit."""
    path = saved.needed(ROWS)
    arrays = read_arrays(path)
    rows, nothing = part_of(arrays, "rows/"), np.zeros(0)
    sizes, order = arrays.get("sizes", nothing), arrays.get("row_order", nothing)
    factor = formula.factors[formula.integrated]
    lengths = {len(column) for column in rows.values() if column.ndim} | {len(order)}
    whole = sizes.dtype.kind in "iu" and len(sizes) == len(factor) and (sizes >= 0).all()
    if not whole or lengths != {int(sizes.sum())} or "y" not in rows or "X" not in rows:
        raise ValueError(
            f"{path} does not have the groups of the fit, or as many rows as they have. The folder's "
            "files do not belong together."
        )
    number = np.arange(len(factor), dtype=np.int64)
    labels = factor.shown.copy()
    return Groups(formula.by, labels, sizes, rows, {}, number, order.astype(np.int64))
