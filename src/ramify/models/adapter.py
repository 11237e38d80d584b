"""Adapter: what a posterior asks about a model beyond its densities.

A front end reads tables in its own way, names results in its own words, and saves what it needs to
come back. All of that is one object, which `Model.adapter` returns and `Posterior` owns. The class
here serves models written as three densities; a front end derives its own from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ramify.data.batch import Batch
from ramify.data.groups import Groups
from ramify.models.parameters import Named, entry_names
from ramify.numerics.chunks import in_chunks


class Description(NamedTuple):
    """What a report says about a model.

    Attributes:
        title: title of the page; None where the model has no name of its own.
        lead: words for the line below the title.
        facts: names and values for the table of what was fitted.
        priors: names and priors of the parameters, where they are known.
        response: what the outcome is called in a sentence.
        deviations: whether the groups' values are deviations from a population.
        means: whether `Adapter.expected` knows the mean of an outcome.
        complete: whether a saved fit loads without the model.
    """

    title: str | None
    lead: list[str]
    facts: list[tuple[str, str]]
    priors: list[tuple[str, str]]
    response: str
    deviations: bool
    means: bool
    complete: bool


class Section(NamedTuple):
    """Rows of a summary that share a scale, for one figure of a report.

    `zero` says how the figure treats zero: a "line" through it, an axis "from" it, or an axis from
    -1 to 1 ("unit").
    """

    title: str
    rows: list[int]
    zero: Literal["line", "from", "unit"]


class Adapter:
    """Reads tables for a model, names its results and saves it; this one is for a plain `Model`.

    Adapters are arguments of compiled functions. Two are equal where their models are, so that what
    was compiled for one serves the other.

    Attributes:
        model: the `Model`. (Its module imports this one, hence no type here.)
        outcome: what results call the outcome of a row; None where rows have none, or several.
        origin: added to outcomes in float64 on the host, where float32 has too few digits for them.
    """

    outcome: str | None = "y"
    origin: float = 0.0

    def __init__(self, model: Any):
        self.model = model

    def __eq__(self, other: object) -> bool:
        """Whether both are of the same kind and their models are equal."""
        return type(self) is type(other) and self.model == other.model  # pyright: ignore

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash((type(self), self.model))

    # Reading tables.

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups | None:
        """A user's table as this model's groups; None where it has the columns of the fit already.

        Args:
            table: the table, of any kind.
            what: what the caller calls the table, for messages.
            outcomes: whether the rows are data to condition on; else places to predict.
        """
        del table, what, outcomes
        return None

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """Rows to predict, for a z that is conditioned on other rows of the same groups.

        Asked for every prediction, after `read`.

        Args:
            at: the rows to predict.
            group: the group columns, [N, ...], that z was conditioned on; None for new groups.
        """
        del group
        return at

    def columns(self) -> dict[str, str | None]:
        """The columns of a user's table that `read` needs.

        Asked by the command line, which reads files. Each has its kind: "number", "category", or
        None where either will do.
        """
        return {}

    # Values of the parameters.

    def global_values(
        self, theta: Float[np.ndarray, "S D"] | Float[Array, "S D"]
    ) -> dict[str, Any]:
        """Draws of the globals by name, constrained, [S, ...] each.

        Asked by `sample` and `summary`.
        """
        return in_chunks(lambda chunk: _global_values(self, chunk), np.asarray(theta))

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """Named constrained values of one theta, and what follows from them. Traced."""
        return self.model.theta.values(theta)

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Named constrained z of each group of a block, [B, ...], and what follows. Traced."""
        del theta, batch
        return jax.vmap(self.model.z.values)(z)

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """A name for each entry of a local value of that shape. For the report."""
        return entry_names(name, shape)

    # Outcomes.

    def categories(self, kind: str) -> list[str]:
        """Names of the categories that `expected` of that kind has a number for; [] for one number.

        Asked by `predict` before all else. Raises where there is no such kind.
        """
        if kind != "response":
            raise ValueError(
                f'kind="{kind}" is for models made from formulas; this one can make new outcomes '
                'only: kind="response".'
            )
        return []

    def expected(
        self, kind: str, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Float[Array, "R *categories"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or probabilities. Traced.

        Asked by `predict` of other kinds than "response", where `categories` has allowed it.
        """
        raise NotImplementedError

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows by name, [R, ...], as far as they are known. For ArviZ."""
        return {name: column for name, column in batch.rows.items() if name == self.outcome}

    def outcomes(self, groups: Groups) -> np.ndarray | None:
        """The outcomes of the rows, [n_rows, ...], on the scale of `predict`. For the report.

        None where there is no column that is known to be the outcome.
        """
        return groups.rows.get(self.outcome or "")

    def log_lik_by_outcome(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """The model's `log_lik`, [R], by name of the outcome. Traced. For ArviZ."""
        return {self.outcome or "y": self.model.log_lik(theta, z_rows, batch)}

    # Results.

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Draws of the globals as the rows of `summary`, [S] each, by name and in order.

        None for a row for every entry of the model's theta.
        """
        del values
        return None

    def sections(self, names: Sequence[str]) -> list[Section]:
        """The rows of a summary, given by name, in parts that share a scale. For the report."""
        real = Section("Real parameters", [], "line")
        positive = Section("Positive parameters", [], "from")
        other = Section("Other parameters", [], "line")
        for i, name in enumerate(names):
            kind = self.model.theta.parameters[name.split("[")[0]].constraint
            free, above = kind is constraints.real, kind is constraints.positive
            (real if free else positive if above else other).rows.append(i)
        return [section for section in (real, positive, other) if section.rows]

    def group_effects(
        self, sampled: Iterable[Any], sizes: np.ndarray, totals: bool, quantiles: Sequence[float]
    ) -> Any:
        """The table of `Posterior.group_effects`; `sampled` is what `sample_blocks` yields."""
        del sampled, sizes, totals, quantiles
        raise ValueError("group_effects is for models made from formulas; use posterior.sample.")

    def describe(self) -> Description:
        """What a report says about the model."""
        facts = [("Model", repr(self.model))]
        return Description(None, [], facts, [], "the outcome", False, False, False)

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes to the folder of a saved fit what `load` needs to do without the model."""
        del folder, groups


@eqx.filter_jit
def _global_values(adapter: Adapter, theta: Float[Array, "S D"]) -> dict[str, Array]:
    return jax.vmap(adapter.named_theta)(theta)
