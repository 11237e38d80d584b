"""Priors of a formula: weakly informative defaults scaled from the data, each replaceable.

The defaults are those that rstanarm documents (https://mc-stan.org/rstanarm/articles/priors.html)
for the effects and sigma, and Bambi's half-normal for the groups' sds; `docs/formulas.md` lists them.
"""

import ast
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial
from jaxtyping import Array, Float
from numpyro.distributions import constraints, truncated

from ramify.frontends.formula.formula import Formula
from ramify.frontends.formula.parameter_formulas import SHARES, ParameterFormula

# Places of a parameter's entries, () for all -> their log density, a tree with arrays.
Densities = dict[tuple[int, ...], Any]
POSITIVE = ("sd", "sigma", "nu", "shape", "phi")
_SMALL = 1e-30  # this number and its inverse are within the range of float32


class Priors(dict[str, Any]):
    """Name of a parameter -> its NumPyro distribution, on the user's scale.

    Example:
        >>> Priors({"x": dist.Normal(0, 2.5), "sigma": dist.Exponential(0.5)})
        x      Normal(0, 2.5)
        sigma  Exponential(0.5)
    """

    def __repr__(self) -> str:
        """One line for each parameter."""
        wide = max((len(name) for name in self), default=0)
        return "\n".join(f"{name:<{wide}}  {in_words(prior)}" for name, prior in self.items())


def in_words(prior: Any) -> str:
    """A distribution as text: `Normal(0, 2.5)`."""
    own = [_number(value) for _, value in _own(prior)]
    if _wraps(prior):
        own = [in_words(prior.base_dist), *(f"{n}={_number(v)}" for n, v in _own(prior))]
    return f"{type(prior).__name__}({', '.join(own)})"


def _wraps(prior: Any) -> bool:
    """Whether it is a truncated distribution."""
    return hasattr(truncated, type(prior).__name__) and hasattr(prior, "base_dist")


def _plain(prior: Any) -> bool:
    """Whether its name and parameters define it."""
    kind = type(prior)
    known = getattr(dist, kind.__name__, None) is kind and bool(kind.arg_constraints)
    return known and not _wraps(prior)


def _own(prior: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(prior, name)) for name in type(prior).arg_constraints]


def _number(value: Any) -> str:
    return f"{float(value):.4g}" if np.ndim(value) == 0 else str(np.asarray(value).tolist())


def sd_name(effect: str, by: str) -> str:
    """The name of a group sd: `sd(x | user)`."""
    return f"sd({effect} | {by})"


def defaults(formula: Formula, sd_y: float) -> Priors:
    """The default prior of every parameter, by its name in results; `sd_y` is the response's sd."""
    layout, units = formula.layout, formula.units
    spread = 2.5 * units.scale
    priors = Priors()
    if layout.intercept:
        middle = units.shift if formula.link in ("identity", "log") else 0.0
        priors["Intercept"] = dist.Normal(middle, spread)
    for name, unit in zip(layout.common, units.unit, strict=True):
        priors[name] = dist.Normal(0.0, spread / unit)
    for name, unit in zip(layout.group, units.group_unit, strict=True):
        priors[sd_name(name, formula.by)] = dist.HalfNormal(spread / unit)
    if not formula.parts.independent and len(layout.group) > 1:
        priors["cor"] = correlations(len(layout.group))
    parameters = formula.family.parameters
    priors |= {name: parameters[name].prior(sd_y) for name in formula.parameters}
    for own in formula.own:
        priors |= _parameter_defaults(own, formula.by)
    return priors


# Jitted as one program: NumPyro's constructor would compile a dozen, which takes a quarter of a second.
@partial(jax.jit, static_argnums=(0, 1))
def correlations(effects: int, concentration: float = 1.0) -> dist.LKJCholesky:
    """The LKJ prior of a correlation matrix; by default uniform over matrices."""
    return dist.LKJCholesky(effects, concentration)


def _parameter_defaults(own: ParameterFormula, by: str) -> dict[str, Any]:
    """The default priors of a parameter's formula: as for the mean's with the same link."""
    found: dict[str, Any] = {}
    if own.intercept:
        share = own.link == "logit"
        found[f"{own.name}_Intercept"] = (
            dist.Logistic(0.0, 1.0) if share else dist.Normal(own.shift, 2.5)
        )
    found |= {n: dist.Normal(0.0, 2.5 / u) for n, u in zip(own.effects, own.unit, strict=True)}
    for name, unit in zip(own.varying, own.group_unit, strict=True):
        found[sd_name(name, by)] = dist.HalfNormal(2.5 / unit)
    if own.correlated:
        found[f"{own.name}_cor"] = correlations(len(own.varying))
    return found


def priors_of(own: ParameterFormula, priors: Priors, by: str) -> list[tuple[str, Any]]:
    """The priors of a parameter's formula by their names in theta."""
    found: dict[str, Any] = {"intercept": priors[f"{own.name}_Intercept"]} if own.intercept else {}
    found |= {"b": [priors[name] for name in own.effects]} if own.effects else {}
    found |= {"sd": [priors[sd_name(name, by)] for name in own.varying]} if own.varying else {}
    found |= {"cor": priors[f"{own.name}_cor"]} if own.correlated else {}
    return [(f"{own.name}_{part}", prior) for part, prior in found.items()]


def replaced(priors: Priors, given: Mapping[str, Any], formula: Formula) -> Priors:
    """The default priors, replaced by the user's where given.

    A name may be that of one parameter, of a term with several columns, `b` for all common effects
    or `sd` for all group sds; the more specific name wins.
    """
    layout, new = formula.layout, Priors(priors)
    wide = {"b": layout.common, "sd": [sd_name(n, formula.by) for n in layout.group]}
    owners = dict(zip(formula.common.names, formula.common.owners, strict=True))
    wide |= {t: [n for n in layout.common if owners[n] == t] for t in owners.values()}
    sizes = {"cor": len(layout.group)}
    if formula.family.support == "categories":
        wide["b"] = [name for own in formula.own for name in own.effects]
        wide["sd"] = [sd_name(n, formula.by) for own in formula.own for n in own.varying]
    for own in formula.own:
        wide |= {f"{own.name}_b": own.effects}
        wide |= {f"{own.name}_sd": [sd_name(n, formula.by) for n in own.varying]}
        sizes |= {f"{own.name}_cor": len(own.varying)}
    for name in sorted(given, key=lambda n: (n in priors, n not in ("b", "sd"))):
        for target in [name] if name in priors else wide.get(name, []):
            new[target] = checked(name, target, given[name], sizes.get(target))
        if name not in priors and not wide.get(name):
            near = get_close_matches(name, [*priors, "b", "sd"], 2, 0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(
                f"priors names {name!r}, which is no parameter of this formula; there are "
                f"{', '.join(priors)} (b: all effects, sd: all group sds).{hint}"
            )
    return new


def checked(name: str, target: str, prior: Any, M: int | None) -> Any:
    """A user's prior; `M` is the size of a correlation matrix, if the target is one."""
    prior = from_text(name, prior) if isinstance(prior, str) else prior
    if not isinstance(prior, dist.Distribution):
        raise TypeError(
            f"priors[{name!r}] is a {type(prior).__name__}; expected a NumPyro distribution such as "
            "dist.Normal(0, 1), or text such as 'Normal(0, 1)'."
        )
    if M is not None:
        if not isinstance(prior, dist.LKJ | dist.LKJCholesky):
            raise TypeError(f"priors[{target!r}] must be a dist.LKJ or dist.LKJCholesky.")
        return correlations(M, float(np.asarray(prior.concentration)))
    if prior.batch_shape or prior.event_shape:
        raise ValueError(
            f"priors[{name!r}] has shape {list(prior.batch_shape + prior.event_shape)}; expected the "
            "distribution of one number, which serves for each."
        )
    _check_support(name, target, prior)
    return prior


def _check_support(name: str, target: str, prior: Any) -> None:
    """Raises unless the prior has a density on the parameter's whole range.

    Inside, a parameter is a real number or the logarithm of a positive one. If the density ended
    within that range, the fit would put mass beyond its end, or start there.
    """
    if target in SHARES:
        _check_share(name, target, prior)
        return
    positive = target in POSITIVE or target.startswith("sd(")
    support, what = prior.support, f"priors[{name!r}] = {in_words(prior)}"
    good = "dist.HalfNormal(1)" if positive else "dist.Normal(0, 1) or dist.StudentT(4, 0, 1)"
    if prior.is_discrete or isinstance(prior, dist.Delta):
        raise ValueError(f"{what} has no density; expected one such as {good}.")
    if positive and support is not None and bool(support(-_SMALL)):
        raise ValueError(
            f"{what} allows negative numbers; {target} is positive: use one such as {good}."
        )
    needed = (_SMALL, 1 / _SMALL) if positive else (-1 / _SMALL, -_SMALL, _SMALL, 1 / _SMALL)
    if support is not None and not all(bool(support(number)) for number in needed):
        raise ValueError(
            f"{what} allows {_range(support)} only; {target} may be any "
            f"{'positive' if positive else 'real'} number: use one such as {good}. For a parameter "
            "with bounds write the model in NumPyro, rf.from_numpyro."
        )


def _check_share(name: str, target: str, prior: Any) -> None:
    """Raises unless the prior has a density on (0, 1), and only there."""
    within, beyond = (1e-6, 0.5, 1 - 1e-6), (-0.5, 1.5)
    allows = lambda number: prior.support is None or bool(prior.support(number))
    if prior.is_discrete or not all(map(allows, within)) or any(map(allows, beyond)):
        raise ValueError(
            f"priors[{name!r}] = {in_words(prior)} is no density on the numbers from 0 to 1; {target} "
            "is a probability: use one such as dist.Beta(1, 1)."
        )


def _range(support: Any) -> str:
    """A support in words."""
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if low is None and high is None:
        return f"numbers of {support}"
    if low is None or high is None:
        return f"numbers below {_number(high)}" if low is None else f"numbers above {_number(low)}"
    return f"numbers from {_number(low)} to {_number(high)}"


class _Known(eqx.Module):
    """The log density of a distribution defined by its class and parameters, which are its leaves.

    NumPyro's distributions are trees too, but the order of their leaves is that of a set, so their
    programs may differ between processes.
    """

    kind: Any = eqx.field(static=True)
    parameters: dict[str, Any]  # arrays; of a truncated distribution also what is truncated
    fixed: tuple[tuple[str, int], ...] = eqx.field(static=True)  # other arguments of the class

    def distribution(self) -> Any:
        """The distribution itself."""
        whole = lambda x: x.distribution() if isinstance(x, _Known) else x
        own = {name: whole(x) for name, x in self.parameters.items()}
        return self.kind(**own, **dict(self.fixed))

    def __call__(self, value: Array) -> Array:
        return self.distribution().log_prob(value)


def _tree(prior: Any) -> Any:
    """The log density of a distribution: a tree if its kind is known, else a function (a leaf)."""
    if not _plain(prior.base_dist if _wraps(prior) else prior):
        return prior.log_prob
    parameters: dict[str, Any] = {name: _array(value) for name, value in _own(prior)}
    parameters |= {"base_dist": _tree(prior.base_dist)} if _wraps(prior) else {}
    fixed = (("dimension", prior.dimension),) if isinstance(prior, dist.LKJCholesky) else ()
    return _Known(type(prior), parameters, fixed)


def _array(numbers: Any) -> np.ndarray:
    """A NumPy array: NumPyro validates it without compiling a program."""
    return np.asarray(numbers, jnp.result_type(float))


def densities(priors: Any, away: float = 0.0) -> Densities:
    """The log density of a parameter less `away`, from one prior or from one for each of its entries.

    Priors of the same kind are stacked.
    """
    if not isinstance(priors, list):
        left, near = away_from(priors, away)
        return {(): Partial(_at, _tree(near), _array(left)) if left else _tree(near)}
    kinds: dict[Any, list[int]] = {}
    trees = [_tree(prior) for prior in priors]
    for i, tree in enumerate(trees):
        kinds.setdefault(jax.tree.structure(tree) if isinstance(tree, _Known) else i, []).append(i)
    stack = lambda *numbers: np.stack(numbers)
    many = lambda own: jax.tree.map(stack, *own) if isinstance(own[0], _Known) else own[0]
    return {tuple(places): many([trees[i] for i in places]) for places in kinds.values()}


def _at(density: Any, away: Any, value: Array) -> Array:
    return density(value + away)


def log_density(priors: Densities, values: Float[Array, "..."]) -> Float[Array, ""]:
    """The sum of log densities of a parameter's entries."""
    own = lambda places: values[np.array(places)] if places else values
    return sum((jnp.sum(of(own(places))) for places, of in priors.items()), jnp.zeros(()))


def away_from(prior: Any, by: float) -> tuple[float, Any]:
    """The shift that is left to apply, and the prior shifted by -`by` if it has a location."""
    own = dict(_own(prior)) if _plain(prior) else {}
    if not by or "loc" not in own or prior.support is not constraints.real:
        return by, prior
    return 0.0, type(prior)(**{**own, "loc": float(own["loc"]) - by})


def from_text(name: str, text: str) -> Any:
    """A prior from text such as `Normal(0, 2.5)` or `StudentT(3, loc=0, scale=1)`; calls nothing else."""
    what = f"priors[{name!r}] is {text!r}"
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        kind = call.func.id
        arguments = [float(ast.literal_eval(own)) for own in call.args]
        named = {str(own.arg): float(ast.literal_eval(own.value)) for own in call.keywords}
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError):
        raise ValueError(f"{what}; expected a distribution such as 'Normal(0, 2.5)'.") from None
    if kind in ("LKJ", "LKJCholesky"):  # the formula knows the dimension
        if {*named} - {"dimension", "concentration"} or len(arguments) + len(named) > 2:
            raise ValueError(f"{what}; expected the concentration alone, as in 'LKJ(2)'.")
        return dist.LKJCholesky(2, named.get("concentration", arguments[-1] if arguments else 1.0))
    known = [
        n for n in dist.__all__ if isinstance(own := getattr(dist, n), type) and own.arg_constraints
    ]
    if kind not in known:
        near = get_close_matches(kind, known, 2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"{what}; NumPyro has no such distribution of numbers.{hint}")
    try:
        getattr(dist, kind)(*arguments, **named, validate_args=True)
        return getattr(dist, kind)(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}, and NumPyro says: {error}") from None


def to_plain(prior: Any) -> dict[str, Any]:
    """A distribution as its name and parameters, for JSON."""
    kind = type(prior)
    if not _plain(prior) and not _wraps(prior):
        raise TypeError(
            f"a prior of type {kind.__name__} can't be saved; use one of NumPyro's distributions "
            "that has parameters of its own."
        )
    plain: dict[str, Any] = {n: np.asarray(v).tolist() for n, v in _own(prior)}
    if _wraps(prior):
        plain["base_dist"] = to_plain(prior.base_dist)
    if isinstance(prior, dist.LKJCholesky):
        plain["dimension"] = prior.dimension
    return {"distribution": kind.__name__, "parameters": plain}


def from_plain(plain: Mapping[str, Any]) -> Any:
    """The inverse of `to_plain`."""
    name, given = plain["distribution"], dict(plain["parameters"])
    kind = getattr(dist, name, None) or getattr(truncated, name, None)
    if not (isinstance(kind, type) and issubclass(kind, dist.Distribution)):
        raise ValueError(f"a saved prior is a {name!r}, which NumPyro does not have.")
    if "base_dist" in given:
        given["base_dist"] = from_plain(given["base_dist"])
    if kind is dist.LKJCholesky:
        return correlations(given["dimension"], given["concentration"])
    return kind(**given)
