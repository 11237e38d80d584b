"""Adapter: what a posterior needs of a model beyond its densities.

A front end reads tables in its own way, names results in its own terms, and saves what it needs to be
loaded again. One object does this: `Model.adapter` returns it and `Posterior` owns it. The class here
is for models written as three densities; a front end derives its own from it.
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
    """The words of a report about a model."""

    title: str | None  # title of the page; None for a general one
    lead: list[str]  # words for the line below the title
    facts: list[tuple[str, str]]  # names and values for the table of what was fitted
    priors: list[tuple[str, str]]  # names and priors of the parameters, where they are known
    response: str  # what the outcome is called in a sentence
    deviations: bool  # whether the groups' values are deviations from a population
    means: bool  # whether `Adapter.expected` knows the mean of an outcome
    complete: bool  # whether a saved fit loads without the model


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

    Adapters are static arguments of compiled functions. Two are equal if their models are equal, so
    that a model that was built again compiles nothing.

    Attributes:
        model: the `Model`. (Its module imports this one, hence no type here.)
        outcome: the name of a row's outcome in results; None if rows have none, or several.
        origin: added to outcomes on the host, in float64, if they are too far from zero for float32.
    """

    outcome: str | None = "y"
    origin: float = 0.0

    def __init__(self, model: Any):
        self.model = model

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model == other.model  # pyright: ignore

    def __hash__(self) -> int:
        return hash((type(self), self.model))

    # Reading tables.

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups | None:
        """A user's table as groups of the fit's columns; None if it has these columns itself.

        Called for every table that a method of `Posterior` gets.

        Args:
            table: the table, of any kind.
            what: what the caller calls the table, for messages.
            outcomes: whether the rows are data to condition on; else places to predict.
        """
        del table, what, outcomes
        return None

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """Rows to predict, adapted to the group columns that z is conditioned on.

        Called for every prediction, after `read`.

        Args:
            at: the rows to predict.
            group: the group columns of the rows that z is conditioned on, [N, ...]; None if the
                groups have no such rows.
        """
        del group
        return at

    def columns(self) -> dict[str, str | None]:
        """The columns of a user's table that `read` needs, each with its kind, if it is known.

        A kind is "number" or "category". Called by the command line, to read files.
        """
        return {}

    # Values of the parameters.

    def global_values(
        self, theta: Float[np.ndarray, "S D"] | Float[Array, "S D"]
    ) -> dict[str, Any]:
        """Draws of the globals by name, constrained, [S, ...] each: for `sample` and `summary`."""
        return in_chunks(lambda chunk: _global_values(self, chunk), np.asarray(theta))

    def named_theta(self, theta: Float[Array, " D"]) -> Named:
        """Named constrained values of one theta, and what is derived from them. Traced."""
        return self.model.theta.values(theta)

    def local_values(
        self, theta: Float[Array, " D"], z: Float[Array, "B M"], batch: Batch
    ) -> Named:
        """Named constrained z of each group of a block, [B, ...], and what is derived. Traced."""
        del theta, batch
        return jax.vmap(self.model.z.values)(z)

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """A name for each entry of a local value of that shape: for the report."""
        return entry_names(name, shape)

    # Outcomes.

    def categories(self, kind: str) -> list[str]:
        """Names of the categories that `expected` returns for this kind; [] if it is one number.

        Called first by `predict`. Raises if the model has no predictions of this kind.
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

        Called by `predict` for kinds other than "response" that `categories` allows.
        """
        raise NotImplementedError

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The outcomes of the rows by name, [R, ...], as far as they are known: for ArviZ."""
        return {name: column for name, column in batch.rows.items() if name == self.outcome}

    def outcomes(self, groups: Groups) -> np.ndarray | None:
        """The outcomes of the rows, [n_rows, ...], on the scale of `predict`: for the report.

        None if it is not known which column they are.
        """
        return groups.rows.get(self.outcome or "")

    def log_lik_by_outcome(
        self, theta: Float[Array, " D"], z_rows: Float[Array, "R M"], batch: Batch
    ) -> Named:
        """The log likelihood of each row, [R], by name of the outcome: for ArviZ. Traced."""
        return {self.outcome or "y": self.model.log_lik(theta, z_rows, batch)}

    # Results.

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Draws of the globals as the rows of `summary`, [S] each, in order.

        None if the rows are the entries of theta.
        """
        del values
        return None

    def sections(self, names: Sequence[str]) -> list[Section]:
        """The rows of a summary, given by name, in parts that share a scale: for the report."""
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
        """The words of a report about the model."""
        facts = [("Model", repr(self.model))]
        return Description(None, [], facts, [], "the outcome", False, False, False)

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes to the folder of a saved fit what `load` needs to rebuild the model."""
        del folder, groups


@eqx.filter_jit
def _global_values(adapter: Adapter, theta: Float[Array, "S D"]) -> dict[str, Array]:
    return jax.vmap(adapter.named_theta)(theta)
