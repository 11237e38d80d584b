"""Fits that the first release saved are loaded, and answer what they answered then.

`tests/saved/make.py` made them. All arithmetic after loading is a function of the folder and a seed, so
that only rounding may differ, by about 1e-6 of each number: a thousandth of an answer's sd is far above
that, and far below anything that a user would see.
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
# For answers made of draws, which are the same draws: which of several weighted draws is taken can turn
# on the last bit, and quantiles then move to a neighbouring draw.
DRAWN_TOLERANCE = 1e-2
BETWEEN_DRAWS = 5e-2
QUICK = ["formula_new_group", "solved"]
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
