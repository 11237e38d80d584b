"""Step sizes, and when to stop, read from the trace with its own noise.

Pure NumPy on the host: a `Plateau` is told the ELBO of each step and answers with the step sizes of
the next ones, or that the fit has converged.
"""

import math

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


class Plateau:
    """Step sizes that fall to zero again and again, in cycles each twice as long as the one before.

    At the end of a cycle (a short rise, then half a cosine down) the noise of the steps has settled,
    so that ends of cycles can be compared. The fit has converged when a cycle ends no higher than
    the one before, up to the Monte Carlo noise of the difference or `tolerance` nats: twice as many
    steps gained nothing.
    """

    def __init__(
        self,
        peak: float,
        *,
        first: int = 1000,
        warmup: int = 50,
        epoch: int = 1,
        budget: int | None = None,
        tolerance: float = 0.0,
    ):
        """Starts before the first step.

        Args:
            peak: the largest step size.
            first: steps of the first cycle.
            warmup: steps of linear rise at the start of a cycle.
            epoch: steps in which every group is seen once.
            budget: steps in all; the last cycle ends there.
            tolerance: a rise in nats that is not worth twice as many steps.
        """
        self.peak, self.warmup, self.epoch, self.tolerance = peak, warmup, epoch, tolerance
        self.budget, self.step, self.converged = budget, 0, False
        self._start, self._length = 0, self._affordable(first)
        self._trace: list[np.ndarray] = []
        self._level: tuple[float, float] | None = None

    @property
    def fraction(self) -> float:
        """How much of the fit is done, should it end as soon as it can."""
        cycles = 3 if self._level is None else 1  # the first is followed by one twice as long
        end = self._start + cycles * self._length
        return self.step / (end if self.budget is None else min(end, self.budget))

    def rates(self, count: int) -> np.ndarray:
        """Step sizes of the next `count` steps; zero past the end of the cycle."""
        place = self.step - self._start + 1 + np.arange(count)
        warmup = max(1, min(self.warmup, self._length // 5))
        fall = np.clip((place - warmup) / (self._length - warmup + 1), 0.0, 1.0)
        return self.peak * np.minimum(1.0, place / warmup) * 0.5 * (1 + np.cos(np.pi * fall))

    def tell(self, elbos: np.ndarray) -> None:
        """Takes the ELBOs of the steps just made."""
        self.step += len(elbos)
        self._trace.append(np.asarray(elbos, np.float64))
        if self.step - self._start < self._length:
            return
        before, self._level = self._level, level(np.concatenate(self._trace), self.epoch)
        if before is not None:
            rise, noise = self._level[0] - before[0], math.hypot(self._level[1], before[1])
            slack = max(noise, self.tolerance)
            self.converged = -5 * slack <= rise <= slack  # a fall is no end, but a fit that broke
        self._trace, self._start = [], self.step
        self._length = self._affordable(2 * self._length)

    def _affordable(self, length: int) -> int:
        """The next cycle's length; all that is left where the one after it would have no room."""
        left = math.inf if self.budget is None else max(1, self.budget - self.step)
        return length if left >= 3 * length else int(left)


def level(trace: np.ndarray, epoch: int = 1) -> tuple[float, float]:
    """Where a trace ends: mean and standard error of about its last fifth, from batch means.

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
