"""Formulas on real data agree with NUTS on the same models, written by hand (`benchmarks`)."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ramify as rf

REFERENCES = Path(__file__).parent / "references"
DATA = Path(os.environ.get("RAMIFY_DATA", "data"))
FILES = {
    "sleepstudy": "lme4/lme4_sleepstudy.csv",
    "radon": "radon/radon.csv",
    "radon_slopes": "radon/radon.csv",
    "verbagg": "lme4/lme4_VerbAgg.csv",
    "insteval": "lme4/lme4_InstEval.csv",
}
# How far means may be apart in posterior sds, and by which factor sds may differ, beyond the Monte Carlo
# error of the reference.
TOLERANCE = {"verbagg": (0.25, 0.1)}  # K = 32 local draws leave noise of that size in theta


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_agrees_with_nuts(name):
    if not (DATA / FILES[name]).is_file():
        pytest.skip(f"{FILES[name]} is not here: name the folder with it in RAMIFY_DATA")
    reference = np.load(REFERENCES / f"formula_{name}.npz")
    table = pd.read_csv(DATA / FILES[name])
    likelihood = str(reference["likelihood"])
    model, groups = rf.from_formula(str(reference["formula"]), table, likelihood=likelihood)
    summary = rf.fit(model, groups, seed=0).summary(draws=20_000)
    assert summary.names == reference["names"].tolist()
    about = json.loads(str(reference["about"]))
    assert about["largest_rhat"] < 1.02 and about["smallest_ess"] > 400
    shift, ratio = TOLERANCE.get(name, (0.1, 0.1))
    sd, error = reference["sd"], reference["mcse"]
    apart = np.abs(summary["mean"] - reference["mean"])
    assert np.all(apart < shift * sd + 4 * error), (apart / sd).round(3)
    spread = np.abs(np.log(summary["sd"] / sd))
    noise = 4 / np.sqrt(2 * reference["ess"])  # of the sd of so many independent normal draws
    assert np.all(spread < np.log1p(ratio) + noise), spread.round(3)
