"""The documents hold what they say: their examples run, and the functions they name exist."""

import importlib.util
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import oracle
from ramify.frontends.formula.design import namespace

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {folder.parent.name for folder in (ROOT / "src/ramify").glob("*/__init__.py")}


def run(page: str) -> None:
    """Runs the Python blocks of a page, one after the other, in one namespace."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_readme_example():
    run("README.md")


@pytest.mark.slow
def test_guide_examples():
    run("docs/guide.md")


@pytest.mark.slow
def test_formulas_examples():
    run("docs/formulas.md")


@pytest.mark.slow
def test_coming_from_examples():
    run("docs/coming-from.md")


@pytest.mark.slow
def test_levels_examples():
    run("docs/levels.md")


@pytest.mark.slow
def test_calibration_examples():
    run("docs/calibration.md")


@pytest.mark.slow
def test_safety_examples():
    run("docs/safety.md")


def test_safety_lists_the_functions_of_formulas():
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    text = (ROOT / "docs/safety.md").read_text()
    part = text.split("## What a formula may call")[1].split("Anything else")[0]
    listed = {name for names in re.findall(r"`([^`]+)`", part) for name in names.split()}
    assert listed == {*TRANSFORMS, *ENCODINGS, *namespace()} - {"np"} | {"np."}


@pytest.mark.parametrize(
    "page, least", [("docs/math.md", 50), ("docs/architecture.md", 50), ("CONTRIBUTING.md", 8)]
)
def test_pages_name_functions_that_exist(page, least):
    """Every `room.module.name` of a page."""
    found = re.findall(r"`([a-z]+(?:\.\w+){2,})`", (ROOT / page).read_text())
    named = [name for name in found if name.split(".")[0] in ROOMS]
    assert len(named) >= least
    for name in named:
        pkgutil.resolve_name(f"ramify.{name}")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_pages_name_files_and_tests_that_exist(page):
    """Every `folder/file` and `folder/`, and every `tests/file.py::name`."""
    pattern = r"`((?:\w+/)+(?:\w+\.(?:py|md|html))?)(?:::(\w+))?`"
    named = re.findall(pattern, (ROOT / page).read_text())
    assert named
    for path, name in named:
        places = [ROOT / path, ROOT / "src/ramify" / path]
        assert any(place.exists() for place in places), path
        assert name in places[0].read_text() if name else True, f"{path}::{name}"


def test_contributing_lists_every_room():
    rooms = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert set(rooms) == ROOMS and len(rooms) == len(ROOMS)


def test_conjugate_example_knows_the_exact_evidence():
    path = ROOT / "examples/conjugate.py"
    spec = importlib.util.spec_from_file_location("conjugate_example", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    data = example.simulate(N=6, dim=3)
    exact = oracle.exact(data.table(), 6).log_evidence
    np.testing.assert_allclose(example.exact_log_evidence(data), exact, rtol=1e-10)
