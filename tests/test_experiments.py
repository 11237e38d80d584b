"""The reproduction of the paper: its data, exact answers and files; every command's quick form."""

import doctest
import importlib
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from scipy.stats import multivariate_normal

import oracle
import ramify as rf
from experiments import exact, paper, problems, ratings, recipes, runs, synthetic, tables, timing
from experiments.__main__ import NAMES, main

PAGE = Path(tables.PAGE)


@pytest.fixture(scope="module")
def ml25m(tmp_path_factory) -> Path:
    """A folder laid out as ml-25m: 12 users, the last with 1,001 ratings; movie 999 has no genome."""
    folder, rng = tmp_path_factory.mktemp("ml-25m"), np.random.default_rng(0)
    movies = np.arange(10, 40)
    user = np.concatenate([np.repeat(np.arange(1, 12), 20), np.full(1001, 12)])
    movie = rng.choice(movies, len(user))
    movie[[0, 25]] = 999
    score = rng.choice(np.arange(1, 11) / 2, len(user))
    stamp = np.full(len(user), 1_500_000_000)
    table = {"userId": user, "movieId": movie, "rating": score, "timestamp": stamp}
    csv.write_csv(pa.table(table), folder / "ratings.csv")
    tags = np.tile(np.arange(1, 16), len(movies))
    relevance = rng.random(len(tags)).round(5)
    genome = {"movieId": np.repeat(movies, 15), "tagId": tags, "relevance": relevance}
    csv.write_csv(pa.table(genome), folder / "genome-scores.csv")
    return folder


def test_exact_answers_are_those_of_the_oracle():
    table = synthetic.simulate(seed=0, N=5, rows=4, dim=3)
    answer = exact.solve(rf.Groups.from_table(table, by="group", rows=["x", "y"]))
    for covariance in paper.COVARIANCES:
        best = oracle.optimum(table, 5, "branch", covariance)
        np.testing.assert_allclose(answer.best[covariance], best.elbo, rtol=1e-12)
    known = oracle.exact(table, 5)
    np.testing.assert_allclose(answer.theta_mean, known.theta_mean, rtol=1e-10)
    np.testing.assert_allclose(answer.offset, known.z_offset, rtol=1e-10)


def test_the_evidence_is_found_in_parts(monkeypatch):
    table = synthetic.simulate(seed=0, N=7, rows=3, dim=2)
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y"])
    whole = exact.solve(groups).best
    monkeypatch.setattr(exact, "AT_ONCE", 3)
    np.testing.assert_allclose(list(exact.solve(groups).best.values()), list(whole.values()))


def test_preferences_have_the_covariance_that_the_paper_prints():
    dim, rng = 3, np.random.default_rng(0)
    free, mu, z = rng.normal(size=6), rng.normal(size=dim), rng.normal(size=dim)
    factor = np.zeros((dim, dim))
    factor[np.tril_indices(dim, -1)] = free[dim:]
    factor += np.diag((free[:dim] + np.sqrt(free[:dim] ** 2 + 4)) / 2)
    density = multivariate_normal(mu, factor.T @ factor).logpdf(z)
    with jax.enable_x64(True):
        theta = {"mu": jnp.asarray(mu), "free": jnp.asarray(free)}
        np.testing.assert_allclose(problems.tril(theta["free"], dim), factor, rtol=1e-10)
        local = problems.log_taste(theta, {"taste": jnp.asarray(z)}, {})
        np.testing.assert_allclose(local, density, rtol=1e-10)


def test_the_printed_tables_imply_the_counts():
    for key, scales in paper.MOVIELENS.items():
        for scale, raw in scales.items():
            each = paper.MOVIELENS_PER_RATING[key][scale]
            assert abs(raw.train / each.train / paper.TRAIN[scale] - 1) < 1e-3
            assert abs(raw.elbo / each.elbo / paper.TRAIN[scale] - 1) < 1e-3
            assert abs(raw.test / each.test / paper.TEST[scale] - 1) < 2e-3


def test_movielens_25m_is_read_as_the_paper_did(ml25m):
    found = ratings.read(ml25m)
    assert found.source == "ml-25m" and found.features.shape == (30, 10)
    assert set(found.user) == set(range(1, 12)), "a user above 1,000 ratings was kept"
    assert len(found.user) == 11 * 20 - 2, "ratings of a movie without features were kept"
    raw = csv.read_csv(ml25m / "ratings.csv")
    first = (raw["userId"].to_numpy() == 3) & (raw["movieId"].to_numpy() != 999)
    assert found.liked[found.user == 3].tolist() == (raw["rating"].to_numpy()[first] > 3).tolist()
    kept = ratings.read(ml25m, missing="zero")
    assert len(kept.user) == 11 * 20 and (kept.movie == -1).sum() == 2


def test_principal_components_are_eigenvectors_of_the_covariance(ml25m):
    scores = csv.read_csv(ml25m / "genome-scores.csv")
    genome = scores["relevance"].to_numpy().reshape(30, 15)
    features = ratings.read(ml25m).features.astype(float)
    values, vectors = np.linalg.eigh(np.cov(genome.T, bias=True))
    expected = (genome - genome.mean(0)) @ vectors[:, ::-1][:, :10]
    np.testing.assert_allclose(features.var(0), values[::-1][:10], rtol=1e-4)
    np.testing.assert_allclose(np.abs(features), np.abs(expected), atol=1e-5)
    whitened = ratings.read(ml25m, whiten=True).features
    np.testing.assert_allclose(whitened.std(0), 1, rtol=1e-4)


def test_a_tenth_of_every_user_is_held_out(ml25m):
    found = ratings.read(ml25m)
    train, test = ratings.split(found, "large")
    assert len(train) == len(test) == 11
    assert test.n_rows in (21, 22) and train.n_rows + test.n_rows == len(found.user)
    assert set(test.sizes) <= {1, 2}
    row = np.flatnonzero(found.user == 3)
    x = np.concatenate([train.subset(labels=[3]).rows["x"], test.subset(labels=[3]).rows["x"]])
    same = np.sort(found.features[found.movie[row]][:, 0])
    np.testing.assert_array_equal(np.sort(x[:, 0]), same)


def test_smaller_scales_take_whole_users_up_to_the_papers_count():
    many = ratings.simulate(8_000, seed=1, dim=3)
    train, test = ratings.split(many, "small", seed=0)
    total = train.n_rows + test.n_rows
    assert paper.TRAIN["small"] + paper.TEST["small"] <= total < 2_981 + 1_000
    sizes = dict(zip(*np.unique(many.user, return_counts=True), strict=True))
    whole = [sizes[label] for label in train.labels]
    assert (train.sizes + test.sizes).tolist() == whole


def test_simulated_ratings_are_as_many_as_asked():
    found = ratings.simulate(30_000, seed=0)
    assert len(found.user) == len(found.movie) == 30_000
    sizes = np.bincount(found.user)
    assert sizes.max() <= 1000 and sizes[:-1].min() >= 20
    assert 0.3 < found.liked.mean() < 0.7


def test_counts_that_are_not_the_papers_are_told():
    here = {"train": 18_790_000, "paper's train": 18_780_000, "test": 1_900_000, "users": 1}
    said = ratings.check_counts(here | {"paper's test": 2_010_000})
    assert said == "test: 1,900,000 here, 2,010,000 implied"


def test_movielens_1m_is_read(tmp_path):
    table = {"user_id": [1, 1, 2], "movie_id": [7, 9, 8], "rating": [3.0, 4.0, 5.0]}
    parquet.write_table(pa.table(table), tmp_path / "ratings.parquet")
    about = {"movie_id": [9, 7, 8], "imputed_zero": [False, False, True]}
    about |= {f"f{k}": [1.0 + k, -1.0 - k, 0.0] for k in range(10)}
    parquet.write_table(pa.table(about), tmp_path / "features10_tags_genres.parquet")
    found = ratings.read(tmp_path)
    assert found.source == "ml-1m" and found.user.tolist() == [1, 1]
    assert found.liked.tolist() == [False, True]
    assert found.features[found.movie][:, 0].tolist() == [-1.0, 1.0]


def test_a_folder_without_ratings_is_refused(tmp_path, capsys):
    assert main(["movielens", "--data", str(tmp_path)]) == 1
    assert "holds neither MovieLens 25M" in capsys.readouterr().err


def test_combinations_are_those_of_the_paper():
    every = [list(recipes.METHODS), list(paper.COVARIANCES)]
    small = recipes.combinations("small", *every, ["paper"], 10)
    assert len(small) == 9 and all(method != "solved" for method, *_ in small)
    large = recipes.combinations("large", *every, ["paper", "tight"], 100)
    assert len(large) == 6 + 6 + 1 and all(method != "joint" for method, *_ in large)


def test_traces_are_thinned_by_averages():
    elbo = np.random.default_rng(0).normal(size=5_000)
    history = {"step": np.arange(1, 5_001), "seconds": np.arange(5_000) / 100, "elbo": elbo}
    lines = runs.trace(history)
    assert len(lines) <= runs.LINES and lines[-1]["step"] == 5_000
    counts = np.diff([0, *(line["step"] for line in lines)])
    np.testing.assert_allclose(sum(counts * [line["elbo"] for line in lines]), elbo.sum())
    weights = 0.001 * 0.999 ** np.arange(5_000)[::-1]
    np.testing.assert_allclose(lines[-1]["smooth"], (weights * elbo).sum() / weights.sum())


def test_seconds_to_a_target_are_read_from_the_rise_to_the_end():
    elbo = np.array([-9.0, -5.0, -3.0, -2.0, -2.0])
    trace = {"step": np.arange(1, 6), "seconds": np.arange(5.0), "elbo": elbo}
    assert timing.first(trace, final=-12.0, target=-13.0) == 2.0  # another bound, ten below
    assert timing.first(trace, final=-2.0, target=-1.0) is None
    assert timing.at(trace, 1.5) == -5.0 and np.isnan(timing.at(trace, -1.0))


def test_noise_is_not_taken_for_progress():
    """A trace that rises by 1 to its end, with noise of 1: it gets there at the end, not by chance."""
    rng, step = np.random.default_rng(0), np.arange(1, 401)
    rise = np.minimum(step / 300, 1.0)
    trace = {"step": step, "seconds": step / 1.0, "elbo": rise + rng.normal(size=400)}
    assert (trace["elbo"][:100] > 1).any()
    assert 200 < timing.first(trace, final=1.0, target=1.0) <= 400
    np.testing.assert_allclose(timing.rising(trace, 1.0)["elbo"][50:], rise[50:], atol=0.4)


@pytest.mark.slow
def test_fits_beside_others_are_read_by_the_time_of_a_step_alone(results, tmp_path):
    """Steps times the milliseconds that step-time found, on the same device only."""
    (row,) = runs.read_runs(results, "synthetic")
    where = tmp_path / "timed"
    shutil.copytree(results, where)
    assert timing.alone(where, row) is None
    for device, seconds in (("another", None), (row["device"], 0.05)):
        about = {"covariance": "block", "device": device, "branch_ms": 2.5, "amortized_ms": 7.0}
        runs.write(where / "step-time" / "model_small_paper.csv", [about])
        assert timing.alone(where, row) == (seconds and pytest.approx(seconds))
    np.testing.assert_allclose(timing.read(where, row)["seconds"], 0.0025 * np.arange(1, 21))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """The files of the synthetic experiment's quick form, two families by the paper's recipe."""
    where = tmp_path_factory.mktemp("results")
    words = ["synthetic", "--quick", "--results", str(where), "--recipe", "paper"]
    assert main([*words, "--methods", "branch", "--covariances", "block"]) == 0
    return where


@pytest.mark.slow
def test_a_run_writes_what_it_did(results):
    (row,) = runs.read_runs(results, "synthetic")
    assert row["method"] == "branch" and row["steps"] == 20 and row["groups"] == 4
    assert row["elbo"] < row["best_block"] < row["best_dense"]
    assert row["train"] > row["elbo"] and row["jax"] == jax.__version__ and row["seconds"] > 0
    assert timing.read(results, row)["step"].tolist() == list(range(1, 21))


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(results, capsys):
    (file,) = (results / "runs").glob("*.csv")
    before = file.stat().st_mtime_ns
    words = ["synthetic", "--quick", "--results", str(results), "--recipe", "paper"]
    assert main([*words, "--methods", "branch", "--covariances", "block"]) == 0
    assert "done before" in capsys.readouterr().out and file.stat().st_mtime_ns == before


@pytest.mark.slow
def test_tables_show_theirs_ours_and_what_is_missing(results, tmp_path):
    (row,) = runs.read_runs(results, "synthetic")
    out = tmp_path / "page.md"
    assert main(["tables", "--results", str(results), "--out", str(out)]) == 0
    text = out.read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("| branch, block | paper | 20 |")]
    assert f"{row['elbo']:,.2f}" in line and f"{row['best_block']:,.2f}" in line
    assert "| joint, dense | paper | not run yet |" in text
    assert "-10,665,000.0 (-0.5678)" in text, "the paper's numbers are missing"
    assert tables.filled(text, results) == text
    with pytest.raises(ValueError, match="no table is called 'other'"):
        tables.filled("<!-- table other -->\n<!-- end -->", results)


def _finished(where: Path, method: str, recipe: str, seed: int, elbo: float, trace: list) -> None:
    """The files of a run of a movielens experiment, made up."""
    run = runs.Run("movielens", "simulated", "large", method, "block", recipe, seed)
    row = run._asdict() | {"steps": 3, "seconds": 50.0, "elbo": elbo, "elbo_se": 1.0}
    row |= {
        "train_rows": 1000,
        "test_rows": 100,
        "test": -60.0,
        "train": elbo,
        "train_seen": -500.0,
        "metric_draws": 100,
        "device": "cpu",
    }
    runs.write(where / "runs" / f"{run.name}.csv", [row])
    lines = [
        {"step": 1 + i, "seconds": t, "elbo": value, "smooth": value}
        for i, (t, value) in enumerate(trace)
    ]
    runs.write(where / "traces" / f"{run.name}.csv", lines)


def test_tables_compare_methods_and_seeds(tmp_path):
    slow = [(1.0, -900.0), (20.0, -700.0), (40.0, -600.0)]
    _finished(tmp_path, "branch", "paper", 0, -600.0, slow)
    _finished(tmp_path, "branch", "paper", 1, -602.0, slow)
    _finished(tmp_path, "amortized", "tight", 0, -560.0, [(1.0, -650.0), (5.0, -520.0)])
    shown = tables.movielens(tmp_path, "simulated large")
    (line,) = [x for x in shown.splitlines() if x.startswith("| branch, block")]
    assert "-601.0 ± 1.4 (-0.6010 ± 0.0014)" in line and "-60.0 ± 0.0 (-0.6000 ± 0.0000)" in line
    assert "-11,078,000.0 (-0.5898)" in line and "| -500.0 ± 0.0 (-0.5000 ± 0.0000) |" in line
    times = tables.times(tmp_path, "simulated large").splitlines()
    (fast,) = [x.split(" | ") for x in times if "amortized" in x]
    # Its trace, of another bound, is read forty lower: -690 after a second, -560 after five.
    assert fast[5:7] == ["5.0", "5.0"] and fast[7].strip() == "-0.56000"
    never = [x for x in times if "branch" in x]
    assert ["never" in x for x in never] == [True, True]


@pytest.mark.slow
def test_figures_are_drawn(results, tmp_path):
    assert main(["figures", "--results", str(results), "--out", str(tmp_path)]) == 0
    names = {file.stem for file in tmp_path.glob("*.png")}
    expected = {"traces_synthetic_model_step", "traces_synthetic_model_seconds", "covariances"}
    assert names == expected


def test_the_batch_size_rule_doubles_as_long_as_it_pays():
    from experiments.batch_size import score

    sizes = np.array([100, 200, 400])
    assert np.argmax(score(sizes, np.array([1.0, 1.79, 1.79 * 1.81]))) == 1
    assert np.argmax(score(sizes, np.array([1.0, 1.79, 1.79 * 1.79]))) == 2


@pytest.mark.parametrize("name", ["ratings", "recipes", "runs", "batch_size"])
def test_docstring_examples(name):
    module = importlib.import_module(f"experiments.{name}")
    assert doctest.testmod(module).failed == 0 and doctest.testmod(module).attempted > 0


def test_the_page_names_every_command(capsys):
    assert main([]) == 0 and main(["nothing"]) == 2
    text = PAGE.read_text()
    for name in NAMES:
        assert f"python -m experiments {name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", recipes.METHODS)
def test_synthetic_quick(method, tmp_path):
    words = ["synthetic", "--quick", "--results", str(tmp_path), "--methods", method]
    assert main([*words, "--covariances", "dense", "--recipe", "ours", "paper"]) == 0
    assert len(runs.read_runs(tmp_path, "synthetic")) == (1 if method == "solved" else 2)


@pytest.mark.slow
def test_movielens_quick(ml25m, tmp_path):
    words = ["movielens", "--quick", "--results", str(tmp_path), "--covariances", "block"]
    network = ["--data", str(ml25m), "--methods", "amortized", "--recipe", "paper"]
    assert main([*words, *network]) == 0
    assert main([*words, "--simulate", "--methods", "solved", "--recipe", "tight"]) == 0
    rows = runs.read_runs(tmp_path, "movielens")
    assert [row["data"] for row in rows] == ["ml-25m", "simulated"]
    for row in rows:
        assert row["train_seen"] > row["elbo"] and row["test"] < 0 and row["test_rows"] > 0
    assert main(["tables", "--results", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0


@pytest.mark.slow
def test_quick_forms_of_the_smaller_commands(ml25m, tmp_path):
    common = ["--quick", "--results", str(tmp_path)]
    data = ["--data", str(ml25m), "--scale", "small"]
    assert main(["step-time", *common, *data]) == 0
    assert main(["batch-size", *common, "--simulate", "--scale", "small"]) == 0
    assert main(["gaps", *common, *data, "--recipe", "paper"]) == 0
    assert main(["conditionals", *common, "--synthetic"]) == 0
    assert main(["figures", *common]) == 0
    names = {file.stem for file in (tmp_path / "figures").glob("*.png")}
    assert {"gaps_ml-25m_small_block", "conditionals_synthetic_model_small"} <= names
    assert main(["tables", *common, "--out", str(tmp_path / "page.md")]) == 0
    assert "amortized / branch" in (tmp_path / "page.md").read_text()
