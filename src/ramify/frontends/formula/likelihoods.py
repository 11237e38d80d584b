"""The likelihoods of formulas, in one table: to add one, add an entry to LIKELIHOODS.

An entry works on the scale that the model computes on: `eta` is the linear predictor. With an identity
link it is on the scale of the standardised response (see `formula`), or of the standardised logarithm of
the response if `of_log`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from statistics import NormalDist
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from ramify.frontends.formula import row_densities as rows
from ramify.frontends.formula.moments import Moments, moments
from ramify.frontends.formula.row_densities import INVERSE, TINY, Values, to_logits
from ramify.models.parameters import Parameter, ordered, positive, real, unit

Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray, Mapping[str, Any]], np.ndarray]


class FamilyParameter(NamedTuple):
    """A parameter of a likelihood other than its mean."""

    make: Callable[[int], Parameter]  # of the number of levels
    prior: Callable[[float], Any]  # the default, of the response's sd
    scaled: bool = False  # whether it is in units of the response


@dataclass(frozen=True)
class Likelihood:
    """The distribution of the rows of a formula."""

    links: tuple[str, ...]  # the links it may have, the default first
    # NumPy's generator, eta, its inverse link, family parameters and trials -> outcomes of many rows, of
    # the same distribution, without compiling.
    draw: Draw
    # Link, eta, family parameters, row -> a NumPyro distribution of the outcome, if NumPyro has it.
    distribution: Callable[[str, Array, Values, Values], Any] | None = None
    # What the response may be: "real", "positive", "unit", "binary", "count", "trials", "levels",
    # "categories", where each level except the first has its own formula.
    support: str = "real"
    parameters: Mapping[str, FamilyParameter] = field(default_factory=dict)
    # The same arguments -> log density of row["y"], where the distribution's is slower or less exact.
    log_prob: Callable[[str, Array, Values, Values], Array] | None = None
    # The same -> log P(outcome > row["y"]), for responses that may be right censored.
    log_survival: Callable[[str, Array, Values, Values], Array] | None = None
    # Key and the same -> an outcome of one row, where there is no distribution.
    sample: Callable[[Any, str, Array, Values, Values], Array] | None = None
    # Inverse link of eta, family parameters -> mean of the outcome, if it is not the inverse link.
    mean: Callable[[Array, Values], Array] | None = None
    of_log: bool = False  # whether it is the distribution of the response's logarithm

    @property
    def scaled(self) -> tuple[str, ...]:
        """Which family parameters are in units of the response."""
        return tuple(name for name, own in self.parameters.items() if own.scaled)

    @property
    def discrete(self) -> bool:
        """Whether outcomes are whole numbers."""
        return self.support not in ("real", "positive", "unit")

    def log_density(self, link: str, eta: Array, family: Values, row: Values) -> Array:
        """Log density of one row's response; where that is censored, log P(outcome > response)."""
        density = self.log_prob or self._by_distribution
        found = density(link, eta, family, row)
        if "cens" not in row:
            return found
        assert self.log_survival is not None  # reading has refused censoring otherwise
        return jnp.where(row["cens"] > 0, self.log_survival(link, eta, family, row), found)

    def _by_distribution(self, link: str, eta: Array, family: Values, row: Values) -> Array:
        assert self.distribution is not None
        return self.distribution(link, eta, family, row).log_prob(row["y"])

    def simulate(self, key: Any, link: str, eta: Array, family: Values, row: Values) -> Array:
        """A new outcome of one row, by JAX."""
        if self.sample is not None:
            return self.sample(key, link, eta, family, row)
        assert self.distribution is not None
        return self.distribution(link, eta, family, row).sample(key)


_positive = lambda levels: positive()
# Bambi's wide prior: shapes and precisions may be large, and the data tell how large.
_wide = FamilyParameter(_positive, lambda sd: dist.HalfCauchy(1.0))
SIGMA = {"sigma": FamilyParameter(_positive, lambda sd: dist.Exponential(1.0 / sd), scaled=True)}
NU = {"nu": FamilyParameter(_positive, lambda sd: dist.Gamma(2.0, 0.1))}
# The prior of brms: the skewness is within -0.99 to 0.99 of the largest possible.
ALPHA = {"alpha": FamilyParameter(lambda levels: real(), lambda sd: dist.Normal(0.0, 4.0))}
COUNT_SHAPE = {"shape": FamilyParameter(_positive, lambda sd: dist.Exponential(1.0))}
SHAPE, PHI = {"shape": _wide}, {"phi": _wide}
_share = FamilyParameter(lambda levels: unit(), lambda sd: dist.Beta(1.0, 1.0))
ZI, HU = {"zi": _share}, {"hu": _share}
CUTPOINTS = {
    "cutpoints": FamilyParameter(lambda levels: ordered(levels - 1), lambda sd: dist.Normal(0, 2.5))
}


def _beta_shapes(link: str, eta: Array, family: Values) -> tuple[Array, Array]:
    share = INVERSE[link](eta)
    return share * family["phi"], (1 - share) * family["phi"]


def _whole(trials: Array) -> Array:
    """Whole numbers: NumPyro draws from no other number of trials."""
    return trials.astype(jnp.result_type(int))


LIKELIHOODS: dict[str, Likelihood] = {
    "gaussian": Likelihood(
        ("identity", "log"),
        lambda rng, eta, mean, own: rng.normal(mean, own["sigma"]),
        lambda link, eta, family, row: dist.Normal(INVERSE[link](eta), family["sigma"]),
        parameters=SIGMA,
        log_survival=rows.normal_survival,
    ),
    "student_t": Likelihood(
        ("identity", "log"),
        lambda rng, eta, mean, own: mean + own["sigma"] * rng.standard_t(own["nu"], mean.shape),
        lambda link, eta, family, row: dist.StudentT(
            family["nu"], INVERSE[link](eta), family["sigma"]
        ),
        parameters=SIGMA | NU,
    ),
    "skew_normal": Likelihood(
        ("identity", "log"),
        lambda rng, eta, mean, own: rows.draw_skew_normal(rng, mean, own),
        parameters=SIGMA | ALPHA,
        log_prob=rows.skew_normal,
        sample=rows.sample_skew_normal,
    ),
    "lognormal": Likelihood(
        ("identity",),
        lambda rng, eta, mean, own: rng.normal(mean, own["sigma"]),
        lambda link, eta, family, row: dist.Normal(eta, family["sigma"]),
        support="positive",
        parameters=SIGMA,
        log_survival=rows.normal_survival,
        of_log=True,
    ),
    "gamma": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: np.maximum(
            rng.gamma(own["shape"], mean / own["shape"], mean.shape), TINY
        ),
        lambda link, eta, family, row: dist.Gamma(family["shape"], family["shape"] * jnp.exp(-eta)),
        support="positive",
        parameters=SHAPE,
        log_prob=rows.gamma,
    ),
    "exponential": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: np.maximum(rng.exponential(mean), TINY),
        lambda link, eta, family, row: dist.Exponential(jnp.exp(-eta)),
        support="positive",
        log_prob=rows.exponential,
        log_survival=rows.exponential_survival,
    ),
    "weibull": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_weibull(rng, mean, own),
        lambda link, eta, family, row: dist.Weibull(
            jnp.exp(eta - gammaln(1 + 1 / family["shape"])), family["shape"]
        ),
        support="positive",
        parameters=SHAPE,
        log_prob=rows.weibull,
        log_survival=rows.weibull_survival,
    ),
    "beta": Likelihood(
        ("logit", "probit", "cloglog"),
        lambda rng, eta, mean, own: rows.draw_beta(rng, mean, own),
        lambda link, eta, family, row: dist.Beta(*_beta_shapes(link, eta, family)),
        support="unit",
        parameters=PHI,
        log_prob=rows.beta,
    ),
    "bernoulli": Likelihood(
        ("logit", "probit", "cloglog"),
        lambda rng, eta, mean, own: rng.random(mean.shape) < mean,
        lambda link, eta, family, row: dist.Bernoulli(logits=to_logits(link, eta)),
        support="binary",
        log_prob=rows.bernoulli,
    ),
    "binomial": Likelihood(
        ("logit", "probit", "cloglog"),
        lambda rng, eta, mean, own: rng.binomial(own["trials"].astype(np.int64), mean),
        lambda link, eta, family, row: dist.Binomial(
            _whole(row["trials"]), logits=to_logits(link, eta)
        ),
        support="trials",
    ),
    "beta_binomial": Likelihood(
        ("logit", "probit", "cloglog"),
        lambda rng, eta, mean, own: rng.binomial(
            own["trials"].astype(np.int64), rows.draw_beta(rng, mean, own)
        ),
        lambda link, eta, family, row: dist.BetaBinomial(
            *_beta_shapes(link, eta, family), _whole(row["trials"])
        ),
        support="trials",
        parameters=PHI,
        log_prob=rows.beta_binomial,
    ),
    "poisson": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_mixed(rng, mean, own),
        lambda link, eta, family, row: dist.Poisson(jnp.exp(eta)),
        support="count",
        log_prob=rows.poisson,
    ),
    "negative_binomial": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_mixed(rng, mean, own),
        lambda link, eta, family, row: dist.NegativeBinomial2(jnp.exp(eta), family["shape"]),
        support="count",
        parameters=COUNT_SHAPE,
        log_prob=rows.negative_binomial,
    ),
    "zero_inflated_poisson": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_zero_inflated(rng, mean, own),
        lambda link, eta, family, row: dist.ZeroInflatedPoisson(family["zi"], jnp.exp(eta)),
        support="count",
        parameters=ZI,
        log_prob=rows.zero_inflated(rows.poisson),
        mean=lambda mean, family: (1 - family["zi"]) * mean,
    ),
    "zero_inflated_negative_binomial": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_zero_inflated(rng, mean, own),
        lambda link, eta, family, row: dist.ZeroInflatedNegativeBinomial2(
            jnp.exp(eta), family["shape"], gate=family["zi"]
        ),
        support="count",
        parameters=COUNT_SHAPE | ZI,
        log_prob=rows.zero_inflated(rows.negative_binomial),
        mean=lambda mean, family: (1 - family["zi"]) * mean,
    ),
    "hurdle_poisson": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_hurdle(rng, mean, own),
        support="count",
        parameters=HU,
        log_prob=rows.hurdle(rows.poisson),
        sample=rows.sample_hurdle,
        mean=rows.hurdle_mean,
    ),
    "hurdle_negative_binomial": Likelihood(
        ("log",),
        lambda rng, eta, mean, own: rows.draw_hurdle(rng, mean, own),
        support="count",
        parameters=COUNT_SHAPE | HU,
        log_prob=rows.hurdle(rows.negative_binomial),
        sample=rows.sample_hurdle,
        mean=rows.hurdle_mean,
    ),
    "categorical": Likelihood(
        ("logit",),
        lambda rng, eta, mean, own: rows.draw_categories(rng, mean),
        support="categories",
        log_prob=rows.categorical,
        sample=rows.sample_categorical,
    ),
    "ordered": Likelihood(
        ("logit",),
        lambda rng, eta, mean, own: np.sum(rng.logistic(eta)[..., None] > own["cutpoints"], -1),
        lambda link, eta, family, row: dist.OrderedLogistic(eta, family["cutpoints"]),
        support="levels",
        parameters=CUTPOINTS,
        log_prob=rows.ordered,
    ),
}


# Names of brms and Bambi that differ from ours.
ELSEWHERE = {
    "normal": "gaussian",
    "student": "student_t",
    "t": "student_t",
    "negbinomial": "negative_binomial",
    "cumulative": "ordered",
    "logistic": "bernoulli",
    "multinomial": "categorical",
}


def likely(name: str) -> str:
    """A sentence that suggests the likelihood meant by an unknown name; "" if none is similar.

    Example:
        >>> likely("Negbinomial"), likely("SkewNormal"), likely("tweedie")
        (' Did you mean "negative_binomial"?', ' Did you mean "skew_normal"?', '')
    """
    plain = lambda text: str(text).lower().replace("_", "").replace(" ", "")
    known = {plain(own): own for own in LIKELIHOODS} | ELSEWHERE
    near = get_close_matches(plain(name), known, 1, 0.8)
    return f' Did you mean "{known[near[0]]}"?' if near else ""


def start(
    support: str, link: str, y: Float[np.ndarray, " n"], trials: np.ndarray | None
) -> tuple[float, float]:
    """`centre_and_unit` of these outcomes."""
    total = None if trials is None else float(np.sum(trials))
    return centre_and_unit(support, link, moments(y), total)


def centre_and_unit(
    support: str, link: str, y: Moments, trials: float | None
) -> tuple[float, float]:
    """A rough centre and unit of the linear predictor: mean and sd of y for an identity link.

    In these units every parameter is of the order of one, where a fit starts. `trials` is their total.
    """
    if link == "identity":
        sd = float(y.sd)
        return float(y.mean), sd if sd > 0 else 1.0
    if support in ("levels", "categories"):
        return 0.0, 1.0
    total = float(y.n) if trials is None else trials
    share = float(y.mean * y.n) / max(total, 1.0)
    if link == "log":
        return float(np.log(max(share, TINY if support == "positive" else 1e-3))), 1.0
    share = min(max(share, 1e-3), 1 - 1e-3)
    links = {
        "logit": lambda p: np.log(p) - np.log1p(-p),
        "probit": lambda p: NormalDist().inv_cdf(p),
        "cloglog": lambda p: np.log(-np.log1p(-p)),
    }
    return float(links[link](share)), 1.0
