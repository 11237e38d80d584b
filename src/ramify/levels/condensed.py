"""Rows that are alike, added up before a fit: the same log likelihood for every theta, b and z.

Rows of the same group, columns and kept levels have the same linear predictor. Those that also have the
same outcome become one row, weighted by their number. In a logistic regression the outcomes may differ:
successes and trials are added up, so Bernoulli rows become a binomial row.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Int64

from ramify.levels.closed_forms import constant
from ramify.levels.design import Design

WORTH = 0.8  # share of the rows: if more are left, the design stays as it is


def condensed(design: Design, form: str | None) -> Design:
    """The design with like rows added up, and the same likelihood; `form` is as in `closed_forms`."""
    if not design.columns:  # the columns of a model of log densities are in its parts
        return design
    logistic = form == "logit"
    seen = [] if logistic else [design.columns[n] for n in design.columns if n != "weights"]
    own = [design.code, design.offset, *design.X.T, *design.W.T, *seen]
    if not design.kept or any(len(np.unique(column)) == len(design.code) for column in own[1:]):
        return design
    for term in design.kept:
        level, columns = design.of_term(term)
        own += [level, *columns.T]
    code = _together(own)
    first = np.unique(code, return_index=True)[1]
    if len(first) > WORTH * len(code):
        return design
    weights = design.columns.get("weights", np.ones(len(code)))
    total = lambda values: np.bincount(code, weights * values)
    columns = {name: column[first] for name, column in design.columns.items()}
    if logistic:
        trials = design.columns.get("trials", np.ones(len(code)))
        rest = total(constant("logit", design.columns))
        columns = {"y": total(design.columns["y"]), "trials": total(trials), "constant": rest}
    else:
        columns["weights"] = total(np.ones(len(code)))
    return replace(
        design,
        code=design.code[first],
        W=design.W[first],
        X=design.X[first],
        K=design.K[first],
        offset=design.offset[first],
        columns=columns,
    )


def _together(columns: list[np.ndarray]) -> Int64[np.ndarray, " n"]:
    """A number for each row; rows with the same values in all columns get the same number."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, own = np.unique(column, return_inverse=True)
        code = np.unique(code * len(values) + own, return_inverse=True)[1]
    return code
