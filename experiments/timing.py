"""When a fit's trace stood where: its ELBO after some seconds, the seconds to some ELBO.

Seconds are those of a fit that has the machine to itself, compiling left out: as measured, or, where
`step-time` has timed such a step on such a device, steps times that, since fits were run beside others.

Traces of steps are noisy, and of another bound than the final measurement where K > 1. So a trace is read
as the rising curve that is nearest to it, and the end of that as the ELBO measured there: the noise of a
trace is above its end long before it has reached it.
"""

from pathlib import Path

import numpy as np

from experiments import runs

Trace = dict[str, np.ndarray]


def read(where: Path, row: runs.Row) -> Trace:
    """The trace of a run, columns by name, compiling left out of its seconds.

    As measured a fit by steps compiles in its first chunk, which is therefore not counted. The trace of
    `solved` is that of a second fit in the same process.
    """
    lines = runs.read(where / "traces" / f"{row['name']}.csv")
    trace = {name: np.array([line[name] for line in lines], float) for name in lines[0]}
    if (alone := step_ms(where, row)) is not None:
        trace["seconds"] = trace["step"] * alone / 1e3
    elif row.get("first_seconds") is not None and row["method"] != "solved":
        trace["seconds"] = np.maximum(trace["seconds"] - row["first_seconds"], 0.0)
    return trace


def step_ms(where: Path, row: runs.Row) -> float | None:
    """Milliseconds of a step of such a fit on such a device, alone; None where it was not timed."""
    timed = where / "step-time" / f"{row['data']}_{row['scale']}_{row['recipe']}.csv"
    for line in runs.read(timed) if timed.exists() else []:
        if (line["covariance"], line["device"]) == (row["covariance"], row["device"]):
            return line.get(f"{row['method']}_ms")
    return None


def alone(where: Path, row: runs.Row) -> float | None:
    """Seconds of a whole fit that has the machine to itself; None where its step was not timed."""
    ms = step_ms(where, row)
    return None if ms is None else row["steps"] * ms / 1e3


def at(trace: Trace, seconds: float) -> float:
    """The ELBO after so many seconds: its last value before, nan if there is none."""
    place = int(np.searchsorted(trace["seconds"], seconds, side="right")) - 1
    return float(trace["elbo"][place]) if place >= 0 else float("nan")


def rising(trace: Trace, final: float) -> Trace:
    """The rising curve through a trace, moved so that it ends where its fit was measured.

    Isotonic regression, in which each line counts as many times as it has steps. Its end is the average
    of the last twentieth of the steps: its very last value would be the noise of a few.

    Example:
        >>> trace = {"step": np.arange(1, 5), "elbo": np.array([-5.0, -1.0, -3.0, -2.0])}
        >>> rising(trace, final=-12.0)["elbo"].tolist()
        [-15.0, -12.0, -12.0, -12.0]
    """
    from scipy.optimize import isotonic_regression

    count = np.maximum(np.diff(trace["step"], prepend=trace["step"][0] - 1), 1)
    curve = isotonic_regression(trace["elbo"], weights=count).x
    last = trace["step"] > 0.95 * trace["step"][-1]
    end = np.average(curve[last], weights=count[last])
    return trace | {"elbo": np.minimum(curve - end + final, final)}


def first(trace: Trace, final: float, target: float) -> float | None:
    """Seconds until a fit that ended at `final` had reached `target`; None if it never did."""
    if final < target:
        return None
    reached = np.flatnonzero(rising(trace, final)["elbo"] >= target - 1e-9 * abs(target))
    return float(trace["seconds"][reached[0] if len(reached) else -1])
