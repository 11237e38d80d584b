"""What a problem is: data, the model as a user writes it, and its posterior without Ramify."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ramify as rf

SHOWN = 20  # groups whose z is compared

Table = dict[str, np.ndarray]
Data = dict[str, Any]
Sample = Mapping[str, Any]  # one draw of the NumPyro sites


class Target(NamedTuple):
    """The same posterior, written by hand for NUTS, often with z integrated out.

    Attributes:
        model: a NumPyro model of `data`.
        data: its arrays; arguments of the compiled program.
        theta: one draw and the data -> the globals, numbers by the user's names.
        z: key, one draw and the data -> the locals of the groups `shown(labels)`, {site: [G, ...]}.
            Where z is integrated out it is drawn given the rest, else the key is not used.
        big: sites with an entry for each group; the others share a dense mass matrix.
    """

    model: Callable[[Data], None]
    data: Data
    theta: Callable[[Sample, Data], dict[str, Any]]
    z: Callable[[jax.Array, Sample, Data], dict[str, Any]]
    big: tuple[str, ...] = ()


class Problem(NamedTuple):
    """Data, the model as a user writes it, and the target of its reference."""

    table: Table
    by: str  # column with the group of each row
    fit: Callable[[], tuple[Any, rf.Groups]]
    target: Callable[[], Target]
    chains: int = 4
    # Sweeps -> draws [chains, S, ...] of the globals and of the shown z, where NUTS is not used.
    gibbs: Callable[[int], tuple[Table, Table]] | None = None

    @property
    def labels(self) -> np.ndarray:
        """Labels of the groups whose z is compared."""
        return shown(np.unique(self.table[self.by]))

    def fingerprint(self) -> str:
        """Changes if the data do, but not with the last digits of a machine's floating point."""
        found = hashlib.sha256()
        for name, column in self.table.items():
            plain = column if column.dtype.kind in "OUSTb" else np.round(column.astype(float), 5)
            found.update(f"{name} {plain.tolist()}".encode())
        return found.hexdigest()[:16]


def shown(groups: Any) -> Any:
    """Up to SHOWN of the groups, evenly spread."""
    return groups[np.unique(np.linspace(0, len(groups) - 1, SHOWN).astype(int))]


def codes(column: Any) -> np.ndarray:
    """The number of each row's group, in the order of the labels."""
    return np.unique(np.asarray(column), return_inverse=True)[1]


def entries(name: str, values: jax.Array) -> dict[str, jax.Array]:
    """The numbers of a vector, by the names that a summary has: `name[0]`, `name[1]`, ..."""
    return {f"{name}[{i}]": values[i] for i in range(values.shape[0])}


def on_grid(key: jax.Array, log_density: jax.Array, grid: jax.Array) -> jax.Array:
    """A draw for each row of log densities [..., K] at K equally spaced points."""
    return grid[jax.random.categorical(key, log_density, axis=-1)]


def sums(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums over the rows of each group, [N, ...]."""
    out = np.zeros((group.max() + 1, *values.shape[1:]))
    np.add.at(out, group, values)
    return out


def by_normal(n: Any, total: Any, squares: Any, mean: Any, sd: Any) -> jax.Array:
    """Log density of n normal numbers with a common mean, from their sum and their sum of squares."""
    quadratic = squares - 2 * mean * total + n * mean**2
    return -0.5 * quadratic / sd**2 - n * jnp.log(sd) - 0.5 * n * jnp.log(2 * jnp.pi)
