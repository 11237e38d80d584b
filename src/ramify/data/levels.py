"""The levels of grouping factors: their labels, the level of each row, and how factors are nested."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from ramify.data.labels import Factor, factorize, find, show
from ramify.data.tables import Raw, rows_at, zone_of

NEW = -1  # the code of a level that the fit has not seen
ABSENT = -2  # the code of a row without a label
_KINDS = "iubUM"  # of labels that JSON can hold


@dataclass(frozen=True)
class Levels:
    """The levels of a factor in the fit.

    The levels of an interaction a:b are the combinations that occur, in the order of a and then of b.
    """

    columns: tuple[str, ...]
    labels: tuple[np.ndarray, ...]  # of each column, distinct and sorted
    combined: Int64[np.ndarray, "L C"]  # the places in `labels` of each level
    zone: str | None = None  # of a column of times with a time zone

    @property
    def name(self) -> str:
        """The name of the factor."""
        return ":".join(self.columns)

    def __len__(self) -> int:
        return len(self.combined)

    @property
    def shown(self) -> Shaped[np.ndarray, " L"]:
        """A label for each level: those of an interaction are joined by colons."""
        if len(self.columns) == 1:
            return self.labels[0][self.combined[:, 0]]
        parts = [own[self.combined[:, c]].astype(str) for c, own in enumerate(self.labels)]
        return np.array([":".join(both) for both in zip(*parts, strict=True)])

    def codes(
        self, raw: dict[str, Raw], n: int, what: str, seen: dict[Any, int] | None = None
    ) -> Int64[np.ndarray, " n"]:
        """The level of each row; ABSENT of a row without a label.

        A level that is not in the fit is NEW or, with `seen`, has a number after those of the fit, which
        `seen` collects.
        """
        places = [self._places(name, raw, n, what) for name in self.columns]
        absent = np.any([place == ABSENT for place in places], 0)
        new = np.any([place == NEW for place in places], 0)
        sizes = [len(own) for own in self.labels]
        key = np.zeros(n, np.int64)
        known = np.zeros(len(self), np.int64)
        for size, place, own in zip(sizes, places, self.combined.T, strict=True):
            key, known = key * size + np.maximum(place, 0), known * size + own
        at = np.minimum(np.searchsorted(known, key), len(known) - 1)
        found = np.where(absent, ABSENT, np.where((known[at] == key) & ~new, at, NEW))
        if seen is not None and (found == NEW).any():
            unseen = np.flatnonzero(found == NEW)
            parts = [encoded(name, raw[name]) for name in self.columns]
            whole = [np.full(n, -1) for _ in parts]
            for own, (factor, missing) in zip(whole, parts, strict=True):
                own[~missing] = factor.code
            for row in unseen:
                each = zip(parts, whole, strict=True)
                label = tuple(str(factor.labels[own[row]]) for (factor, _), own in each)
                found[row] = len(self) + seen.setdefault(label, len(seen))
        return found

    def _places(self, name: str, raw: dict[str, Raw], n: int, what: str) -> np.ndarray:
        """Places of the rows' labels among those of the fit; without the column all are absent."""
        if name not in raw:
            return np.full(n, ABSENT)
        factor, absent = encoded(name, raw[name])
        if len(self.columns) == 1 and factor.labels.dtype.kind == "M" and len(factor.labels):
            one = rows_at(raw[name], np.flatnonzero(~absent)[:1])
            self._check_zone(zone_of({name: one}, name), what)
        place = find(
            self.labels[self.columns.index(name)], factor.labels, f'column "{name}" of {what}'
        )
        out = np.full(n, ABSENT)
        out[~absent] = np.where(place < 0, NEW, place)[factor.code]
        return out

    def _check_zone(self, zone: str | None, what: str) -> None:
        """Raises if times have a zone and those of the fit have none, or the reverse."""
        if (zone is None) != (self.zone is None):
            has = lambda zone: "no time zone" if zone is None else f"the time zone {zone}"
            raise TypeError(
                f'column "{self.name}" of {what} has {has(zone)}; in the fit it had {has(self.zone)}. '
                "Add the zone that is missing, or convert both to UTC and drop it."
            )


def encoded(name: str, raw: Raw) -> tuple[Factor, Shaped[np.ndarray, " n"]]:
    """The factor of the rows that have a label, and a mask of the rows without one."""
    import pandas as pd

    absent = np.asarray(pd.isna(pd.Series(raw if isinstance(raw, list) else np.asarray(raw))))
    if not absent.any():
        return factorize(name, raw), absent
    present = rows_at(raw, np.flatnonzero(~absent))
    values = np.asarray(present)
    whole = values.dtype.kind == "f" and (values % 1 == 0).all()  # integers that a NaN made floats
    return factorize(name, values.astype(np.int64) if whole else present), absent


def levels_of(columns: tuple[str, ...], raw: dict[str, Raw], zone: str | None) -> Levels:
    """The levels of a factor in the rows of a fit."""
    factors = [factorize(name, raw[name]) for name in columns]
    together = np.stack([factor.code for factor in factors], 1)
    combined = (
        np.unique(together, axis=0) if len(columns) > 1 else np.arange(len(factors[0].labels))
    )
    labels = tuple(factor.labels for factor in factors)
    return Levels(columns, labels, combined.reshape(-1, len(columns)).astype(np.int64), zone)


def integrated_factor(factors: Sequence[Levels], name: str | None, what: str) -> int:
    """The factor whose effects are integrated out: by default the (first) one with the most levels.

    `name` is the user's choice, if any; `what` is what a message calls the owner of the factors.
    """
    names = [factor.name for factor in factors]
    if name is not None and name not in names:
        said = f"there is no factor {name!r} in this {what}; it has {', '.join(names)}."
        raise ValueError(f"integrate: {said}")
    if name is not None:
        return names.index(name)
    return int(np.argmax([len(factor) for factor in factors]))


def nesting(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether every level of one factor is in a single level of another, by their codes."""
    pairs = np.unique(np.stack([inner, outer], 1), axis=0)
    return len(pairs) == len(np.unique(inner))


def check_factors(
    factors: Sequence[Levels], codes: list[np.ndarray], noisy: bool, own: str = "(1 | {}/{})"
) -> list[str]:
    """Raises for factors that no model can have; returns notes on how they relate to each other.

    `noisy`: rows have noise of their own, which can't be distinguished from effects of single rows.
    `own` is the syntax for a factor nested in another.
    """
    n, notes = len(codes[0]), []
    for factor in factors:
        if len(factor) < 2:
            who = show(factor.shown[0])
            raise ValueError(
                f'the factor "{factor.name}" has one level, {who}, in all rows: nothing varies by it. '
                "Leave it out."
            )
        if len(factor) == n and noisy:
            raise ValueError(
                f'the factor "{factor.name}" has as many levels as there are rows ({n:,}): its effects '
                "can't be told from the rows' own noise. Leave it out."
            )
    for i, factor in enumerate(factors):
        for j, other in enumerate(factors):
            if i == j:
                continue
            within = len(factor) >= len(other) and nesting(codes[i], codes[j])
            if within and len(factor) == len(other) and i < j:
                raise ValueError(
                    f'the factors "{factor.name}" and "{other.name}" group the rows in the same way: '
                    "their effects can't be told apart. Leave one of them out."
                )
            if within and len(factor) > len(other):
                notes.append(f"{factor.name} is nested in {other.name}")
            elif not within and i > j and not _combined(factor, other, factors):
                if told := _repeated(factor, other, codes[i], codes[j]):
                    notes.append(f"{told}, write {own.format(other.name, factor.name)}")
    return notes


def _combined(one: Levels, other: Levels, factors: Sequence[Levels]) -> bool:
    """Whether there is a factor of the combinations of two others."""
    return any(set(f.columns) == {*one.columns, *other.columns} for f in factors)


def _repeated(inner: Levels, outer: Levels, own: np.ndarray, other: np.ndarray) -> str | None:
    """A word if one factor's labels may be used again in every level of another."""
    if len(inner.columns) > 1 or inner.labels[0].dtype.kind not in "iu":
        return None
    labels = inner.labels[0]
    counted = labels[0] in (0, 1) and labels[-1] - labels[0] == len(labels) - 1
    pairs = np.unique(np.stack([own, other], 1), axis=0)
    if not counted or len(pairs) < 0.3 * len(inner) * len(outer) or len(outer) < 2:
        return None
    times = int(np.sum(pairs[:, 0] == 0))
    return (
        f"{inner.name} and {outer.name} are crossed: {inner.name} {labels[0]} is one level, which is in "
        f"{times:,} levels of {outer.name}. If each {outer.name} has a {inner.name} {labels[0]} of its "
        "own"
    )


def to_plain(factor: Levels) -> dict[str, Any]:
    """The levels as JSON can hold them."""
    for name, labels in zip(factor.columns, factor.labels, strict=True):
        if labels.dtype.kind not in _KINDS:
            raise TypeError(
                f'the labels of "{name}" are of a type that can\'t be saved ({labels.dtype}): convert '
                "them to strings or integers."
            )
    text = lambda own: own.astype(str) if own.dtype.kind == "M" else own
    return {
        "columns": factor.columns,
        "labels": [text(own).tolist() for own in factor.labels],
        "dtypes": [own.dtype.str for own in factor.labels],
        "combined": factor.combined.tolist(),
        "zone": factor.zone,
    }


def from_plain(plain: dict[str, Any]) -> Levels:
    """The levels that `to_plain` wrote; raises if it is not these."""
    columns = tuple(map(str, plain["columns"]))
    pairs = zip(plain["labels"], plain["dtypes"], strict=True)
    labels = tuple(np.array(own, dtype=np.dtype(kind)) for own, kind in pairs)
    combined = np.array(plain["combined"], np.int64).reshape(-1, len(columns))
    inside = all(
        (c >= 0).all() and (c < len(own)).all() for c, own in zip(combined.T, labels, strict=True)
    )
    if not inside or not len(combined):
        raise ValueError("its levels are not combinations of labels")
    return Levels(columns, labels, combined, plain["zone"])
