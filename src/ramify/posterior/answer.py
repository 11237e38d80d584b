"""Answer: a small table of estimates with the draws behind it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Shaped

from ramify.data.tables import as_table
from ramify.posterior.notebook import html_lines, html_table
from ramify.posterior.prediction import quantile_names

_SHOWN = 30  # rows that are printed


@final
@dataclass(frozen=True, repr=False)
class Answer:
    """Mean, sd and quantiles of some quantities, a row for each.

    Attributes:
        columns: what each row is about, then "mean", "sd" and quantiles, an array each.
        draws: the quantities for each draw of the posterior, [S, rows].
        said: lines about the numbers.
        doubts: the verdict and its reasons, of a fit that is not to be trusted.
        kind: the kind of `table`: that of the table that was fitted.

    Example:
        >>> answer = Answer.of({"term": ["x"]}, np.array([[0.0], [1.0]]), (0.5,), "dict")
        >>> answer
        term  mean  sd     q50
        x     0.500  0.500  0.500
    """

    columns: dict[str, Shaped[np.ndarray, " rows"]]
    draws: Float64[np.ndarray, "S rows"]
    said: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    kind: str = "dict"

    @staticmethod
    def of(
        about: dict[str, Any],
        draws: Float64[np.ndarray, "S rows"],
        quantiles: Sequence[float],
        kind: str,
    ) -> "Answer":
        """The table of these draws; `about` has the columns that say what a row is."""
        levels = np.quantile(draws, np.asarray(quantiles, np.float64), axis=0)
        numbers = [draws.mean(0), draws.std(0), *levels]
        own = dict(zip(["mean", "sd", *quantile_names(quantiles)], numbers, strict=True))
        return Answer({n: np.asarray(c) for n, c in about.items()} | own, draws, kind=kind)

    def __getitem__(self, name: str) -> Shaped[np.ndarray, " rows"]:
        """A column by name."""
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the columns."""
        return iter(self.columns)

    def __len__(self) -> int:
        """The number of rows."""
        return self.draws.shape[1]

    def keys(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    @property
    def table(self) -> Any:
        """The columns as a table of the kind that the fit was given."""
        return as_table(self.kind, dict(self.columns))

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame."""
        return as_table("pandas", dict(self.columns))

    def __repr__(self) -> str:
        names, rows = list(self.columns), self._cells()
        wide = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        line = lambda cells: "  ".join(
            c.ljust(w) for c, w in zip(cells, wide, strict=True)
        ).rstrip()
        more = [f"... {len(self) - _SHOWN:,} more rows"] if len(self) > _SHOWN else []
        return "\n".join([line(names), *map(line, rows), *more, *self.said, *self.doubts])

    def _repr_html_(self) -> str:
        first, *names = self.columns
        rows = [(cells[0], cells[1:]) for cells in self._cells()]
        said = [
            *self.said,
            *([f"... {len(self) - _SHOWN:,} more rows"] if len(self) > _SHOWN else []),
        ]
        lines = [f"<div>{escape(line)}</div>" for line in said]
        lines += [html_lines(self.doubts[0], self.doubts[1:])] if self.doubts else []
        return html_table(names, rows, first) + "".join(lines)

    def _cells(self) -> list[list[str]]:
        numbers = {n for n, c in self.columns.items() if c.dtype.kind == "f"}
        sd = self.columns["sd"]
        digits = [
            int(np.clip(2 - np.floor(np.log10(s)), 1, 8)) if 0 < s < np.inf else 4 for s in sd
        ]
        estimates = {*list(self.columns)[list(self.columns).index("mean") :]}

        def cell(name: str, i: int) -> str:
            value = self.columns[name][i]
            if name in estimates:
                return f"{value:.{digits[i]}f}"
            return f"{value:.4g}" if name in numbers else str(value)

        return [[cell(name, i) for name in self.columns] for i in range(min(len(self), _SHOWN))]
