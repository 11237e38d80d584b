"""When to lower the step size and when to stop, read from the trace with its own noise.

Pure NumPy on the host: a `Plateau` is told the ELBO of each step and answers with the step size of
the next ones, or that the fit has converged.
"""

import math

import numpy as np
import optax


def paper_schedule(scale: str = "small", initial: float = 1e-3) -> optax.Schedule:
    """The paper's step-size drop (appendix E): to a tenth after a set number of steps.

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
    """Step sizes by phases: each runs until the trace stops rising beyond its Monte Carlo noise.

    A phase has converged when its last third is not higher than the third before it by more than
    the noise of that difference (from batch means, so that autocorrelation counts) or by more than
    `tolerance` nats. Then the step size drops; after the last phase the fit has converged.
    """

    def __init__(
        self,
        peak: float,
        *,
        phases: int = 4,
        drop: float = 0.25,
        warmup: int = 100,
        shortest: int = 600,
        tolerance: float = 0.0,
    ):
        """Starts before the first step.

        Args:
            peak: the first phase's step size, reached after `warmup` steps.
            phases: how many step sizes, each `drop` times the one before.
            drop: factor between phases.
            warmup: steps of linear rise at the start.
            shortest: fewest steps of a phase.
            tolerance: a rise in nats that is not worth another third of a phase.
        """
        self.peak, self.phases, self.drop, self.warmup = peak, phases, drop, warmup
        self.shortest, self.tolerance = shortest, tolerance
        self.phase, self.step, self.converged = 0, 0, False
        self._trace: list[np.ndarray] = []

    def rates(self, count: int) -> np.ndarray:
        """Step sizes of the next `count` steps."""
        ahead = self.step + 1 + np.arange(count)
        return self.peak * self.drop**self.phase * np.minimum(1.0, ahead / max(self.warmup, 1))

    def tell(self, elbos: np.ndarray) -> bool:
        """Takes the ELBOs of the steps just made; True when a phase has just ended."""
        self.step += len(elbos)
        self._trace.append(np.asarray(elbos, np.float64))
        trace = np.concatenate(self._trace)
        if len(trace) < self.shortest or not flat(trace, self.tolerance):
            return False
        self._trace = []
        self.phase += 1
        self.converged = self.phase >= self.phases
        return True


def flat(trace: np.ndarray, tolerance: float = 0.0) -> bool:
    """Whether the last third of a trace is no higher than the third before, up to noise.

    Example:
        >>> flat(np.linspace(0, 1, 300)), flat(np.random.default_rng(0).normal(size=300))
        (False, True)
    """
    third = len(trace) // 3
    early, late = trace[third : 2 * third], trace[-third:]
    rise = float(late.mean() - early.mean())
    noise = math.hypot(standard_error(early), standard_error(late))
    return rise < max(noise, tolerance)


def standard_error(values: np.ndarray, batches: int = 10) -> float:
    """Standard error of an autocorrelated mean, from the spread of batch means."""
    size = len(values) // batches
    means = values[: size * batches].reshape(batches, size).mean(1)
    return float(means.std(ddof=1) / math.sqrt(batches))
