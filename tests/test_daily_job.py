"""The example of a data team's daily job, as it is."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/daily_job.py"


@pytest.mark.slow
def test_the_daily_job(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("daily_job", EXAMPLE)
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    apart = job.main(["--folder", str(tmp_path / "job"), "--users", "1200"])
    assert apart < 0.05  # of a posterior sd
    said = capsys.readouterr().out
    assert "updated by 120 groups, 60 of them new" in said and "650 visits in 3 parts" in said
    scores = pq.read_table(tmp_path / "job/scores")
    assert scores.num_rows == 650
    assert {"user", "price", "mean", "sd", "q5", "q95"} <= {*scores.column_names}
    unknown = np.asarray(scores["user"]) >= 6000
    sd = np.asarray(scores["sd"])
    assert unknown.sum() == 50 and sd[unknown].min() > np.median(sd[~unknown])
