"""Saved fits: what is loaded is what was saved, and what can't be is refused in words."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints

import oracle
import ramify as rf
import tampering
from exact_fits import exact_fit, read, regression
from quick import slow_but
from ramify.data.groups import Groups
from ramify.families.build import amortized, branch, joint, solved
from ramify.families.network import Layers
from ramify.fitting.loading import load
from ramify.io import saving as _saving
from ramify.models.model import Model
from ramify.models.parameters import constrained, positive, real
from ramify.posterior.posterior import Posterior

SIZES = np.array([2, 0, 3])
N, DIM = len(SIZES), 2
MODEL = regression(DIM)


class Means(eqx.Module):
    """An encoder of the user's own."""

    features: Layers

    def __call__(self, x, batch):
        total = jax.ops.segment_sum(
            self.features(x) * batch.row_mask[:, None], batch.segment, batch.index.shape[0]
        )
        return total / jnp.maximum(batch.count, 1)[:, None]


@pytest.fixture(scope="module")
def groups():
    return read(oracle.simulate(3, N, SIZES, DIM)[0], N)


def means():
    return Means(Layers(jax.random.key(0), (DIM + 1, 4, 3)))


FAMILIES = {
    **{f"joint {c}": lambda g, c=c: joint(MODEL, g, c) for c in ("dense", "block", "diagonal")},
    **{f"branch {c}": lambda g, c=c: branch(MODEL, g, c) for c in ("dense", "block", "diagonal")},
    "branch paper": lambda g: branch(MODEL, g, scale_map="paper", centred=False),
    "amortized": lambda g: amortized(MODEL, g),
    "amortized paper": lambda g: amortized(MODEL, g, "block", count_aware=False),
    "amortized encoder": lambda g: amortized(MODEL, g, encoder=means()),
    "solved": lambda g: solved(MODEL, g),
    "solved from a network": lambda g: solved(MODEL, g, start=amortized(MODEL, g)),
}
QUICK = ["joint dense", "branch diagonal", "branch paper", "solved"]


def moved(family):
    """The family with every number changed, as a fit would."""
    arrays, rest = eqx.partition(family, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    rng = np.random.default_rng(0)
    leaves = [leaf + 0.1 * jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in leaves]
    return eqx.combine(jax.tree.unflatten(tree, leaves), rest)


@pytest.mark.parametrize("name", slow_but(QUICK, FAMILIES))
def test_round_trip(groups, name, tmp_path):
    history = {"step": np.arange(3), "elbo": np.array([-3.0, -2.0, -1.5])}
    notes = {"method": name.split()[0], "converged": True, "seconds": np.float64(1.5)}
    fit = Posterior(
        MODEL, moved(FAMILIES[name](groups)), groups, local_draws=3, history=history, notes=notes
    )
    fit.save(tmp_path / "fit")
    encoder = means() if name == "amortized encoder" else None
    loaded = load(tmp_path / "fit", MODEL, encoder=encoder)
    assert jax.tree.structure(loaded.family) == jax.tree.structure(fit.family)
    jax.tree.map(np.testing.assert_array_equal, loaded.family, fit.family)
    assert (loaded.local_draws, loaded.by, loaded.groups) == (3, "group", None)
    np.testing.assert_array_equal(loaded.labels, fit.labels)
    assert loaded.notes == {**notes, "seconds": 1.5}
    assert loaded.history.keys() == history.keys()
    jax.tree.map(np.testing.assert_array_equal, loaded.history, history)
    files = sorted(path.name for path in (tmp_path / "fit").iterdir())
    assert files == ["arrays.safetensors", "fit.json", "labels.arrow"]
    assert list(tmp_path.iterdir()) == [tmp_path / "fit"]


def test_a_loaded_fit_gives_the_same_numbers(groups, tmp_path):
    table = {"group": np.repeat(np.arange(N), groups.sizes), **groups.rows}
    at = {"group": [2, 0], "x": np.ones((2, DIM))}
    fit = exact_fit("branch", table, N)
    fit.save(tmp_path / "fit")
    loaded = load(tmp_path / "fit", fit.model)
    same = np.testing.assert_array_equal
    jax.tree.map(same, loaded.sample(20), fit.sample(20))
    assert loaded.elbo(groups, draws=20) == fit.elbo(draws=20)
    same(loaded.predict(at, draws=20)["mean"], fit.predict(at, draws=20)["mean"])
    with pytest.raises(ValueError, match=r"this loaded fit does not have them .* leave given="):
        loaded.predict(at, given=table, draws=20)


def test_a_loaded_fit_has_no_data(groups, tmp_path):
    fit = Posterior(MODEL, solved(MODEL, groups, rounds=0), groups)
    fit.save(tmp_path / "fit")
    loaded = load(tmp_path / "fit", fit.model)
    sample = loaded.sample(20, groups)
    jax.tree.map(np.testing.assert_array_equal, sample, fit.sample(20))
    with pytest.raises(ValueError, match="loaded from a file, which holds no data: pass groups="):
        loaded.sample(2)
    with pytest.raises(
        ValueError, match="group 0 was in the fit, whose rows .* pass them as given="
    ):
        loaded.predict({"group": [2, 0], "x": np.ones((2, DIM))})


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a", "ü \U0001f600"]),
        np.array([3, -1, 2**60]),
        np.array([2**64 - 1, 0, 1], np.uint64),
        np.array(["2024-01-02", "1960-01-01", "2024-05-05"], "M8[D]"),
        np.array(["2024-01-02T03:04:05.123456789", "1960-01-01", "2024-05-05"], "M8[ns]"),
        np.array(["2024-01-02T03", "1960-01-01T00", "2024-05-05T23"], "M8[h]"),
        np.array([1, 2, 3], "m8[s]"),
        np.array([True, False]),
        np.array([b"x", b"yy"]),
    ],
    ids=lambda labels: labels.dtype.str,
)
def test_labels_of_any_kind(labels, tmp_path):
    groups = Groups.from_table(
        {"who": labels, "x": np.ones((len(labels), DIM)), "y": np.ones(len(labels))},
        by="who",
        rows=["x", "y"],
    )
    Posterior(MODEL, branch(MODEL, groups), groups).save(tmp_path / "fit")
    loaded = load(tmp_path / "fit", MODEL)
    assert loaded.labels.dtype == groups.labels.dtype
    assert loaded.labels.tolist() == groups.labels.tolist()
    assert loaded.sample(2, groups.subset(positions=[1]))["beta"].shape == (2, 1, DIM)


@pytest.fixture
def saved(groups, tmp_path):
    Posterior(MODEL, branch(MODEL, groups), groups).save(tmp_path / "fit")
    return tmp_path / "fit"


def test_a_missing_or_foreign_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no saved fit at"):
        load(tmp_path / "nothing", MODEL)
    with pytest.raises(ValueError, match="is not a saved fit: it has no fit.json"):
        load(tmp_path, MODEL)
    (tmp_path / "fit.json").write_text('{"format": "something"}')
    with pytest.raises(ValueError, match="was not written by ramify"):
        load(tmp_path, MODEL)
    (tmp_path / "fit.json").write_bytes(b"\x80\x04\x95")
    with pytest.raises(ValueError, match="is damaged or not a fit"):
        load(tmp_path, MODEL)


@pytest.mark.parametrize("name", ["arrays.safetensors", "labels.arrow", "fit.json"])
def test_truncated_and_missing_files(saved, name):
    path = saved / name
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"{name} is (truncated or )?damaged"):
            load(saved, MODEL)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing|has no {name}"):
        load(saved, MODEL)


def test_a_foreign_file_in_place_of_the_arrays(saved):
    (saved / "arrays.safetensors").write_bytes(b"\x80\x04\x95 not what it says" * 100)
    tampering.resealed(saved)
    with pytest.raises(ValueError, match="arrays.safetensors is truncated or damaged"):
        load(saved, MODEL)


def test_files_that_do_not_belong_together(saved, groups, tmp_path):
    Posterior(MODEL, branch(MODEL, groups, "block"), groups).save(tmp_path / "other")
    (tmp_path / "other" / "arrays.safetensors").rename(saved / "arrays.safetensors")
    with pytest.raises(ValueError, match="arrays.safetensors is damaged: it is not the file that"):
        load(saved, MODEL)
    tampering.resealed(saved)
    with pytest.raises(ValueError, match=r"should hold .local.w of shape \[3, 9\]; it has\s+shape"):
        load(saved, MODEL)


def test_labels_of_another_fit(groups, tmp_path):
    """Of families that serve any group nothing else tells how many there were."""
    other = groups.subset(positions=[0, 2])
    for name, some in (("fit", groups), ("other", other)):
        Posterior(MODEL, solved(MODEL, some), some).save(tmp_path / name)
    (tmp_path / "other" / "labels.arrow").rename(tmp_path / "fit" / "labels.arrow")
    tampering.resealed(tmp_path / "fit")
    with pytest.raises(
        ValueError, match=r"has 2 labels; the fit has 3 groups.*not belong together"
    ):
        load(tmp_path / "fit", MODEL)


def test_fields_that_are_missing(saved):
    fit = tampering.unsealed(saved)
    for name in ("theta", "labels_dtype", "format_version"):
        rest = {n: v for n, v in fit.items() if n != name}
        (saved / "fit.json").write_text(json.dumps(rest))
        with pytest.raises(ValueError, match=f"fit.json is damaged: it says nothing of {name}"):
            load(saved, MODEL)
    for family in ({}, {"is": "branched"}, fit["family"] | {"theta": {"dim": 3}}):
        (saved / "fit.json").write_text(json.dumps(fit | {"family": family}))
        with pytest.raises(ValueError, match=r"fit.json is damaged, where it says what the family"):
            load(saved, MODEL)
    earlier = {n: v for n, v in fit.items() if n not in ("N", "n_rows")}
    (saved / "fit.json").write_text(json.dumps(earlier))
    assert load(saved, MODEL).labels.tolist() == [0, 1, 2]


def test_a_loaded_fit_knows_whether_its_times_had_a_zone(tmp_path):
    table = oracle.simulate(3, N, SIZES, DIM)[0]
    days = np.datetime64("2024-03-30") + np.arange(N)
    named = lambda zone: pd.Series(days.astype("M8[us]")).dt.tz_localize(zone)[table["group"]]
    groups = {
        zone: Groups.from_table({**table, "group": named(zone)}, by="group", rows=["x", "y"])
        for zone in ("UTC", "Europe/Rome", None)
    }
    fit = Posterior(MODEL, branch(MODEL, groups["UTC"]), groups["UTC"])
    fit.save(tmp_path / "fit")
    again = load(tmp_path / "fit", MODEL)
    with pytest.raises(
        ValueError, match='times in "group" have no time zone; in the fit they had a'
    ):
        again.sample(2, groups[None])
    with pytest.raises(ValueError, match="is new"):  # three other moments
        again.sample(2, groups["Europe/Rome"])
    assert again.sample(2, groups["UTC"])["beta"].shape == fit.sample(2)["beta"].shape


def test_a_version_from_the_future(saved):
    tampering.edit(saved, format_version=2, ramify_version="9.9")
    message = r"saved by ramify 9.9 in format 2; this is ramify .* formats up to 1. Upgrade ramify"
    with pytest.raises(ValueError, match=message):
        load(saved, MODEL)


def test_another_model(saved):
    densities = {
        "log_prior": MODEL._log_prior,
        "log_local": MODEL._log_local,
        "log_lik": MODEL._log_lik,
    }
    others = {
        r"its theta is mu \[2\] real; this model's is nu \[2\] real": ({"nu": real(DIM)}, None),
        r"its theta is mu \[2\] real; this model's is mu \[3\] real": ({"mu": real(3)}, None),
        r"this model's is mu \[2\] positive": ({"mu": positive(DIM)}, None),
        r"its z is beta \[2\] real; this model's is beta \[4\] real": (None, {"beta": real(4)}),
    }
    for message, (theta, z) in others.items():
        model = Model(theta=theta or {"mu": real(DIM)}, z=z or {"beta": real(DIM)}, **densities)
        with pytest.raises(ValueError, match=f"is of another model: .*{message}"):
            load(saved, model)


def test_other_bounds(groups, tmp_path):
    interval = lambda high: Model(
        theta={"p": constrained(constraints.interval(0.0, high))},
        z={"beta": real(DIM)},
        log_prior=lambda t: 0.0,
        log_local=lambda t, z, group: 0.0,
        log_lik=lambda t, z, row: 0.0,
    )
    model = interval(1.0)
    Posterior(model, branch(model, groups), groups).save(tmp_path / "fit")
    load(tmp_path / "fit", interval(1.0))
    with pytest.raises(ValueError, match="another model: .* with other bounds"):
        load(tmp_path / "fit", interval(2.0))


def test_a_fit_of_a_formula_refuses_other_models(groups, tmp_path):
    """Their parameters have the same names, and their values other meanings."""
    rng = np.random.default_rng(0)
    table = {"g": np.arange(60) % 6, "x": rng.normal(size=60), "w": rng.normal(size=60)}
    table |= {"y": table["x"] + rng.normal(size=60), "h": np.arange(60) % 4}
    text, folder = "y ~ x + (1 | g)", tmp_path / "fit"
    made = lambda text, table, **how: rf.from_formula(text, table, **how)
    model, rows = made(text, table)
    Posterior(model, solved(model, rows), rows).save(folder)
    assert load(folder, model).labels.tolist() == load(folder, made(text, table)[0]).labels.tolist()
    prior = {"sigma": dist.HalfNormal(3.0)}
    others = {
        r'of the formula "y ~ x .*", and this model is of "y ~ w': made("y ~ w + (1 | g)", table),
        "with likelihood gaussian, and this model is with student_t": made(
            text, table, likelihood="student_t"
        ),
        "as is this model, which has other priors": made(text, table, priors=prior),
        "made from another table": made(text, {**table, "x": 2 * table["x"]}),
        "one grouping factor, and this model has several": made("y ~ x + (1 | g) + (1 | h)", table),
        "and this Model is not": (MODEL, None),
    }
    for message, (other, _) in others.items():
        with pytest.raises(ValueError, match=message):
            load(folder, other)
    Posterior(MODEL, branch(MODEL, groups), groups).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="was not made from a formula, and this model was"):
        load(tmp_path / "plain", model)


def test_an_encoder_must_be_brought(groups, tmp_path):
    Posterior(MODEL, amortized(MODEL, groups, encoder=means()), groups).save(tmp_path / "fit")
    with pytest.raises(ValueError, match="has an encoder of your own, Means: pass one like it"):
        load(tmp_path / "fit", MODEL)
    other = Means(Layers(jax.random.key(0), (DIM + 1, 5, 3)))
    with pytest.raises(ValueError, match="or the encoder is another one"):
        load(tmp_path / "fit", MODEL, encoder=other)


def test_saving_again_replaces_the_fit_and_nothing_else(saved, groups):
    (saved / "notes.txt").write_text("kept")
    (saved / "report.html").write_text("of the earlier fit")
    family = moved(branch(MODEL, groups))
    Posterior(MODEL, family, groups).save(saved)
    assert (saved / "notes.txt").read_text() == "kept"
    assert not (saved / "report.html").exists()
    np.testing.assert_array_equal(load(saved, MODEL).family.local.w, family.local.w)
    assert [p.name for p in saved.parent.iterdir()] == ["fit"]


def test_a_folder_with_something_else_is_refused(groups, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not touch")
    fit = Posterior(MODEL, branch(MODEL, groups), groups)
    with pytest.raises(FileExistsError, match="has files in it and is not a saved fit"):
        fit.save(tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        fit.save(tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    fit.save(tmp_path / "empty")
    fit.save(tmp_path / "new" / "folder")
    assert load(tmp_path / "new" / "folder", MODEL).labels.tolist() == [0, 1, 2]


def test_a_link_to_a_folder_is_followed(groups, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Posterior(MODEL, branch(MODEL, groups), groups).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real", MODEL).labels.tolist() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_save_that_fails_leaves_the_old_fit(saved, groups, monkeypatch):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    monkeypatch.setattr(_saving, "write_labels", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Posterior(MODEL, moved(branch(MODEL, groups)), groups).save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [p.name for p in saved.parent.iterdir()] == ["fit"]
