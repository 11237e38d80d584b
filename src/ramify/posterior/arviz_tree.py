"""Draws and data of a fit in ArviZ's groups, by the user's names."""

from typing import Any

import numpy as np
from jaxtyping import Shaped

from ramify.data.groups import Groups
from ramify.families.build import method_of
from ramify.io.arviz import Axes, data_tree
from ramify.posterior import prediction
from ramify.posterior.drawn import drawn
from ramify.posterior.fitted import Fitted

Named = dict[str, Shaped[np.ndarray, "..."]]


def drawn_rows(fit: Fitted, data: Groups, draws: int, seed: int) -> tuple[Named, dict[str, Named]]:
    """Z of the groups; and new outcomes and log likelihoods of their rows."""
    name, K = fit.adapter.outcome, fit._local_draws(None)
    fit._check_bytes(draws, len(data), None)
    found = fit._parts(prediction.read(fit._schema, fit.adapter, data, "groups"), data, K)
    outcome = None
    if fit.model.can_simulate and name is not None:
        own = fit.adapter, fit._schema, found[0], "response", fit._outcomes
        outcome = prediction.outcome_of(*own)
    how = data.n_rows, outcome, "response", draws, K, seed
    z, predicted, log_lik = drawn(prediction.Task(fit.adapter, fit.family, found, *how))
    new = {} if predicted is None else {str(name): predicted}
    return z, {"posterior_predictive": new, "log_likelihood": log_lik}


def arviz_tree(
    fit: Fitted, data: Groups | None, theta: Named, z: Named, by_row: dict[str, Named]
) -> Any:
    """A DataTree of draws of the globals, of z, and of the values of each row."""
    adapter, called = fit.adapter, fit.adapter.outcome_name
    tree = {"posterior": theta | z, **by_row}
    axes = Axes(fit.by, fit.labels, None, {"posterior": {*z}}, *adapter.named_axes())
    if data is not None:
        axes = axes._replace(labels=data.labels, rows=data.row_order)
        if data.n_rows:
            tree["observed_data"], rows, group = prediction.data_columns(adapter, data)
            tree["constant_data"] = rows | group
            axes.local["constant_data"] = {*group}
    if called is not None and called != adapter.outcome:
        for group in tree.keys() - {"posterior", "constant_data"}:
            own = tree[group].items()
            tree[group] = {called if n == adapter.outcome else n: c for n, c in own}
    return data_tree(tree, axes, method_of(fit.family))
