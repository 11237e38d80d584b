"""The table of group effects of a model without its own names for them: the entries of z."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ramify.posterior.fitted import Fitted
from ramify.posterior.prediction import labelled, summary_names


def group_table(
    fit: Fitted,
    known: set[str],
    sampled: Iterable[Any],
    sizes: np.ndarray,
    quantiles: Sequence[float],
) -> dict[str, np.ndarray]:
    """A row for each group: label, rows, and mean, sd and quantiles of each entry of its z.

    `known` are the names of the globals, which are also in `sampled`.
    """
    names, labels, parts = [], [], []
    for own, draws in sampled:
        local = {n: v for n, v in draws.items() if n not in known}
        names = [e for n, v in local.items() for e in fit.adapter.entry_names(n, v.shape[2:])]
        flat = np.concatenate([v.reshape(*v.shape[:2], -1) for v in local.values()], 2)
        levels = np.quantile(flat, np.asarray(quantiles, np.float64), axis=0)
        labels.append(own)
        parts.append(np.stack([flat.mean(0), flat.std(0), *levels]))
    table = np.concatenate(parts, 1)  # [statistics, N, entries]
    flat = table.transpose(2, 0, 1).reshape(-1, table.shape[1])  # as `summary_names` has them
    columns: dict[str, Any] = {"n": np.asarray(sizes)}
    columns |= dict(zip(summary_names(quantiles, names), flat, strict=True))
    return labelled(fit.by, np.concatenate(labels), columns)
