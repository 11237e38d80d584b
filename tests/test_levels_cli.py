"""The `ramify` command on a formula with several grouping factors."""

import numpy as np
import pytest
from pyarrow import csv

from cli_case import ramify
from levels_tables import table
from ramify.cli.files import write_table
from ramify.cli.show import as_arrow


@pytest.mark.slow
def test_a_fit_with_several_factors_on_the_command_line(tmp_path):
    rows = {name: column for name, column in table().items() if name in "abxy"}
    write_table(as_arrow(rows), tmp_path / "rows.csv")
    fit = tmp_path / "fit"
    done = ramify("fit", tmp_path / "rows.csv", "y ~ x + (1 | a) + (1 | b)", "--out", fit)
    assert done.exit_code == 0, done.output
    done = ramify("summary", fit, "--groups", tmp_path / "b.csv", "--factor", "b")
    assert done.exit_code == 0 and "sd(Intercept | b)" in done.stdout
    effects = csv.read_csv(tmp_path / "b.csv").to_pydict()
    assert effects["b"] == list(range(7)) and np.isfinite(effects["Intercept_mean"]).all()
    done = ramify("report", fit)
    assert done.exit_code == 0, done.output
    assert "Groups: b" in (fit / "report.html").read_text()
    done = ramify("predict", fit, tmp_path / "rows.csv", "--out", tmp_path / "predicted.csv")
    assert done.exit_code == 0, done.output
    done = ramify("diagnose", fit, tmp_path / "rows.csv")
    assert done.exit_code == 1 and "judged by its own rows" in done.output
    done = ramify("summary", fit, "--groups", tmp_path / "c.csv", "--factor", "c")
    assert done.exit_code == 1 and "no factor 'c'" in done.output
