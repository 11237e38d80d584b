"""Calibration: what simulation-based calibration found, as a table, a test and a figure.

Theta is drawn from its prior and data from the model. Over such data sets the rank of the true value
among L draws of its posterior is uniform on 0 .. L, if the posterior is right: Talts et al.,
"Validating Bayesian inference algorithms with simulation-based calibration" (2018).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Int, Shaped

from ramify.diagnostics.uniformity import bands, p_value

SUSPECT = 0.05  # a corrected p value below it speaks against the fits


class Coverage(NamedTuple):
    """The share of intervals that hold the truth, and its standard error."""

    share: float
    se: float


@final
@dataclass(frozen=True, repr=False)
class Calibration:
    """The result of `calibrate`; printing it shows a table of coverage and tests.

    Attributes:
        draws: L, the posterior draws that each true value is ranked among.
        theta_ranks: by parameter, the rank of the truth in each simulation, 0 to L.
        z_ranks: by entry of z, the ranks of some groups in each simulation.
        labels: these groups.
        verdicts: the number of fits with each verdict, "trust", "check" and "do not trust"; all count.
        failures: the error messages of fits that failed; these have no ranks.
    """

    draws: int
    theta_ranks: dict[str, Int[np.ndarray, " n"]]
    z_ranks: dict[str, Int[np.ndarray, "n groups"]]
    labels: Shaped[np.ndarray, " groups"]
    verdicts: Mapping[str, int]
    failures: tuple[str, ...] = ()

    @property
    def tested(self) -> dict[str, Int[np.ndarray, " n"]]:
        """Independent ranks, one from each simulation; for z, of one of its groups in turn."""
        # The groups of one simulation share theta, and so their ranks depend on each other.
        in_turn = lambda ranks: ranks[np.arange(len(ranks)), np.arange(len(ranks)) % ranks.shape[1]]
        return self.theta_ranks | {n: in_turn(ranks) for n, ranks in self.z_ranks.items()}

    @cached_property
    def p_values(self) -> dict[str, float]:
        """By parameter, the p value of a test that ranks are uniform (`diagnostics.uniformity`)."""
        return {name: p_value(ranks, self.draws) for name, ranks in self.tested.items()}

    @property
    def p_value(self) -> float:
        """The smallest p value times the number of tests (Bonferroni's correction)."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))

    def coverage(self, level: float) -> dict[str, Coverage]:
        """By parameter, the share of central posterior intervals of this probability with the truth."""
        inside = lambda ranks: np.abs((ranks + 0.5) / (self.draws + 1) - 0.5) < level / 2
        found = {}
        for name, ranks in self.theta_ranks.items():
            se = np.sqrt(level * (1 - level) / len(ranks))
            found[name] = Coverage(float(inside(ranks).mean()), float(se))
        for name, ranks in self.z_ranks.items():
            each = inside(ranks).mean(1)  # simulations are independent, groups are not
            se = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
            found[name] = Coverage(float(each.mean()), float(se))
        return found

    def __repr__(self) -> str:
        """Coverage of 50% and 90% intervals, p values, and what became of the fits."""
        half, most = self.coverage(0.5), self.coverage(0.9)
        wide = max(map(len, half))
        lines = [f"{'':{wide}}  50% interval    90% interval         p"]
        for name, p in self.p_values.items():
            cells = [f"{x.share:.3f} +- {x.se:.3f}" for x in (half[name], most[name])]
            lines.append(f"{name:{wide}}  {'  '.join(cells)}  {p:8.4f}")
        return "\n".join([*lines, *self._words()])

    def _words(self) -> list[str]:
        ranked, tests = len(next(iter(self.theta_ranks.values()))), len(self.p_values)
        total, bad = ranked + len(self.failures), self.verdicts.get("do not trust", 0)
        said = "the posterior is not calibrated" if self.p_value < SUSPECT else "no sign of error"
        smallest = min(self.p_values.values())
        lines = [f"{total} simulations; the coverage of z is that of {len(self.labels)} groups."]
        lines += [f"Smallest p of {tests}: {smallest:.2g}, corrected {self.p_value:.2g}: {said}."]
        if bad:
            lines += [f'{bad} of the fits say "do not trust"; they are counted in.']
        if self.failures:
            first = f"The first said: {self.failures[0]}"
            lines += [f"{len(self.failures)} fits failed and are left out. {first}"]
        return lines

    def plot(self) -> Any:
        """A Plotly figure: for each parameter, the share of ranks below each value, less its mean.

        If the posterior is right, each line stays within the 95% band with probability 0.95 (needs
        plotly). A line that rises and then falls, or falls and then rises, means a posterior that is
        too high or too low on average; an S means one that is too narrow or too wide.
        """
        try:
            from plotly.subplots import make_subplots
        except ImportError as error:
            needed = 'plot() needs plotly: pip install "ramify[report]".'
            raise ImportError(needed) from error

        tested, columns = self.tested, min(3, len(self.tested))
        titles = [f"{name}, p = {self.p_values[name]:.2g}" for name in tested]
        rows = -(-len(tested) // columns)
        figure = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes=True)
        for k, ranks in enumerate(tested.values()):
            figure.add_traces(self._lines(ranks), k // columns + 1, k % columns + 1)
        return figure.update_layout(showlegend=False, height=100 + 240 * rows)

    def _lines(self, ranks: Int[np.ndarray, " n"]) -> list[dict[str, Any]]:
        """Traces of one parameter: lower end, upper end with the band filled between, the ranks."""
        share = np.arange(1, self.draws + 1) / (self.draws + 1)
        below = np.cumsum(np.bincount(ranks, minlength=self.draws + 1))[:-1] / len(ranks)
        low, high = bands(len(ranks), self.draws)
        line = lambda y, **more: {"type": "scatter", "mode": "lines", "x": share, "y": y, **more}
        edge = {"line": {"width": 0}, "hoverinfo": "skip"}
        filled = {"fill": "tonexty", "fillcolor": "rgba(128, 128, 128, 0.25)"}
        own = {"line": {"color": "#1f77b4", "shape": "hv"}}
        return [
            line(low - share, **edge),
            line(high - share, **edge, **filled),
            line(below - share, **own),
        ]
