"""Predictions of ordered levels: their probabilities, in the names of the levels."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv
from scipy.special import expit
from typer.testing import CliRunner

import ramify as rf
from ramify.cli.commands import app

S = 50  # draws, always as many: another number would be compiled again
LEVELS = ["poor", "fair", "very good"]  # not in the order of the alphabet
COLUMNS = [f"{level}_{name}" for level in LEVELS for name in ("mean", "sd", "q5", "q50", "q95")]


@pytest.fixture(scope="module")
def rated():
    """Ordered answers whose levels have names; not fitted, since nothing here is about accuracy."""
    rng = np.random.default_rng(1)
    user = np.repeat(np.arange(15), 8)
    x = rng.normal(1, 1, len(user))
    latent = x + rng.normal(0, 1, 15)[user] + rng.logistic(size=len(user))
    answer = np.array(LEVELS)[np.searchsorted([0.0, 1.5], latent)]
    table = {"user": user, "x": x, "answer": pd.Categorical(answer, LEVELS, ordered=True)}
    formula = "answer ~ x + (1 | user)"
    model, groups = rf.from_formula(formula, pd.DataFrame(table), likelihood="ordered")
    return rf.Posterior(model, rf.solved(model, groups), groups)


@pytest.fixture(scope="module")
def asked():
    """A known user twice, a new one and another known one."""
    return pd.DataFrame({"user": [3, 3, 99, 7], "x": [0.0, 2.0, 0.0, 1.0]})


@pytest.fixture(scope="module")
def probability(rated, asked):
    return rated.predict(asked, draws=S, kind="probability", summary=False)


@pytest.mark.slow
def test_probabilities_of_levels_are_those_of_cutpoints_and_predictor(rated, asked, probability):
    assert probability.shape == (S, len(asked), 3) and probability.min() >= 0
    np.testing.assert_allclose(probability.sum(-1), 1, atol=1e-6)
    eta = rated.predict(asked, draws=S, kind="link", summary=False)
    below = expit(rated.sample_theta(S)["cutpoints"][:, None] - eta[:, :, None])
    by_hand = np.diff(below, prepend=0, append=1)
    np.testing.assert_allclose(probability, by_hand, atol=1e-6)
    draws, known = rated.sample(S), [0, 1, 3]  # the other is new: its effect is drawn there only
    effects = draws["effects"][:, asked.user[known], 0]
    np.testing.assert_allclose(
        eta[:, known], draws["x"][:, None] * asked.x[known].to_numpy() + effects, atol=1e-5
    )


@pytest.mark.slow
def test_probabilities_have_the_names_of_their_levels(rated, asked, probability):
    found = rated.predict(asked, draws=S, kind="probability")
    assert list(found.columns) == [*asked.columns, *COLUMNS]
    pd.testing.assert_frame_equal(found[asked.columns], asked)
    for k, level in enumerate(LEVELS):
        own = probability[:, :, k]
        np.testing.assert_allclose(found[f"{level}_mean"], own.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found[f"{level}_q95"], np.quantile(own, 0.95, 0), rtol=1e-5)
    for kind in (pl.from_pandas, pa.Table.from_pandas):
        other = rated.predict(kind(asked), draws=S, kind="probability")
        assert type(other) is type(kind(asked))
        np.testing.assert_array_equal(np.asarray(other["very good_sd"]), found["very good_sd"])
    with pytest.raises(ValueError, match='has a column "fair_sd", which is what predict calls'):
        rated.predict(asked.assign(fair_sd=0.0), kind="probability")


@pytest.mark.slow
def test_the_command_writes_probabilities_of_levels(rated, asked, probability, tmp_path):
    rated.save(tmp_path / "fit")
    asked.to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", str(tmp_path / "fit"), str(tmp_path / "new.csv"), "--draws", str(S)]
    done = CliRunner().invoke(app, [*words, "--kind", "probability"])
    assert done.exit_code == 0, done.output
    found = csv.read_csv(pa.BufferReader(done.stdout.encode()))
    assert found.column_names == ["user", "x", *COLUMNS]
    np.testing.assert_allclose(found["fair_mean"], probability[:, :, 1].mean(0), rtol=1e-4)
