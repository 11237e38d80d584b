"""Models from formulas: `y ~ 1 + x + (1 + x | user)`, as lme4, brms and Bambi write them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ramify.data.groups import Groups
from ramify.data.tables import kind_of_table, zone_of
from ramify.frontends.formula.checks import (
    check_categories,
    check_columns,
    check_design,
    check_response,
    warn_of_separation,
)
from ramify.frontends.formula.design import Coding, code
from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.layout import EffectLayout, lay_out
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood, start
from ramify.frontends.formula.model import FormulaModel
from ramify.frontends.formula.priors import Priors, defaults, replaced
from ramify.frontends.formula.reading import no_predictors, predictors, with_labels
from ramify.frontends.formula.response import Response, read_response, response_columns
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
    family, link = _likelihood(likelihood, link)
    extra = [c for c in (parts.trials, parts.weights) if c and not c.isdigit()]
    check_columns(parts, table, [*response_columns(parts), *predictors(parts), *extra])
    response = read_response(parts, table, family.support, likelihood, None, "table")
    check_response(parts.response, response.y)
    common, group, layout = _evaluated(parts, table, family, link, response)
    own = parts, likelihood, link, common, group, layout, response.levels
    came_as = kind_of_table(table), zone_of(table, parts.by)
    chosen = _priors(parts, link, common, layout, family, response.y, priors or {})
    model = FormulaModel(Formula(*own, *came_as), chosen)
    return model, model.groups(table)


def _evaluated(
    parts: FormulaText, table: Any, family: Likelihood, link: str, response: Response
) -> tuple[Coding, Coding, EffectLayout]:
    """Codes both sides of the grouping term on the rows of the table, and lays their columns out."""
    frame = read_frame(table, predictors(parts), "table")
    check_categories(frame)
    frame = frame if len(frame.columns) else no_predictors(response.y)
    common, X = code(parts.common, parts.text, frame)
    group, W = code(parts.group, parts.text, frame)
    check_design(parts, common, X, group, W, family)
    if family.support == "binary":
        warn_of_separation(common.names, X, response.y)
    offset = common.offset(frame)
    begin = start(family, link, response.y, response.trials)
    rows = Groups.from_table(with_labels({"X": X}, table, parts.by), by=parts.by, rows=["X"])
    middle = 0.0 if offset is None else float(offset.mean())
    names = (common.names, group.names)
    layout = lay_out(names, X, W, rows, begin, middle, family.support == "levels")
    return common, group, layout


def _priors(
    parts: FormulaText,
    link: str,
    common: Coding,
    layout: EffectLayout,
    family: Likelihood,
    y: Float[np.ndarray, " n"],
    given: Mapping[str, Any],
) -> Priors:
    """The defaults for these data, and what the user puts in their place."""
    sd_y = float(np.std(y)) or 1.0
    own = defaults(layout, parts.by, link, list(family.parameters), sd_y, not parts.independent)
    owners = dict(zip(common.names, common.owners, strict=True))
    return replaced(own, given, layout, parts.by, owners)


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("formulae", "pandas") if find_spec(name) is None]
    if missing:
        what = f"formulas need {' and '.join(missing)}"
        raise ImportError(f'{what}: install them with pip install "ramify[formula]".')


def _likelihood(name: str, link: str | None) -> tuple[Likelihood, str]:
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood={name!r} is unknown; there are {', '.join(LIKELIHOODS)}.")
    links = LIKELIHOODS[name].links
    if link is not None and link not in links:
        takes = f"it takes {', '.join(links)}"
        raise ValueError(f"link={link!r} does not go with likelihood={name!r}; {takes}.")
    return LIKELIHOODS[name], link or links[0]
