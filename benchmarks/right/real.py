"""Problems of real data, read from the folder that `--data` names; without their file they are skipped.

| file | from |
|---|---|
| `lme4/lme4_sleepstudy.csv`, `lme4/lme4_VerbAgg.csv` | R's package lme4 |
| `radon/radon.csv` | radon in Minnesota (Gelman and Hill), with each county's uranium `Uppm` |
| `retrosheet/plate_appearances.parquet` | plate appearances: season, batter, outcome (6: home run) |
| `movielens-small/ratings.parquet` | MovieLens ml-latest-small: user_id, movie_id, rating |

The information of the third was obtained free of charge from and is copyrighted by Retrosheet.
"""

from pathlib import Path

import numpy as np
import pandas as pd

import ramify as rf
from benchmarks.right import glmm
from benchmarks.right.issue import intercepts
from benchmarks.right.problem import Problem, Table

FILES = {
    "sleepstudy": "lme4/lme4_sleepstudy.csv",
    "verbagg": "lme4/lme4_VerbAgg.csv",
    "radon": "radon/radon.csv",
    "home_runs": "retrosheet/plate_appearances.parquet",
    "likes": "movielens-small/ratings.parquet",
}


def _table(**columns: object) -> Table:
    return {name: np.asarray(column) for name, column in columns.items()}


def sleepstudy(data: Path) -> Problem:
    """Reaction times of 18 subjects over ten days without sleep, slopes. Chosen before."""
    read = pd.read_csv(data / FILES["sleepstudy"])
    table = _table(Subject=read.Subject, Days=read.Days.astype(float), Reaction=read.Reaction)
    days = {"Days": table["Days"]}
    varying = {"Intercept": np.ones(len(read))} | days
    formula = "Reaction ~ 1 + Days + (1 + Days | Subject)"
    fixed = (formula, "gaussian", table, "Subject", "Reaction", days, varying)
    return glmm.problem(glmm.Formula(*fixed))


def verbagg(data: Path) -> Problem:
    """Verbal aggression: 24 answers of 316 persons, correlated effects. Chosen before."""
    read = pd.read_csv(data / FILES["verbagg"])
    want, scold, shout = read["mode"] == "want", read.btype == "scold", read.btype == "shout"
    columns = {"Anger": read.Anger, "want": want, "scold": scold, "shout": shout}
    common = {name: np.asarray(column, float) for name, column in columns.items()}
    table = _table(id=read.id, **common, yes=(read.r2 == "Y").astype(int))
    varying = {"Intercept": np.ones(len(read)), "want": common["want"]}
    formula = "yes ~ Anger + want + scold + shout + (1 + want | id)"
    fixed = (formula, "bernoulli", table, "id", "yes", common, varying)
    return glmm.problem(glmm.Formula(*fixed, gibbs=True))


def radon(data: Path) -> Problem:
    """Radon in 919 houses of 85 counties, with the county's uranium. Chosen before."""
    read = pd.read_csv(data / FILES["radon"])
    columns = {"floor": read.floor.astype(float), "uranium": np.log(read.Uppm)}
    table = _table(county=read.county, **columns, log_radon=read.log_radon)
    common = {name: table[name] for name in columns}
    one = {"Intercept": np.ones(len(read))}
    formula = "log_radon ~ floor + uranium + (1 | county)"
    return glmm.problem(
        glmm.Formula(formula, "gaussian", table, "county", "log_radon", common, one)
    )


def flights() -> Problem:
    """Late flights of one airline's 581 aircraft, correlated slopes. Chosen after."""
    read = pd.read_parquet(Path(rf.__file__).parent / "demo/flights.parquet")
    read = read[read.carrier == "WN"]
    unit = lambda column: ((column - column.mean()) / column.std()).round(5)
    columns = {"hour": unit(read.hour), "distance": unit(read.distance)}
    table = _table(tailnum=read.tailnum.astype(str), **columns, late=read.late.astype(int))
    common = {name: table[name] for name in columns}
    varying = {"Intercept": np.ones(len(read)), "hour": table["hour"]}
    formula = "late ~ hour + distance + (1 + hour | tailnum)"
    fixed = (formula, "bernoulli", table, "tailnum", "late", common, varying)
    return glmm.problem(glmm.Formula(*fixed, gibbs=True))


def home_runs(data: Path) -> Problem:
    """Home runs of all batters with 20 plate appearances in 2019. Chosen after."""
    wanted = {"columns": ["batter", "outcome"], "filters": [("season", "==", 2019)]}
    read = pd.read_parquet(data / FILES["home_runs"], **wanted)
    found = (read.outcome == 6).groupby(read.batter.astype(str)).agg(["sum", "size"])
    found = found[found["size"] >= 20]
    table = _table(batter=found.index.to_numpy(str), runs=found["sum"], times=found["size"])
    one = {"Intercept": np.ones(len(found))}
    formula = "runs ~ 1 + (1 | batter)"
    fixed = (formula, "binomial", table, "batter", "runs", {}, one)
    return glmm.problem(glmm.Formula(*fixed, trials="times"))


def likes(data: Path) -> Problem:
    """Whether 610 users gave at least 4 stars, up to 12 ratings of each. Chosen after."""
    read = pd.read_parquet(data / FILES["likes"], columns=["user_id", "movie_id", "rating"])
    read = read.sort_values(["user_id", "movie_id"])
    shown = read.groupby("user_id").rating.transform("size")
    nth = read.groupby("user_id").cumcount()
    read = read[nth < np.minimum(12, 1 + shown // 20)]
    g = read.user_id.to_numpy()
    return intercepts({"g": g, "y": (read.rating >= 4).to_numpy(int)})
