"""Every likelihood of formulas agrees with NUTS on the same model, written by hand.

`python -m benchmarks.likelihood_references --out tests/references` makes the references.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import ramify as rf
from ramify.frontends.formula.likelihoods import LIKELIHOODS

REFERENCES = Path(__file__).parent / "references"
# Likelihoods whose reference is another's to compare: `test_formula_references.py`, `benchmarks right`.
ELSEWHERE = {
    "gaussian": "tests/references/formula_sleepstudy.npz",
    "bernoulli": "tests/references/formula_verbagg.npz",
    "ordered": "benchmarks/right/references/ordered.json",
}
NAMES = sorted(path.stem for path in REFERENCES.glob("likelihood_*.npz"))


def test_every_likelihood_has_a_reference():
    ours = {str(np.load(REFERENCES / f"{name}.npz")["likelihood"]) for name in NAMES}
    assert ours.isdisjoint(ELSEWHERE.keys() - {"gaussian"})  # whose sigma has a formula here
    assert {*ours, *ELSEWHERE} == {*LIKELIHOODS}
    for path in ELSEWHERE.values():
        assert (REFERENCES.parents[1] / path).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_nuts(name):
    """Means within 0.15 sds and sds within 5%, beyond the Monte Carlo error of the reference."""
    reference = np.load(REFERENCES / f"{name}.npz")
    about = json.loads(str(reference["about"]))
    assert about["largest_rhat"] < 1.02 and about["smallest_ess"] > 400
    table = {n[6:]: reference[n] for n in reference.files if n.startswith("table/")}
    model, groups = rf.from_formula(
        str(reference["formula"]), table, likelihood=str(reference["likelihood"])
    )
    summary = rf.fit(model, groups, seed=0).summary(draws=20_000)
    names = reference["names"].tolist()
    assert sorted(summary.names) == sorted(names)
    own = [summary.names.index(n) for n in names]
    sd, error = reference["sd"], reference["mcse"]
    apart = np.abs(np.asarray(summary["mean"])[own] - reference["mean"])
    spread = np.abs(np.log(np.asarray(summary["sd"])[own] / sd))
    noise = 4 / np.sqrt(2 * reference["ess"])  # of the sd of so many independent normal draws
    print({n: (float(a), float(s)) for n, a, s in zip(names, apart / sd, spread, strict=True)})
    assert np.all(apart < 0.15 * sd + 4 * error), dict(
        zip(names, (apart / sd).round(3), strict=True)
    )
    assert np.all(spread < np.log(1.05) + noise), dict(zip(names, spread.round(3), strict=True))
