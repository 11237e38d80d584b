"""NumPyro models as users write them, with data: every way of saying things that must be understood.

Each case is a function that makes (model, table, names of row columns, names of group columns); the
label column is always "group", so models take `group` and `n_group`.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from numpyro_case import Case, count, own, positive, real, table

sample, plate, deterministic = numpyro.sample, numpyro.plate, numpyro.deterministic


def _schools(error, y=None, *, group, n_group):
    mu = sample("mu", dist.Normal(0, 5))
    tau = sample("tau", dist.HalfCauchy(5))
    with plate("groups", n_group):
        effect = sample("effect", dist.Normal(mu, tau))
    with plate("rows", error.shape[0]):
        sample("y", dist.Normal(effect[group], error), obs=y)


SCHOOLS = {
    "group": np.arange(8),
    "y": np.array([28.0, 8, -3, 7, -1, 1, 18, 12]),
    "error": np.array([15.0, 10, 16, 11, 9, 11, 10, 18]),
}


def eight_schools():
    return Case(_schools, SCHOOLS, ("error", "y"))


def eight_schools_non_centred():
    """Taken as it is written; `from_numpyro` centres it otherwise."""
    model = handlers.reparam(_schools, config={"effect": LocScaleReparam(0)})
    return Case(model, SCHOOLS, ("error", "y"), options={"centre": False})


def eight_schools_in_one_plate():
    """As the NumPyro manual has it: no group numbers, since every group is one row."""

    def model(error, y=None):
        mu = sample("mu", dist.Normal(0, 5))
        tau = sample("tau", dist.HalfCauchy(5))
        with plate("J", len(error)):
            effect = sample("effect", dist.Normal(mu, tau))
            sample("obs", dist.Normal(effect, error), obs=y)

    return Case(model, SCHOOLS, ("error", "y"))


def radon():
    def model(floor, y=None, *, uranium, group, n_group):
        gamma = sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1))
        slope = sample("slope", dist.Normal(0, 2))
        sigma = sample("sigma", dist.HalfNormal(2))
        with plate("counties", n_group):
            a = sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau))
        with plate("houses", floor.shape[0]):
            sample("y", dist.Normal(a[group] + slope * floor, sigma), obs=y)

    return Case(model, table(floor=count(2), y=real(), uranium=own()), ("floor", "y"), ("uranium",))


def radon_uranium_in_the_rows():
    """The county's covariate is looked up by each house."""

    def model(floor, y=None, *, uranium, group, n_group):
        gamma = sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1))
        with plate("counties", n_group):
            a = sample("a", dist.Normal(0, tau))
        mean = gamma[0] + gamma[1] * uranium[group] + a[group] - 0.7 * floor
        sample("y", dist.Normal(mean, 1.0), obs=y)

    return Case(model, table(floor=count(2), y=real(), uranium=own()), ("floor", "y"), ("uranium",))


def movielens():
    def model(x, y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1).expand([5]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1).expand([5]).to_event(1))
        with plate("users", n_group):
            beta = sample("beta", dist.Normal(mu, tau).to_event(1))
        with plate("rows", x.shape[0]):
            sample("y", dist.Bernoulli(logits=(x * beta[group]).sum(-1)), obs=y)

    return Case(model, table(x=real(5), y=count(2)), ("x", "y"))


def poisson_exposure():
    def model(x, exposure, y=None, *, group, n_group):
        mu, slope = sample("mu", dist.Normal(0, 2)), sample("slope", dist.Normal(0, 1))
        tau = sample("tau", dist.Exponential(1.0))
        with plate("groups", n_group):
            a = sample("a", dist.StudentT(4.0, mu, tau))
        with plate("rows", x.shape[0]):
            sample("y", dist.Poisson(exposure * jnp.exp(a[group] + slope * x)), obs=y)

    return Case(model, table(x=real(), exposure=positive, y=count(6)), ("x", "exposure", "y"))


def lkj_slopes():
    def model(x, y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1).expand([3]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1).expand([3]).to_event(1))
        chol = sample("chol", dist.LKJCholesky(3, 2.0))
        sigma = sample("sigma", dist.HalfNormal(1))
        with plate("groups", n_group):
            factor = tau[:, None] * chol
            beta = sample("beta", dist.MultivariateNormal(mu, scale_tril=factor))
        with plate("rows", x.shape[0]):
            sample("y", dist.Normal((x * beta[group]).sum(-1), sigma), obs=y)

    return Case(model, table(x=real(3), y=real()), ("x", "y"))


def lkj_non_centred():
    """The Cholesky factor times standard normals: theta is in the likelihood."""

    def model(x, y=None, *, group, n_group):
        tau = sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
        chol = sample("chol", dist.LKJCholesky(2, 1.0))
        with plate("groups", n_group):
            eps = sample("eps", dist.Normal(0, 1).expand([2]).to_event(1))
            beta = deterministic("beta", eps @ (tau[:, None] * chol).T)
        deterministic("corr", chol @ chol.T)
        mean = deterministic("mean", beta[group, 0] + beta[group, 1] * x)
        with plate("rows", x.shape[0]):
            sample("y", dist.Normal(mean, 0.5), obs=y)

    return Case(model, table(x=real(), y=real()), ("x", "y"))


def student_t():
    def model(x, y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
        tau = sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
        nu, sigma = sample("nu", dist.Gamma(2.0, 0.1)), sample("sigma", dist.HalfNormal(1))
        with plate("groups", n_group):
            beta = sample("beta", dist.Normal(mu, tau).to_event(1))
        with plate("rows", x.shape[0]):
            mean = beta[group, 0] + beta[group, 1] * x
            sample("y", dist.StudentT(nu, mean, sigma), obs=y)

    return Case(model, table(x=real(), y=real()), ("x", "y"))


def two_outcomes():
    """A hurdle: whether something was bought, and for how much."""

    def model(x, bought=None, spent=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        sigma = sample("sigma", dist.HalfNormal(1))
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, 1).to_event(1))
        with plate("rows", x.shape[0]):
            happened = sample("bought", dist.Bernoulli(logits=a[group, 0] + x), obs=bought)
            with handlers.mask(mask=happened == 1):
                sample("spent", dist.LogNormal(a[group, 1], sigma), obs=spent)

    columns = {"x": real(), "bought": count(2), "spent": positive}
    return Case(model, table(**columns), tuple(columns), options={"outcome": "spent"})


def item_response():
    """2PL: abilities are the groups', discrimination and difficulty belong to the items."""

    def model(item, y=None, *, group, n_group, n_item=4):
        spread = sample("spread", dist.LogNormal(0, 0.5))
        with plate("items", n_item):
            discrimination = sample("discrimination", dist.LogNormal(0, 0.5))
            difficulty = sample("difficulty", dist.Normal(0, spread))
        with plate("persons", n_group):
            ability = sample("ability", dist.Normal(0, 1))
        with plate("answers", item.shape[0]):
            logits = discrimination[item] * (ability[group] - difficulty[item])
            sample("y", dist.Bernoulli(logits=logits), obs=y)

    return Case(model, table(item=count(4), y=count(2)), ("item", "y"))


def factors_everywhere():
    """A soft constraint on theta, one on each group, and a censored likelihood by hand."""

    def model(y, censored, *, bound, group, n_group):
        mu, tau = sample("mu", dist.Normal(0, 1)), sample("tau", dist.HalfNormal(1))
        numpyro.factor("weak", -0.1 * mu**4)
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, tau))
            numpyro.factor("soft", -jnp.square(a - bound))
        cloud = dist.Normal(a[group], 1.0)
        tail = jnp.log1p(-cloud.cdf(y) + 1e-6)
        numpyro.factor("y", jnp.where(censored == 1, tail, cloud.log_prob(y)))

    columns = {"y": real(), "censored": count(2), "bound": own()}
    return Case(model, table(**columns), ("y", "censored"), ("bound",))


def masks_and_scales():
    def model(x, weight, missing, y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1))
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, 1))
        with plate("rows", x.shape[0]), handlers.scale(scale=weight):
            sample("y", dist.Normal(a[group] + x, 1.0).mask(missing == 0), obs=y)

    columns = {"x": real(), "weight": positive, "missing": count(2), "y": real()}
    return Case(model, table(**columns), tuple(columns))


def observed_group():
    """A noisy measurement of the group itself, and rows."""

    def model(y=None, *, measured, group, n_group):
        mu, tau = sample("mu", dist.Normal(0, 1)), sample("tau", dist.HalfNormal(1))
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, tau))
            sample("measured", dist.Normal(a, 0.3), obs=measured)
        with plate("rows", len(group)):
            sample("y", dist.Laplace(a[group], 1.0), obs=y)

    return Case(model, table(y=real(), measured=own()), ("y",), ("measured",))


def vector_outcome():
    """Each row is a whole little time series."""

    def model(times, y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
        sigma = sample("sigma", dist.HalfNormal(1))
        with plate("groups", n_group):
            line = sample("line", dist.Normal(mu, 1.0).to_event(1))
        with plate("rows", times.shape[0]):
            mean = line[group, 0][:, None] + line[group, 1][:, None] * times
            sample("y", dist.Normal(mean, sigma).to_event(1), obs=y)

    return Case(model, table(times=real(4), y=real(4)), ("times", "y"))


def simplex_locals():
    """Shares of each group with a Dirichlet prior, seen through categories."""

    def model(y=None, *, group, n_group):
        weight = sample("weight", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
        with plate("groups", n_group):
            share = sample("share", dist.Dirichlet(weight))
        with plate("rows", len(group)):
            sample("y", dist.Categorical(probs=share[group]), obs=y)

    return Case(model, table(y=count(3)), ("y",))


def no_plates():
    """Sizes only in the shapes, as in the UCB admissions example."""

    def model(x, y=None, *, group, n_group):
        sigma = sample("sigma", dist.HalfNormal(jnp.ones(2)))
        z = sample("z", dist.Normal(jnp.zeros((n_group, 2)), 1))
        v = jnp.dot(jnp.diag(sigma), z.T).T
        sample("y", dist.Normal(v[group, 0] + v[group, 1] * x, 1.0), obs=y)

    return Case(model, table(x=real(), y=real()), ("x", "y"))


def inner_plate():
    """Three coefficients in a plate of their own, which comes before that of the groups."""

    def model(x, y=None, *, group, n_group):
        with plate("coefficients", 3, dim=-2):
            mu = sample("mu", dist.Normal(0, 1))
            with plate("groups", n_group, dim=-1):
                beta = sample("beta", dist.Normal(mu, 1))
        with plate("rows", x.shape[0]):
            sample("y", dist.Normal((x * beta[:, group].T).sum(-1), 1.0), obs=y)

    return Case(model, table(x=real(3), y=real()), ("x", "y"))


def bounded():
    """Supports with bounds: numbers, arrays, and arrays as long as the groups are many."""

    def model(y=None, *, group, n_group):
        low = sample("low", dist.Uniform(jnp.array([-1.0, 0.0]), jnp.array([1.0, 3.0])))
        kappa = sample("kappa", dist.Pareto(1.0, 1.5))
        with plate("groups", n_group):
            p = sample("p", dist.Uniform(jnp.zeros(n_group), 2.0))
            q = sample("q", dist.TruncatedNormal(low[0], kappa, low=-2.0))
        sample("y", dist.Normal(p[group] + q[group] + low[1], 1.0), obs=y)

    return Case(model, table(y=real()), ("y",))


def transform_reparam():
    """A log-normal site drawn through its base, by NumPyro's own reparametrisation."""

    def model(y=None, *, group, n_group):
        mu = sample("mu", dist.Normal(0, 1))
        base = dist.Normal(mu, 1.0)
        with plate("groups", n_group):
            rate = sample(
                "rate",
                dist.TransformedDistribution(base, dist.transforms.ExpTransform()),
            )
        with plate("rows", len(group)):
            sample("y", dist.Poisson(rate[group]), obs=y)

    wrapped = handlers.reparam(model, config={"rate": TransformReparam()})
    return Case(wrapped, table(y=count(5)), ("y",))


def mixture():
    """Two kinds of groups, the kind summed out."""

    def model(y=None, *, group, n_group):
        centre = sample("centre", dist.Normal(0, 3).expand([2]).to_event(1))
        share = sample("share", dist.Beta(2.0, 2.0))
        kinds = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        with plate("groups", n_group):
            a = sample("a", dist.MixtureSameFamily(kinds, dist.Normal(centre, 1.0)))
        with plate("rows", len(group)):
            sample("y", dist.Normal(a[group], 1.0), obs=y)

    return Case(model, table(y=real()), ("y",))


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        eight_schools,
        eight_schools_non_centred,
        eight_schools_in_one_plate,
        radon,
        radon_uranium_in_the_rows,
        movielens,
        poisson_exposure,
        lkj_slopes,
        lkj_non_centred,
        student_t,
        two_outcomes,
        item_response,
        factors_everywhere,
        masks_and_scales,
        observed_group,
        vector_outcome,
        simplex_locals,
        no_plates,
        inner_plate,
        bounded,
        transform_reparam,
        mixture,
    )
}
