"""Which rows each group is conditioned on: matching later data to the data of the fit, by label."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.data.merging import SPARSE
from ramify.families.branched import Branched
from ramify.families.build import Family, is_fixed, method_of
from ramify.families.network import Amortizer
from ramify.families.solver import MAX_DIM, solver
from ramify.io.saving import Columns
from ramify.models.adapter import Adapter
from ramify.models.model import Model


class DataSchema(NamedTuple):
    """The facts about a fit's data that are known even if the data are not loaded."""

    by: str
    labels: Shaped[np.ndarray, " N"]
    rows: Columns
    group: Columns
    zoned: bool | None = None  # see `Groups`; fits of the first release do not know


class Fit(NamedTuple):
    """The parts of a fit that later data are matched to."""

    schema: DataSchema
    adapter: Adapter
    family: Family
    groups: Groups | None  # the data of the fit, where they are loaded


class Part(NamedTuple):
    """Groups that are treated alike; both data sets have them in the same order."""

    given: Groups  # rows to condition on
    at: Groups  # rows to predict
    family: Family
    largest: int = 0  # `largest_group` of the fit's data


def schema_of(groups: Groups) -> DataSchema:
    """The `DataSchema` of a data set."""
    # Later rows may lack a sparse column.
    columns = lambda c: {n: (v.shape[1:], v.dtype.str) for n, v in c.items() if n not in SPARSE}
    own = columns(groups.rows), columns(groups.group)
    return DataSchema(groups.by, groups.labels, *own, groups.zoned)


def check_together(model: Model, family: Family, N: int) -> None:
    """Raises where a family was built for another model or other groups."""
    if family.theta.dim != model.theta.size:
        raise ValueError(
            f"this family was built for a theta of {family.theta.dim} dimensions; the model's has "
            f"{model.theta.size}. Build the family from the model that it is used with."
        )
    if is_fixed(family) and family.N != N:
        raise ValueError(
            f"{method_of(family)}() has parameters for the {family.N:,} groups it was built for; "
            f"got data with {N:,}. Build the family from the data that it is used with."
        )


def matched(schema: DataSchema, family: Family, groups: Groups) -> Groups:
    """The groups, numbered as in the fit; raises for columns or groups that the fit can't handle."""
    check_columns(schema.rows, groups.rows, "row column of groups")
    check_columns(schema.group, groups.group, "group column of groups")
    return numbered(schema, family, groups)


def numbered(schema: DataSchema, family: Family, groups: Groups) -> Groups:
    """The groups, numbered as in the fit; raises for new groups that the family can't handle."""
    _check_zone(schema, groups)
    groups = groups.renumbered(schema.labels)
    new = groups.number >= len(schema.labels)
    if is_fixed(family) and new.any():
        raise ValueError(
            f"{method_of(family)}() has parameters for the {len(schema.labels):,} groups it was "
            f"fitted to; group {_show(groups.labels[new][0])} is new"
            + (f", and {new.sum() - 1:,} more are" if new.sum() > 1 else "")
            + ". Fit an amortized() or solved() family to infer new groups."
        )
    return groups


def _check_zone(schema: DataSchema, groups: Groups) -> None:
    if None in (schema.zoned, groups.zoned) or schema.zoned == groups.zoned:
        return
    has = lambda zoned: "a time zone" if zoned else "no time zone"
    raise ValueError(
        f'the times in "{groups.by}" have {has(groups.zoned)}; in the fit they had {has(schema.zoned)}. '
        "Add the zone that is missing, or convert both to UTC and drop it."
    )


def check_columns(
    expected: Columns, columns: Mapping[str, np.ndarray], what: str, *, missing: bool = False
) -> None:
    """Raises where a column of the fit is absent (unless it may be) or has another shape."""
    for name, (shape, _) in expected.items():
        if name not in columns:
            if missing:
                continue
            raise ValueError(
                f'{what} "{name}" is missing: the model was fitted with it; there are '
                f"{', '.join(sorted(columns)) or 'none'}."
            )
        if columns[name].shape[1:] != shape:
            raise ValueError(
                f'{what} "{name}" has elements of shape {list(columns[name].shape[1:])}; '
                f"expected {list(shape)}, as in the fit."
            )


def without_rows(schema: DataSchema, groups: Groups, *, columns: bool = True) -> Groups:
    """The same groups without rows; without row columns too if `columns` is False."""
    rows = {n: np.zeros((0, *shape), kind) for n, (shape, kind) in schema.rows.items()}
    sizes, none = np.zeros(len(groups), np.int64), np.zeros(0, np.int64)
    return replace(groups, sizes=sizes, rows=rows if columns else {}, row_order=none)


def unloaded(schema: DataSchema) -> Groups:
    """The groups of a fit whose data are not loaded: labels and numbers only."""
    N = len(schema.labels)
    sizes, none = np.zeros(N, np.int64), np.zeros(0, np.int64)
    return Groups(schema.by, schema.labels, sizes, {}, {}, np.arange(N), none)


def largest_group(groups: Groups | None) -> int:
    """Rows of the largest group; 0 if the data are not loaded."""
    return 0 if groups is None else int(groups.sizes.max(initial=0))


def parts(fit: Fit, at: Groups, given: Groups | None, local_draws: int) -> list[Part]:
    """Splits the groups of `at` by where the rows to condition them on come from."""
    # Rows come from `given`; else, for a group of the fit, from the fit; a new group without rows is
    # drawn from the population p(z | theta, u_i).
    schema, fitted = fit.schema, fit.groups
    at = numbered(schema, fit.family, at)
    if given is not None:
        _check_zone(schema, given)
    if is_fixed(fit.family):
        _check_same_rows(fit, at, given, used=local_draws > 1)
        if local_draws == 1:
            known = {} if fitted is None else fitted.group
            at = _with_group_columns(fit, at, {n: c[at.number] for n, c in known.items()})
            return [Part(without_rows(schema, at, columns=False), at, fit.family)]
    in_given = _positions(given, at)
    in_fit = np.where((in_given < 0) & (at.number < len(schema.labels)), at.number, -1)
    if fitted is None and (in_fit >= 0).any():
        raise ValueError(
            f"group {_show(at.labels[in_fit >= 0][0])} was in the fit, whose rows are not kept "
            "in a saved fit: pass them as given=."
        )
    found = [_part(fit, given, in_given, at), _part(fit, fitted, in_fit, at)]
    found.append(_population(fit, (in_given < 0) & (in_fit < 0), at))
    largest = largest_group(fitted)
    return [part._replace(largest=largest) for part in found if part is not None]


def _positions(groups: Groups | None, at: Groups) -> Int[np.ndarray, " N"]:
    """Where the groups of `at` are in another data set, -1 where they are not."""
    if groups is None:
        return np.full(len(at), -1)
    place = at.renumbered(groups.labels).number
    return np.where(place < len(groups), place, -1)


def _part(fit: Fit, groups: Groups | None, positions: np.ndarray, at: Groups) -> Part | None:
    """The groups of `at` that are conditioned on their rows in this data set."""
    mine = positions >= 0
    if groups is None or not mine.any():
        return None
    at = _some(at, mine)
    given = replace(groups.subset(positions=positions[mine]), number=at.number)
    at = _with_group_columns(fit, at, given.group)
    return Part(replace(given, group=at.group), at, fit.family)


def _population(fit: Fit, mine: np.ndarray, at: Groups) -> Part | None:
    """The groups of `at` without any rows to condition on."""
    if not mine.any():
        return None
    at = _with_group_columns(fit, _some(at, mine), None)
    given, family, model = without_rows(fit.schema, at), fit.family, fit.adapter.model
    # A network may never have seen a group without rows: solve for p(z | theta, u_i) instead.
    amortized = isinstance(family, Branched) and isinstance(family.local, Amortizer)
    if amortized and model.z.size <= MAX_DIM:
        family = Branched(family.theta, solver(model, example(given)), family.N)
    return Part(given, at, family)


def _some(groups: Groups, mine: np.ndarray) -> Groups:
    return groups if mine.all() else groups.subset(positions=mine)


def _with_group_columns(fit: Fit, at: Groups, other: dict[str, np.ndarray] | None) -> Groups:
    """`at` with every group column of the fit: its own, or else those of `other`, [N_at, ...]."""
    at, schema = fit.adapter.beside(at, other), fit.schema
    known = {**(other or {}), **at.group}
    for name in schema.group:
        if name not in known:
            raise ValueError(
                f'the group column "{name}" of group {_show(at.labels[0])} is missing: the model '
                "was fitted with it. Add it to the table."
            )
    found = {name: known[name] for name in schema.group}
    check_columns(schema.group, found, "group column")
    return replace(at, group=found)


def _check_same_rows(fit: Fit, at: Groups, given: Groups | None, used: bool) -> None:
    """Raises if groups of a `branch` or `joint` fit come with other rows than those of the fit.

    Of a loaded fit, whose rows are not there to compare, that is so unless the given rows are `used`.
    """
    place = _positions(given, at)
    mine = np.flatnonzero(place >= 0)
    if given is None or not len(mine) or (fit.groups is None and used):
        return
    others = "others"
    if fit.groups is not None:
        own = fit.groups.subset(positions=at.number[mine])
        if _same_rows(fit.schema, own, given.subset(positions=place[mine])):
            return
    else:
        others = "others, and this loaded fit does not have them to compare"
    raise ValueError(
        f"{method_of(fit.family)}() knows its groups by the rows it was fitted to, and can't "
        f"condition them on {others}: leave given= (or train=) out, or fit an amortized() or solved() "
        "family."
    )


def _same_rows(schema: DataSchema, first: Groups, second: Groups) -> bool:
    """Whether the same groups have the same rows in both, in any order within a group."""
    if not np.array_equal(first.sizes, second.sizes):
        return False
    columns = [[np.asarray(own.rows[name]) for name in schema.rows] for own in (first, second)]
    if all(map(_close, *columns)):
        return True
    owner = np.repeat(np.arange(len(first)), first.sizes)

    def ordered(own: list[np.ndarray]) -> list[np.ndarray]:
        keys = [key for column in own for key in column.reshape(len(owner), -1).T]
        order = np.lexsort((*keys, owner))
        return [column[order] for column in own]

    return all(map(_close, ordered(columns[0]), ordered(columns[1])))


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(np.allclose(first, second, rtol=1e-5, atol=0))


def _show(label: Any) -> str:
    return repr(str(label)) if isinstance(label, str) else str(label)
