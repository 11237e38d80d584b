"""A fitted family with its model and data: chooses the rows that each method of a posterior uses."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ramify.data.groups import Groups
from ramify.data.labels import find
from ramify.families.build import Family, is_fixed, method_of
from ramify.io.saving import FitRecord, describe_space
from ramify.models.model import Model
from ramify.numerics import budgets
from ramify.numerics.memory import check_memory
from ramify.numerics.user_warning import warn_user
from ramify.posterior import matching, prediction
from ramify.posterior.matching import DataSchema, Part
from ramify.posterior.new_group import unlabelled


def check_posterior(thing: Any, call: str) -> None:
    """Raises unless a public function got a posterior."""
    if not isinstance(thing, Fitted):
        raise TypeError(
            f"posterior is a {type(thing).__name__}; expected {call} with what rf.fit or rf.load "
            "returned."
        )


class Fitted:
    """The base of `Posterior`, which documents the attributes."""

    def __init__(
        self,
        model: Model,
        family: Family,
        groups: Groups | None,
        *,
        local_draws: int = 1,
        history: Mapping[str, np.ndarray] | None = None,
        notes: Mapping[str, Any] | None = None,
        schema: DataSchema | None = None,
    ):
        """Checks that all belong together; `schema` replaces the groups of a loaded fit."""
        if groups is not None:
            schema = matching.schema_of(groups)
        if schema is None:
            raise ValueError("Posterior needs the groups of the fit, or what was saved of them.")
        matching.check_together(model, family, len(schema.labels))
        self.model, self.family, self.groups, self._schema = model, family, groups, schema
        self.adapter = model.adapter
        self.local_draws = local_draws
        self._outcomes: dict[Any, Any] = {}  # what simulate makes of each kind of table
        # Fits other groups with the options of this fit, for `loo(refit=True)`; set by `fit`.
        self.again: Callable[[Groups], Any] | None = None
        self.history = dict(history or {})
        self.notes = dict(notes or {})

    @property
    def _judged(self) -> dict[str, Any]:
        """The notes for the verdict, with the ratio of theta's sds now to those that the fit found."""
        noted = self.notes.get("theta_sd")
        now = mean_theta_sd(self.family) / noted if noted else 1.0
        return self.notes | {"theta_sds_changed": now}

    @property
    def _responses(self) -> np.ndarray | None:
        """The outcomes of the fit in the order of the groups' rows, if they are known."""
        return None if self.groups is None else self.adapter.outcomes(self.groups)

    @property
    def labels(self) -> Shaped[np.ndarray, " N"]:
        """Labels of the groups of the fit."""
        return self._schema.labels

    @property
    def by(self) -> str:
        """Name of the column with the labels."""
        return self._schema.by

    def _local_draws(self, asked: int | None) -> int:
        if asked is None:
            # More where groups needed more draws, the user asked for them, or the data are small.
            raised = bool(self.notes.get("local_draws_raised"))
            fewest = min(self.local_draws, budgets.RESAMPLED[0])
            return self.local_draws if raised else self.notes.get("resampled_draws", fewest)
        if asked < 1 or (asked > 1 and method_of(self.family) == "joint"):
            raise ValueError(
                f"local_draws={asked}: expected at least 1, and for joint(), which has no "
                "q(z_i | theta), no more."
            )
        return asked

    def _for_locals(self, groups: Groups | None, K: int) -> Groups:
        """Groups whose z to draw, with their rows if the family uses them."""
        needs_rows = K > 1 or not is_fixed(self.family)
        if groups is None and self.groups is None and not needs_rows:
            return matching.unloaded(self._schema)
        groups = self._default(groups)
        if needs_rows:
            return matching.matched(self._schema, self.family, groups)
        groups = matching.numbered(self._schema, self.family, groups)
        return matching.without_rows(self._schema, groups, columns=False)

    def _for_metrics(self, groups: Groups | None) -> Groups:
        groups = matching.matched(self._schema, self.family, self._default(groups))
        if method_of(self.family) == "joint" and len(groups) != len(self.labels):
            raise ValueError(
                f"joint() covers all {len(self.labels):,} groups of its fit at once; got "
                f"{len(groups):,} of them. Pass all, or fit a branch() family."
            )
        return groups

    def _default(self, groups: Any) -> Groups:
        """The given groups, or those of a given table; by default the fit's."""
        if groups is not None and not isinstance(groups, Groups):
            groups = prediction.read(self._schema, self.adapter, groups, "groups", outcomes=True)
        if groups is None and self.groups is None:
            raise ValueError("This fit was loaded from a file, which holds no data: pass groups=.")
        return groups if groups is not None else self.groups  # pyright: ignore[reportReturnType]

    def _given(self, given: Any) -> Groups | None:
        if not prediction.has_rows(given, self.by, "given"):
            return None
        groups = prediction.read(self._schema, self.adapter, given, "given", outcomes=True)
        find(self.labels, groups.labels, f'column "{self.by}" of given')  # raises for another kind
        matching.check_columns(self._schema.rows, groups.rows, "row column of given")
        return groups

    def _at(self, table: Any) -> Groups:
        """Rows to predict; without a column of labels, all rows are of one new group."""
        takes_none = isinstance(table, Groups) or is_fixed(self.family)
        new = None if takes_none else unlabelled(table, self.by, self.labels)
        if new is not None:
            warn_user(
                f'the table to predict has no column "{self.by}": predicted for one new group, of which '
                "nothing is known."
            )
            table = new
        return prediction.read(self._schema, self.adapter, table, "at")

    def _parts(self, at: Groups, given: Groups | None, K: int) -> list[Part]:
        fit = matching.Fit(self._schema, self.adapter, self.family, self.groups)
        return matching.parts(fit, at, given, K)

    def _record(self) -> FitRecord:
        """The parts of the fit to save."""
        theta, z = describe_space(self.model.theta), describe_space(self.model.z)
        n_rows = None if self.groups is None else self.groups.n_rows
        columns = self._schema.rows, self._schema.group, n_rows, self._schema.zoned
        own = self.family, self.history, self.labels, self.by
        return FitRecord(*own, theta, z, *columns, self.local_draws, self.notes)

    def _check_bytes(self, draws: int, N: int, max_bytes: int | float | None) -> None:
        sizes = lambda space: sum(int(np.prod(p.shape)) for p in space.parameters.values())
        count = draws * (sizes(self.model.theta) + N * sizes(self.model.z))
        wanted = count * self.family.theta.mean.dtype.itemsize
        cure = "Ask for fewer draws or groups, or iterate over posterior.sample_blocks(...)"
        check_memory(wanted, max_bytes, f"{draws:,} draws of {N:,} groups", cure)


def mean_theta_sd(family: Any) -> float:
    """The geometric mean of theta's sds, where it is unconstrained: by its draws, if it has any."""
    weighted = getattr(family, "weighted", None)
    if weighted is None:
        scale = np.asarray(family.theta.scale, np.float64)
        sd = np.abs(scale) if scale.ndim == 1 else np.linalg.norm(scale, axis=1)
    else:
        points, weight = np.asarray(weighted.points, np.float64), weighted.weight
        sd = np.sqrt(weight @ (points - weight @ points) ** 2)
    return float(np.exp(np.mean(np.log(np.maximum(sd, 1e-300)))))
