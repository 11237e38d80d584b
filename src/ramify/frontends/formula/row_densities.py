"""Log densities of one row's response, where NumPyro's are slower, less exact or missing; draws by NumPy.

Every density takes the link, the linear predictor, the family parameters and the row, and reads row["y"];
`log_survival` of a likelihood takes the same, and is log P(outcome > y). `docs/formulas.md` has the
equations.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from jaxtyping import Array, Float

Values = Mapping[str, Array]  # family parameters, and of a row its trials
BIG = 1e3  # used for an infinite cutpoint: a logistic tail there is zero, and so is its slope
MOST = 2**31 - 1  # the largest count
TINY = 1e-30  # replaces a positive number that was rounded to zero
_HALF_MEAN = math.sqrt(2 / math.pi)  # the mean of |u|, u standard normal
_LARGE = 4.0  # beyond, five terms of Stirling's series are exact to 1e-9
_SERIES = 1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188  # of 1 / x, 1 / x^3, ...

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


def bernoulli(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log probability of 0 or 1; a third faster than with `log1p`, and as exact in sums over rows."""
    logits = to_logits(link, eta)
    own = jnp.where(row["y"] > 0, logits, -logits)
    # Below -30 it is linear to the last digit; `exp` does not overflow, and all derivatives are right.
    return jnp.minimum(own + 30.0, 0.0) - jnp.log(1.0 + jnp.exp(-jnp.maximum(own, -30.0)))


def log_odds(family: Values, name: str) -> Array:
    """The log odds of a parameter that is a probability: its linear predictor, if it has one."""
    own = f"{name}_link"
    return family[own] if own in family else jnp.log(family[name]) - jnp.log1p(-family[name])


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def stirling(x: Array, m: int = 0) -> Array:
    """The m-th derivative of log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2, for x > 0.

    Stirling's series for large x, without cancellation; for small x that of x + 4, by recurrence.
    Derivatives are written out: JAX's of `gammaln` are series that take minutes to compile.
    """
    small = jnp.minimum(x, _LARGE)
    y = jnp.where(x < _LARGE, small + _LARGE, x)
    # Derivatives of c y^-p; terms of higher order do not matter where y >= 4.
    rising = lambda p: math.prod(range(p, p + m)) * (-1) ** m
    series = sum(
        c * rising(p) * y ** -(p + m) for p, c in zip((1, 3, 5, 7, 9), _SERIES, strict=True)
    )
    logs = sum(_power(small + k, m) for k in range(int(_LARGE)))
    return series + jnp.where(x < _LARGE, _leading(y, m) - _leading(small, m) - logs, 0.0)


@stirling.defjvp
def _stirling_jvp(m: int, x: tuple[Array], dx: tuple[Array]) -> tuple[Array, Array]:
    return stirling(*x, m), stirling(*x, m + 1) * dx[0]


def _power(x: Array, m: int) -> Array:
    """The m-th derivative of log x."""
    return (-1) ** (m - 1) * math.factorial(m - 1) * x**-m if m else jnp.log(x)


def _leading(x: Array, m: int) -> Array:
    """The m-th derivative of (x - 1/2) log x - x."""
    if m == 0:
        return (x - 0.5) * jnp.log(x) - x
    return (jnp.log(x) if m == 1 else _power(x, m - 1)) - 0.5 * _power(x, m)


def log_gamma(x: Array) -> Array:
    """Log Gamma(x) for x > 0, with derivatives that compile fast."""
    return (x - 0.5) * jnp.log(x) - x + 0.5 * math.log(2 * math.pi) + stirling(x)


def log_rising(a: Array, n: Array) -> Array:
    """Log Gamma(a + n) - log Gamma(a), without cancellation for large a."""
    main = (a - 0.5) * jnp.log1p(n / a) + n * (jnp.log(a + n) - 1)
    return main + stirling(a + n) - stirling(a)


@jax.custom_jvp
def log_sigmoids(x: Array) -> tuple[Array, Array]:
    """Log sigmoid of x and of -x, in less time than JAX takes for one of them."""
    # log(1 + e) = 2 artanh(s), s = e / (2 + e) <= 1/3, by its series: exact for any e, without a log.
    e = jnp.exp(-jnp.abs(x))
    s, series = e / (2.0 + e), 0.0
    for k in reversed(range(8 if s.dtype == jnp.float32 else 17)):
        series = series * s**2 + 1 / (2 * k + 1)
    both = 2.0 * s * series
    return jnp.minimum(x, 0.0) - both, jnp.minimum(-x, 0.0) - both


@log_sigmoids.defjvp
def _log_sigmoids_jvp(x: tuple[Array], dx: tuple[Array]) -> tuple[Any, Any]:
    up, down = jax.nn.sigmoid(x[0]), jax.nn.sigmoid(-x[0])
    return log_sigmoids(*x), (down * dx[0], -up * dx[0])


# Counts.


def poisson(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A Poisson count of mean m = exp(eta)."""
    y = row["y"]
    return y * eta - jnp.exp(eta) - gammaln(y + 1.0)


def negative_binomial(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A negative binomial count of mean m and variance m + m^2 / shape."""
    y, shape = row["y"], family["shape"]
    counts = log_rising(shape, y) - gammaln(y + 1.0)
    more, less = log_sigmoids(eta - jnp.log(shape))
    return counts + y * more + shape * less


def log_zero_count(eta: Array, family: Values) -> Array:
    """Log P(0) of a Poisson or negative binomial count."""
    if "shape" not in family:
        return -jnp.exp(eta)
    return -family["shape"] * jax.nn.softplus(eta - jnp.log(family["shape"]))


def zero_inflated(count: Callable[..., Array]) -> Callable[..., Array]:
    """Zero with probability zi, else a count, which may be zero as well."""

    def density(link: str, eta: Array, family: Values, row: Values) -> Array:
        odds = log_odds(family, "zi")
        counted = jax.nn.log_sigmoid(-odds) + count(link, eta, family, row)
        return jnp.where(row["y"] == 0, jnp.logaddexp(jax.nn.log_sigmoid(odds), counted), counted)

    return density


def hurdle(count: Callable[..., Array]) -> Callable[..., Array]:
    """Zero with probability hu, else a count that is not zero."""

    def density(link: str, eta: Array, family: Values, row: Values) -> Array:
        odds = log_odds(family, "hu")
        positive = count(link, eta, family, {**row, "y": jnp.maximum(row["y"], 1)})
        positive -= log_some(eta, family)
        zero = row["y"] == 0
        return jnp.where(zero, jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds) + positive)

    return density


def log_some(eta: Array, family: Values) -> Array:
    """Log P(count > 0); for a Poisson count of small mean m it is log m - m / 2."""
    log_zero = log_zero_count(eta, family)
    rare = log_zero > -1e-6  # where exp(eta) may even be zero
    some = jnp.log(-jnp.expm1(jnp.where(rare, -1.0, log_zero)))
    return jnp.where(rare, eta, some)


def sample_hurdle(key: Any, link: str, eta: Array, family: Values, row: Values) -> Array:
    """A draw by JAX: zero, or the first event of a process on [0, 1] and those after it."""
    keys = jax.random.split(key, 4)
    first = jax.random.uniform(keys[0]) * -jnp.expm1(log_zero_count(eta, family))
    rate = jnp.exp(eta)
    if "shape" in family:
        shape = family["shape"]
        at = jnp.expm1(-jnp.log1p(-first) / shape) * shape / rate
        rate = jax.random.gamma(keys[1], shape + 1) / (shape / rate + at)
    else:
        at = -jnp.log1p(-first) / rate
    count = 1 + jax.random.poisson(keys[2], rate * jnp.clip(1 - at, 0, 1))
    return jnp.where(jax.random.uniform(keys[3]) < jax.nn.sigmoid(log_odds(family, "hu")), 0, count)


def draw_counts(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Poisson counts; of a mean so large that they need more than 32 bits, the largest of these."""
    return np.minimum(rng.poisson(np.minimum(mean, 2.0 * MOST)), MOST)


def draw_mixed(rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]) -> np.ndarray:
    """Poisson or, with a shape, negative binomial counts."""
    if "shape" in own:
        mean = rng.gamma(own["shape"], mean / own["shape"], mean.shape)
    return draw_counts(rng, mean)


def draw_zero_inflated(
    rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]
) -> np.ndarray:
    """Zero with probability zi, else a count, which may be zero as well."""
    return np.where(rng.random(mean.shape) < own["zi"], 0, draw_mixed(rng, mean, own))


def draw_hurdle(rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]) -> np.ndarray:
    """Zero with probability hu, else a count that is not zero.

    The count is the number of events of a process on [0, 1] at a constant rate, which is gamma
    distributed for a negative binomial: the time of the first event given that there is one, then the
    rate given that time, then the number of later events.
    """
    mean = np.maximum(mean, TINY)
    if "shape" in own:
        shape = own["shape"]
        some = -np.expm1(-shape * np.log1p(mean / shape))
        at = np.expm1(-np.log1p(-rng.random(mean.shape) * some) / shape) * shape / mean
        rate = rng.gamma(shape + 1, size=mean.shape) / (shape / mean + at)
    else:
        at = -np.log1p(rng.random(mean.shape) * np.expm1(-mean)) / mean
        rate = mean
    count = np.minimum(1 + draw_counts(rng, rate * np.clip(1 - at, 0, 1)), MOST)
    return np.where(rng.random(mean.shape) < own["hu"], 0, count)


def hurdle_mean(mean: Array, family: Values) -> Array:
    """(1 - hu) m / P(count > 0)."""
    eta = jnp.log(jnp.maximum(mean, TINY))
    return (1 - family["hu"]) * jnp.exp(eta - log_some(eta, family))


# Positive numbers; r = log(y / mean).


def gamma(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A gamma response of mean m and variance m^2 / shape."""
    log_y, shape = jnp.log(row["y"]), family["shape"]
    r = log_y - eta
    height = 0.5 * (jnp.log(shape) - math.log(2 * math.pi)) - stirling(shape)
    return height + shape * (r - jnp.expm1(r)) - log_y


def weibull(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A Weibull response of mean m: P(y > t) = exp(-(t Gamma(1 + 1 / shape) / m)^shape)."""
    log_y, shape = jnp.log(row["y"]), family["shape"]
    r = shape * (log_y - eta + log_gamma(1 + 1 / shape))
    return jnp.log(shape) - log_y + r - jnp.exp(r)


def weibull_survival(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log P(outcome > y)."""
    shape = family["shape"]
    return -jnp.exp(shape * (jnp.log(row["y"]) - eta + log_gamma(1 + 1 / shape)))


def exponential(link: str, eta: Array, family: Values, row: Values) -> Array:
    """An exponential response of mean m."""
    return -eta - row["y"] * jnp.exp(-eta)


def exponential_survival(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log P(outcome > y)."""
    return -row["y"] * jnp.exp(-eta)


def normal_survival(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log P(outcome > y) of a normal distribution."""
    return norm.logcdf((INVERSE[link](eta) - row["y"]) / family["sigma"])


def draw_weibull(rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]) -> np.ndarray:
    """Weibull draws of this mean and shape."""
    from scipy.special import gammaln

    scale = mean / np.exp(gammaln(1 + 1 / own["shape"]))
    return np.maximum(scale * rng.weibull(own["shape"], mean.shape), TINY)


# Numbers that are skewed.


def skew_scales(family: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns delta = alpha / sqrt(1 + alpha^2) and w = 1 / sqrt(1 - 2 delta^2 / pi).

    For u and v standard normal, y = m + sigma w (delta (|u| - sqrt(2 / pi)) + sqrt(1 - delta^2) v) has
    mean m, sd sigma and is skew normal.
    """
    delta = family["alpha"] * (1 + family["alpha"] ** 2) ** -0.5
    return delta, (1 - 2 / math.pi * delta**2) ** -0.5


def skew_normal(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Mean m and sd sigma: 2 N(r) Phi(alpha r) / (w sigma), r = (y - m) / (w sigma) + delta E|u|."""
    delta, w = skew_scales(family)
    unit = w * family["sigma"]
    r = (row["y"] - INVERSE[link](eta)) / unit + _HALF_MEAN * delta
    return math.log(2.0) - jnp.log(unit) + norm.logpdf(r) + norm.logcdf(family["alpha"] * r)


def _skewed(mean: Any, family: Mapping[str, Any], u: Any, v: Any) -> Any:
    """An outcome from two standard normal numbers."""
    delta, w = skew_scales(family)
    apart = delta * (abs(u) - _HALF_MEAN) + (1 - delta**2) ** 0.5 * v
    return mean + family["sigma"] * w * apart


def sample_skew_normal(key: Any, link: str, eta: Array, family: Values, row: Values) -> Array:
    """A draw by JAX."""
    return _skewed(INVERSE[link](eta), family, *jax.random.normal(key, (2,), eta.dtype))


def draw_skew_normal(
    rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]
) -> np.ndarray:
    """Skew normal draws of this mean, sd sigma and alpha."""
    return _skewed(mean, own, *rng.standard_normal((2, *mean.shape)))


# Proportions.


def beta(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A beta response of mean m and variance m (1 - m) / (1 + phi)."""
    a, b = _both(link, eta, family["phi"])
    y = row["y"]
    height = log_gamma(family["phi"]) - log_gamma(a) - log_gamma(b)
    return height + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)


def beta_binomial(link: str, eta: Array, family: Values, row: Values) -> Array:
    """A binomial whose probability is beta distributed, of mean m and precision phi."""
    a, b = _both(link, eta, family["phi"])
    y, n = row["y"], row["trials"]
    ways = gammaln(n + 1.0) - gammaln(y + 1.0) - gammaln(n - y + 1.0)
    return ways + log_rising(a, y) + log_rising(b, n - y) - log_rising(family["phi"], n)


def _both(link: str, eta: Array, phi: Array) -> tuple[Array, Array]:
    """The two shapes of a beta distribution."""
    odds = to_logits(link, eta)
    return phi * jax.nn.sigmoid(odds), phi * jax.nn.sigmoid(-odds)


def draw_beta(rng: np.random.Generator, mean: np.ndarray, own: Mapping[str, Any]) -> np.ndarray:
    """A draw within (0, 1), also where float64 or float32 would round to 0 or 1."""
    a, b = (np.maximum(own["phi"] * share, TINY) for share in (mean, 1 - mean))
    return np.clip(rng.beta(a, b), TINY, 1 - 2.0**-24)


# Levels.


def ordered(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log of sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), without cancellation."""
    cut = family["cutpoints"]
    ends = jnp.concatenate([jnp.full(1, -BIG, cut.dtype), cut, jnp.full(1, BIG, cut.dtype)])
    level = row["y"].astype(int)
    a, b = ends[level + 1] - eta, ends[level] - eta
    return jax.nn.log_sigmoid(a) + jax.nn.log_sigmoid(-b) + jnp.log1p(-jnp.exp(b - a))


def category_predictors(eta: Array, family: Values) -> Float[Array, " levels"]:
    """The linear predictors of all levels; that of the first, `eta`, has no effects."""
    return jnp.stack([eta, *(value for name, value in family.items() if name.endswith("_link"))])


def categorical(link: str, eta: Array, family: Values, row: Values) -> Array:
    """Log probability of a level: softmax of the linear predictors."""
    every = category_predictors(eta, family)
    own = jnp.arange(len(every)) == row["y"]
    return jnp.sum(jnp.where(own, every, 0.0)) - jax.nn.logsumexp(every)


def sample_categorical(key: Any, link: str, eta: Array, family: Values, row: Values) -> Array:
    """The number of a level."""
    return jax.random.categorical(key, category_predictors(eta, family))


def draw_categories(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Numbers of levels, from their probabilities [..., levels]."""
    below = rng.random(mean.shape[:-1])[..., None] > np.cumsum(mean, -1)[..., :-1]
    return np.sum(below, -1)
