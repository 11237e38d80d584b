"""Adapter: what a posterior needs of a model beyond its densities."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ramify.data.batch import Batch, Theta, Z, ZRows
from ramify.data.groups import Groups
from ramify.models import simulation
from ramify.models.parameters import Named, Space, entry_names
from ramify.models.simulation import Simulator, ThetaSampler
from ramify.numerics.chunks import in_chunks
from ramify.numerics.programs import program


class Description(NamedTuple):
    """The words of a report about a model."""

    title: str | None  # title of the page; None for a general one
    lead: list[str]  # texts for the line below the title
    facts: list[tuple[str, str]]  # names and values for the table that describes the fit
    priors: list[tuple[str, str]]  # names and priors of the parameters, where they are known
    response: str  # what the outcome is called in a sentence
    deviations: bool  # whether the groups' values are deviations from a population
    means: bool  # whether `Adapter.expected` knows the mean of an outcome
    complete: bool  # whether a saved fit loads without the model


class Section(NamedTuple):
    """Rows of a summary that share a scale, for one figure of a report."""

    title: str
    rows: list[int]
    zero: Literal["line", "from", "unit"]  # a line through 0, an axis from 0, or from -1 to 1


class Adapter(eqx.Module):
    """Reads tables for a model, names its results and saves it; each front end has a subclass.

    Compiled functions take it as an argument: a formula's model is a tree of arrays, others static.
    """

    model: Any

    @property
    def outcome(self) -> str | None:
        """Name of a row's outcome in results; None if rows have none, or several."""
        return "y"

    @property
    def outcome_name(self) -> str | None:
        """What the user calls the outcome: for ArviZ and pictures."""
        return self.outcome

    @property
    def origin(self) -> float:
        """Added to outcomes on the host if they are too far from zero for float32."""
        return 0.0

    # Reading tables.

    def read(self, table: Any, what: str, *, outcomes: bool) -> Groups | None:
        """A user's table as groups with the fit's columns; None if the table has these columns."""
        # `what` names the table in messages; with `outcomes` its rows are data to condition on.
        return None

    def beside(self, at: Groups, group: Mapping[str, np.ndarray] | None) -> Groups:
        """Rows to predict, adapted to the group columns [N, ...] of any rows to condition on."""
        return at

    def condensed(self, groups: Groups) -> Groups:
        """Groups with fewer rows and the same likelihood at every theta and z, where possible."""
        return groups

    def begin(self, groups: Groups) -> dict[str, float]:
        """Starting values of a search by coordinate of theta, where zero is a poor start."""
        return {}

    def columns(self) -> dict[str, str | None]:
        """The columns of a table that `read` needs, each with its kind, "number" or "category"."""
        return {}

    # The user's own columns, for questions about effects.

    @property
    def table(self) -> dict[str, Any] | None:
        """The columns of the fit's table, by name; None where they are not kept."""
        return None

    @property
    def table_kind(self) -> str:
        """The kind of table that results come back as."""
        return "dict"

    def per_trial(self, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
        """The columns of n rows with equal numbers of trials, and that number: means per trial."""
        return columns, 1.0

    def variables(self) -> list[str]:
        """The columns that a prediction needs, without labels."""
        raise ValueError("this question is for models from formulas, which know their predictors.")

    def frame(self, table: Any) -> Any:
        """The predictors of a table as a pandas frame of numbers and categories."""
        raise NotImplementedError

    def typical(self) -> dict[str, Any]:
        """One row of the predictors: means, and the most frequent of categories."""
        raise NotImplementedError

    def steps(self, frame: Any, name: str, share: float) -> np.ndarray:
        """How far a column of numbers goes in each row until the design changes by a share of its sds."""
        raise NotImplementedError

    # Values of the parameters.

    def global_values(self, theta: Float[Any, "S D"]) -> dict[str, Any]:
        """Draws of the globals by name, constrained, [S, ...] each: for `sample` and `summary`."""
        return in_chunks(lambda chunk: _global_values(self, chunk), np.asarray(theta))

    def named_theta(self, theta: Theta) -> Named:
        """Named constrained values of one theta, and values derived from them. Traced."""
        return self.model.theta.values(theta)

    def local_values(self, theta: Theta, z: Z, batch: Batch) -> Named:
        """Named constrained z of each group of a block, [B, ...], and derived values. Traced."""
        return jax.vmap(self.model.z.values)(z)

    def entry_names(self, name: str, shape: Sequence[int]) -> list[str]:
        """A name for each entry of a local value of that shape: for the report."""
        return entry_names(name, shape)

    # Outcomes.

    def categories(self, kind: str) -> list[str]:
        """Names of the categories that `expected` returns for this kind; [] if it is one number."""
        if kind != "response":
            raise ValueError(
                f'kind="{kind}" is for models made from formulas; this one can make new outcomes '
                'only: kind="response".'
            )
        return []

    def expected(
        self, kind: str, theta: Theta, z_rows: ZRows, batch: Batch
    ) -> Float[Array, "R *categories"]:
        """Each row's mean outcome ("mean"), linear predictor ("link") or probabilities. Traced."""
        raise NotImplementedError

    @property
    def numeric(self) -> bool:
        """Whether means of outcomes make sense: they are numbers, or levels in an order."""
        return True

    def category_numbers(self, outcomes: np.ndarray) -> np.ndarray:
        """The numbers, from 0, of outcomes that are categories."""
        raise NotImplementedError

    def outcome_type(self) -> jax.ShapeDtypeStruct | None:
        """Shape and type of one outcome, if known without tracing the model's `simulate`."""
        return None

    # Whether `draw_outcomes` makes new outcomes instead of the model's `simulate`.
    draws_on_host = False

    def outcome_parameters(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Named:
        """Parameters of the distribution of each row's outcome, [R, ...] each. Traced."""
        raise NotImplementedError

    def draw_outcomes(self, rng: np.random.Generator, given: dict[str, np.ndarray]) -> np.ndarray:
        """A new outcome for each of these parameters [S, R, ...], in the form of `simulate`."""
        raise NotImplementedError

    def observed(self, batch: Batch) -> dict[str, Any]:
        """The known outcomes of the rows by name, [R, ...]: for ArviZ."""
        return {name: column for name, column in batch.rows.items() if name == self.outcome}

    def named_axes(self) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
        """Names and coordinates of each parameter's axes after the axis of groups: for ArviZ."""
        return {}, {}

    def predictors(self, groups: Groups) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The columns of rows and of groups by the user's names: for ArviZ."""
        return groups.rows, groups.group

    def outcomes(self, groups: Groups) -> np.ndarray | None:
        """The outcomes of the rows, [n_rows, ...], in the form of `predict`; None if unknown."""
        return groups.rows.get(self.outcome or "")

    def log_lik_by_outcome(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Named:
        """The log likelihood of each row, [R], by name of the outcome: for ArviZ. Traced."""
        return {self.outcome or "y": self.model.log_lik(theta, z_rows, batch)}

    def theta_sampler(self) -> ThetaSampler:
        """A function that draws a theta from its prior."""
        return simulation.theta_by_nuts(self.model)

    def simulator(self, groups: Groups) -> Simulator:
        """A function that draws theta from its prior, z given theta, and outcomes of these rows."""
        return simulation.by_densities(self.model, groups, self.theta_sampler())

    # Results.

    def coordinates(self) -> list[str]:
        """The name of each entry of the flat theta, for messages."""
        return self.model.theta.coordinates()

    def summary_rows(self, values: dict[str, Any]) -> dict[str, Any] | None:
        """Draws of the globals as rows of `summary`, [S] each; None: one row per entry of theta."""
        return None

    def ratios(self) -> tuple[str, list[str]]:
        """The name of exp(effect), such as "odds ratios", and the rows of a summary it is for."""
        raise ValueError("exponentiate= is for models from formulas, with a log or logit link.")

    def has_odds(self, kind: str) -> bool:
        """Whether the expected value of a row, of this kind, is a share or a probability."""
        return False

    def sections(self, names: Sequence[str]) -> list[Section]:
        """The rows of a summary, given by name, in parts that share a scale: for the report."""
        return sections_by_support(self.model.theta, names)

    def group_effects(
        self, sampled: Iterable[Any], sizes: np.ndarray, totals: bool, quantiles: Sequence[float]
    ) -> Any:
        """The table of `Posterior.group_effects`; `sampled` is what `sample_blocks` yields."""
        if totals:
            raise ValueError("totals=True is for models from formulas; here effects are z itself.")
        return None

    def describe(self) -> Description:
        """The words of a report about the model."""
        facts = [("Model", repr(self.model))]
        return Description(None, [], facts, [], "the outcome", False, False, False)

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes what `load` needs to rebuild the model into the folder of a saved fit."""


@program
def _global_values(adapter: Adapter, theta: Float[Array, "S D"]) -> dict[str, Array]:
    return jax.vmap(adapter.named_theta)(theta)


@program
def local_values(
    adapter: Adapter, theta: Float[Array, "C D"], z: Float[Array, "C B M"], batch: Batch
) -> dict[str, Array]:
    """Named, constrained z of a block's groups for some draws."""
    return jax.vmap(lambda theta, z: adapter.local_values(theta, z, batch))(theta, z)


def sections_by_support(theta: Space, names: Sequence[str]) -> list[Section]:
    """Rows of a summary by the support of their parameters: real, positive and other ones."""
    real = Section("Real parameters", [], "line")
    positive = Section("Positive parameters", [], "from")
    other = Section("Other parameters", [], "line")
    for i, name in enumerate(names):
        kind = theta.parameters[name.split("[")[0]].constraint
        free, above = kind is constraints.real, kind is constraints.positive
        (real if free else positive if above else other).rows.append(i)
    return [section for section in (real, positive, other) if section.rows]
