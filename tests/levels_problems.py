"""Data with several factors, simulated and real, and where their reference posteriors are."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.csv as csv

VERBAGG = "lme4/lme4_VerbAgg.csv"
REFERENCES = Path(__file__).parent / "references"


class LevelsProblem(NamedTuple):
    """A formula, its likelihood and its data; both factors have random intercepts, and slopes if any."""

    name: str
    formula: str
    likelihood: str
    table: dict[str, np.ndarray]
    factors: tuple[str, str]  # by name in results
    common: tuple[str, ...] = ("x",)
    slopes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # columns that vary, for each factor

    @property
    def checksum(self) -> str:
        """Of the data."""
        return hashlib.sha256(b"".join(c.tobytes() for c in self.table.values())).hexdigest()

    def reference(self) -> dict[str, np.ndarray]:
        """Means and sds of every parameter and level by NUTS; refused if the data have changed."""
        with np.load(REFERENCES / f"levels_{self.name}.npz") as file:
            found = dict(file)
        assert str(found["checksum"]) == self.checksum, "make the references anew"
        return found


def crossed(likelihood: str) -> LevelsProblem:
    """100 users and 80 movies that rate each other at random: some 37 rows a movie."""
    rng = np.random.default_rng(17)
    n = 3000
    user, movie, x = rng.integers(0, 100, n), rng.integers(0, 80, n), rng.normal(size=n)
    eta = -0.7 + 0.5 * x + (0.8 * rng.normal(size=100))[user] + (0.6 * rng.normal(size=80))[movie]
    table = {"user": user, "movie": movie, "x": x, "y": _outcomes(rng, eta, likelihood)}
    text = "y ~ x + (1 | user) + (1 | movie)"
    return LevelsProblem(f"crossed_{likelihood}", text, likelihood, table, ("user", "movie"))


def nested(likelihood: str) -> LevelsProblem:
    """30 schools of 10 classes of 5 pupils."""
    rng = np.random.default_rng(18)
    school, klass = np.repeat(np.arange(30), 50), np.tile(np.repeat(np.arange(10), 5), 30)
    x = rng.normal(size=1500)
    eta = 0.4 + 0.5 * x + (0.7 * rng.normal(size=30))[school]
    eta = eta + (0.6 * rng.normal(size=(30, 10)))[school, klass]
    table = {"school": school, "klass": klass, "x": x, "y": _outcomes(rng, eta, likelihood)}
    text = "y ~ x + (1 | school/klass)"
    name = f"nested_{likelihood}"
    return LevelsProblem(name, text, likelihood, table, ("school:klass", "school"))


def verbagg(data: Path) -> LevelsProblem:
    """Verbal aggression: 24 answers of each of 316 persons, slopes of persons and of items."""
    raw = csv.read_csv(data / VERBAGG).to_pydict()
    column = lambda name, value: (np.array(raw[name]) == value).astype(np.float64)
    table = {"id": np.array(raw["id"]), "item": np.unique(raw["item"], return_inverse=True)[1]}
    table |= {"man": column("Gender", "M"), "doing": column("mode", "do")}
    table |= {"anger": (np.array(raw["Anger"]) - 20.0) / 10, "y": column("r2", "Y")}
    text = "y ~ anger + man + doing + (1 + doing | id) + (1 + man | item)"
    common, slopes = ("anger", "man", "doing"), (("doing",), ("man",))
    return LevelsProblem("verbagg", text, "bernoulli", table, ("id", "item"), common, slopes)


def _outcomes(rng: np.random.Generator, eta: np.ndarray, likelihood: str) -> np.ndarray:
    if likelihood == "poisson":
        return rng.poisson(np.exp(eta)).astype(np.float64)
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(np.float64)


PROBLEMS = {
    problem.name: problem
    for make in (crossed, nested)
    for problem in (make("bernoulli"), make("poisson"))
}
