"""The questions of `benchmarks latency` put to other tools, each in a process of its own.

- lme4: `glmer` (`glmer.nb` for a negative binomial), then `ranef`.
- Bambi: NUTS, two chains of 1,000 draws after as many to adapt, then ArviZ's summary. Its effects of a
  group are independent of each other. `smallest ess` says how far its draws go.
- GPBoost: independent effects as well, by Cholesky factors, which are faster here than its default.
  No posterior of the variances.

The first call of each counts from the start of its process and includes reading the data.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import in_own_process

LIMIT = 900  # seconds for lme4, which may not end on a model with many correlated effects
R = r"""
given <- commandArgs(TRUE)
at <- as.numeric(given[1])
done <- function(call) {
  now <- as.numeric(Sys.time())
  cat(sprintf("%s\t%.4f\n", call, now - at))
  at <<- as.numeric(Sys.time())
}
suppressMessages(library(lme4))
table <- read.csv(given[2])
formula <- as.formula(given[3])
done("import")
fit <- if (given[4] == "poisson") glmer(formula, table, poisson) else glmer.nb(formula, table)
done("fit")
effects <- ranef(fit)
done("group effects")
"""

Row = dict[str, Any]
Table = dict[str, np.ndarray]


class Clock:
    """Seconds from one call to the next."""

    def __init__(self, started: float):
        self.rows: list[Row] = []
        self._from = started

    def done(self, call: str) -> None:
        self.rows.append({"call": call, "seconds": round(time.time() - self._from, 4)})
        self._from = time.time()


def lme4(table: Table, formula: str, likelihood: str) -> Row:
    """Runs R; its lines are calls and seconds."""
    has = ["Rscript", "-e", 'quit(status = !requireNamespace("lme4", quietly = TRUE))']
    if shutil.which("Rscript") is None or subprocess.run(has, capture_output=True).returncode:
        return {"missing": "R with lme4: apt install r-cran-lme4"}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.csv"
        columns = np.column_stack(list(table.values()))
        np.savetxt(data, columns, "%.9g", ",", header=",".join(table), comments="")
        given = [str(time.time()), str(data), formula, likelihood]
        try:
            done = subprocess.run(
                ["Rscript", "-e", R, *given], stdout=subprocess.PIPE, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return {"call": "fit", "failed": f"more than {LIMIT} s"}
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    calls = [{"call": call, "seconds": float(seconds)} for call, seconds in lines]
    failed = {"failed": f"exit status {done.returncode}"} if done.returncode else {}
    return {"calls": calls} | failed


def bambi(clock: Clock, table: Table, formula: str, likelihood: str) -> None:
    import arviz
    import bambi
    import pandas

    data = pandas.DataFrame(table)
    clock.done("import")
    family = {"poisson": "poisson", "negative_binomial": "negativebinomial"}[likelihood]
    model = bambi.Model(formula, data, family=family)
    fitted = model.fit(draws=1000, tune=1000, chains=2, cores=2, random_seed=0, progressbar=False)
    clock.done("fit")
    summary = arviz.summary(fitted)
    clock.done("summary")
    clock.rows[-1]["smallest ess"] = float(summary["ess_bulk"].min())


def gpboost(clock: Clock, table: Table, formula: str, likelihood: str) -> None:
    import gpboost

    columns = [name for name in table if name not in ("shop", "sold")]
    slopes = np.column_stack([table[name] for name in columns])
    clock.done("import")
    model = gpboost.GPModel(
        group_data=table["shop"],
        group_rand_coef_data=slopes,
        ind_effect_group_rand_coef=[1] * len(columns),
        likelihood=likelihood,
        matrix_inversion_method="cholesky",
    )
    X = np.column_stack([np.ones(len(slopes)), slopes])
    model.fit(y=table["sold"].astype(float), X=X, params={"trace": False})
    clock.done("fit")
    model.get_coef(), model.get_cov_pars()
    clock.done("summary")
    model.predict_training_data_random_effects()
    clock.done("group effects")


PYTHON: dict[str, Callable[[Clock, Table, str, str], None]] = {"Bambi": bambi, "GPBoost": gpboost}


def in_python(name: str, python: str, *given: Any) -> Row:
    """Runs a peer that is a Python package, in the Python that has it."""
    if not _has(python, name.lower()):
        return {"missing": f"pip install {name.lower()}"}
    own = ("--one", name, "--started", time.time())
    return in_own_process("latency", *own, *given, python=python)


def gpboost_many(data: Path, python: str) -> Row:
    """GPBoost on the problem of `benchmarks cpu`, up to its summary."""
    if not _has(python, "gpboost"):
        return {"missing": "pip install gpboost"}
    own = ("--one", "gpboost", "--data", data, "--started", time.time())
    found = in_own_process("cpu", *own, python=python)
    calls = [{"call": "all", "seconds": found.pop("seconds")}] if "seconds" in found else []
    return {"calls": calls} | {name: found[name] for name in found if name == "failed"}


def _has(python: str, module: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", look]).returncode == 0
