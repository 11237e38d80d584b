"""The arguments of a NumPyro function by name, and small blocks to try it on."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.data.host import narrow, with_a_row
from ramify.numerics.user_warning import warn_user

Columns = Mapping[str, Any]
Fn = Callable[..., Any]  # a NumPyro model


class Refused(ValueError):
    """A model that can't be fitted; the message says what is wrong and what to do."""


class Arguments(NamedTuple):
    """The role of each argument of the model."""

    by: str  # the label column of the groups, for messages
    index: str | None  # pyright: ignore[reportIncompatibleMethodOverride]  # each row's group number
    size: str | None  # the number of groups
    rows: tuple[str, ...]  # row columns
    group: tuple[str, ...]  # group columns
    optional: frozenset[str]  # default None: the model draws what is missing
    unread: tuple[str, ...] = ()  # columns of the data that the model does not take

    def bind(
        self, index: np.ndarray, n_group: int, rows: Columns, group: Columns
    ) -> dict[str, Any]:
        """Keyword arguments for these rows and groups; a column that may be missing is None."""
        absent = dict.fromkeys(self.optional)
        rows, group = {**absent, **rows}, {**absent, **group}
        named = {n: rows[n] for n in self.rows} | {n: group[n] for n in self.group}
        named |= {} if self.index is None else {self.index: index}
        return named | ({} if self.size is None else {self.size: n_group})

    @property
    def empty(self) -> list[str]:
        """Arguments that are None, since the data has no column for them."""
        return sorted(self.optional.difference(self.rows, self.group, (self.index, self.size)))

    @property
    def size_name(self) -> str:
        """The name of the number of groups in messages."""
        return self.size or f"n_{self.by}"


def read_arguments(fn: Fn, groups: Groups, index: str | None, size: str | None) -> Arguments:
    """Matches the model's arguments to the data by name; refuses those it can't supply."""
    parameters = inspect.signature(fn).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes = lambda name: name in named or open_ended
    for given in (index, size):
        if given is not None and not takes(given):
            known = ", ".join(named) or "none"
            raise Refused(f'the model has no argument "{given}"; it takes {known}.')
    index = index or (groups.by if takes(groups.by) else None)
    size = size or (f"n_{groups.by}" if takes(f"n_{groups.by}") else None)
    own = lambda columns: tuple(n for n in columns if takes(n) and n not in (index, size))
    rows, group = own(groups.rows), own(groups.group)
    supplied = {index, size, *rows, *group}
    for name, parameter in named.items():
        if name not in supplied and parameter.default is parameter.empty:
            raise Refused(_not_supplied(name, groups))
    if index is None and rows and np.any(groups.sizes != 1):
        raise Refused(_not_single(groups))
    optional = frozenset(n for n, p in named.items() if p.default is None)
    unread = tuple(n for n in (*groups.rows, *groups.group) if n not in supplied)
    return Arguments(groups.by, index, size, rows, group, optional, unread)


def warn_of_unread(unread: Iterable[str], empty: Iterable[str]) -> None:
    """Warns where a column that the model does not take may be an argument that is None, misspelt."""
    quoted = [", ".join(f'"{name}"' for name in names) for names in (empty, unread)]
    if all(quoted):
        warn_user(
            f"from_numpyro: the data has no column for the argument {quoted[0]}, which stays None, "
            f"and the model does not read {quoted[1]} of the data. Where both mean the same, give "
            "them the same name."
        )


def _not_supplied(name: str, groups: Groups) -> str:
    columns = ", ".join([*groups.rows, *groups.group])
    return (
        f'the model asks for "{name}", which the data does not have. It can be called with '
        f'columns of the data ({columns}), the group number of each row ("{groups.by}") and the '
        f'number of groups ("n_{groups.by}"); other names for the last two are given by index= '
        "and size=. Constants are bound beforehand, functools.partial(model, "
        f"{name}=...). A second level of groups is not supported yet."
    )


def _not_single(groups: Groups) -> str:
    many = groups.labels[np.argmax(groups.sizes != 1)]
    return (
        f'the model takes no argument "{groups.by}" for the group number of each row, so each '
        f"group must have exactly one row; group {many} has {groups.sizes.max():,}. Add the "
        f'argument (then beta[{groups.by}] is each row\'s own beta), or say its name: index="...".'
    )


class Block(NamedTuple):
    """A few rows of the data in made-up groups, to try a model on."""

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    n_group: int
    rows: dict[str, Any]
    group: dict[str, Any]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.index)


def small_block(arguments: Arguments, groups: Groups, n_group: int, n_rows: int) -> Block:
    """Rows and group columns spread over the data, in new groups of unequal size; 0 is the largest."""
    n_rows = n_group if arguments.index is None else n_rows  # without group numbers one row each
    index = np.sort(np.arange(n_rows) * (np.arange(n_rows) < n_group)).astype(np.int32)
    rows = {name: _spread(groups.rows[name], n_rows) for name in arguments.rows}
    group = {name: _spread(groups.group[name], n_group) for name in arguments.group}
    return Block(index, n_group, rows, group)


def _spread(column: np.ndarray, count: int) -> np.ndarray:
    """`count` entries from all over a column, in JAX's precision; ones (0 for integers) if empty."""
    column = with_a_row(column)
    return narrow(column[np.linspace(0, len(column) - 1, count).astype(int)])


def repeated(columns: Columns, n: int) -> dict[str, Any]:
    """Columns of one entry, n times."""
    return {name: jnp.broadcast_to(c, (n, *c.shape[1:])) for name, c in columns.items()}
