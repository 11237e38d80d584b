"""A NumPyro model with data for it, and the columns such data are drawn from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ramify as rf


@dataclass(frozen=True)
class Case:
    """A model and a data set for it."""

    model: Callable[..., Any]
    table: dict[str, np.ndarray]
    rows: tuple[str, ...]
    group: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def groups(self) -> rf.Groups:
        return rf.Groups.from_table(
            self.table, by="group", rows=list(self.rows), group=list(self.group)
        )

    def make(self) -> Any:
        return rf.from_numpyro(self.model, self.groups(), **self.options)

    def arguments(self) -> dict[str, Any]:
        """What NumPyro itself is given: the whole data, sorted by group."""
        groups = self.groups()
        number = np.repeat(np.arange(len(groups)), groups.sizes)
        return {**groups.rows, **groups.group, "group": number, "n_group": len(groups)}


def table(seed: int = 0, N: int = 6, **columns: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Ragged groups with columns drawn by functions of (rng, number of rows, group numbers)."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(N), rng.integers(1, 6, N))
    made = {name: make(rng, len(group), group) for name, make in columns.items()}
    return {"group": group, **made}


def real(*shape):
    return lambda rng, n, group: rng.normal(size=(n, *shape))


def count(high):
    return lambda rng, n, group: rng.integers(0, high, n).astype(np.int32)


def positive(rng, n, group):
    return rng.gamma(2.0, size=n)


def own(*shape):
    """A group column: the same in all rows of a group."""
    return lambda rng, n, group: rng.normal(size=(group.max() + 1, *shape))[group]
