"""The likelihoods of formulas, in one table: to add one, add an entry to LIKELIHOODS.

An entry works on the scale that the model computes on: `eta` is the linear predictor, which for an
identity link is that of a standardised response (see `layout`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from ramify.models.parameters import Parameter, ordered, positive

Values = Mapping[str, Array]  # family parameters, and of a row its trials
BIG = 1e3  # stands for an infinite cutpoint: a logistic tail there is zero, and so is its slope

# The mean as a function of the linear predictor.
INVERSE: dict[str, Callable[[Array], Array]] = {
    "identity": lambda eta: eta,
    "log": jnp.exp,
    "logit": jax.nn.sigmoid,
    "probit": norm.cdf,
    "cloglog": lambda eta: -jnp.expm1(-jnp.exp(eta)),
}


def to_logits(link: str, eta: Array) -> Array:
    """The log odds of a probability that is given by another link, without forming it."""
    if link == "probit":
        return norm.logcdf(eta) - norm.logcdf(-eta)
    if link == "cloglog":
        hazard = jnp.exp(jnp.minimum(eta, 80.0))
        return jnp.log(-jnp.expm1(-hazard)) + hazard
    return eta


@dataclass(frozen=True)
class Likelihood:
    """What the rows of a formula are drawn from."""

    links: tuple[str, ...]  # the links it may have, the default first
    # Link, eta, family parameters, row -> a NumPyro distribution of the outcome.
    distribution: Callable[[str, Array, Values, Values], Any]
    # NumPy's generator, eta, its inverse link, family parameters and trials -> outcomes of many rows:
    # the same distribution, where nothing needs to be compiled for each of its methods.
    draw: Callable[[np.random.Generator, np.ndarray, np.ndarray, Mapping[str, Any]], np.ndarray]
    support: str = "real"  # what the response may be: or "binary", "count", "trials", "levels"
    # Name -> number of levels -> parameter.
    parameters: Mapping[str, Callable[[int], Parameter]] = field(default_factory=dict)
    # The same arguments -> log density of row["y"], where the distribution's is slower or less exact.
    log_prob: Callable[[str, Array, Values, Values], Array] | None = None
    scaled: tuple[str, ...] = ()  # which family parameters are in units of the response

    def log_density(self, link: str, eta: Array, family: Values, row: Values) -> Array:
        """Log density of one row's response."""
        if self.log_prob is not None:
            return self.log_prob(link, eta, family, row)
        return self.distribution(link, eta, family, row).log_prob(row["y"])


def _poisson(link: str, eta: Array, family: Values, row: Values) -> Array:
    y = row["y"]
    return y * eta - jnp.exp(eta) - gammaln(y + 1.0)


def _negative_binomial(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Of mean m and variance m + m^2 / shape."""
    y, shape = row["y"], family["shape"]
    log_total = jnp.logaddexp(eta, jnp.log(shape))
    counts = gammaln(y + shape) - gammaln(shape) - gammaln(y + 1.0)
    return counts + shape * (jnp.log(shape) - log_total) + y * (eta - log_total)


def _ordered(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log of sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), without cancellation."""
    cut = family["cutpoints"]
    ends = jnp.concatenate([jnp.full(1, -BIG, cut.dtype), cut, jnp.full(1, BIG, cut.dtype)])
    level = row["y"].astype(int)
    a, b = ends[level + 1] - eta, ends[level] - eta
    return jax.nn.log_sigmoid(a) + jax.nn.log_sigmoid(-b) + jnp.log1p(-jnp.exp(b - a))


def _draw_counts(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Poisson counts; of a mean so large that they need more than 32 bits, the largest of these."""
    most = np.iinfo(np.int32).max
    return np.minimum(rng.poisson(np.minimum(mean, 2.0 * most)), most)


LIKELIHOODS: dict[str, Likelihood] = {
    "gaussian": Likelihood(
        ("identity", "log"),
        lambda link, eta, family, row: dist.Normal(INVERSE[link](eta), family["sigma"]),
        lambda rng, eta, mean, own: rng.normal(mean, own["sigma"]),
        parameters={"sigma": lambda levels: positive()},
        scaled=("sigma",),
    ),
    "student_t": Likelihood(
        ("identity", "log"),
        lambda link, eta, family, row: dist.StudentT(
            family["nu"], INVERSE[link](eta), family["sigma"]
        ),
        lambda rng, eta, mean, own: mean + own["sigma"] * rng.standard_t(own["nu"], mean.shape),
        parameters={"sigma": lambda levels: positive(), "nu": lambda levels: positive()},
        scaled=("sigma",),
    ),
    "bernoulli": Likelihood(
        ("logit", "probit", "cloglog"),
        lambda link, eta, family, row: dist.Bernoulli(logits=to_logits(link, eta)),
        lambda rng, eta, mean, own: rng.random(mean.shape) < mean,
        support="binary",
    ),
    "binomial": Likelihood(
        ("logit", "probit", "cloglog"),
        # Whole numbers: NumPyro draws from no other number of trials.
        lambda link, eta, family, row: dist.Binomial(
            row["trials"].astype(jnp.result_type(int)), logits=to_logits(link, eta)
        ),
        lambda rng, eta, mean, own: rng.binomial(own["trials"].astype(np.int64), mean),
        support="trials",
    ),
    "poisson": Likelihood(
        ("log",),
        lambda link, eta, family, row: dist.Poisson(jnp.exp(eta)),
        lambda rng, eta, mean, own: _draw_counts(rng, mean),
        support="count",
        log_prob=_poisson,
    ),
    "negative_binomial": Likelihood(
        ("log",),
        lambda link, eta, family, row: dist.NegativeBinomial2(jnp.exp(eta), family["shape"]),
        lambda rng, eta, mean, own: _draw_counts(
            rng, rng.gamma(own["shape"], mean / own["shape"], mean.shape)
        ),
        support="count",
        parameters={"shape": lambda levels: positive()},
        log_prob=_negative_binomial,
    ),
    "ordered": Likelihood(
        ("logit",),
        lambda link, eta, family, row: dist.OrderedLogistic(eta, family["cutpoints"]),
        lambda rng, eta, mean, own: np.sum(rng.logistic(eta)[..., None] > own["cutpoints"], -1),
        support="levels",
        parameters={"cutpoints": lambda levels: ordered(levels - 1)},
        log_prob=_ordered,
    ),
}


def start(
    support: str, link: str, y: Float[np.ndarray, " n"], trials: np.ndarray | None
) -> tuple[float, float]:
    """A rough centre and unit of the linear predictor: mean and sd of y for an identity link.

    In these units every parameter is of the order of one, where a fit starts.
    """
    if link == "identity":
        sd = float(np.std(y))
        return float(np.mean(y)), sd if sd > 0 else 1.0
    if support == "levels":
        return 0.0, 1.0
    total = float(np.sum(trials)) if trials is not None else float(len(y))
    share = float(np.sum(y)) / max(total, 1.0)
    if link == "log":
        return float(np.log(max(share, 1e-3))), 1.0
    share = min(max(share, 1e-3), 1 - 1e-3)
    links = {
        "logit": lambda p: np.log(p) - np.log1p(-p),
        "probit": lambda p: NormalDist().inv_cdf(p),
        "cloglog": lambda p: np.log(-np.log1p(-p)),
    }
    return float(links[link](share)), 1.0
