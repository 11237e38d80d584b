"""PriorPredictive: data sets drawn from a model before it has seen any, beside those observed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Shaped

from ramify.models.adapter import Adapter
from ramify.plot import categories
from ramify.plot.numbers import Check
from ramify.plot.picture import Picture
from ramify.posterior.notebook import html_lines
from ramify.posterior.summary import Summary, summary_of_draws


@final
@dataclass(frozen=True, repr=False)
class PriorPredictive:
    """Data sets drawn from the prior; `check()` shows them beside the observed one.

    Attributes:
        parameters: draws of all parameters by name, as `Posterior.sample` has them.
        outcomes: the outcomes of each data set, [S, rows], rows in the order of the table or groups.
        observed: those of the data, [rows]; a prior that they are no part of says nothing about them.
    """

    parameters: dict[str, Shaped[np.ndarray, "S ..."]]
    outcomes: Float64[np.ndarray, "S rows"]
    observed: Float64[np.ndarray, " rows"]
    _adapter: Adapter
    _owner: Shaped[np.ndarray, " rows"]  # number of each row's group
    _labels: Shaped[np.ndarray, " N"]

    def __repr__(self) -> str:
        """How many data sets there are, and where their outcomes are beside the observed ones."""
        S, n = self.outcomes.shape
        what, ends = "90% of", lambda y: "{:.4g} to {:.4g}".format(*np.nanquantile(y, [0.05, 0.95]))
        if self._levels:
            what = "shares of"
            ends = lambda y: ", ".join(
                f"{level} {np.mean(y == k):.0%}" for k, level in enumerate(self._levels)
            )
        lines = [f"Prior predictive: {S:,} data sets of {n:,} rows"]
        lines.append(f"  {what} all drawn outcomes: {ends(self.outcomes)}")
        lines.append(f"  {what} those observed: {ends(self.observed)}")
        wrong = int(np.sum(~np.isfinite(self.outcomes).all(1)))
        lines += [f"  {wrong:,} data sets have outcomes beyond all numbers"] if wrong else []
        return "\n".join([*lines, "  .check() shows both, .summary() the parameters"])

    def _repr_html_(self) -> str:
        first, *rest = repr(self).splitlines()
        return html_lines(first, rest)

    def summary(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Summary:
        """Mean, sd and quantiles of the globals in the prior, as `Posterior.summary` has them."""
        return summary_of_draws(self._adapter, self.parameters, quantiles)

    def check(self, by: str = "row") -> Picture:
        """The picture of `Posterior.check`, with data drawn from the prior."""
        if by not in ("row", "group"):
            raise ValueError(f'by must be "row" or "group"; got {by!r}.')
        sound = self.outcomes[np.isfinite(self.outcomes).all(1)]
        if not len(sound):
            raise ValueError("no data set has finite outcomes only: the priors are far too wide.")
        found = Check(self.observed, sound, self._owner, self._labels, self._levels)
        shown = categories.check(found, self._adapter.describe().response, by)
        return Picture(shown, "Prior predictive check.")

    @property
    def _levels(self) -> tuple[str, ...]:
        """The levels of outcomes that are categories."""
        own = self._adapter
        return () if own.numeric else tuple(own.categories("probability"))
