"""Whether a model is that of a saved fit of a formula: another would read its values in other units."""

import json
import math
from pathlib import Path
from typing import Any

from ramify.frontends.formula import priors

_TEXTS = ("formula", "likelihood", "link", "trials", "weights", "levels", "group")


def check_same_formula(folder: Path, saved: tuple[Any, Any], columns: Any, model: Any) -> None:
    """Raises where a model is not that of the formula and priors that were saved.

    `columns` makes of a formula all that the columns of a model depend on, as JSON values.
    """
    leave = "Leave the model out: a fit of a formula is complete, rf.load(folder)."
    formula, own = saved
    first = columns(formula)
    said = f'the fit in {folder} is of the formula "{first["formula"]}"'
    if type(getattr(model, "formula", None)) is not type(formula):
        raise ValueError(f"{said}, and this {type(model).__name__} is not. {leave}")
    second = columns(model.formula)
    for name in _TEXTS:
        if not _alike(first.get(name), second.get(name)):
            apart = f", with {name} {first[name]}" if name != "formula" else ""
            other = f'of "{second[name]}"' if name == "formula" else f"with {second[name]}"
            raise ValueError(f"{said}{apart}, and this model is {other}. {leave}")
    if not _alike(first, second):
        raise ValueError(
            f"{said}, as is this model, which was made from another table: its columns have other "
            f"centres, units or levels. {leave}"
        )
    plain = lambda found: {name: priors.to_plain(prior) for name, prior in found.items()}
    if not _alike(plain(own), plain(model.priors)):
        raise ValueError(f"{said}, as is this model, which has other priors. {leave}")


def _alike(first: Any, second: Any) -> bool:
    """Whether JSON values are the same but for spaces in texts and the rounding of numbers."""
    one, other = (json.loads(json.dumps(value)) for value in (first, second))
    return _same(one, other)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return {*first} == {*second} and all(_same(first[n], second[n]) for n in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, str) and isinstance(second, str):
        return first.replace(" ", "") == second.replace(" ", "")
    if isinstance(first, float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=1e-9) or (first != first and second != second)
    return first == second
