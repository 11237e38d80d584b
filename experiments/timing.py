"""When a fit's trace stood where: its ELBO after some seconds, the seconds to some ELBO.

Seconds are those of a fit that has the machine to itself, compiling left out: as measured, or, where
`step-time` has timed such a step on such a device, steps times that, since fits were run beside others.

Traces of steps are noisy and of another bound than the final measurement where K > 1, so a trace is read
as what it still had to rise to its own end, and its end as the ELBO measured there.
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


def at(trace: Trace, seconds: float) -> float:
    """The ELBO after so many seconds: its last value before, nan if there is none."""
    place = int(np.searchsorted(trace["seconds"], seconds, side="right")) - 1
    return float(trace["elbo"][place]) if place >= 0 else float("nan")


def shifted(trace: Trace, final: float) -> Trace:
    """The trace moved so that it ends where its fit was measured."""
    last = max(len(trace["elbo"]) // 50, 1)
    return trace | {"elbo": trace["elbo"] - trace["elbo"][-last:].mean() + final}


def first(trace: Trace, final: float, target: float) -> float | None:
    """Seconds until a fit that ended at `final` had reached `target`; None if it never did."""
    if final < target:
        return None
    reached = np.flatnonzero(shifted(trace, final)["elbo"] >= target)
    return float(trace["seconds"][reached[0]]) if len(reached) else float(trace["seconds"][-1])
