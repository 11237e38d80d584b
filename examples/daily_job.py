"""A data team's daily job: fit once, then take in each day's rows and score users into Parquet.

    python examples/daily_job.py --folder job/ --users 2000

Day 0: the rows of all users, in Parquet files, are sorted into a store and fitted. Day 1: rows of new
users arrive, and some users have more rows than before. `rf.update` takes in these users alone and says
what moved. Then all users of the next day are scored, those that the fit has never seen included, into a
folder of Parquet parts, and the job ends by comparing the update with a fit of all rows.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ramify as rf

FORMULA = "bought ~ price + (1 | user)"


def visits(rng: np.random.Generator, users: np.ndarray, each: int) -> pa.Table:
    """Visits of some users; how likely one buys depends on the price and on the user."""
    user = np.repeat(users, each)
    level = np.random.default_rng(7).normal(-0.5, 0.8, 10**6)[user]
    price = rng.normal(size=len(user))
    bought = rng.random(len(user)) < 1 / (1 + np.exp(0.6 * price - level))
    return pa.table({"user": user, "price": price, "bought": bought})


def first_day(folder: Path, users: int) -> None:
    """Writes the rows that there are, and fits them from a store."""
    rng = np.random.default_rng(0)
    (folder / "visits").mkdir(parents=True)
    for k in range(4):  # a user's rows are in all files
        pq.write_table(visits(rng, np.arange(users), 5), folder / f"visits/day0-{k}.parquet")
    posterior = rf.fit(
        FORMULA, folder / "visits", likelihood="bernoulli", store=folder / "store", progress=False
    )
    posterior.save(folder / "fit")
    print(posterior.summary())


def next_day(folder: Path, users: int) -> None:
    """Takes in new users and those with new rows, and scores all that come tomorrow."""
    rng, back = np.random.default_rng(1), np.arange(users // 20)
    today = visits(rng, np.concatenate([back, users + back]), 6)
    pq.write_table(today, folder / "visits/day1.parquet")
    theirs = pc.field("user").isin(today["user"].unique())  # each of these users with all rows
    changed = pq.read_table(folder / "visits", filters=theirs)
    updated = rf.update(rf.load(folder / "fit"), changed)
    updated.save(folder / "fit-1")
    print(f"\n{updated.notes['why']}; moved, in sds of yesterday:")
    for name, sds in updated.notes["moved_sds"].items():
        print(f"  {name:22}{sds:+.2f}")

    tomorrow = np.concatenate([np.arange(users // 2), 5 * users + np.arange(50)])  # 50 are unknown
    new = visits(rng, tomorrow, 1).drop_columns("bought")
    pq.write_table(new, folder / "tomorrow.parquet", row_group_size=max(users // 4, 1))
    parts = rf.predict_parts(
        folder / "fit-1", folder / "tomorrow.parquet", folder / "scores", kind="mean", draws=200
    )
    print(f"\nScored {new.num_rows:,} visits in {len(parts)} parts: {folder / 'scores'}")


def compare(folder: Path) -> float:
    """How far the update is from a fit of all rows, at most, in posterior sds."""
    whole = rf.fit(FORMULA, folder / "visits", likelihood="bernoulli", progress=False)
    a, b = rf.load(folder / "fit-1").summary().columns, whole.summary().columns
    apart = float(np.max(np.abs(a["mean"] - b["mean"]) / b["sd"]))
    print(f"\nA fit of all rows differs by {apart:.3f} posterior sds at most.")
    return apart


def main(words: list[str] | None = None) -> float:
    """Runs the days."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--users", type=int, default=2000)
    own = parser.parse_args(words)
    first_day(own.folder, own.users)
    next_day(own.folder, own.users)
    return compare(own.folder)


if __name__ == "__main__":
    main()
