"""Codings of formulas as JSON: plain values, which are read back without data."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np

from ramify.frontends.formula.design import (
    Coding,
    components,
    described,
    in_order,
    inside,
    namespace,
)


class ReadOtherwise(ValueError):
    """Raised for a formula of an earlier version that now has another meaning."""


def to_plain(coding: Coding) -> dict[str, Any]:
    """A coding as JSON values."""
    terms = [
        {"kind": t.kind, "components": [_component(c) for c in components([t])]}
        for t in coding.terms
    ]
    own = {"text": coding.text, "names": coding.names, "owners": coding.owners}
    return {**own, "kinds": coding.kinds, "terms": terms}


def from_plain(plain: dict[str, Any]) -> Coding:
    """The inverse of `to_plain`."""
    from formulae.terms.terms import Intercept, Term

    terms_of_text = in_order(described(plain["text"], plain["text"]).common_terms)
    _check_reading(plain, components(terms_of_text))
    terms = []
    for saved, made in zip(plain["terms"], terms_of_text, strict=True):
        pairs = zip(components([made]), saved["components"], strict=True)
        parts = [_restored(copy.deepcopy(component), c) for component, c in pairs]
        term = Intercept() if saved["kind"] == "intercept" else Term(*parts)
        term.kind = saved["kind"]
        terms.append(term)
    return Coding(plain["text"], terms, plain["names"], plain["owners"], plain["kinds"])


def _check_reading(plain: dict[str, Any], made: list[Any]) -> None:
    """Raises if the saved terms differ from those that the text now gives.

    Names of the first release have no brackets, and it read powers in another way.
    """
    from ramify.frontends.formula.parser import describe

    saved, now = (
        [c["name"] for t in plain["terms"] for c in t["components"]],
        [c.name for c in made],
    )
    if saved == now:
        return
    bare = lambda names: [name.replace("(", "").replace(")", "") for name in names]
    if bare(saved) != bare(now):
        raise ValueError(f"the terms of {plain['text']!r} are others than those saved.")
    then = components(in_order(describe(plain["text"], as_before=True).common_terms))
    if [c.name for c in then] != now:
        raise ReadOtherwise(
            f"an earlier version read {plain['text']!r} otherwise: -x ** 2 as (-x) ** 2, and x ** y ** z "
            "as (x ** y) ** z. Fit the model again."
        )


def _component(component: Any) -> dict[str, Any]:
    contrast = component.contrast_matrix
    plain = {"name": component.name, "kind": component.kind, "spans": component.spans_intercept}
    if contrast is not None:
        plain["levels"] = [_value(x) for x in component.levels]
        plain["contrast"] = {"matrix": contrast.matrix.tolist(), "labels": list(contrast.labels)}
    if component.kind == "offset":
        plain["offset"] = component._intermediate_data.kind
    if hasattr(component, "call"):
        # `_random_state` has the rows of the fit in it and serves another purpose than evaluation.
        kept = lambda t: {n: _value(v) for n, v in vars(t).items() if n != "_random_state"}
        made = [call.stateful_transform for call in inside(component.call)]
        plain["state"] = [None if transform is None else kept(transform) for transform in made]
    return plain


def _restored(component: Any, plain: dict[str, Any]) -> Any:
    from formulae.categorical import ENCODINGS, ContrastMatrix
    from formulae.environment import Environment
    from formulae.transforms import TRANSFORMS

    component.kind, component.spans_intercept = plain["kind"], plain["spans"]
    if "contrast" in plain:
        matrix = np.asarray(plain["contrast"]["matrix"])
        component.levels = plain["levels"]
        component.contrast_matrix = ContrastMatrix(matrix, plain["contrast"]["labels"])
    if "offset" in plain:
        component._intermediate_data = SimpleNamespace(kind=plain["offset"])
    if "state" in plain:
        component.env = Environment([{**TRANSFORMS, **ENCODINGS}, namespace()])
        for call, state in zip(inside(component.call), plain["state"], strict=True):
            if state is not None:
                if call.stateful_transform is None:
                    call.stateful_transform = TRANSFORMS[call.callee]()
                vars(call.stateful_transform).update({n: _read(v) for n, v in state.items()})
    return component


def _value(value: Any) -> Any:
    """A value of the state as JSON."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {"dict": [[_value(k), _value(v)] for k, v in value.items()]}
    if type(value).__name__ == "CubicSpline":
        return {"spline": [value.c.tolist(), value.x.tolist(), value.extrapolate]}
    return value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return np.asarray(content)
    if kind == "dict":
        return {_read(k): _read(v) for k, v in content}
    from scipy.interpolate import CubicSpline

    return CubicSpline.construct_fast(np.asarray(content[0]), np.asarray(content[1]), content[2])
