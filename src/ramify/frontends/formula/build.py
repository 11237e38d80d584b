"""Models from formulas: `y ~ 1 + x + (1 + x | user)`, as lme4, brms and Bambi write them."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from jaxtyping import Float64

from ramify.data.groups import Groups
from ramify.data.tables import kind_of_table, n_rows, zone_of
from ramify.frontends.formula import checks
from ramify.frontends.formula.design import Coding, code
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.layout import EffectLayout, lay_out
from ramify.frontends.formula.likelihoods import LIKELIHOODS, start
from ramify.frontends.formula.model import FormulaModel
from ramify.frontends.formula.priors import defaults, replaced
from ramify.frontends.formula.reading import labelled_groups, predictors, read_rows
from ramify.frontends.formula.response import read_extra, read_response, response_columns
from ramify.frontends.formula.text import FormulaText, parse


def from_formula(
    formula: str,
    table: Any,
    *,
    likelihood: str = "gaussian",
    link: str | None = None,
    priors: Mapping[str, Any] | None = None,
    trials: str | None = None,
    weights: str | None = None,
) -> tuple[FormulaModel, Groups]:
    """A model and its data from a formula in the grammar of lme4, brms and Bambi.

    Common effects may have interactions, polynomials, splines and categories, which the `formulae`
    package codes; one grouping term says what varies by group: `(1 + x | g)` with correlations,
    `(1 + x || g)` without. See `docs/formulas.md`.

    Args:
        formula: such as "y ~ 1 + x + (1 + x | user)", "y | trials(n) ~ x + (1 | user)".
        table: pandas, polars or Arrow table, or a dict of arrays; only the columns that the formula
            names are read.
        likelihood: "gaussian", "student_t", "bernoulli", "binomial", "poisson",
            "negative_binomial" or "ordered".
        link: by default the usual one.
        priors: name -> NumPyro distribution, in place of the defaults, which `model.priors` shows.
        trials: the column of binomial trials, where the formula does not say.
        weights: the column of weights, where the formula does not say.

    Returns:
        A model and its groups, for `fit(model, groups)`.

    Example:
        >>> table = {"user": ["a", "a", "b", "b"], "x": [0.0, 1.0, 0.0, 2.0], "y": [1.0, 2.0, 0.0, 4.0]}
        >>> model, groups = from_formula("y ~ x + (1 | user)", table)
        >>> model
        FormulaModel(y ~ x + (1 | user), gaussian with identity link; 2 common effects, 1 by user)
        >>> model.priors
        Intercept             Normal(1.75, 3.698)
        x                     Normal(0, 4.459)
        sd(Intercept | user)  HalfNormal(3.698)
        sigma                 Exponential(0.6761)
    """
    _check_installed()
    parts = parse(formula)
    parts = parts._replace(trials=trials or parts.trials, weights=weights or parts.weights)
    link = _link(likelihood, link)
    checks.check_columns(parts, table, [*response_columns(parts), *predictors(parts), *parts.extra])
    tried = read_extra(parts, table, n_rows(table, parts.by), "table").get("trials")
    support = LIKELIHOODS[likelihood].support
    y, levels = read_response(parts, table, support, likelihood, None, tried, "table")
    checks.check_response(parts.response, y)
    begin = start(support, link, y, tried)
    own = parts, likelihood, link, *_evaluated(parts, table, likelihood, begin, y), levels
    spec = Formula(*own, kind_of_table(table), zone_of(table, parts.by))
    chosen = replaced(defaults(spec, float(np.std(y)) or 1.0), priors or {}, spec)
    return FormulaModel(spec, chosen), read_rows(spec, table, "table", outcomes=True)


def _evaluated(
    parts: FormulaText,
    table: Any,
    likelihood: str,
    begin: tuple[float, float],
    y: Float64[np.ndarray, " n"],
) -> tuple[Coding, Coding, EffectLayout]:
    """Codes both sides of the grouping term on the rows of the table, and lays their columns out."""
    frame, family = read_frame(table, predictors(parts), "table", len(y)), LIKELIHOODS[likelihood]
    checks.check_categories(frame)
    common, X = code(parts.common, parts.text, frame)
    group, W = code(parts.group, parts.text, frame)
    checks.check_design(parts, common, X, group, W, family)
    if family.support == "binary":
        checks.warn_of_separation(common.names, X, y)
    offset, rows = common.offset(frame), labelled_groups({"X": X}, table, parts.by)
    middle = 0.0 if offset is None else float(offset.mean())
    names = (common.names, group.names)
    return common, group, lay_out(names, X, W, rows, begin, middle, family.support == "levels")


def _check_installed() -> None:
    missing = [name for name in ("formulae", "pandas") if find_spec(name) is None]
    if missing:
        what = f"formulas need {' and '.join(missing)}"
        raise ImportError(f'{what}: install them with pip install "ramify[formula]".')


def _link(likelihood: str, link: str | None) -> str:
    """The link, by default the likelihood's usual one; raises if either is unknown."""
    if likelihood not in LIKELIHOODS:
        known = ", ".join(LIKELIHOODS)
        raise ValueError(f"likelihood={likelihood!r} is unknown; there are {known}.")
    links = LIKELIHOODS[likelihood].links
    if link is not None and link not in links:
        takes = f"it takes {', '.join(links)}"
        raise ValueError(f"link={link!r} does not go with likelihood={likelihood!r}; {takes}.")
    return link or links[0]
