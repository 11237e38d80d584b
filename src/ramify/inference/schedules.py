"""Step sizes, and a stopping rule from the trace of the ELBO and its noise.

Pure NumPy on the host. A `Plateau` is fixed during a fit; its state is a `Cycle`, updated with the
ELBOs of the steps made. The state decides the next step sizes and whether the fit has converged.
"""

import math
from typing import NamedTuple

import numpy as np
import optax


def paper_schedule(scale: str = "small", initial: float = 1e-3) -> optax.Schedule:
    """The paper's step-size drop (appendix F): to a tenth after a set number of steps.

    Small scale drops three times, every 50,000 of 200,000 steps; moderate and large drop once, after
    100,000.

    Example:
        >>> [float(round(paper_schedule("small")(t), 7)) for t in (0, 60_000, 199_999)]
        [0.001, 0.0001, 1e-06]
    """
    if scale not in ("small", "moderate", "large"):
        raise ValueError(f'paper_schedule expected "small", "moderate" or "large"; got {scale!r}.')
    drops = (50_000, 100_000, 150_000) if scale == "small" else (100_000,)
    return optax.piecewise_constant_schedule(initial, dict.fromkeys(drops, 0.1))


class Cycle(NamedTuple):
    """The state of a fit in the cycles of a `Plateau`: plain numbers and one array."""

    step: int  # steps made in all
    start: int  # steps made before this cycle
    length: int  # steps of this cycle
    trace: np.ndarray  # ELBOs of the steps of this cycle
    # Mean and standard error of the ELBO at the end of the previous cycle; None in the first.
    level: tuple[float, float] | None
    converged: bool  # whether the last cycle gained nothing


class Plateau(NamedTuple):
    """Step sizes that fall to zero in cycles, each twice as long as the one before.

    A cycle is a short linear rise and half a cosine down; at its end the noise of the steps is
    small. The fit has converged when a cycle ends no higher than the one before, up to the Monte
    Carlo noise of the difference or `tolerance` nats: twice as many steps gained nothing.
    """

    peak: float  # the largest step size
    first: int = 1000  # steps of the first cycle
    warmup: int = 50  # steps of linear rise at the start of a cycle
    epoch: int = 1  # steps in which every group is seen once
    budget: int | None = None  # steps in all; the last cycle ends there
    tolerance: float = 0.0  # a rise in nats that is not worth twice as many steps

    def init(self) -> Cycle:
        """The state before the first step."""
        return Cycle(0, 0, self._affordable(self.first, 0), np.zeros(0), None, False)

    def fraction(self, cycle: Cycle) -> float:
        """How much of the fit is done, if it ends as soon as it can."""
        cycles = 3 if cycle.level is None else 1  # the first is followed by one twice as long
        end = cycle.start + cycles * cycle.length
        return cycle.step / (end if self.budget is None else min(end, self.budget))

    def rates(self, cycle: Cycle, count: int) -> np.ndarray:
        """Step sizes of the next `count` steps; zero past the end of the cycle."""
        place = cycle.step - cycle.start + 1 + np.arange(count)
        warmup = max(1, min(self.warmup, cycle.length // 5))
        fall = np.clip((place - warmup) / (cycle.length - warmup + 1), 0.0, 1.0)
        return self.peak * np.minimum(1.0, place / warmup) * 0.5 * (1 + np.cos(np.pi * fall))

    def update(self, cycle: Cycle, elbos: np.ndarray) -> Cycle:
        """The state after steps with these ELBOs."""
        trace = np.concatenate([cycle.trace, np.asarray(elbos, np.float64)])
        cycle = cycle._replace(step=cycle.step + len(elbos), trace=trace)
        if cycle.step - cycle.start < cycle.length:
            return cycle
        now, before, converged = level(trace, self.epoch), cycle.level, False
        if before is not None:
            rise, noise = now[0] - before[0], math.hypot(now[1], before[1])
            slack = max(noise, self.tolerance)
            converged = -5 * slack <= rise <= slack  # a large fall is a fit that broke
        length = self._affordable(2 * cycle.length, cycle.step)
        return Cycle(cycle.step, cycle.step, length, np.zeros(0), now, converged)

    def _affordable(self, length: int, step: int) -> int:
        """The next cycle's length; all that is left if the one after it would have no room."""
        left = math.inf if self.budget is None else max(1, self.budget - step)
        return length if left >= 3 * length else int(left)


def level(trace: np.ndarray, epoch: int = 1) -> tuple[float, float]:
    """The level at the end of a trace: mean and standard error of its last fifth, by batch means.

    Batches are whole epochs where three or more fit in, so that differences between groups, each of
    which is in every epoch once, do not count as noise.

    Example:
        >>> level(np.arange(1000.0) % 10, epoch=10)
        (4.5, 0.0)
    """
    last = max(1, len(trace) // 5)
    size = max(1, last // 10)
    if last >= 3 * epoch:
        size = -(-size // epoch) * epoch
    count = last // size
    means = trace[len(trace) - count * size :].reshape(count, size).mean(1)
    error = means.std(ddof=1) / math.sqrt(count) if count > 1 else math.inf
    return float(means.mean()), float(error)
