"""`ramify demo`: is a flight late, by aircraft? The whole job on data that ships with the package.

Nine tenths of the aircraft are fitted. For the others, which the fit never saw, later flights are
predicted from their first ones, and the predictions are compared with what happened. Uses only the public
names of ramify.

May import: ramify.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int
from rich.console import Console
from rich.table import Table

import ramify as rf

FORMULA = "late ~ 1 + scale(hour) + (1 + scale(hour) | tailnum)"
HELD_OUT = 0.1  # of the aircraft
FIRST = 20  # flights of a new aircraft on which predictions are conditioned
LATER = 20  # later flights that it must have to be scored
DRAWS = 200


class Split(NamedTuple):
    """Flights to fit, and first and later flights of aircraft that the fit does not see."""

    fitted: pa.Table
    first: pa.Table
    later: pa.Table


def flights() -> pa.Table:
    """The flights, sorted by aircraft and time of departure; its README says what they are."""
    with (files("ramify.demo") / "flights.parquet").open("rb") as file:
        return pq.read_table(file)


def split(table: pa.Table, seed: int = 0) -> Split:
    """Holds aircraft out of the fit; those with enough flights are cut into first and later.

    The table is sorted by aircraft and time.
    """
    aircraft, number = _numbered(table)
    out = np.random.default_rng(seed).random(len(aircraft)) < HELD_OUT
    flown = np.bincount(number)
    place = np.arange(len(number)) - (np.cumsum(flown) - flown)[number]  # within the aircraft
    scored = (out & (flown >= FIRST + LATER))[number]
    parts = ~out[number], scored & (place < FIRST), scored & (place >= FIRST)
    return Split(*(table.filter(pa.array(rows)) for rows in parts))


def _numbered(table: pa.Table) -> tuple[list[str], Int[np.ndarray, " rows"]]:
    """The aircraft in order of appearance, and the number of each row's."""
    code = table["tailnum"].cast(pa.string()).combine_chunks().dictionary_encode()
    return code.dictionary.to_pylist(), code.indices.to_numpy()


class Score(NamedTuple):
    """How predicted chances of being late compare with what happened."""

    log_score: float  # mean log probability of what happened, in nats a flight; larger is better
    brier: float  # mean squared error of the chances; smaller is better
    error: float  # mean absolute error of an aircraft's share of late flights
    inside: float  # share of aircraft whose share of late flights fell inside its 90% interval


class Shares(NamedTuple):
    """Each aircraft's share of late flights among its later ones: observed and predicted."""

    observed: Float[np.ndarray, " aircraft"]
    mean: Float[np.ndarray, " aircraft"]
    low: Float[np.ndarray, " aircraft"]
    high: Float[np.ndarray, " aircraft"]


def judge(
    chance: Float[np.ndarray, "S rows"], later: pa.Table, seed: int = 0
) -> tuple[Score, Shares]:
    """Scores draws of every later flight's chance of being late against what happened."""
    late, (_, number) = later["late"].to_numpy().astype(bool), _numbered(later)
    shared = lambda late: np.bincount(number, late) / np.bincount(number)
    p = np.clip(chance.mean(0, dtype=np.float64), 1e-6, 1 - 1e-6)
    draws = np.random.default_rng(seed).random(chance.shape, np.float32) < chance
    share = np.stack([shared(draw) for draw in draws])
    low, high = np.quantile(share, [0.05, 0.95], axis=0)
    shares = Shares(shared(late), share.mean(0), low, high)
    score = Score(
        float(np.mean(np.log(np.where(late, p, 1 - p)))),
        float(np.mean((p - late) ** 2)),
        float(np.mean(np.abs(shares.mean - shares.observed))),
        float(np.mean((low <= shares.observed) & (shares.observed <= high))),
    )
    return score, shares


def run(out: Path, seed: int = 0, table: pa.Table | None = None) -> None:
    """Fits the flights, predicts for new aircraft, and writes fit and report to the folder `out`."""
    console, started = Console(highlight=False, soft_wrap=True), time.perf_counter()
    data = split(flights() if table is None else table, seed)
    console.print("[bold]Is a flight late? 2013, New York's airports, by aircraft")
    console.print("  late: it arrived more than 15 minutes after its scheduled time")
    console.print(f"  {FORMULA}\n")
    model, groups = rf.from_formula(FORMULA, data.fitted, likelihood="bernoulli")
    console.print(f"Fitting {groups.n_rows:,} flights of {len(groups):,} aircraft ...")
    posterior = rf.fit(model, groups, seed=seed)
    console.print(str(posterior), markup=False)
    console.print(str(posterior.summary()) + "\n", markup=False)
    with ThreadPoolExecutor(1) as thread:
        # What the report says of the fit's quality compiles meanwhile, on a second core.
        diagnosis = thread.submit(rf.diagnose, posterior, groups)
        _new_aircraft(console, posterior, data, seed)
        console.print("\nWriting the report ...")
        posterior.save(out / "fit")
        rf.write_report(posterior, groups, out / "report.html", diagnosis=diagnosis.result())
    seconds = time.perf_counter() - started
    console.print(f"The fit is in {out / 'fit'}, the report in {out / 'report.html'}: open it.")
    console.print(f"{seconds:.0f} seconds in all, compiling included.", style="dim")


def _new_aircraft(console: Console, posterior: Any, data: Split, seed: int) -> None:
    """Predicts for aircraft that the fit never saw, with and without their first flights."""
    names, _ = _numbered(data.later)
    held_out = f"[bold]{len(names)} aircraft held out of the fit[/bold]"
    console.print(f"{held_out}: {data.later.num_rows:,} later flights, predicted without a refit")
    later = data.later.drop_columns(["late"])
    predict = lambda given: posterior.predict(later, given, DRAWS, seed, kind="mean", summary=False)
    known, shares = judge(predict(data.first), data.later, seed)
    unknown, _ = judge(predict(None), data.later, seed)
    table = _table("known by", "log score", "Brier score", "error of share", "in 90% interval")
    for name, score in (("the population alone", unknown), (f"first {FIRST} flights too", known)):
        nats = f"{score.log_score:.4f}"
        table.add_row(name, nats, f"{score.brier:.4f}", f"{score.error:.1%}", f"{score.inside:.0%}")
    console.print(table)
    what = "(of every flight's chance to be late; of every aircraft's share of late flights)\n"
    console.print(what, style="dim")
    console.print(_some(names, shares, data.first))


def _table(first: str, *rest: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in rest:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _some(names: list[str], shares: Shares, first: pa.Table) -> Table:
    """Five aircraft, from the lowest predicted share of late flights to the highest."""
    _, number = _numbered(first)
    before = np.bincount(number, first["late"].to_numpy()) / FIRST
    table = _table("aircraft", f"late in first {FIRST}", "later: predicted", "90%", "observed")
    order = np.argsort(shares.mean)
    for i in order[np.linspace(0, len(order) - 1, 5).astype(int)]:
        early, mean, observed = (f"{x[i]:.0%}" for x in (before, shares.mean, shares.observed))
        interval = f"{shares.low[i]:.0%} to {shares.high[i]:.0%}"
        table.add_row(names[i], early, mean, interval, observed)
    return table
