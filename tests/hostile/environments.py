"""Environments: devices and packages that are not there, settings of JAX, names of folders."""

from pathlib import Path

from .case import Case, python

FIT = """
import numpy as np, ramify as rf
rng = np.random.default_rng(0)
table = {"g": np.repeat(list("abcd"), 5), "x": rng.normal(size=20), "y": rng.normal(size=20)}
"""
FORMULA = FIT + 'print(len(rf.from_formula("y ~ x + (1 | g)", table)[1]))'
FAMILY = (
    FIT
    + """
groups = rf.Groups.from_table(table, by="g", rows=["y"])
zero = lambda *_: 0.0
model = rf.Model(theta={"mu": rf.real()}, z={"b": rf.real()}, log_prior=zero, log_local=zero, log_lik=zero)
rf.branch(model, groups)
"""
)
WITHOUT = 'import sys; sys.modules["{}"] = None\n'
SAVED = Path(__file__).parents[1] / "saved" / "formula_weighted"
LOAD = f"import ramify as rf; print(len(rf.load({str(SAVED)!r}).labels))"


def cases():
    for platform in ("cuda", "gpu", "rocm", "tpu", "zz"):
        own = {"JAX_PLATFORMS": platform}
        says = [f"JAX_PLATFORMS is '{platform}", "cpu"]
        yield Case(f"JAX_PLATFORMS={platform}, a formula", lambda own=own: python(FORMULA, own), says)  # fmt: skip
        yield Case(f"JAX_PLATFORMS={platform}, a family", lambda own=own: python(FAMILY, own), says)
    works = lambda out: out.split() == ["4"]
    for name, value in {
        "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "JAX_DEBUG_NANS": "1", "PYTHONOPTIMIZE": "2",
        "JAX_NUMPY_RANK_PROMOTION": "raise", "JAX_NUMPY_DTYPE_PROMOTION": "strict", "LC_ALL": "C",
        "HOME": "/nowhere", "TZ": "Asia/Tokyo", "RAMIFY_CACHE": "/proc/nowhere", "COLUMNS": "1",
    }.items():  # fmt: skip
        own = {name: value}
        yield Case(f"{name}={value}", lambda own=own: python(FORMULA, own), right=works)
    for package in ("formulae", "pandas"):
        says = [package, "ramify[formula]"]
        for what, code in {"a formula": FORMULA, "load": LOAD}.items():
            run = lambda package=package, code=code: python(WITHOUT.format(package) + code)
            yield Case(f"{what} without {package}", run, says)
