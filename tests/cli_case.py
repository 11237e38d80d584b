"""The `ramify` command inside this process, and a table to run it on."""

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner

from ramify.cli.commands import app

FORMULA = "y ~ 1 + x + (1 | shop)"


def ramify(*words):
    """Runs the command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="ramify")


def line(result, code=1):
    """The one line of an error."""
    assert result.exit_code == code, result.output
    *notes, error = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert not any("error" in note or "Traceback" in note for note in notes)
    return error


def shops(seed=0, N=12, rows=6):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(N), rows)
    x = rng.normal(size=shop.size)
    y = 2 + rng.normal(size=N)[shop] + 0.7 * x + 0.3 * rng.normal(size=shop.size)
    names = [f"s{i}" for i in shop]
    return pa.table({"shop": names, "x": x, "y": y, "unused": rng.normal(size=shop.size)})
