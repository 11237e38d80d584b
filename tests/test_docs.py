"""The documents hold what they say: their examples run, and the functions they name exist."""

import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import oracle

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


def test_math_names_functions_that_exist():
    named = re.findall(r"`([a-z]+\.[a-z_]+)\.([A-Za-z_.]+)`", (ROOT / "docs/math.md").read_text())
    named = [(module, path) for module, path in named if module.split(".")[0] in ROOMS]
    assert len(named) > 50
    for module, path in named:
        found = importlib.import_module(f"ramify.{module}")
        for name in path.split("."):
            found = getattr(found, name)


def test_conjugate_example_knows_the_exact_evidence():
    path = ROOT / "examples/conjugate.py"
    spec = importlib.util.spec_from_file_location("conjugate_example", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    data = example.simulate(N=6, dim=3)
    exact = oracle.exact(data.table(), 6).log_evidence
    np.testing.assert_allclose(example.exact_log_evidence(data), exact, rtol=1e-10)
