"""Arguments of a wrong type are refused in words, as a user meets them: without checks of annotations."""

import numpy as np
import pandas as pd
import pytest

import ramify as rf


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(15), 6)
    return {"user": user, "x": rng.normal(size=90), "y": rng.normal(size=90)}


@pytest.fixture(scope="module")
def posterior(table):
    return rf.fit("y ~ x + (1 | user)", table)


def test_options_of_another_type_are_refused():
    rows = {"g": [0, 0, 1, 1], "x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 0.0, 2.0, 1.0]}
    for options, said in (
        ({"optimizer": 3}, "optimizer=3; expected one of Optax"),
        ({"streamed": 3}, "streamed=3; expected True, False or None"),
        ({"devices": "gpu"}, "devices='gpu'; expected a number, or a list of JAX's devices"),
    ):
        with pytest.raises(TypeError, match=said):
            rf.fit("y ~ x + (1 | g)", rows, **options)
    with pytest.raises(ValueError, match='estimator must be "total" or "stl"; got \'zz\''):
        rf.fit("y ~ x + (1 | g)", rows, estimator="zz")


def test_what_is_no_posterior_is_refused(posterior, table):
    for call in (rf.diagnose, rf.write_report, lambda x: rf.update(x, table)):
        with pytest.raises(TypeError, match="posterior is a int; expected rf"):
            call(3)
    for models in ([posterior, posterior], {"a": posterior, "b": 3}):
        with pytest.raises(TypeError, match="expected a dict of posteriors"):
            rf.compare(models)
    with pytest.raises(TypeError, match="model is a str; expected a model"):
        rf.load("fit", "model")
    with pytest.raises(TypeError, match=r"at is a pandas\S*Series; expected a dict of arrays"):
        posterior.predict(pd.Series([1.0]))
    new = {name: column[:2] for name, column in table.items()}
    text = {**new, "user": new["user"].astype(str)}
    with pytest.raises(TypeError, match='"user" of given holds strings and the data'):
        posterior.predict(new, given=text)
