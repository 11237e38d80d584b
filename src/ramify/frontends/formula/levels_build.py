"""From a formula with several grouping terms and a table to a model and its data."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpyro.distributions as dist

from ramify.data.groups import Groups
from ramify.data.levels import check_factors, integrated_factor, levels_of
from ramify.data.tables import columns_of, kind_of_table, n_rows, zone_of
from ramify.frontends.formula import reading
from ramify.frontends.formula.design import Coding, code
from ramify.frontends.formula.frame import read_frame
from ramify.frontends.formula.levels_formula import CommonUnits, LevelsFormula, TermSpec
from ramify.frontends.formula.levels_model import (
    LevelsFormulaModel,
    cor_names,
    term_sds,
)
from ramify.frontends.formula.levels_reading import predictors, read_groups
from ramify.frontends.formula.likelihoods import LIKELIHOODS, start
from ramify.frontends.formula.moments import moments
from ramify.frontends.formula.priors import Priors, checked, correlations
from ramify.frontends.formula.text import FormulaText, error

# Likelihoods whose rows have noise of their own.
NOISY = "gaussian student_t skew_normal lognormal gamma exponential weibull beta".split()
NOISY += ["bernoulli", "ordered"]


def from_terms(
    parts: FormulaText,
    table: Any,
    likelihood: str,
    link: str,
    priors: Mapping[str, Any],
    check: Callable[..., None],
    integrate: str | None = None,
) -> tuple[LevelsFormulaModel, Groups]:
    """The model and the data of a formula with several grouping terms.

    `check` raises if no model can be made of the columns of the common effects and of one term;
    `integrate` names the factor to integrate out.
    """
    columns = list(dict.fromkeys(c for term in parts.terms for c in term.columns))
    n = n_rows(table, columns[0])
    extra = reading.read_extra(parts, table, n, "table")
    support = LIKELIHOODS[likelihood].support
    own = support, likelihood, None, extra.get("trials"), "table"
    y, levels = reading.read_response(parts, table, *own)
    raw = columns_of(table, columns)
    distinct = list(dict.fromkeys(term.columns for term in parts.terms))
    factors = [levels_of(own, raw, _zone(table, own)) for own in distinct]
    codes = [factor.codes(raw, n, "table") for factor in factors]
    notes = check_factors(factors, codes, likelihood in NOISY)
    frame = read_frame(table, predictors(parts), "table", n)
    common, X = code(parts.common, parts.text, frame)
    if support == "levels" and "Intercept" not in common.names:
        what = "likelihood='ordered' has cutpoints in place of an intercept: leave the 0 out"
        raise error(parts.text, parts.text.find(parts.common), what)
    y = np.log(y) if LIKELIHOODS[likelihood].of_log else y
    begin = start(support, link, y, extra.get("trials"))
    offset = common.offset(frame)
    middle = 0.0 if offset is None else float(offset.mean())
    units = _units(common, X, begin, middle, support == "levels")
    for term in parts.terms:
        own = parts._replace(terms=(term,))
        varying, W = code(term.group, parts.text, frame)
        check(own, common, moments(X), varying, moments(W), LIKELIHOODS[likelihood])
    terms = _terms(parts, distinct, frame, units)
    formula = LevelsFormula(
        parts,
        likelihood,
        link,
        common,
        terms,
        tuple(factors),
        integrated_factor(factors, integrate, "formula"),
        units,
        levels,
        kind_of_table(table),
    )
    _check_twice(formula)
    chosen = replaced(defaults(formula, float(np.std(y)) or 1.0), priors, formula)
    model = LevelsFormulaModel(formula, chosen, notes)
    model.table = columns_of(table, [*dict.fromkeys([*columns, *predictors(parts), *parts.extra])])
    return model, read_groups(formula, table, "table")


def _zone(table: Any, columns: tuple[str, ...]) -> str | None:
    return zone_of(table, columns[0]) if len(columns) == 1 else None


def _units(
    common: Coding, X: np.ndarray, begin: tuple[float, float], middle: float, cutpoints: bool
) -> CommonUnits:
    intercept = "Intercept" in common.names
    free = intercept and not cutpoints
    own = [i for i, name in enumerate(common.names) if name != "Intercept"]
    x = X[:, own]
    sd = x.std(0)
    return CommonUnits(
        tuple(common.names[i] for i in own),
        free,
        tuple(map(float, x.mean(0) if intercept else np.zeros(len(own)))),
        tuple(map(float, np.where(sd > 0, sd, 1.0))),
        begin[0] - middle if free else 0.0,
        begin[1],
        middle if free else 0.0,
    )


def _terms(
    parts: FormulaText, factors: list[tuple[str, ...]], frame: Any, units: CommonUnits
) -> tuple[TermSpec, ...]:
    found = []
    for term in parts.terms:
        coding, W = code(term.group, parts.text, frame)
        if not coding.names:
            raise error(parts.text, term.columns[0], "nothing varies by group")
        sd = W.std(0)
        unit = [
            units.unit[units.names.index(name)] if name in units.names else float(s) or 1.0
            for name, s in zip(coding.names, sd, strict=True)
        ]
        correlated = not term.independent and len(coding.names) > 1
        found.append(TermSpec(coding, factors.index(term.columns), correlated, tuple(unit)))
    return tuple(found)


def _check_twice(formula: LevelsFormula) -> None:
    seen: set[str] = set()
    for t in range(len(formula.terms)):
        for name in term_sds(formula, t):
            if name in seen:
                effect = name.removeprefix("sd(").removesuffix(")")
                raise error(
                    formula.parts.text,
                    formula.factors[formula.terms[t].factor].columns[0],
                    f"({effect}) is in two terms: leave one of them out, as in (1 | g) + (0 + x | g)",
                )
            seen.add(name)


def defaults(formula: LevelsFormula, sd_y: float) -> Priors:
    """The default prior of every parameter, by its name in results; `sd_y` is the response's sd."""
    units, spread, priors = formula.units, 2.5 * formula.units.scale, Priors()
    if units.intercept:
        middle = units.shift if formula.link in ("identity", "log") else 0.0
        priors["Intercept"] = dist.Normal(middle, spread)
    for name, unit in zip(units.names, units.unit, strict=True):
        priors[name] = dist.Normal(0.0, spread / unit)
    for t, term in enumerate(formula.terms):
        for name, unit in zip(term_sds(formula, t), term.unit, strict=True):
            priors[name] = dist.HalfNormal(spread / unit)
    for t, name in cor_names(formula).items():
        priors[name] = correlations(len(formula.terms[t].effects))
    own = {name: parameter.prior(sd_y) for name, parameter in formula.family.parameters.items()}
    return Priors({**priors, **own})


def replaced(priors: Priors, given: Mapping[str, Any], formula: LevelsFormula) -> Priors:
    """The priors with the user's in place of defaults; the narrower name wins.

    `b` names all common effects, `sd` all sds, `sd(movie)` those of a factor, `cor` all correlations.
    """
    new, correlations = Priors(priors), cor_names(formula)
    sds = {t: term_sds(formula, t) for t in range(len(formula.terms))}
    wide: dict[str, list[str]] = {
        "b": list(formula.units.names),
        "cor": list(correlations.values()),
    }
    wide["sd"] = [name for own in sds.values() for name in own]
    for t, own in sds.items():
        wide.setdefault(f"sd({formula.factors[formula.terms[t].factor].name})", []).extend(own)
    owners = dict(zip(formula.common.names, formula.common.owners, strict=True))
    wide |= {o: [n for n in formula.units.names if owners[n] == o] for o in owners.values()}
    sizes = {name: len(formula.terms[t].effects) for t, name in correlations.items()}
    order = lambda n: (n in priors, n not in ("b", "sd", "cor"))
    for name in sorted(given, key=order):
        for target in [name] if name in priors else wide.get(name, []):
            new[target] = checked(name, target, given[name], sizes.get(target))
        if name not in priors and not wide.get(name):
            near = get_close_matches(name, [*priors, *wide], 2, 0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(
                f"priors names {name!r}, which is no parameter of this formula; there are "
                f"{', '.join(priors)} (b: all effects, sd: all sds, sd(g): those of factor g, cor: all "
                f"correlations).{hint}"
            )
    return new
