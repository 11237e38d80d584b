"""What a problem is: data, three log densities and a NumPyro model with the same parameters.

A parameter is declared as name -> (kind, shape of its constrained value), the kinds being the keys
of `CONSTRAINTS`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

Table = dict[str, np.ndarray]
Spec = dict[str, tuple[str, tuple[int, ...]]]
Named = dict[str, Any]

CONSTRAINTS = {
    "real": constraints.real,
    "positive": constraints.positive,
    "unit": constraints.unit_interval,
    "ordered": constraints.ordered_vector,
    "simplex": constraints.simplex,
    "cholesky": constraints.lower_cholesky,
    "corr_cholesky": constraints.corr_cholesky,
}


@dataclass(frozen=True)
class Problem:
    """A data set and a model of it.

    Attributes:
        name: also the name of its reference file.
        table: long format, a dict of NumPy columns; "group" numbers the groups 0..N-1.
        n_group: number of groups, N.
        theta: global parameters.
        z: parameters of one group.
        log_prior: theta -> [].
        log_local: theta, z of one group, that group's columns -> [].
        log_lik: theta, z of one group, one row (its group's columns included) -> [].
        model: the flat NumPyro model, called with `arguments()`; its sites are theta, z and "y".
        group: columns of the table that are constant within a group.
        truth: the parameters the data were drawn with: theta, and z with a leading axis N.
        non_centred: sites of z, with a Normal prior, that NUTS should sample non-centred.
    """

    name: str
    table: Table
    n_group: int
    theta: Spec
    z: Spec
    log_prior: Callable[[Named], jax.Array]
    log_local: Callable[[Named, Named, Named], jax.Array]
    log_lik: Callable[[Named, Named, Named], jax.Array]
    model: Callable[..., None]
    group: tuple[str, ...] = ()
    truth: Named = field(default_factory=dict)
    non_centred: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the row columns."""
        return tuple(name for name in self.table if name not in ("group", *self.group))

    def group_columns(self) -> Table:
        """The group columns, one row per group: each [N, ...]."""
        first = np.unique(self.table["group"], return_index=True)[1]
        return {name: self.table[name][first] for name in self.group}

    def arguments(self) -> Named:
        """Keyword arguments of `model`: row columns, group columns, group numbers and N."""
        rows = {name: self.table[name] for name in self.rows}
        number = {"group": self.table["group"], "n_group": self.n_group}
        return rows | self.group_columns() | number

    def log_joint(self, theta: Named, z: Named) -> jax.Array:
        """The three densities summed over all groups and rows, at constrained values."""
        groups = jax.tree.map(jnp.asarray, self.group_columns())
        rows = {n: jnp.asarray(c) for n, c in self.table.items() if n != "group"}
        number = jnp.asarray(self.table["group"])
        if groups:
            local = jax.vmap(partial(self.log_local, theta))(z, groups)
        else:
            local = jax.vmap(lambda one: self.log_local(theta, one, {}))(z)
        own = jax.tree.map(lambda leaf: leaf[number], z)
        lik = jax.vmap(partial(self.log_lik, theta))(own, rows)
        return self.log_prior(theta) + local.sum() + lik.sum()

    def random_point(self, seed: int, scale: float = 0.5) -> tuple[Named, Named]:
        """Constrained (theta, z) from Gaussian noise on the unconstrained scale; z is [N, ...]."""
        rng = np.random.default_rng(seed)
        theta = {n: _random_value(rng, scale, *spec, ()) for n, spec in self.theta.items()}
        z = {n: _random_value(rng, scale, *spec, (self.n_group,)) for n, spec in self.z.items()}
        return theta, z

    def fingerprint(self) -> str:
        """A hash of the table, blind to rounding below 1e-6 and to dtypes."""
        digest = hashlib.sha256()
        for name in sorted(self.table):
            column = np.round(np.asarray(self.table[name], dtype=np.float64), 6) + 0.0
            digest.update(f"{name}{column.shape}".encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()


def for_ramify(problem: Problem) -> tuple[Any, Any]:
    """The problem as Ramify takes it: (rf.Model, rf.Groups)."""
    import ramify as rf

    def parameters(spec: Spec) -> Named:
        return {n: rf.constrained(CONSTRAINTS[kind], *shape) for n, (kind, shape) in spec.items()}

    model = rf.Model(
        theta=parameters(problem.theta),
        z=parameters(problem.z),
        log_prior=problem.log_prior,
        log_local=problem.log_local,
        log_lik=problem.log_lik,
    )
    groups = rf.Groups.from_table(
        problem.table, by="group", rows=list(problem.rows), group=list(problem.group)
    )
    return model, groups


def flat_names(spec: Spec) -> list[str]:
    """Names of the flattened constrained entries: mu[0], mu[1], chol[1,0]."""
    names = []
    for name, (_, shape) in spec.items():
        for index in np.ndindex(shape):
            names.append(f"{name}[{','.join(map(str, index))}]" if shape else name)
    return names


def ragged(rng, N, *, typical, spread, low, high) -> np.ndarray:
    """Group numbers of the rows, sizes log-normal around `typical` and clipped to [low, high]."""
    sizes = np.exp(np.log(typical) + spread * rng.standard_normal(N))
    count = np.clip(np.round(sizes), low, high).astype(np.int64)
    return np.repeat(np.arange(N, dtype=np.int32), count)


def tidy(values: np.ndarray) -> np.ndarray:
    """Rounded, so that the last bits of a platform's arithmetic do not change the data."""
    return np.round(values, 4) + 0.0


def _random_value(rng, scale, kind, shape, batch) -> jax.Array:
    transform = biject_to(CONSTRAINTS[kind])
    free = transform.inverse_shape(batch + shape)
    return transform(jnp.asarray(scale * rng.standard_normal(free)))
