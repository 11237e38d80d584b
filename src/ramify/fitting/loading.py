"""`load`: a saved fit as a posterior again."""

import os
from pathlib import Path
from typing import Any

from ramify.data.atomic import locked
from ramify.data.groups import Groups
from ramify.families.build import Family
from ramify.families.joint import Joint
from ramify.families.solver import Solver
from ramify.fitting.levels import load_levels
from ramify.frontends.formula import saving
from ramify.frontends.formula.checks import check_outcomes
from ramify.frontends.formula.model import FormulaModel
from ramify.frontends.formula.same_model import check_same_formula
from ramify.io.folder import CONFIG, FIT, ROWS, SavedFit, read_fit
from ramify.io.levels import is_levels
from ramify.io.saving import check_spaces, read_record
from ramify.levels.model import LevelsModel
from ramify.models.model import Model
from ramify.models.several import SeveralModel
from ramify.numerics.precision import computing
from ramify.posterior.matching import DataSchema, schema_of
from ramify.posterior.posterior import Posterior


@computing
def load(
    path: str | os.PathLike[str],
    model: Model | SeveralModel | LevelsModel | None = None,
    encoder: Any = None,
) -> Posterior:
    """Reads a fit that `Posterior.save` wrote.

    The fit of a formula is complete: `load(path)`. Other fits are saved without their data: pass
    `groups=` or `given=` to the methods that need them.

    Args:
        path: the folder.
        model: the model of the fit: with the same parameters, in the same order; not needed for one
            from a formula, which is read from the folder, and raises if it is another.
        encoder: a module like the one given to `amortized`, if one was; its weights are read from
            the file.

    Example:
        posterior.save("fit/"); posterior = load("fit/", model)
    """
    if not (model is None or isinstance(model, Model | SeveralModel | LevelsModel)):
        said = "a model as it was fitted, or none for a fit of a formula"
        raise TypeError(f"model is a {type(model).__name__}; expected {said}.")
    folder = Path(path)
    with locked(folder, shared=True):  # no other process replaces the fit in the meantime
        saved = read_fit(folder)
        if is_levels(saved):
            return load_levels(saved, model)
        if isinstance(model, SeveralModel | LevelsModel):
            own = f": {', '.join(model.factors)}" if isinstance(model, SeveralModel) else ""
            raise ValueError(
                f"the fit in {folder} has one grouping factor, and this model has several{own}."
            )
        return _read(saved, model, encoder)


def _read(saved: SavedFit, model: Model | None, encoder: Any) -> Posterior:
    folder = saved.folder
    record = read_record(saved, encoder)
    if model is None:
        model = FormulaModel(*saving.load(saved))
    elif saved.file(CONFIG) is not None:
        check_same_formula(folder, saving.load(saved), saving.of_columns, model)
    elif isinstance(model, FormulaModel):
        raise ValueError(
            f"the fit in {folder} was not made from a formula, and this model was, from "
            f'"{model.formula.text}": bring the model that was fitted.'
        )
    check_spaces(saved.fit, model.theta, model.z, folder)
    _check_sizes(folder / FIT, record.family, model)
    schema = DataSchema(record.by, record.labels, record.rows, record.group, record.zoned)
    groups = saving.load_rows(saved, schema.labels, model.adapter.origin)
    if groups is not None:
        _check_rows(schema, record.n_rows, groups, folder)
        if isinstance(model, FormulaModel) and groups.store is None:
            check_outcomes(folder / ROWS, model.formula, groups)
    own = {"local_draws": record.local_draws, "history": record.history, "notes": record.notes}
    return Posterior(model, record.family, groups, **own, schema=schema)


def _check_rows(schema: DataSchema, n_rows: int | None, groups: Groups, folder: Path) -> None:
    """Raises where the saved rows are not those of the fit."""
    columns = lambda s: (s.rows, s.group)
    if columns(schema_of(groups)) != columns(schema) or n_rows not in (None, groups.n_rows):
        raise ValueError(
            f"{folder / ROWS} does not have the rows or columns of the fit. The folder's files do not "
            "belong together."
        )


def _check_sizes(path: Path, family: Family, model: Model) -> None:
    """Raises if the family's sizes are not those of the model."""
    D, M, N = model.theta.size, model.z.size, family.N
    if isinstance(family, Joint):
        found = [(family.D, family.M, sum(q.dim for q in family.parts)) == (D, M, D + N * M)]
    else:
        found = [family.theta.dim == D, *_fit_together(family.local, D, M, N)]
    if not all(found):
        raise ValueError(
            f"{path} is damaged: its family is not one for the parameters of its model."
        )


def _fit_together(local: Any, D: int, M: int, N: int) -> list[bool]:
    if isinstance(local, Solver):
        modes = local.modes is None or local.modes.shape == (N, M)
        start = [] if local.start is None else _fit_together(local.start, D, M, N)
        return [local.points.ndim == 2 and local.points.shape[1] == M, modes, *start]
    return [(local.form.D, local.form.M) == (D, M)] if hasattr(local, "form") else [False]
