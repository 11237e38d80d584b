"""Formulas on real data agree with NUTS on the same models, written by hand (`benchmarks`)."""

import json
import os
import re
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


PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"


def page_rows():
    """The table of `docs/coming-from.md`: name -> means and sds by NUTS and by us, as written."""
    cells = lambda line: re.split(r"(?<!\\)\|", line.strip("|\n"))
    lines = [cells(line) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = {c[0].strip().replace("\\|", "|"): c[1:] for c in lines if len(c) == 3 and "(" in c[1]}
    return {name: re.findall(r"[-\d.]+", " ".join(own)) for name, own in rows.items()}


def test_the_page_has_the_numbers_of_the_reference():
    reference, rows = np.load(REFERENCES / "formula_sleepstudy.npz"), page_rows()
    assert [*rows] == reference["names"].tolist()
    for own, *exact in zip(rows.values(), reference["mean"], reference["sd"], strict=True):
        for text, number in zip(own[:2], exact, strict=True):
            assert text == f"{number:.{len(text.partition('.')[2])}f}"


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
    if name == "sleepstudy":  # the page's numbers, rounded
        said = np.array([[float(text) for text in row[2:]] for row in page_rows().values()])
        found = np.stack([summary["mean"], summary["sd"]], 1)
        assert np.all(np.abs(said - found) < 0.03 * sd[:, None] + 0.05), found
