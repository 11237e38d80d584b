"""Estimates for a population whose cells are counted: multilevel regression and poststratification."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float64

from ramify.data.labels import kind_of
from ramify.data.tables import column_names, columns_of, n_rows
from ramify.numerics.memory import check_memory
from ramify.posterior.answer import Answer
from ramify.posterior.interpret import cells_of
from ramify.posterior.prediction import quantile_names
from ramify.posterior.settings import check_names
from ramify.posterior.summary import doubts_of

PostKind = Literal["mean", "probability"]


class Wanted(NamedTuple):
    """The arguments of a poststratification."""

    weights: str | None
    by: Sequence[str]
    kind: PostKind
    draws: int
    quantiles: Sequence[float]
    seed: int


def poststratified(fit: Any, cells: Any, wanted: Wanted) -> Answer:
    """Weighted averages of the cells' expected outcomes, draw by draw; `fit` is a posterior."""
    if wanted.kind not in get_args(PostKind):
        raise ValueError(f'kind must be "mean" or "probability"; got {wanted.kind!r}.')
    own = ("category",) if wanted.kind == "probability" else ()
    named = (*wanted.by, wanted.weights or "")
    check_names(named, ("mean", "sd", *own, *quantile_names(wanted.quantiles)))
    names = column_names(cells, "cells")
    n = n_rows(cells, str(names[0]), "cells") if names else 0
    if not n:
        raise ValueError("cells has no rows: expected one for each cell of the population.")
    columns = dict(columns_of(cells, list(names), "cells"))
    weight = _weights(columns, wanted.weights, n)
    columns_of(cells, list(wanted.by), "cells")  # raises where one is not there
    about, own = cells_of(columns, wanted.by, n)
    number = len(next(iter(about.values()))) if about else 1
    total = np.bincount(own, weight, number)
    if (total == 0).any():
        first = int(np.argmax(total == 0))
        which = (
            ", ".join(f"{name} {values[first]}" for name, values in about.items()) or "all cells"
        )
        raise ValueError(
            f'the weights "{wanted.weights}" of {which} are zero: nobody to average over.'
        )
    categories = fit.adapter.categories(wanted.kind)
    size = 8 * 2 * wanted.draws * n * max(len(categories), 1)
    check_memory(size, None, f"{wanted.draws:,} draws of {n:,} cells", "Ask for fewer draws")
    table, trials = fit.adapter.per_trial(columns, n)
    columns_of(table, fit.adapter.variables(), "cells")
    means = fit.predict(table, None, wanted.draws, wanted.seed, kind=wanted.kind, summary=False)
    values = _averages(np.asarray(means, np.float64) / trials, own, weight / total[own], number)
    whole = np.array_equal(total, np.round(total))
    sizes = {str(wanted.weights): total.astype(np.int64) if whole else total}
    shown = {} if wanted.weights is None or wanted.weights in about else sizes
    rows = {name: np.repeat(v, max(len(categories), 1)) for name, v in (about | shown).items()}
    if categories:
        rows["category"] = np.tile(categories, number)
    found = Answer.of(
        rows, values.reshape(len(values), -1), wanted.quantiles, fit.adapter.table_kind
    )
    return replace(found, doubts=doubts_of(fit._judged, len(fit.labels)))


def _averages(
    means: Float64[np.ndarray, "S n *k"], own: np.ndarray, share: np.ndarray, number: int
) -> Float64[np.ndarray, "S cells *k"]:
    """Sums of the shares times the cells' means, for each value of `by`."""
    import scipy.sparse as sp

    gather = sp.csr_array((share, (own, np.arange(len(own)))), (number, len(own)))
    flat = np.moveaxis(means, 1, 0).reshape(len(own), -1)
    summed = (gather @ flat).reshape(number, len(means), *means.shape[2:])
    return np.moveaxis(summed, 1, 0)


def _weights(columns: dict[str, Any], name: str | None, n: int) -> Float64[np.ndarray, " n"]:
    if name is None:
        return np.ones(n)
    if name not in columns:
        known = ", ".join(f'"{column}"' for column in columns)
        raise ValueError(
            f'cells has no column "{name}" with the size of each cell; it has {known}. Name the one to '
            "weight by with weights=, or pass weights=None for cells of equal size."
        )
    raw = np.asarray(columns[name])
    if not (raw.dtype.kind in "iufb" or all(isinstance(x, Real | Decimal) for x in raw)):
        raise TypeError(f'column "{name}" of cells holds {kind_of(raw)}; expected sizes, numbers.')
    found = raw.astype(np.float64)
    if not (np.isfinite(found).all() and (found >= 0).all()):
        bad = int(np.argmax(~(found >= 0) | ~np.isfinite(found)))
        raise ValueError(
            f'column "{name}" of cells has {raw[bad]} in row {bad}; expected sizes of cells, numbers '
            "from zero."
        )
    return found
