"""Models from formulas: `y ~ 1 + x + (1 + x | user)`, as lme4, brms and Bambi write them."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64

from ramify.data.groups import Groups
from ramify.data.tables import columns_of, kind_of_table, missing_in, n_rows, rows_of, zone_of
from ramify.frontends.formula import reading
from ramify.frontends.formula.design import Coding, check_installed, code, components
from ramify.frontends.formula.formula import EffectLayout, Formula, Units, lay_out
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.levels_build import from_terms
from ramify.frontends.formula.levels_model import LevelsFormulaModel
from ramify.frontends.formula.levels_reading import predictors as all_predictors
from ramify.frontends.formula.likelihoods import LIKELIHOODS, Likelihood, start
from ramify.frontends.formula.model import FormulaModel
from ramify.frontends.formula.parameter_formulas import ParameterFormula, evaluate
from ramify.frontends.formula.priors import defaults, replaced
from ramify.frontends.formula.text import (
    FormulaError,
    FormulaText,
    error,
    parse,
    parse_parameter,
    split,
)
from ramify.numerics.precision import computing

Missing = Literal["error", "drop"]
Matrix = Float[np.ndarray, "n P"]

_FAR = 20.0  # sds from zero: beyond, a group-level column can't be told from a constant
# Columns of a model's groups.
_OWN = ("y", "X", "X_all", "W", "U", "U_apart", "offset", "trials", "weights", "cens")
_SCALES = 1e-18, 1e18  # smallest and largest range of a column: float32 holds its square
_ROWS = 1000  # of a linear program that looks for separation, to begin with


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
    integrate: str | None = None,
) -> tuple[FormulaModel | LevelsFormulaModel, Groups]:
    """A model and its data from a formula in the grammar of lme4, brms and Bambi.

    Common effects may have interactions, polynomials, splines and categories, which the `formulae`
    package codes; grouping terms say what varies by group: `(1 + x | g)` with correlations,
    `(1 + x || g)` without; `(1 | a) + (1 | b)`, `(1 | a:b)` and `(1 | a/b)` for several factors. See
    `docs/formulas.md` and `docs/levels.md`.

    Args:
        formula: such as "y ~ 1 + x + (1 + x | user)", "y | trials(n) ~ x + (1 | user)".
        table: pandas, polars or Arrow table, or a dict of arrays; only the columns that the formula
            names are read.
        likelihood: "gaussian", "student_t", "lognormal", "gamma", "exponential", "weibull", "beta",
            "bernoulli", "binomial", "beta_binomial", "poisson", "negative_binomial", the counts with
            "zero_inflated_" or "hurdle_" before their name, or "ordered".
        link: by default the usual one.
        priors: name -> NumPyro distribution, or its text ("Normal(0, 1)"), in place of the defaults,
            which `model.priors` shows.
        trials: the column of binomial trials, where the formula does not say.
        weights: the column of weights, where the formula does not say.
        missing: "error" refuses rows in which a column of the formula has no value; "drop" leaves
            them out, and warns of how many there were.
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
    text, *others = split(formula)
    parts = parse(text)
    parts = parts._replace(trials=trials or parts.trials, weights=weights or parts.weights)
    link = _link(likelihood, link)
    if parts.several:
        table = _check_several(parts, others, table, missing)
        return from_terms(parts, table, likelihood, link, priors or {}, check_design, integrate)
    if integrate not in (None, parts.by):
        raise ValueError(f"there is no factor {integrate!r} in this formula; it has {parts.by}.")
    parameters = [_parsed(other, parts.by, likelihood) for other in others]
    side = reading.predictors(parts, *parameters)
    used = [*reading.response_columns(parts), *side, *parts.extra]
    _check_columns(parts, table, used)
    named = [*dict.fromkeys([*used, parts.by])]
    table = _without_missing(table, named, missing)
    extra = reading.read_extra(parts, table, n_rows(table, parts.by), "table")
    tried, counted = extra.get("trials"), extra.get("weights")
    if counted is not None and not counted.any():
        what = "are zero in every row: no row would count."
        raise ValueError(f'column "{parts.weights}", the weights, {what}')
    support = LIKELIHOODS[likelihood].support
    y, levels = reading.read_response(parts, table, support, likelihood, None, tried, "table")
    _check_response(parts.response, y)
    _check_censoring(parts, likelihood, extra.get("cens"))
    y = np.log(y) if LIKELIHOODS[likelihood].of_log else y
    begin = start(support, link, y, tried)
    own = parts, likelihood, link, *_evaluated(parts, table, likelihood, begin, y), levels
    shape = parameters, table, y, LIKELIHOODS[likelihood]
    known = kind_of_table(table), zone_of(table, parts.by), _evaluated_parameters(*shape)
    spec = Formula(*own, *known)
    _check_names(spec)
    chosen = replaced(defaults(spec, float(np.std(y)) or 1.0), priors or {}, spec)
    model = FormulaModel(spec, chosen)
    model.table = columns_of(table, named)
    return model, reading.read_rows(spec, table, "table", outcomes=True)


def _without_missing(table: Any, named: list[str], missing: str) -> Any:
    """The table; to drop rows with missing values, the named columns in the rows without."""
    if missing not in get_args(Missing):
        raise ValueError(f'missing must be "error" or "drop"; got {missing!r}.')
    if missing == "error":
        return table
    lacking = {name: missing_in(raw) for name, raw in columns_of(table, named).items()}
    gone = np.any([*lacking.values()], axis=0)
    if not gone.any():
        return table
    where = ", ".join(f'"{name}" in {mask.sum():,}' for name, mask in lacking.items() if mask.any())
    warnings.warn(
        f"dropped {gone.sum():,} of {len(gone):,} rows, in which a value is missing: {where}.",
        stacklevel=4,
    )
    return rows_of(table, named, ~gone)


def _evaluated(
    parts: FormulaText,
    table: Any,
    likelihood: str,
    begin: tuple[float, float],
    y: Float64[np.ndarray, " n"],
) -> tuple[Coding, Coding, EffectLayout, Units]:
    """Codes both sides of the grouping term on the rows of the table, and lays their columns out."""
    family = LIKELIHOODS[likelihood]
    frame = read_frame(table, reading.predictors(parts), "table", len(y))
    common, X = code(parts.common, parts.text, frame)
    group, W = code(parts.group, parts.text, frame)
    check_design(parts, common, X, group, W, family)
    if family.support == "binary":
        _warn_of_separation(common.names, X, y)
    offset, rows = common.offset(frame), reading.labelled_groups({"X": X}, table, parts.by)
    middle = 0.0 if offset is None else float(offset.mean())
    names = (common.names, group.names)
    return common, group, *lay_out(names, X, W, rows, begin, middle, family.support == "levels")


def _parsed(text: str, by: str, likelihood: str) -> FormulaText:
    """A formula of one of the likelihood's parameters."""
    parts = parse_parameter(text, by)
    own = [name for name in LIKELIHOODS[likelihood].parameters if name != "cutpoints"]
    if parts.response not in own:
        takes = f"likelihood={likelihood!r} has {', '.join(own) or 'no parameters'}"
        what = f"expected a parameter of the likelihood before ~, got {parts.response!r}; {takes}"
        raise error(text, 0, what)
    return parts


def _evaluated_parameters(
    formulas: list[FormulaText], table: Any, y: Float64[np.ndarray, " n"], family: Likelihood
) -> tuple[ParameterFormula, ...]:
    """Codes the formulas of parameters on the rows of the table, and checks their columns."""
    names, found = [parts.response for parts in formulas], []
    for parts in formulas:
        if names.count(parts.response) > 1:
            raise error(parts.text, 0, f"{parts.response!r} has two formulas")
        frame = read_frame(table, reading.predictors(parts), "table", len(y))
        sd = float(np.std(y)) or 1.0
        shift = float(np.log(sd)) if parts.response in family.scaled else 0.0
        own, matrix = evaluate(parts, frame, shift)
        for coding, part in ((own.common, "common"), (own.group, "group")):
            _check_constant(coding, matrix[part])
            for name, column in zip(coding.names, matrix[part].T, strict=True):
                _check_scale(f'"{name}"', column)
        found.append(own)
    return tuple(found)


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
            f"likelihood={likelihood!r} is unknown; there are {known}. For another one write the "
            "model in NumPyro: rf.from_numpyro."
        )
    links = LIKELIHOODS[likelihood].links
    if link is not None and link not in links:
        takes = f"it takes {', '.join(links)}"
        raise ValueError(f"link={link!r} does not go with likelihood={likelihood!r}; {takes}.")
    return link or links[0]


def _check_columns(parts: FormulaText, table: Any, used: list[str]) -> None:
    """Raises if the table lacks a column that the formula names, or has no rows."""
    for name in [*used, parts.by]:
        try:
            columns_of(table, [name])
        except ValueError as problem:
            raise error(parts.text, name, str(problem).rstrip(".")) from None
    if parts.by in _OWN:
        what = "has the name of a column that the model makes: rename it."
        raise ValueError(f'the grouping column "{parts.by}" {what}')
    columns_of(table, [*dict.fromkeys([*used, parts.by])])  # of one length
    own = reading.response_columns(parts)
    if len(own) == 1 and own[0] in reading.predictors(parts):
        raise error(parts.text, own[0], f"the response {own[0]!r} can't be a predictor as well")
    if parts.by in used:
        what = f"the grouping column {parts.by!r} can't be a predictor or the response as well"
        raise error(parts.text, parts.by, what)
    if not n_rows(table, parts.by):
        raise ValueError("the table has no rows: expected one for each observation.")


def _check_several(parts: FormulaText, others: list[str], table: Any, missing: str) -> Any:
    """The same of a formula with several grouping terms; returns the table without missing values."""
    if others:
        what = "formulas of parameters are for models with one grouping factor; leave it out"
        raise FormulaError(f"formula: {what}: {others[0]}")
    if parts.cens is not None:
        raise error(parts.text, parts.cens, "cens() is for models with one grouping factor")
    factors = list(dict.fromkeys(c for term in parts.terms for c in term.columns))
    own = reading.response_columns(parts)
    used = [*own, *all_predictors(parts), *parts.extra, *factors]
    for name in used:
        try:
            columns_of(table, [name])
        except ValueError as problem:
            raise error(parts.text, name, str(problem).rstrip(".")) from None
    columns_of(table, [*dict.fromkeys(used)])  # of one length
    if len(own) == 1 and own[0] in [*all_predictors(parts), *factors]:
        raise error(parts.text, own[0], f"the response {own[0]!r} can't be a predictor as well")
    if not n_rows(table, factors[0]):
        raise ValueError("the table has no rows: expected one for each observation.")
    table = _without_missing(table, [*dict.fromkeys(used)], missing)
    if len(own) == 1:
        values = columns_of(table, own)[own[0]]
        if len(set(np.asarray(values).tolist())) == 1:
            what = "is the same in every row: there is nothing to explain."
            raise ValueError(f"the response {own[0]} {what}")
    return table


def _check_scale(title: str, column: Float[np.ndarray, " n"]) -> None:
    """Raises if single precision can't compute with values of this size."""
    low, high = (float(column.min()), float(column.max())) if len(column) else (0.0, 0.0)
    range_ = high / 2 - low / 2  # which does not overflow
    if range_ and not _SCALES[0] <= range_ <= _SCALES[1]:
        raise ValueError(
            f"{title} has values of very {'small' if range_ < 1 else 'large'} scale, from {low:.3g} to "
            f"{high:.3g}: choose units in which they are of the order of one."
        )


def check_design(
    parts: FormulaText,
    common: Coding,
    X: Matrix,
    group: Coding,
    W: Float[np.ndarray, "n M"],
    family: Likelihood,
) -> None:
    """Raises if no model can be made of these columns."""
    if not group.names:
        raise error(parts.text, parts.by, "nothing varies by group")
    if family.support == "levels" and "Intercept" not in common.names:
        what = "likelihood='ordered' has cutpoints in place of an intercept: leave the 0 out"
        raise error(parts.text, parts.text.find(parts.common), what)
    _check_constant(common, X)
    _check_constant(group, W)
    for name, column in [*zip(common.names, X.T, strict=True), *zip(group.names, W.T, strict=True)]:
        _check_scale(f'"{name}"', column)
    taken = {"sd", "cor", "effects", *family.parameters} & {*common.names}
    taken |= {"Intercept"} & {*common.kinds, *group.kinds}
    if taken:
        name = min(taken)
        raise ValueError(f'the predictor "{name}" has the name of a parameter: rename the column.')
    for name, column in zip(group.names, W.T, strict=True):
        if name != "Intercept" and abs(column.mean()) > _FAR * column.std() > 0:
            warnings.warn(
                f'"{name}" varies by group and is far from zero ({column.mean():.4g} on average, sd '
                f"{column.std():.2g}): its effect and the intercept can hardly be told apart; "
                f"write center({name}).",
                stacklevel=3,
            )


def _check_constant(coding: Coding, matrix: Matrix) -> None:
    message = '"{}" is constant ({} in every row), so {}: leave it out of the formula.'
    for component in components(coding.terms):
        if component.kind == "categoric" and len(component.levels) == 1:
            level, what = repr(component.levels[0]), "it has no effect to estimate"
            raise ValueError(message.format(component.name, level, what))
    for name, column in zip(coding.names, matrix.T, strict=True):
        if name != "Intercept" and "Intercept" in coding.names and np.ptp(column) == 0:
            what = "its effect can't be told from the intercept"
            raise ValueError(message.format(name, f"{column[0]:g}", what))


def _check_response(name: str, y: Float[np.ndarray, " n"]) -> None:
    """Raises if the response is constant, or too large or small to compute with."""
    _check_scale(f"the response {name}", y)
    if len(y) and np.ptp(y) == 0:
        what = f"is the same, {y[0]:g}, in every row: there is nothing to explain."
        hint = " Is the level misspelt?" if name.endswith("]") else ""
        raise ValueError(f"the response {name} {what}{hint}")


def _check_censoring(parts: FormulaText, likelihood: str, cens: np.ndarray | None) -> None:
    """Raises if responses are censored that can't be, or if all are."""
    if cens is None:
        return
    takes = [name for name, own in LIKELIHOODS.items() if own.log_survival is not None]
    if likelihood not in takes:
        what = f"cens({parts.cens}) is for likelihood={', '.join(map(repr, takes))}"
        raise error(parts.text, parts.cens or 0, f"{what}; this is {likelihood!r}")
    if cens.all():
        what = "says that all responses are censored: there is nothing to learn their size from."
        raise ValueError(f'column "{parts.cens}" {what}')


def _warn_of_separation(names: list[str], X: Matrix, y: Float[np.ndarray, " n"]) -> None:
    """Warns if predictors separate a binary response perfectly: only the prior then limits effects."""
    yes = y == 1
    own = [k for k, name in enumerate(names) if name != "Intercept"]
    for k in own:
        one, zero = X[yes, k], X[~yes, k]
        if zero.max() <= one.min() or one.max() <= zero.min():
            who = f'"{names[k]}" separates the response perfectly'
            break
    else:
        if not own or not _separable(X[:, own], yes):
            return
        who = "the predictors together separate the response perfectly"
    warnings.warn(
        f"{who}: the data set no limit to that effect, only its prior does. Leave it out, merge "
        "categories, or give it a prior of your own.",
        stacklevel=3,
    )


def _separable(X: Matrix, yes: Bool[np.ndarray, " n"]) -> bool:
    """Whether some linear combination of columns is >= 0 for every yes and <= 0 for every no.

    A linear program on some of the rows. Rows that its solution gets wrong are added, until there are
    none (separable) or no solution is left (not separable).
    """
    from scipy.optimize import linprog

    sd = X.std(0)
    scaled = (X - X.mean(0)) / np.where(sd > 0, sd, 1.0)
    signed = np.where(yes, 1.0, -1.0)[:, None] * np.column_stack([np.ones(len(X)), scaled])
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    for _ in range(20):
        A = signed[rows]
        limits = np.concatenate([np.zeros(len(A)), np.ones(len(A))])
        found = linprog(-A.sum(0), np.concatenate([-A, A]), limits, bounds=(None, None))
        if found.status != 0 or -found.fun < 1e-6:
            return False
        wrong = np.flatnonzero(signed @ found.x < -1e-7)
        if not len(wrong):
            return True
        rows = np.union1d(rows, wrong[:_ROWS])
    return False
