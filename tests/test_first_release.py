"""Fits that the first release saved are loaded, and answer what they answered then.

`tests/saved/make.py` made them. What needs no draws is a function of the folder alone, so that only
rounding may differ, by about 1e-6 of each number: a thousandth of an answer's sd is far above that, and
far below anything that a user would see. Draws are others than then, and answers made of them differ
by their Monte Carlo error.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import saved_models
from quick import slow_but

SAVED = Path(__file__).parent / "saved"
EXPECTED = json.loads((SAVED / "expected.json").read_text())
TOLERANCE = 1e-3  # of an answer's sd
# For answers made of draws: five standard errors of a difference of means, or of 5% quantiles.
DRAWN_TOLERANCE = 5 * (2 / saved_models.DRAWS) ** 0.5
BETWEEN_DRAWS = 2.1 * DRAWN_TOLERANCE
QUICK = ["formula_new_group"]
FLOAT32 = 1e-5  # of a number: sums in float32, and constants whose sd is zero


@pytest.fixture(scope="module", params=slow_but(QUICK, saved_models.NAMES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def posterior(name, tmp_path_factory):
    """The fit of that name; its folder is unpacked where it is an archive."""
    folder = SAVED / name
    if not folder.is_dir():
        folder = tmp_path_factory.mktemp(name)
        shutil.unpack_archive(SAVED / f"{name}.zip", folder)
    return saved_models.load(name, folder)


def check(now, then, tolerance):
    """Statistics of an answer agree, each within that share of the sd."""
    assert now.keys() == then.keys()
    for statistic, value in then.items():
        relative = {"ess": 1e-3 * np.abs(value), "k_hat": 1e-2}
        share = BETWEEN_DRAWS if statistic.startswith("q") and tolerance > TOLERANCE else tolerance
        allowed = relative.get(statistic, share * np.abs(then["sd"]))
        apart = np.abs(np.asarray(now[statistic], np.float64) - value)
        assert np.all(apart <= allowed + FLOAT32 * np.abs(value)), (statistic, apart, then["sd"])


def test_what_was_saved_is_loaded(name, posterior):
    answers, then = saved_models.exact_answers(posterior), EXPECTED[name]["exact"]
    assert answers.keys() == then.keys()
    for asked in then:
        check(answers[asked], then[asked], TOLERANCE)


def test_draws_and_predictions_are_those_of_the_first_release(name, posterior):
    answers, then = saved_models.drawn_answers(name, posterior), EXPECTED[name]["drawn"]
    assert answers.keys() == then.keys()
    for asked in then:
        check(answers[asked], then[asked], DRAWN_TOLERANCE)
