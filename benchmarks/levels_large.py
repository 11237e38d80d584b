"""Two factors with many levels: MovieLens 1M and Retrosheet's plate appearances, for `levels`.

GPBoost may be in another environment than Ramify: `--gpboost` names its Python, which is run on the same
rows. Its slopes are not correlated with intercepts, and its sds are point estimates.
"""

import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ramify as rf

ALONE = ("(1 | user)", "(1 | movie)")
BOTH = "(1 + when | user) + (1 | movie)"
# Rows whose log density is computed, at most, and draws for it, which each take a pass over all rows.
HELD_OUT, HELD_OUT_DRAWS, HELD_OUT_WORK = 100_000, (20, 100), 1e8
GPBOOST = """
import sys, time, numpy as np, gpboost as gpb
with np.load(sys.argv[1]) as file: d = dict(file)
slopes = {}
if len(d["slopes"]):
    slopes = dict(group_rand_coef_data=d["slopes"], ind_effect_group_rand_coef=[1])
began, cpu = time.perf_counter(), time.process_time()
m = gpb.GPModel(group_data=d["groups"], likelihood="bernoulli_logit",
                matrix_inversion_method=sys.argv[2], **slopes)
m.fit(y=d["y"], X=d["X"])
took = time.perf_counter() - began, time.process_time() - cpu
print("sds", np.sqrt(np.asarray(m.get_cov_pars(), float)).ravel().round(4), flush=True)
print("common", np.asarray(m.get_coef(), float).ravel().round(4), flush=True)
more = dict(group_rand_coef_data_pred=d["slopes_new"]) if len(d["slopes"]) else {}
p = m.predict(group_data_pred=d["groups_new"], X_pred=d["X_new"], predict_response=True, **more)["mu"]
held = np.mean(np.log(np.where(d["y_new"] > 0, p, 1 - p)))
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]  # not its parent's
memory = int(peak[0].split()[1]) / 2**20
print(f"{took[0]:.0f} s, {took[1]:.0f} s of CPU, {memory:.2f} GiB, held-out {held:.4f}")
"""


def movielens(folder: Path, rows: int | None, gpboost: str | None) -> None:
    """Liked or not, by users and movies and by either alone: held-out log density of a tenth."""
    ratings = pq.read_table(folder / "ratings.parquet").to_pydict()
    order = np.random.default_rng(0).permutation(len(ratings["rating"]))[:rows]
    table = {
        "user": np.asarray(ratings["user_id"])[order],
        "movie": np.asarray(ratings["movie_id"])[order],
    }
    table["liked"] = np.asarray(ratings["rating"])[order] >= 4
    years = np.asarray(ratings["timestamp"], np.float64)[order]
    table["when"] = (years - years.mean()) / years.std()
    train, test = split(table)
    for terms in (*ALONE, BOTH):
        posterior = reported(f"liked ~ when + {terms}", train, test)
    few = np.bincount(np.unique(train["movie"], return_inverse=True)[1])
    moved = posterior.notes["laplace_sds"]
    print(
        f"  {np.mean(few < 10):.0%} of {len(few):,} movies have fewer than 10 ratings; correcting "
        f"Laplace's error for movies moved theta by {moved:.2f} sds"
    )
    if gpboost:
        beside(gpboost, ("user", "movie"), ("when",), "liked", train, test, slope="when")


def plate_appearances(
    path: Path, seasons: tuple[int, int], rows: int | None, gpboost: str | None
) -> None:
    """On base or not, by batters and pitchers; held-out log density of a tenth."""
    raw = pq.read_table(path, columns=["season", "batter", "pitcher", "home_batting", "outcome"])
    season = raw["season"]
    between = pc.and_(pc.greater_equal(season, seasons[0]), pc.less_equal(season, seasons[1]))
    raw = raw.filter(between)
    order = np.random.default_rng(0).permutation(len(raw))[:rows]
    code = lambda name: raw[name].combine_chunks().indices.to_numpy()[order].astype(np.int64)
    outcome = raw["outcome"].to_numpy()[order]
    table = {
        "batter": code("batter"),
        "pitcher": code("pitcher"),
        "home": raw["home_batting"].to_numpy()[order].astype(np.float64),
        "on_base": (outcome >= 1) & (outcome <= 6),
    }
    train, test = split(table)
    for terms in ("(1 | batter)", "(1 | pitcher)", "(1 | batter) + (1 | pitcher)"):
        reported(f"on_base ~ home + {terms}", train, test)
    if gpboost:
        beside(gpboost, ("batter", "pitcher"), ("home",), "on_base", train, test)


def split(table: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Nine tenths of the rows to fit, and the rest."""
    cut = len(next(iter(table.values()))) // 10
    part = lambda rows: {name: column[rows] for name, column in table.items()}
    return part(slice(cut, None)), part(slice(cut))


def reported(formula: str, train: dict[str, Any], test: dict[str, Any]) -> Any:
    """A fit, with what it took and its held-out log density printed."""
    began, cpu = time.perf_counter(), time.process_time()
    model, groups = rf.from_formula(formula, train, likelihood="bernoulli")
    read = time.process_time() - cpu
    posterior = rf.fit(model, groups)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    response = formula.split(" ~ ")[0]
    print(f"\n{formula}: {len(train[response]):,} rows", flush=True)
    print(f"  {took:.0f} s, {used:.0f} s of CPU, at most {memory:.2f} GiB until here")
    notes = posterior.notes
    phases = {"reading": read, **notes.get("cpu_seconds", {})}
    print("  CPU s: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in phases.items()))
    for name in ("evaluations", "noise_sds", "lanczos_iterations", "laplace_sds"):
        if name in notes:
            print(f"  {name} {notes[name]:.3g}")
    some = {name: column[:HELD_OUT] for name, column in test.items()}
    draws = int(np.clip(HELD_OUT_WORK / len(train[response]), *HELD_OUT_DRAWS))
    held_out = posterior.log_predictive(None, some, draws, "per_row") / len(some[response])
    print(
        f"  held-out log density {held_out:.4f} nats a row, {len(some[response]):,} rows and "
        f"{draws} draws"
    )
    print("\n".join(f"  {line}" for line in repr(posterior).splitlines()))
    print(posterior.summary(), flush=True)
    return posterior


def beside(
    python: str,
    factors: tuple[str, ...],
    common: tuple[str, ...],
    response: str,
    train: dict[str, Any],
    test: dict[str, Any],
    slope: str | None = None,
) -> None:
    """GPBoost on the same rows."""
    own: dict[str, np.ndarray] = {}
    for end, table in (("", train), ("_new", test)):
        own[f"groups{end}"] = np.column_stack([table[name] for name in factors])
        ones = np.ones(len(table[response]))
        own[f"X{end}"] = np.column_stack([ones, *(table[name] for name in common)])
        own[f"y{end}"] = np.asarray(table[response], np.float64)
        own[f"slopes{end}"] = table[slope] if slope else np.zeros(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        np.savez(file, **own)  # pyright: ignore[reportArgumentType]
        found = subprocess.run(
            [python, "-c", GPBOOST, str(file), "iterative"], capture_output=True, text=True
        )
    print("\nGPBoost, iterative:\n  " + "\n  ".join(found.stdout.splitlines()[-8:]))
    if found.returncode:
        print("  " + "\n  ".join(found.stderr.splitlines()[-3:]))
