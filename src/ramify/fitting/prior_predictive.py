"""`prior_predictive`: data sets drawn from the prior of a model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.fitting.fit import model_and_groups
from ramify.frontends.formula.build import Missing
from ramify.frontends.formula.levels_model import LevelsFormulaModel
from ramify.frontends.formula.model import FormulaModel
from ramify.models.adapter import Adapter
from ramify.models.model import Model, named_draws
from ramify.models.several import SeveralModel
from ramify.models.simulation import Simulated
from ramify.numerics.precision import computing
from ramify.posterior.prior_predictive import PriorPredictive


@computing
def prior_predictive(
    model: Model | str,
    groups: Any,
    draws: int = 100,
    *,
    likelihood: str | None = None,
    link: str | None = None,
    priors: Mapping[str, Any] | None = None,
    missing: Missing | None = None,
    seed: int = 0,
) -> PriorPredictive:
    """Data sets drawn from the model: theta from its prior, z given theta, outcomes given both.

    Covariates and group sizes are those of the data. If most simulated data could never occur, the
    priors are too wide; if the observed data are unlike all simulated ones, the priors are wrong.

    Args:
        model: from a formula, from NumPyro, or of log densities with `simulate`; or a formula itself.
        groups: the data; with a formula, or a model from one, also a table.
        draws: S, data sets.
        likelihood: with a formula only, as are `link`, `priors` and `missing`: see `from_formula`.
        link: of the likelihood.
        priors: in place of the defaults.
        missing: "drop" leaves rows with missing values out.
        seed: the result is a function of it.

    Example:
        rf.prior_predictive("y ~ x + (1 | g)", table, priors={"x": "Normal(0, 1)"}).check()
    """
    by_table = not isinstance(groups, Groups)
    if isinstance(model, FormulaModel) and by_table:
        groups = model.groups(groups)
    options = {"link": link, "priors": priors, "missing": missing}
    own, data = model_and_groups(model, groups, likelihood, options, "rf.prior_predictive")
    if isinstance(own, LevelsFormulaModel | SeveralModel):
        raise ValueError(
            "data can't be drawn yet from the prior of a model with several grouping factors."
        )
    data = data.renumbered(data.labels)
    own.check(example(data))
    return _drawn(own.adapter, data, np.random.default_rng(seed).spawn(draws), by_table)


def _drawn(
    adapter: Adapter, groups: Groups, each: list[np.random.Generator], by_table: bool
) -> PriorPredictive:
    """A data set for each generator; rows are in the order of the table, if there is one."""
    simulated = [*map(adapter.simulator(groups), each)]
    flat = lambda name: np.stack([np.asarray(getattr(one, name)) for one in simulated])
    column = _outcome(adapter, simulated[0])
    values = [_values(adapter, groups, column, one.rows) for one in simulated]
    owner = np.repeat(np.arange(len(groups)), groups.sizes)
    back = np.argsort(groups.row_order) if by_table else np.arange(groups.n_rows)
    observed = _values(adapter, groups, column, {})
    parameters = named_draws(adapter, flat("theta"), flat("z"), groups)
    rows = np.stack(values)[:, back], observed[back]
    return PriorPredictive(parameters, *rows, adapter, owner[back], groups.labels)


def _outcome(adapter: Adapter, simulated: Simulated) -> str:
    """The column of the outcome among those that were drawn."""
    drawn = [name for name in simulated.rows if name != "cens"]
    if len(drawn) == 1:
        return drawn[0]
    if adapter.outcome in drawn:
        return adapter.outcome
    raise ValueError(
        f"the model observes {', '.join(drawn)} in its rows, of which a prior predictive check shows "
        'one: name it, rf.from_numpyro(fn, groups, outcome="...").'
    )


def _values(
    adapter: Adapter, groups: Groups, column: str, new: Mapping[str, np.ndarray]
) -> Float64[np.ndarray, " rows"]:
    """The outcomes of the rows, with some `new` columns, on the user's scale."""
    rows = {name: y for name, y in {**groups.rows, **new}.items() if name != "cens"}
    found = adapter.outcomes(replace(groups, rows=rows))
    return np.asarray(rows[column] if found is None else found, np.float64)
