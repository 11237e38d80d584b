"""Tables in and named results out, for models of log densities with several factors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64

from ramify.data.groups import Groups
from ramify.data.labels import Factor
from ramify.data.levels import nesting
from ramify.data.reading import read_numbers, value_per_group
from ramify.data.tables import column_names, columns_of, in_zone, n_rows
from ramify.frontends.densities import saving
from ramify.levels.adapter import FactorInfo, LevelsAdapter, RowsAt
from ramify.levels.density import DensityLevels, is_linear
from ramify.levels.density_design import DATA, DensityDesign, Part, density_design, padded
from ramify.models.adapter import Description, Section, sections_by_support
from ramify.models.parameters import Space, entry_names
from ramify.models.several import Order, SeveralModel
from ramify.numerics.programs import program

ONLY_FORMULAS = "this question is for models from formulas, which know their predictors."


def prepared(several: SeveralModel, groups: Groups) -> tuple[DensityLevels, "DensityAdapter"]:
    """A model and its adapter, for fits with several factors."""
    names = tuple(factor.name for factor in groups.factors)
    if {*names} != {*several.factors}:
        raise ValueError(
            f"the model has z for {', '.join(several.factors)}, and the data has the factors "
            f"{', '.join(names) or groups.by}: make them by rf.Groups.from_table(table, "
            f"by={list(several.factors)}, ...)."
        )
    first = several.factors.index(groups.by)
    order = (first, *(f for f in range(len(several.factors)) if f != first))
    adapter = DensityAdapter(several, order, groups)
    parts = adapter.design(groups).parts
    adapter.check(parts)
    return DensityLevels(several, order, is_linear(several, order, parts)), adapter


class DensityAdapter(LevelsAdapter):
    """The adapter of a `DensityLevels`; factors are in the order of the model's z."""

    table, table_kind = None, "dict"

    def __init__(self, several: SeveralModel, order: Order, groups: Groups):
        self.several, self.order, self.groups = several, order, groups
        self.integrated = order[0]
        own = [factor.name for factor in groups.factors]
        self.place = [own.index(name) for name in several.factors]  # in groups.factors
        self.factors = []
        for f, (name, space) in enumerate(several.z.items()):
            levels = groups.factors[self.place[f]]
            effects = [e for n, p in space.parameters.items() for e in entry_names(n, p.shape)]
            labels = in_zone("dict", levels.shown, levels.zone)
            self.factors.append(FactorInfo(name, labels, (f,), tuple(effects)))
        self.sizes = tuple(space.size for space in several.z.values())
        self.row_columns = [n for n in groups.rows if not n.startswith("level_")]
        self.response = self._outcome() or "y"

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of levels of each factor."""
        return tuple(len(info.labels) for info in self.factors)

    def level_columns(self, factor: int) -> dict[str, np.ndarray]:
        """The group columns of a factor's levels."""
        return self.groups.level_columns[self.place[factor]]

    def _outcome(self) -> str | None:
        """The row column that the likelihood reads and `simulate` does not, if there is only one."""
        if not self.several.can_simulate:
            return None
        row = {n: self.groups.rows[n] for n in self.row_columns} | self._at_rows(self.groups)
        shapes = {n: _one(c) for n, c in row.items()}
        theta, v = (jax.ShapeDtypeStruct((k,), jnp.result_type(float)) for k in self._dims())
        key = jax.eval_shape(jax.random.key, 0)

        def needs(name: str, *, new: bool) -> bool:
            own = {n: c for n, c in shapes.items() if n != name}
            call: Any = self.several.simulate if new else self.several.log_lik
            try:
                keys = (key,) if new else ()
                jax.eval_shape(lambda *x: call(*x, self.order), *keys, theta, v, own)
            except Exception:
                return True
            return False

        found = [n for n in self.row_columns if needs(n, new=False) and not needs(n, new=True)]
        return found[0] if len(found) == 1 else None

    def _dims(self) -> tuple[int, int]:
        return self.several.theta.size, sum(self.sizes)

    def check(self, parts: Sequence[Part]) -> None:
        """Raises if a user's function does not return one number, or can't take the columns."""
        from ramify.models.model import check_scalar

        shapes: list[Any] = [{n: _one(c) for n, c in part.columns.items()} for part in parts]
        by = dict(zip(map(int, (part.kind for part in parts)), shapes, strict=True))
        group = {name: by[f] for f, name in enumerate(self.several.factors)}
        self.several.check(by[DATA], group, check_scalar)

    # Rows.

    def _at_rows(self, groups: Groups) -> dict[str, np.ndarray]:
        """The group columns of all factors, at the rows."""
        found = {}
        for f in range(len(self.factors)):
            code = groups.levels(self.place[f])
            found |= {n: c[code] for n, c in self.level_columns(f).items()}
        return found

    def design(self, groups: Groups) -> DensityDesign:
        """The rows of a fit, and the priors of all levels."""
        codes: dict[int, dict[int, np.ndarray]] = {
            DATA: {f: groups.levels(self.place[f]) for f in range(len(self.factors))}
        }
        columns = {n: groups.rows[n] for n in self.row_columns} | self._at_rows(groups)
        parts = [Part(DATA, groups.n_rows, columns)]
        for f in self.order:
            codes[f] = {f: np.arange(self.counts[f]), **self._around(f, codes[DATA])}
            parts.append(Part(f, self.counts[f], self.level_columns(f)))
        return density_design(self.order, self.sizes, self.counts, codes, parts)

    def _around(self, factor: int, codes: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The outer levels of each level of a factor, if its prior depends on their effects."""
        found = {}
        for other in self.several.around.get(self.several.factors[factor], ()):
            g = self.several.factors.index(other)
            if not nesting(codes[factor], codes[g]):
                raise ValueError(
                    f'the effects of "{self.factors[factor].name}" depend on those of "{other}", and its '
                    f'levels are not nested in those of "{other}".'
                )
            found[g] = np.full(self.counts[factor], -1)
            found[g][codes[factor]] = codes[g]
        return found

    def read(self, table: Any, what: str, seen: list[dict[Any, int]], *, outcomes: bool) -> RowsAt:
        """Rows of a user's table."""
        names = column_names(table, what)
        n = n_rows(table, str(names[0]), what) if names else 0
        own = [self.groups.factors[p] for p in self.place]
        labels = list(dict.fromkeys(c for levels in own for c in levels.columns if c in names))
        raw = columns_of(table, labels, what)
        codes = [levels.codes(raw, n, what, seen[f]) for f, levels in enumerate(own)]
        wanted = list(self.row_columns)
        if not outcomes:
            wanted = [name for name in wanted if name in names and name != self.response]
        wanted += [c for f in range(len(own)) for c in self.level_columns(f) if c in names]
        read = columns_of(table, list(dict.fromkeys(wanted)), what)
        every = Factor(np.zeros(1, np.int64), np.zeros(n, np.int64))
        columns = {name: read_numbers(name, column, every) for name, column in read.items()}
        for f in range(len(own)):
            self._check_new(f, codes[f], columns, [":".join(label) for label in seen[f]])
            columns |= self._known_columns(f, codes[f], columns, what)
        known = {f: np.where(code < self.counts[f], code, -1) for f, code in enumerate(codes)}
        known[self.integrated] = codes[self.integrated]
        design = density_design(
            self.order, self.sizes, self.counts, {DATA: known}, [Part(DATA, n, columns)]
        )
        return RowsAt(design, codes, [])

    def _check_new(
        self, factor: int, code: np.ndarray, columns: dict[str, np.ndarray], seen: list[str]
    ) -> None:
        """Raises where a group column varies within a level that the fit has not seen."""
        new = code >= self.counts[factor]
        distinct, own = np.unique(code[new] - self.counts[factor], return_inverse=True)
        levels = Factor(np.array([seen[k] for k in distinct], str), own)
        for name in {*self.level_columns(factor)} & {*columns}:
            value_per_group(name, columns[name][new], levels)

    def _known_columns(
        self, factor: int, code: np.ndarray, columns: dict[str, np.ndarray], what: str
    ) -> dict[str, np.ndarray]:
        """The group columns of a factor at rows; known levels have the values of the fit."""
        known, found = (code >= 0) & (code < self.counts[factor]), {}
        for name, column in self.level_columns(factor).items():
            if name not in columns and not known.all():
                raise ValueError(
                    f'{what} has levels of "{self.factors[factor].name}" that the fit has not seen: it '
                    f'needs their column "{name}".'
                )
            own = column[np.where(known, code, 0)]
            mask = known.reshape(-1, *[1] * (own.ndim - 1))
            found[name] = np.where(mask, own, columns.get(name, own))
        return found

    def new_columns(self, at: RowsAt, factor: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The group columns of a factor at some rows."""
        design: Any = at.design
        return {n: design.parts[0].columns[n][rows] for n in self.level_columns(factor)}

    def conditioned(
        self, given: RowsAt, inside: np.ndarray, code: np.ndarray, count: int
    ) -> DensityDesign:
        """Rows of a mask, and priors of their levels of the integrated factor, which get new numbers."""
        f, whole = self.integrated, given.design
        assert isinstance(whole, DensityDesign)
        columns = {n: c[inside] for n, c in whole.parts[0].columns.items()}
        first = np.zeros(count, np.int64)
        first[code[::-1]] = np.arange(len(code))[::-1]
        prior = {n: columns[n][first] for n in self.level_columns(f)}
        known = {g: given.codes[g][inside] for g in range(len(self.factors))} | {f: code}
        counts = tuple(count if g == f else c for g, c in enumerate(self.counts))
        parts = [Part(DATA, len(code), columns), Part(f, count, prior)]
        around = {g: known[g][first] for g in self._outer(f)}
        own = {DATA: known, f: {f: np.arange(count), **around}}
        return density_design(self.order, self.sizes, counts, own, parts)

    def _outer(self, factor: int) -> list[int]:
        names = self.several.around.get(self.several.factors[factor], ())
        return [self.several.factors.index(name) for name in names]

    def outer_first(self) -> list[int]:
        """The factors in an order in which their effects can be drawn: outer factors first."""
        found: list[int] = []
        while len(found) < len(self.factors):
            left = [f for f in range(len(self.factors)) if f not in found]
            found += [f for f in left if {*self._outer(f)} <= {*found}]
        return found

    # Results.

    def level_sizes(self, groups: Groups, factor: int) -> np.ndarray:
        """The rows of each level of a factor."""
        return np.bincount(groups.levels(self.place[factor]), minlength=self.counts[factor])

    def summary_rows(
        self, values: Mapping[str, np.ndarray], beta: Float64[np.ndarray, "S 0"]
    ) -> dict[str, Float64[np.ndarray, " S"]]:
        """Draws of every entry of theta by its name."""
        found = {}
        for name, parameter in self.several.theta.parameters.items():
            flat = np.asarray(values[name]).reshape(len(beta), -1)
            found |= dict(zip(entry_names(name, parameter.shape), flat.T, strict=True))
        return found

    def named_theta(self, values: Mapping[str, np.ndarray], beta: np.ndarray) -> dict[str, Any]:
        """Draws of theta by name, [S, ...]."""
        return {name: values[name] for name in self.several.theta.parameters}

    def named_effects(self, factor: int, effects: Float64[np.ndarray, "S L E"]) -> dict[str, Any]:
        """Draws of a factor's effects by name, [S, levels, ...]."""
        found, start = {}, 0
        for name, parameter in self._space(factor).parameters.items():
            size = int(np.prod(parameter.shape))
            own = effects[..., start : start + size]
            found[name], start = own.reshape(*effects.shape[:-1], *parameter.shape), start + size
        return found

    def effect_axes(self, factor: int) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The first axis of each parameter is that of the levels."""
        info = self.factors[factor]
        return {name: [info.name] for name in self._space(factor).parameters}, {}

    def _space(self, factor: int) -> Space:
        return self.several.z[self.several.factors[factor]]

    def deviations(self, term: int, effects: Float64[np.ndarray, "*S m"]) -> np.ndarray:
        """Effects of a factor, constrained: all entries of its parameters side by side."""
        space = self._space(term)
        flat = np.asarray(effects, np.float64).reshape(-1, effects.shape[-1])
        if all(p.support == "real" for p in space.parameters.values()):
            return np.asarray(effects, np.float64)
        with jax.enable_x64(True):
            rows = np.resize(flat, (padded(len(flat)), flat.shape[1]))
            values = _constrained(self.several, term, rows)
        own = [np.asarray(v)[: len(flat)].reshape(len(flat), -1) for v in values.values()]
        return np.concatenate(own, 1).reshape(*effects.shape[:-1], -1)

    def per_trial(self, columns: dict[str, Any], n: int) -> tuple[dict[str, Any], float]:
        """The columns as they are."""
        return columns, 1.0

    def categories(self, kind: str) -> list[str]:
        """An empty list; raises for a kind other than new outcomes, which are all that is available."""
        if kind != "response":
            raise ValueError(
                f'kind="{kind}" is for models made from formulas; this one can make new outcomes '
                'only: kind="response".'
            )
        return []

    def expected(
        self, kind: str, eta: np.ndarray, values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """Raises: expected outcomes are not known."""
        self.categories(kind)
        raise ValueError(ONLY_FORMULAS)

    def outcomes(
        self, rng: np.random.Generator, eta: np.ndarray, values: Mapping[str, Any], at: RowsAt
    ) -> np.ndarray:
        """New outcomes of rows, [S, n, ...]."""
        design: Any = at.design
        part: Part = design.parts[0]
        n = part.count
        rows = np.minimum(np.arange(padded(n)), max(n - 1, 0))
        columns = {name: column[rows] for name, column in part.columns.items()}
        seed = int(rng.integers(2**31))
        out = []
        with jax.enable_x64(True), _asking(columns):
            for s, (theta, own) in enumerate(zip(values[""], eta, strict=True)):
                key = jax.random.fold_in(jax.random.key(seed), s)
                given = np.asarray(theta, np.float64), own[:n][rows], columns
                out.append(np.asarray(_simulated(self.several, self.order, key, *given))[:n])
        return np.stack(out)

    def observed(self, groups: Groups) -> np.ndarray:
        """The outcomes of the fit's rows."""
        if self.response not in groups.rows:
            raise ValueError(
                "it is not clear which column is the outcome: that which log_lik reads and simulate "
                "does not. Give rf.Model a simulate=."
            )
        return np.asarray(groups.rows[self.response])

    def variables(self) -> list[str]:
        """Not known."""
        raise ValueError(ONLY_FORMULAS)

    def frame(self, table: Any) -> Any:
        """Not known."""
        raise ValueError(ONLY_FORMULAS)

    def typical(self) -> dict[str, Any]:
        """Not known."""
        raise ValueError(ONLY_FORMULAS)

    def ratios(self) -> tuple[str, list[str]]:
        """None."""
        raise ValueError("exponentiate= is for models from formulas, with a log or logit link.")

    def sections(self, names: Sequence[str]) -> list[Section]:
        """Real, positive and other parameters."""
        return sections_by_support(self.several.theta, names)

    def describe(self) -> Description:
        """The model and its factors."""
        facts = [("Model", repr(self.several))]
        facts += [(f.name, f"{len(f.labels):,} levels") for f in self.factors]
        return Description(None, [], facts, [], self.response, False, False, False)

    def columns(self) -> dict[str, str | None]:
        """The columns that a table for this model has."""
        return dict.fromkeys([*self.row_columns, *(f.name for f in self.factors)])

    def save(self, folder: Path, groups: Groups | None) -> None:
        """Writes the levels and the data of the fit; the model itself is not part of it."""
        saving.save(self.several, groups or self.groups, folder)


@contextmanager
def _asking(columns: Mapping[str, Any]) -> Iterator[None]:
    """Turns a KeyError of a user's function into an error that names the missing column."""
    try:
        yield
    except KeyError as error:
        raise ValueError(
            f"simulate asks for {error.args[0]!r}, which is not a column of the rows to predict; there "
            f"are: {', '.join(columns) or 'none'}."
        ) from error


def _one(column: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(column.shape[1:], jax.dtypes.canonicalize_dtype(column.dtype))


@program
def _constrained(several: SeveralModel, factor: int, effects: Array) -> Any:
    return jax.vmap(several.z[several.factors[factor]].values)(effects)


@program
def _simulated(
    several: SeveralModel, order: Order, key: Array, theta: Array, v: Array, columns: Any
) -> Any:
    keys = jax.random.split(key, v.shape[0])
    one = lambda key, v, row: several.simulate(key, theta, v, row, order)
    return jax.vmap(one)(keys, v, columns)
