"""Saved fits that are damaged, and what an answer to that may be: a refusal, or the untouched fit's numbers."""

import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np

import ramify as rf

try:
    from .. import tampering as tampering
except ImportError:  # under pytest this package is at the top
    import tampering as tampering
from .case import Case
from .data import fitted, table

FORMULAS = {
    "gaussian": "y ~ scale(x) + k + (1 + u | g)",
    "poisson": "count ~ x + (1 | g)",
    "ordered": "level ~ x + (1 | g)",
}


@cache
def work() -> Path:
    """A folder for all that a run writes."""
    return Path(tempfile.mkdtemp(prefix="hostile-"))


@cache
def saved(kind: str) -> Path:
    """A fit on disk, which nobody changes."""
    folder = work() / kind
    fitted(kind, FORMULAS[kind]).save(folder)
    return folder


@cache
def _untouched(kind: str) -> list[np.ndarray]:
    return answers(saved(kind))


def answers(folder: Path) -> list[np.ndarray]:
    """What a fit says of its parameters and of some rows."""
    posterior = rf.load(folder)
    few = {name: column[::40] for name, column in table().items()}
    summary, predicted = posterior.summary(), posterior.predict(few, draws=20)
    said = str(posterior).split("\n")[0]
    assert said
    columns = [*summary.columns.values(), *(predicted[name] for name in ("mean", "sd", "q50"))]
    return [np.asarray(column) for column in columns]


def ask(kind: str, damage) -> list[np.ndarray]:
    """The answers of a copy of a fit, after some damage."""
    with tempfile.TemporaryDirectory(dir=work()) as place:
        folder = Path(place) / "fit"
        shutil.copytree(saved(kind), folder)
        damage(folder)
        return answers(folder)


def _same(kind: str, found: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, _untouched(kind), strict=True))


def case(name: str, damage, kind: str = "gaussian", says: str = "fit") -> Case:
    """Refused with a message that has a text, the name of a file, or answered as before."""
    return Case(name, partial(ask, kind, damage), says=[says], right=partial(_same, kind))
