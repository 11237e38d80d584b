"""Fits that the first release saved are loaded, and answer what they answered then.

`tests/saved/make.py` made them. All arithmetic after loading is a function of the folder and a seed, so
only rounding may differ. Which of several weighted draws is taken, and which whole number is drawn, can
turn on the last bit: one of a thousand draws that turns moves a mean by about a thousandth of its sd. A
hundredth of an sd allows for a few of them, and is a third of the Monte Carlo error of these answers.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import saved_models

SAVED = Path(__file__).parent / "saved"
EXPECTED = json.loads((SAVED / "expected.json").read_text())
TOLERANCE = 1e-2  # of an answer's sd, for its mean and sd
BETWEEN_DRAWS = 5e-2  # for quantiles, which move from one draw to the next
FLOAT32 = 1e-5  # of a number: sums in float32, and constants whose sd is zero


@pytest.fixture
def folder(request, tmp_path):
    """The saved folder of that name, unpacked where it is an archive."""
    folder = SAVED / request.param
    if folder.is_dir():
        return folder
    shutil.unpack_archive(folder.with_suffix(".zip"), tmp_path / "fit")
    return tmp_path / "fit"


def check(now, then):
    """Statistics of an answer agree, each within a thousandth of the sd."""
    assert now.keys() == then.keys()
    for name, value in then.items():
        relative = {"ess": 1e-3 * np.abs(value), "k_hat": 1e-2}
        share = BETWEEN_DRAWS if name.startswith("q") else TOLERANCE
        scale = relative.get(name, share * np.abs(then["sd"]))
        apart = np.abs(np.asarray(now[name], np.float64) - value)
        assert np.all(apart <= scale + FLOAT32 * np.abs(value)), (name, apart / then["sd"])


@pytest.mark.parametrize("folder", saved_models.NAMES, indirect=True)
def test_a_fit_of_the_first_release_answers_as_it_did(folder, request):
    name = request.node.callspec.params["folder"]
    answers = saved_models.answers(name, saved_models.load(name, folder))
    assert answers.keys() == EXPECTED[name].keys()
    for asked, then in EXPECTED[name].items():
        check(answers[asked], then)
