"""The arguments of questions about effects, and their checks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from ramify.posterior import prediction
from ramify.posterior.averages import Who
from ramify.posterior.prediction import Kind, quantile_names


class Settings(NamedTuple):
    """The arguments of all questions: which rows, whose groups, how many draws."""

    table: Any  # rows; None for those of the fit, "typical" for one row with typical values
    at: Mapping[str, Any]  # columns that are set to given values
    by: Sequence[str]  # columns by whose values to average
    average: bool  # False for an answer for each row
    kind: Kind
    groups: Who
    draws: int
    quantiles: Sequence[float]
    seed: int


def check_settings(fit: Any, asked: Settings) -> None:
    """Raises where a question does not fit the model."""
    known = fit.adapter.variables()
    _check_at(asked.at)
    if asked.groups not in get_args(Who):
        all_ = ", ".join(f'"{name}"' for name in get_args(Who))
        raise ValueError(f"groups must be one of {all_}; got {asked.groups!r}.")
    if asked.kind == "response":
        raise ValueError(
            'kind must be "mean", "link" or "probability": expected outcomes are compared.'
        )
    check_names((*asked.at, *asked.by), _answered(fit, asked))
    for name in asked.at:
        _check_set(fit, asked, name, known)
    if asked.groups != "own" and not fit._normal_groups:
        raise ValueError(f'groups="{asked.groups}" needs groups with a normal distribution.')


def _answered(fit: Any, asked: Settings) -> list[str]:
    """The columns of an answer that are not the user's own."""
    several = prediction.categories_of(fit.adapter, asked.kind)
    first = (["category"] if several else []) + ([] if asked.average else ["row"])
    return [*first, "mean", "sd", *quantile_names(asked.quantiles)]


def _check_set(fit: Any, asked: Settings, name: str, known: Sequence[str]) -> None:
    """Raises where a column can't be set."""
    if name not in known and (name not in fit._label_columns or asked.groups != "own"):
        names = ", ".join(f'"{column}"' for column in known)
        raise ValueError(f'at= sets "{name}", which is no predictor; there are {names}.')
    if name in asked.by:
        raise ValueError(
            f'at= sets "{name}" in all rows, and by= asks for an average for each of its own values: '
            "leave it out of one."
        )


def _check_at(at: Any) -> None:
    if not isinstance(at, Mapping):
        raise TypeError(
            f'at is {at!r}; expected a dict of columns and their values, as {{"x": [0, 1]}}.'
        )
    for name, values in at.items():
        if np.ndim(values) > 1 or not len(many(values)):
            raise ValueError(
                f'at sets "{name}" to {values!r}; expected a value, or a list of some.'
            )


def columns_named(by: Any) -> tuple[str, ...]:
    """The columns that `by=` names: one or several."""
    several = (by,) if isinstance(by, str) or not isinstance(by, Iterable) else tuple(by)
    if not all(isinstance(name, str) for name in several):
        raise TypeError(f"by is {by!r}; expected the name of a column, or a list of names.")
    return several


def check_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raises where an answer would have two columns of one name."""
    for name in names:
        if name in taken:
            raise ValueError(
                f'the answer would have two columns "{name}", yours and one of its own: rename yours.'
            )


def many(values: Any) -> list[Any]:
    """The values of a column: one or several."""
    return list(values) if np.ndim(values) or isinstance(values, list | tuple) else [values]
