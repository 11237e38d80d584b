"""`fit` of a model with several factors."""

import time
from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.frontends.densities.adapter import prepared
from ramify.frontends.densities.saving import is_of_densities
from ramify.frontends.densities.saving import load as load_data
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.frontends.formula.levels_model import LevelsFormulaModel
from ramify.frontends.formula.levels_saving import load as load_formula
from ramify.frontends.formula.levels_saving import load_rows, of_columns
from ramify.frontends.formula.same_model import check_same_formula
from ramify.io.folder import SavedFit
from ramify.io.levels import read_levels
from ramify.levels.adapter import LevelsAdapter
from ramify.levels.condensed import condensed
from ramify.levels.density import DensityLevels
from ramify.levels.design import Design
from ramify.levels.iterated import PROBES, Iterated
from ramify.levels.kept import Algebra
from ramify.levels.marginal import Marginal, NotSolved
from ramify.levels.model import LevelsModel
from ramify.levels.other_modes import other_modes
from ramify.levels.search import Found, search
from ramify.levels.shape import Pool, cloud, moved_sds, pool, probe_sds
from ramify.models.several import SeveralModel
from ramify.posterior.levels import LevelsPosterior

# Where a search begins; sds are in units of the linear predictor.
STARTS = {"sd": 0.3, "nu": 10.0, "phi": 5.0, "zi": 0.2, "hu": 0.2}


def fit_levels(
    own: LevelsFormulaModel | SeveralModel, groups: Groups, seed: int, algebra: Algebra | None
) -> LevelsPosterior:
    """The posterior of a model with several factors: theta's mode and shape, then draws of b."""
    began, cpu = time.perf_counter(), [time.process_time()]
    model, adapter, notes = _prepared(own, groups)
    design = condensed(adapter.design(groups), model.form)
    G = Marginal(model, design, algebra)
    try:
        found = search(G, start(model))
    except (NotSolved, np.linalg.LinAlgError) as error:
        raise ValueError(f"the fit failed: {_why(model)}") from error
    cpu.append(time.process_time())
    drawn = cloud(G, found, seed)
    cpu.append(time.process_time())
    draws, about = pool(G, found, drawn, seed)
    cpu.append(time.process_time())
    laplace, rules = np.abs(moved_sds(G, found)).max(0).tolist()
    said = {
        "method": "levels",
        "seconds": time.perf_counter() - began,
        "cpu_seconds": dict(zip(("search", "shape", "draws"), np.diff(cpu).tolist(), strict=True)),
        "rows": len(design.offset),
        "kept": G.size,
        "algebra": G.algebra,
        "integrated": adapter.factors[adapter.integrated].name,
        "quadrature_points": round(G.points),  # the mean over rows
        "evaluations": G.evaluations,
        "factorizations": G.factors,
        "log_marginal": found.optimum.value,
        "converged": found.converged,
        "left_sds": float(np.sqrt(2 * found.gain)),
        "design": notes,
        "bias_sds": rules,
        "laplace_sds": laplace,
        **iterated_notes(G, found),
        **other_modes(G, found.optimum, adapter.factors),
        **drawn.notes,
        **about,
    }
    posterior = LevelsPosterior(model, adapter, groups, draws, said)
    posterior.design = design  # saves making it again
    return posterior


def _prepared(
    own: LevelsFormulaModel | SeveralModel, groups: Groups
) -> tuple[LevelsModel, LevelsAdapter, list[str]]:
    """A model as the engine needs it, its adapter, and notes on its design."""
    if isinstance(own, SeveralModel):
        return *prepared(own, groups), list(groups.notes)
    return own, FormulaLevelsAdapter(own), own.notes


def _why(model: LevelsModel) -> str:
    """What may be wrong if kept effects could not be found."""
    if isinstance(model, DensityLevels):
        return (
            "the effects of the kept factors could not be found. Are log_lik and log_local finite and "
            "smooth in them, for every row and level, where all unconstrained parameters are near 0?"
        )
    return (
        "the common and kept effects could not be found. Is a predictor collinear with others, or of "
        "very large scale?"
    )


def iterated_notes(G: Marginal, found: Found) -> dict[str, Any]:
    """Notes on conjugate gradients and probes, if they were used."""
    if not isinstance(found.optimum.kept, Iterated):
        return {}
    solve, lanczos = found.optimum.kept.iterations
    return {
        "noise_sds": probe_sds(G, found),
        "probes": PROBES,
        "solve_iterations": solve,
        "lanczos_iterations": lanczos,
        "stalled": G.stalled,
    }


def start(model: LevelsModel) -> np.ndarray:
    """Theta where a search begins."""
    if isinstance(model, DensityLevels):
        return np.zeros(model.theta.size)
    values = {}
    for name, parameter in model.theta.parameters.items():
        kind = name.split("_")[0]
        if kind == "cor":
            values[name] = np.eye(parameter.shape[0])
        elif name == "cutpoints":
            values[name] = (
                np.linspace(-1.5, 1.5, parameter.shape[0]) if parameter.shape[0] > 1 else [0.0]
            )
        else:
            values[name] = np.full(parameter.shape, STARTS.get(kind, 0.8))
    return model.unconstrained(values)


def load_levels(saved: SavedFit, several: Any = None) -> LevelsPosterior:
    """A saved fit as a posterior; a fit of log densities needs its model, `several`."""
    if is_of_densities(saved):
        return _load_densities(saved, several)
    formula, priors = load_formula(saved)
    if several is not None:
        check_same_formula(saved.folder, (formula, priors), of_columns, several)
    model = LevelsFormulaModel(formula, priors)
    adapter = FormulaLevelsAdapter(model)
    groups = load_rows(saved, formula)
    design = adapter.design(groups)
    record = read_levels(saved, sizes_of(model, design))
    notes = record.notes
    model.notes = list(notes.get("design", []))
    drawn = Pool(**{name: own.astype(np.float64) for name, own in record.pool.items()})
    return LevelsPosterior(model, adapter, groups, drawn, notes, record.history)


def _load_densities(saved: SavedFit, several: Any) -> LevelsPosterior:
    if not isinstance(several, SeveralModel):
        raise ValueError(
            f"the fit in {saved.folder} is of a model of log densities with several grouping factors: "
            "pass that model, rf.load(folder, model)."
        )
    groups = load_data(saved, several)
    model, adapter = prepared(several, groups)
    record = read_levels(saved, sizes_of(model, adapter.design(groups)))
    drawn = Pool(**{name: own.astype(np.float64) for name, own in record.pool.items()})
    return LevelsPosterior(model, adapter, groups, drawn, record.notes, record.history)


def sizes_of(model: LevelsModel, design: Design) -> dict[str, Any]:
    """The numbers of columns of a pool's arrays."""
    return {"theta": model.theta.size, "beta": design.X.shape[1], "u": design.K.shape[1]}
