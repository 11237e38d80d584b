"""Several grouping factors beside NUTS (`benchmarks/levels_references.py`)."""

import os
from pathlib import Path

import numpy as np
import pytest

import ramify as rf
from levels_problems import PROBLEMS, VERBAGG, verbagg

DATA = Path(os.environ.get("RAMIFY_DATA", "data"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_means_and_sds_are_those_of_nuts(name):
    own = PROBLEMS[name]
    truth = own.reference()
    noise = 3 / np.sqrt(float(truth["ess"]))  # of a reference mean, in sds
    posterior = rf.fit(*rf.from_formula(own.formula, own.table, likelihood=own.likelihood))
    summary = posterior.summary()
    for parameter in summary.names:
        mean, sd = truth[f"{parameter} mean"], truth[f"{parameter} sd"]
        assert abs(summary[parameter]["mean"] - mean) < (0.15 + noise) * sd, parameter
        assert abs(summary[parameter]["sd"] / sd - 1) < 0.05 + noise, parameter
    for factor in own.factors:
        effects = posterior.group_effects(factor, draws=1000)
        mean, sd = truth[f"effects({factor}) mean"], truth[f"effects({factor}) sd"]
        off = (effects["Intercept_mean"] - mean) / sd
        assert np.sqrt(np.mean(off**2)) < 0.1 and np.abs(off).max() < 0.3
        assert np.median(effects["Intercept_sd"] / sd) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_item_response_with_slopes_is_that_of_nuts():
    if not (DATA / VERBAGG).is_file():
        pytest.skip(f"{VERBAGG} is not here: name the folder with it in RAMIFY_DATA")
    own = verbagg(DATA)
    truth = own.reference()
    noise = 3 / np.sqrt(float(truth["ess"]))  # of a reference mean, in sds
    posterior = rf.fit(own.formula, own.table, likelihood=own.likelihood)
    assert posterior.notes["laplace_sds"] < 0.3
    # Theta's draws are from G, but for some hundredths of a nat: 0.05 by a profile.
    assert posterior.notes["theta_profile_nats"] < 0.02
    summary = posterior.summary()
    for parameter in summary.names:
        mean, sd = truth[f"{parameter} mean"], truth[f"{parameter} sd"]
        assert abs(summary[parameter]["mean"] - mean) < (0.15 + noise) * sd, parameter
        # 24 items: by a profile of theta alone sds were up to a tenth too small.
        assert abs(summary[parameter]["sd"] / sd - 1) < 0.05 + noise / np.sqrt(2), parameter
    for factor, slopes in zip(own.factors, own.slopes, strict=True):
        effects = posterior.group_effects(factor, draws=1000)
        for effect in ("Intercept", *slopes):
            name = f"effects({factor})" + ("" if effect == "Intercept" else f" {effect}")
            off = (effects[f"{effect}_mean"] - truth[f"{name} mean"]) / truth[f"{name} sd"]
            assert np.sqrt(np.mean(off**2)) < 0.15
            ratio = effects[f"{effect}_sd"] / truth[f"{name} sd"]
            assert np.median(ratio) == pytest.approx(1, abs=0.07)
