"""Amortizer: a network that computes the parameters of a group's q(z_i | theta) from its rows."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch
from ramify.families.conditional import Form, LearnedSupplier
from ramify.models.densities import sum_rows

FEATURE_WIDTHS = (64, 64, 64, 128)  # the paper's feat_net (table of architectures)
PARAMETER_WIDTHS = (256, 256, 256)  # the paper's param_net


class Layers(eqx.Module):
    """Fully connected layers with leaky ReLU between them, for inputs with any leading axes."""

    linears: tuple[eqx.nn.Linear, ...]

    def __init__(self, key: PRNGKeyArray, widths: tuple[int, ...], last_scale: float | None = None):
        """Truncated normal weights of sd sqrt(1/fan_in), as the paper; the last of `last_scale`."""
        linears = []
        for place, (fan_in, width) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            key_layer = jax.random.fold_in(key, place)
            weight = jax.random.truncated_normal(key_layer, -2, 2, (width, fan_in)) / fan_in**0.5
            if last_scale is not None and place == len(widths) - 2:
                weight = last_scale * jax.random.normal(key_layer, (width, fan_in))
            linear, own = eqx.nn.Linear(fan_in, width, key=key_layer), (weight, jnp.zeros(width))
            linears.append(eqx.tree_at(lambda m: (m.weight, m.bias), linear, own))
        self.linears = tuple(linears)

    def __call__(self, x: Float[Array, "*batch first"]) -> Float[Array, "*batch last"]:
        """Applies the layers to the last axis."""
        with jax.default_matmul_precision("tensorfloat32"):  # enough for a network
            for place, linear in enumerate(self.linears):
                x = x if place == 0 else jax.nn.leaky_relu(x)
                x = x @ linear.weight.T + jnp.asarray(linear.bias)
        return x


class Pooled(eqx.Module):
    """The paper's encoder: feat_net on each row, squares appended, mean over the group's rows."""

    features: Layers
    # Whether functions of n_i are appended: many rows make a narrow conditional (appendix A).
    count_aware: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "R F"], batch: Batch) -> Float[Array, "B E"]:
        """One embedding per group; invariant to the order of its rows."""
        e = self.features(x)
        n = batch.count.astype(x.dtype)[:, None]
        pooled = sum_rows(jnp.concatenate([e, e**2], -1), batch) / jnp.maximum(n, 1)
        if not self.count_aware:
            return pooled
        return jnp.concatenate([pooled, jnp.log1p(n), 1 / jnp.sqrt(1 + n)], -1)


class Single(eqx.Module):
    """For groups of exactly one row: a plain network on that row, without pooling."""

    features: Layers

    def __call__(self, x: Float[Array, "R F"], batch: Batch) -> Float[Array, "B E"]:
        """The embedding of each group's only row."""
        return sum_rows(self.features(x), batch)


class Amortizer(LearnedSupplier, eqx.Module):
    """One network gives every group its parameters from its rows (Definition 4, figure of net_u)."""

    encoder: Callable[[Float[Array, "R F"], Batch], Float[Array, "B E"]]
    head: Layers
    start: Float[Array, " P"]
    columns: dict[str, tuple[Array, Array]]  # mean and sd of each, to standardise it
    form: Form = eqx.field(static=True)

    def parameters(self, batch: Batch) -> Float[Array, "B P"]:
        """w_i of the block's groups, computed from their rows."""
        e = self.encoder(standardised(batch.rows, self.columns), batch)
        if batch.group:
            e = jnp.concatenate([e, standardised(batch.group, self.columns)], -1)
        return jax.lax.stop_gradient(self.start) + self.head(e)


def standardised(
    columns: Mapping[str, Array], moments: Mapping[str, tuple[Array, Array]]
) -> Float[Array, "rows F"]:
    """Columns side by side in order of name, each brought to mean zero and sd one."""
    flat = []
    for name in sorted(columns):
        mean, sd = jax.lax.stop_gradient(moments[name])
        values = columns[name].reshape(columns[name].shape[0], -1).astype(mean.dtype)
        flat.append((values - mean) / sd)
    return jnp.concatenate(flat, -1)


def column_moments(
    columns: Mapping[str, np.ndarray], standardise: bool
) -> dict[str, tuple[Array, Array]]:
    """Mean and sd of each column's entries; (0, 1) if constant or not to be standardised."""
    moments = {}
    for name, column in columns.items():
        flat = np.asarray(column, np.float64).reshape(len(column), -1)
        mean, sd = flat.mean(0), flat.std(0)
        keep = (sd > 0) & standardise
        moments[name] = jnp.asarray(np.where(keep, mean, 0)), jnp.asarray(np.where(keep, sd, 1))
    return moments
