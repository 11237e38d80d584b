"""Results as ArviZ keeps them; the only file that imports it."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Shaped

from ramify._version import __version__
from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.data.host import ranges
from ramify.data.resident import whole
from ramify.families.build import method_of
from ramify.models.model import Model
from ramify.numerics.memory import check_memory
from ramify.posterior.conditioned import Conditioned, condition
from ramify.posterior.draws import Draws, local_sampler, map_draws, per_draw, posterior_theta
from ramify.posterior.matching import Part

if TYPE_CHECKING:
    from ramify.posterior.posterior import Posterior


Columns = dict[str, Shaped[np.ndarray, "..."]]


def data_tree(
    posterior: "Posterior", sample: Columns, data: Groups | None, parts: list[Part], seed: int
) -> Any:
    """A DataTree with one chain; groups and rows have dimensions with their labels and positions.

    Args:
        posterior: the fit.
        sample: draws of theta [S, ...] and z [S, N, ...], by name.
        data: what they were conditioned on; None where only the labels of the fit are known.
        parts: the same in parts, for what there is of each draw and row; empty to leave that out.
        seed: that of the draws.
    """
    from_dict = _imported()
    chained = lambda values: {n: v[None] for n, v in values.items()}  # noqa: E731
    tree, names = {"posterior": chained(sample)}, _Dims(posterior, sample, data)
    if data is not None and data.n_rows:
        if parts:
            draws = len(next(iter(sample.values())))
            tree["posterior_predictive"] = chained(_predicted(posterior, data, draws, seed))
            tree["log_likelihood"] = chained(_log_lik(posterior, parts, data.n_rows, draws, seed))
        tree["observed_data"], tree["constant_data"] = _columns(posterior, data)
    tree = {group: values for group, values in tree.items() if values}
    found = from_dict(tree, coords=names.coords, dims=names.of(tree))
    found["posterior"].attrs.update(
        inference_library="ramify",
        inference_library_version=__version__,
        method=method_of(posterior.family),
    )
    return found


def _imported() -> Any:
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise ImportError(
            'to_arviz needs arviz-base: install it with pip install "ramify[arviz]".'
        ) from error
    return from_dict


class _Dims:
    """The names of dimensions and their coordinates."""

    def __init__(self, posterior: "Posterior", draws: Columns, data: Groups | None):
        labels = posterior.labels if data is None else data.labels
        columns = {} if data is None else {**data.rows, **data.group}
        taken = {"chain", "draw", *draws, *columns}
        free = lambda name, other: name if name not in taken else other
        self.group = free(posterior.by, f"{posterior.by}_group")
        self.row = free("row", "row_position")
        self.coords: dict[str, Any] = {self.group: labels}
        if data is not None:
            self.coords[self.row] = data.row_order
        self._local = {*draws} - {*posterior.sample_theta(1)} | {*(data.group if data else ())}

    def of(self, tree: dict[str, Columns]) -> dict[str, list[str]]:
        """The dimensions of every variable, chain and draw apart."""
        found: dict[str, list[str]] = {}
        for group, values in tree.items():
            drawn = group.startswith("posterior") or group == "log_likelihood"
            for name, value in values.items():
                first = [self.group] if name in self._local else []
                if group != "posterior" and not first:
                    first = [self.row]
                more = np.ndim(value) - 2 * drawn - len(first)
                found[name] = [*first, *(f"{name}_dim_{i}" for i in range(more))]
        return found


def _columns(posterior: "Posterior", data: Groups) -> tuple[Columns, Columns]:
    """Observed outcomes by site; the other columns, and the number of each row's group."""
    observed = jax.tree.map(np.asarray, posterior.model.observed(whole(data)))
    number = np.repeat(np.arange(len(data)), data.sizes)
    rest = {n: c for n, c in data.rows.items() if n not in observed}
    return observed, rest | data.group | {f"{posterior.by}_index": number}


def _predicted(posterior: "Posterior", data: Groups, draws: int, seed: int) -> Columns:
    """Draws of the outcome at the rows of the data, if the model makes one."""
    model = posterior.model
    if not model.can_simulate or model.outcome is None:
        return {}
    return {model.outcome: posterior.predict(data, data, draws, seed, summary=False)}


def _log_lik(
    posterior: "Posterior", parts: list[Part], n_rows: int, draws: int, seed: int
) -> Columns:
    """The log likelihood of each row under each draw, by outcome."""
    model, K = posterior.model, posterior._local_draws(None)
    theta = posterior_theta(jax.random.key(seed), posterior.family, model, draws)
    cure = "Pass rows=False to leave what there is for each row out"
    what = f"{draws:,} draws of {n_rows:,} rows"
    check_memory(draws * n_rows * theta.theta.dtype.itemsize, None, what, cure)
    out: dict[str, np.ndarray] = {}
    for part in parts:
        for block in ranges(part.given, part.at, rows=16_384, coarse=True):
            given, at = condition(part.family, model, block.batches[0]), block.batches[1]
            found = _block_log_lik(given, model, at, theta, K)
            first = int(part.at.starts[block.start])
            count = int(part.at.sizes[block.start : block.stop].sum())
            rows = part.at.row_order[first : first + count]
            for name, values in found.items():
                column = out.setdefault(name, np.empty((draws, n_rows), values.dtype))
                column[:, rows] = np.asarray(values)[:, :count]
    return out


@eqx.filter_jit
def _block_log_lik(
    given: Conditioned, model: Model, at: Batch, draws: Draws, local_draws: int
) -> dict[str, Array]:
    sample = local_sampler(given, model, local_draws)

    def one(key: PRNGKeyArray, theta: Array) -> dict[str, Array]:
        return model.log_lik_sites(theta, at.at_rows(sample(key, theta)[0]), at)

    return map_draws(one, draws, per_draw(given, model, local_draws, at))
