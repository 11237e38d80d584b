"""`load`: a saved fit as a posterior again."""

import os
from pathlib import Path
from typing import Any

from ramify.data.groups import Groups
from ramify.frontends.formula import saving
from ramify.frontends.formula.model import FormulaModel
from ramify.io.folder import ROWS, read_json
from ramify.io.saving import check_spaces, read_record
from ramify.models.model import Model
from ramify.posterior.matching import DataSchema, schema_of
from ramify.posterior.posterior import Posterior


def load(
    path: str | os.PathLike[str], model: Model | None = None, encoder: Any = None
) -> Posterior:
    """Reads a fit that `Posterior.save` wrote.

    A fit of a formula is complete: `load(path)`. Of others the data are not part: pass `groups=` or
    `given=` to the methods that need them.

    Args:
        path: the folder.
        model: the model of the fit: with the same parameters, in the same order; not for one from
            a formula, which is read from the folder.
        encoder: a module like the one given to `amortized`, if one was; its weights are read from
            the file.

    Example:
        posterior.save("fit/"); posterior = load("fit/", model)
    """
    folder = Path(path)
    fit = read_json(folder)
    model = FormulaModel(*saving.load(folder)) if model is None else model
    check_spaces(fit, model.theta, model.z, folder)
    record = read_record(folder, fit, encoder)
    schema = DataSchema(record.by, record.labels, record.rows, record.group)
    groups = saving.load_rows(folder, schema.by, schema.labels, model.adapter.origin)
    if groups is not None:
        _check_rows(schema, record.n_rows, groups, folder)
    own = {"local_draws": record.local_draws, "history": record.history, "notes": record.notes}
    return Posterior(model, record.family, groups, **own, schema=schema)


def _check_rows(schema: DataSchema, n_rows: int | None, groups: Groups, folder: Path) -> None:
    """Raises where the saved rows are not those of the fit."""
    shapes = lambda s: {(n, shape) for c in (s.rows, s.group) for n, (shape, _) in c.items()}
    if shapes(schema_of(groups)) != shapes(schema) or n_rows not in (None, groups.n_rows):
        raise ValueError(
            f"{folder / ROWS} does not have the rows or columns of the fit. The folder's files do not "
            "belong together."
        )
