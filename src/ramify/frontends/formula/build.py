"""Models from formulas: `y ~ 1 + x + (1 + x | user)`, as lme4, brms and Bambi write them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ramify.data.groups import Groups
from ramify.data.tables import columns_of, n_rows
from ramify.frontends.formula import reading, saving
from ramify.frontends.formula.design import check_installed
from ramify.frontends.formula.design_checks import (
    check_censoring,
    check_design,
    check_each,
    check_response,
    warn_of_separation,
)
from ramify.frontends.formula.facts import (
    Outcomes,
    Source,
    coded,
    coded_moments,
    facts_of,
    outcomes_of,
)
from ramify.frontends.formula.formula import Formula, lay_out
from ramify.frontends.formula.levels_build import from_terms
from ramify.frontends.formula.levels_model import LevelsFormulaModel
from ramify.frontends.formula.levels_reading import predictors as all_predictors
from ramify.frontends.formula.likelihoods import LIKELIHOODS, centre_and_unit, likely
from ramify.frontends.formula.model import FormulaModel
from ramify.frontends.formula.parameter_formulas import (
    ParameterFormula,
    category_names,
    in_units,
)
from ramify.frontends.formula.priors import defaults, replaced
from ramify.frontends.formula.tables import (
    Missing,
    Stored,
    Whole,
    check_columns,
    designed,
    opened,
    read_whole,
    refuse_groups,
    without_missing,
)
from ramify.frontends.formula.text import (
    FormulaError,
    FormulaText,
    error,
    parse,
    parse_parameter,
    split,
    without_effects,
)
from ramify.numerics.precision import computing

# Columns of a model's groups.
_OWN = ("y", "X", "X_all", "W", "U", "U_apart", "offset", "trials", "weights", "cens")


@computing
def from_formula(
    formula: str,
    table: Any,
    *,
    likelihood: str = "gaussian",
    link: str | None = None,
    priors: Mapping[str, Any] | None = None,
    trials: str | None = None,
    weights: str | None = None,
    missing: Missing = "error",
    store: Any = None,
    integrate: str | None = None,
) -> tuple[FormulaModel | LevelsFormulaModel, Groups]:
    """A model and its data from a formula in the grammar of lme4, brms and Bambi.

    Common effects may have interactions, polynomials, splines and categories, which the `formulae`
    package codes; grouping terms say what varies by group: `(1 + x | g)` with correlations,
    `(1 + x || g)` without; `(1 | a) + (1 | b)`, `(1 | a:b)` and `(1 | a/b)` for several factors. See
    `docs/formulas.md` and `docs/levels.md`.

    Args:
        formula: such as "y ~ 1 + x + (1 + x | user)", "y | trials(n) ~ x + (1 | user)".
        table: pandas, polars or Arrow table, or a dict of arrays; or Parquet: a file, a folder, a
            pattern, a URL or a list of files; or `Groups` of a store with the columns as numbers.
            Only the columns that the formula names are read.
        likelihood: "gaussian", "student_t", "skew_normal", "lognormal", "gamma", "exponential",
            "weibull", "beta", "bernoulli", "binomial", "beta_binomial", "poisson",
            "negative_binomial", the counts with "zero_inflated_" or "hurdle_" before their name,
            "categorical" or "ordered".
        link: by default the usual one.
        priors: name -> NumPyro distribution, or its text ("Normal(0, 1)"), in place of the defaults,
            which `model.priors` shows.
        trials: the column of binomial trials, where the formula does not say.
        weights: the column of weights, where the formula does not say.
        missing: "error" refuses rows in which a column of the formula has no value; "drop" leaves
            them out, and warns of how many there were.
        store: a folder, for Parquet larger than memory: its rows are sorted there on disk, and the
            columns of the model made part by part. See `docs/scale.md`.
        integrate: of several grouping factors, the one to integrate out; see `docs/levels.md`.

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
    check_installed()
    refuse_groups(table)
    _check_types({"trials": trials, "weights": weights}, priors)
    text, *others = split(formula)
    parts = parse(text)
    parts = parts._replace(trials=trials or parts.trials, weights=weights or parts.weights)
    link = _link(likelihood, link)
    categories = LIKELIHOODS[likelihood].support == "categories"
    if parts.several and categories:
        raise ValueError(
            f"likelihood={likelihood!r} takes one grouping factor; the formula has several."
        )
    if parts.several:
        table = _check_several(parts, others, read_whole(table, store), missing)
        return from_terms(parts, table, likelihood, link, priors or {}, check_design, integrate)
    if integrate not in (None, parts.by):
        raise ValueError(f"there is no factor {integrate!r} in this formula; it has {parts.by}.")
    parsed = parse_parameter if categories else partial(_parsed, likelihood=likelihood)
    parameters = [parsed(other, parts.by) for other in others]
    side = reading.predictors(parts, *parameters)
    used = [*reading.response_columns(parts), *side, *parts.extra]
    source = opened(parts, table, used, missing, store)
    _check_roles(parts, source, used)
    outcomes = _outcomes(parts, source, likelihood)
    if categories:
        parts, parameters = by_category(parts, parameters, outcomes.levels or [])
    spec = _evaluated(parts, parameters, source, likelihood, link, outcomes)
    _check_names(spec)
    chosen = replaced(defaults(spec, float(outcomes.used.sd) or 1.0), priors or {}, spec)
    model = FormulaModel(spec, chosen)
    if isinstance(source, Stored):
        change = lambda table: reading.coded_rows(spec, table, "table", outcomes=True)
        return model, designed(source, saving.of_columns(spec), change)
    model.table = columns_of(source.table, [*dict.fromkeys([*used, parts.by])])
    return model, reading.read_rows(spec, source.table, "table", outcomes=True)


def _outcomes(parts: FormulaText, source: Source, likelihood: str) -> Outcomes:
    """Checks the responses and returns the facts about them."""
    found = outcomes_of(parts, source, likelihood)
    if not found.weighted:
        what = "are zero in every row: no row would count."
        raise ValueError(f'column "{parts.weights}", the weights, {what}')
    check_response(parts.response, found.y)
    check_censoring(parts, likelihood, found.censored)
    return found


def _evaluated(
    parts: FormulaText,
    parameters: list[FormulaText],
    source: Source,
    likelihood: str,
    link: str,
    outcomes: Outcomes,
) -> Formula:
    """Codes all formulas on the rows of the table, checks their columns and lays them out."""
    family = LIKELIHOODS[likelihood]
    common, group, pieces = coded(parts, source, likelihood, outcomes.levels)
    names = common.names, group.names
    facts = facts_of(names, pieces())
    if family.support != "categories":
        check_design(parts, common, facts.X, group, facts.W, family)
    if family.support == "binary":
        warn_of_separation(common.names, facts, pieces)
    begin = centre_and_unit(family.support, link, outcomes.used, outcomes.trials)
    shape = lay_out(names, facts, begin, family.support == "levels")
    known = (
        source.kind,
        source.zone,
        _evaluated_parameters(parameters, source, likelihood, outcomes),
    )
    return Formula(parts, likelihood, link, common, group, *shape, outcomes.levels, *known)


def _parsed(text: str, by: str, likelihood: str) -> FormulaText:
    """A formula of one of the likelihood's parameters."""
    parts = parse_parameter(text, by)
    own = [name for name in LIKELIHOODS[likelihood].parameters if name != "cutpoints"]
    if parts.response not in own:
        takes = f"likelihood={likelihood!r} has {', '.join(own) or 'no parameters'}"
        what = f"expected a parameter of the likelihood before ~, got {parts.response!r}; {takes}"
        raise error(text, 0, what)
    return parts


def by_category(
    parts: FormulaText, given: list[FormulaText], levels: list[Any]
) -> tuple[FormulaText, list[FormulaText]]:
    """The formulas of a categorical response: an empty one for the first level, one for each other."""
    names, right = category_names(levels), parts.text.split("~", 1)[1]
    if len(set(names)) < len(names):
        raise ValueError(f"two levels of {parts.response} would be called alike: {names}.")
    own = {other.response: other for other in given}
    for name, other in own.items():
        if name not in names:
            what = f"expected a level before ~, one of {', '.join(names)}; got {name!r}"
            raise error(other.text, 0, what)
    written = lambda name: parse_parameter(f"{name} ~{right}", parts.by)
    return without_effects(parts), [own.get(name) or written(name) for name in names]


def _evaluated_parameters(
    formulas: list[FormulaText], source: Source, likelihood: str, outcomes: Outcomes
) -> tuple[ParameterFormula, ...]:
    """Codes the formulas of parameters on the rows of the table, and checks their columns."""
    names, found = [parts.response for parts in formulas], []
    for parts in formulas:
        if names.count(parts.response) > 1:
            raise error(parts.text, 0, f"{parts.response!r} has two formulas")
        scaled = parts.response in LIKELIHOODS[likelihood].scaled
        sd = float(outcomes.used.sd) or 1.0
        own = coded_moments(parts, source)
        for coding, columns in own:
            check_each(coding, columns)
        found.append(in_units(parts, tuple(own), float(np.log(sd)) if scaled else 0.0))
    return tuple(found)


def _check_types(columns: dict[str, Any], priors: Any) -> None:
    """Raises where an argument is no name of a column, or priors are no dict."""
    for argument, name in columns.items():
        if not isinstance(name, str | None):
            what = f"{argument} is a {type(name).__name__}"
            raise TypeError(f"{what}; expected the name of a column, as {argument}='w'.")
    if priors is not None and not (
        isinstance(priors, Mapping) and all(isinstance(name, str) for name in priors)
    ):
        expected = 'a dict of names and distributions: {"x": "Normal(0, 1)"}'
        raise TypeError(f"priors is {priors!r:.80}; expected {expected}.")


def _check_names(formula: Formula) -> None:
    """Raises if two effects would have one name in results."""
    names = [*formula.layout.common]
    for own in formula.own:
        reserved = [f"{own.name}_{part}" for part in ("Intercept", "sd", "cor", "link")]
        names += [*own.effects, *reserved]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f'two effects would be called "{twice[0]}": rename a column.')


def _link(likelihood: str, link: str | None) -> str:
    """The link, by default the likelihood's usual one; raises if either is unknown."""
    if likelihood not in LIKELIHOODS:
        known = ", ".join(LIKELIHOODS)
        raise ValueError(
            f"likelihood={likelihood!r} is unknown; there are {known}.{likely(likelihood)} For another "
            "one write the model in NumPyro: rf.from_numpyro."
        )
    links = LIKELIHOODS[likelihood].links
    if link is not None and link not in links:
        takes = f"it takes {', '.join(links)}"
        raise ValueError(f"link={link!r} does not go with likelihood={likelihood!r}; {takes}.")
    return link or links[0]


def _check_roles(parts: FormulaText, source: Source, used: list[str]) -> None:
    """Raises if a column has two roles, or the table no rows."""
    if parts.by in _OWN:
        what = "has the name of a column that the model makes: rename it."
        raise ValueError(f'the grouping column "{parts.by}" {what}')
    if isinstance(source, Whole):
        columns_of(source.table, [*dict.fromkeys([*used, parts.by])])  # of one length
    own = reading.response_columns(parts)
    if len(own) == 1 and own[0] in reading.predictors(parts):
        raise error(parts.text, own[0], f"the response {own[0]!r} can't be a predictor as well")
    if parts.by in used:
        what = f"the grouping column {parts.by!r} can't be a predictor or the response as well"
        raise error(parts.text, parts.by, what)
    if not source.n_rows:
        raise ValueError("the table has no rows: expected one for each observation.")


def _check_several(parts: FormulaText, others: list[str], table: Any, missing: str) -> Any:
    """As `_check_roles`, with several grouping terms; returns the table without missing values."""
    if others:
        what = "formulas of parameters are for models with one grouping factor; leave it out"
        raise FormulaError(f"formula: {what}: {others[0]}")
    if parts.cens is not None:
        raise error(parts.text, parts.cens, "cens() is for models with one grouping factor")
    factors = list(dict.fromkeys(c for term in parts.terms for c in term.columns))
    own = reading.response_columns(parts)
    used = [*own, *all_predictors(parts), *parts.extra, *factors]
    check_columns(parts, table, used)
    columns_of(table, [*dict.fromkeys(used)])  # of one length
    if len(own) == 1 and own[0] in [*all_predictors(parts), *factors]:
        raise error(parts.text, own[0], f"the response {own[0]!r} can't be a predictor as well")
    if not n_rows(table, factors[0]):
        raise ValueError("the table has no rows: expected one for each observation.")
    table = without_missing(table, [*dict.fromkeys(used)], missing)
    if len(own) == 1:
        values = columns_of(table, own)[own[0]]
        if len(set(np.asarray(values).tolist())) == 1:
            what = "is the same in every row: there is nothing to explain."
            raise ValueError(f"the response {own[0]} {what}")
    return table
