"""NumPyro models that can't be taken, each with what the refusal must say; and data for them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

import ramify as rf

sample, plate = numpyro.sample, numpyro.plate

RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(10), 3)
TABLE = {
    "group": GROUP,
    "x": RNG.normal(size=30),
    "y": RNG.normal(size=30),
    "k": RNG.integers(0, 3, 30),
    "u": RNG.normal(size=10)[GROUP],
}
GROUPS = rf.Groups.from_table(TABLE, by="group", rows=["x", "y", "k"], group=["u"])
WHOLE = jnp.asarray(TABLE["u"][::3])


def hyper():
    return sample("mu", dist.Normal(0, 1)), sample("tau", dist.HalfNormal(1))


def hard_coded_groups(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("counties", 10):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def hard_coded_groups_beside_good_ones(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("counties", 10):
        a = sample("a", dist.Normal(mu, tau))
    with plate("again", n_group):
        b = sample("b", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group] + b[group], 1.0), obs=y)


def hard_coded_rows(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    with plate("rows", 30):
        sample("y", dist.Normal(a[group], 1.0), obs=y)


def whole_data_from_outside(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu + WHOLE, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def looked_up_by_group_number(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group] + WHOLE[group], 1.0), obs=y)


def depends_on_the_number_of_groups(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau / n_group))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def random_walk_over_groups(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
        b = sample("b", dist.Normal(jnp.roll(a, 1), tau))
    sample("y", dist.Normal(a[group] + b[group], 1.0), obs=y)


def likelihood_centres_groups(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    with plate("rows", x.shape[0]):
        sample("y", dist.Normal(a[group] - a.mean(), 1.0), obs=y)


def likelihood_of_two_groups(x, y, k, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group] - a[k], 1.0), obs=y)


def sum_to_zero(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    numpyro.factor("sum", dist.Normal(0, 0.1).log_prob(a.sum()))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def rows_centred_in_the_model(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    mean = jax.ops.segment_sum(x, group, n_group) / 3
    sample("y", dist.Normal(a[group] + x - mean[group], 1.0), obs=y)


def prior_from_the_rows(x, y, *, group, n_group):
    mu = sample("mu", dist.Normal(y.mean(), 1))
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, 1.0))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def local_prior_from_the_rows(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu + jax.ops.segment_max(x, group, n_group), tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def group_column_averaged(x, y, *, u, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu + u - u.mean(), tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def discrete_latent(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        kind = sample("kind", dist.Bernoulli(0.3))
        a = sample("a", dist.Normal(mu * kind, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def second_level(x, y, k, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    with plate("classes", 3):
        b = sample("b", dist.Normal(a[0], tau))
    sample("y", dist.Normal(b[k], 1.0), obs=y)


def second_level_with_its_own_size(x, y, k, *, group, n_group, n_class):
    mu, tau = hyper()
    with plate("groups", n_group), plate("classes", n_class):
        sample("b", dist.Normal(mu, tau))


def latent_of_each_row(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    with plate("rows", x.shape[0]):
        noise = sample("noise", dist.Normal(0, 1))
        sample("y", dist.Normal(a[group] + noise, 1.0), obs=y)


def outcomes_masked_by_the_site(x, y, k, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    with plate("rows", x.shape[0]):
        sample("y", dist.Normal(a[group], 1.0), obs=y, obs_mask=k > 0)


def hidden_by_a_handler(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group), handlers.block(hide=["a"]):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def pairs_of_groups(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("from", n_group, dim=-2), plate("to", n_group, dim=-1):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group, group], 1.0), obs=y)


def improper(x, y, *, group, n_group):
    tau = sample("tau", dist.HalfNormal(1))
    mu = sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def moving_support(x, y, *, group, n_group):
    top = sample("top", dist.HalfNormal(1))
    with plate("groups", n_group):
        a = sample("a", dist.Uniform(0, top))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def support_of_each_group(x, y, *, u, group, n_group):
    mu = sample("mu", dist.Normal(0, 1))
    with plate("groups", n_group):
        a = sample("a", dist.Uniform(u, u + 3))
    sample("y", dist.Normal(a[group] + mu, 1.0), obs=y)


def subsampled(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group, subsample_size=2):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def learned_parameter(x, y, *, group, n_group):
    scale = numpyro.param("scale", 1.0)
    mu = sample("mu", dist.Normal(0, 1))
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, scale))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def groups_in_one_event(x, y, *, group, n_group):
    mu, tau = hyper()
    a = sample("a", dist.Normal(mu, tau).expand([n_group]).to_event(1))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def rows_in_one_event(x, y, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0).to_event(1), obs=y)


def no_locals(x, y, *, group, n_group):
    mu, tau = hyper()
    sample("y", dist.Normal(mu + 0 * x, tau), obs=y)


def no_globals(x, y, *, group, n_group):
    with plate("groups", n_group):
        a = sample("a", dist.Normal(0, 1))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


def nothing_observed(x, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        sample("a", dist.Normal(mu, tau))


def outcome_missing(x, answer=None, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("answer", dist.Normal(a[group], 1.0), obs=answer)


def asks_for_more(x, y, weight, *, group, n_group):
    raise AssertionError("never called")


def no_group_numbers(x, y, *, n_group):
    raise AssertionError("never called")


def python_if(x, y, *, group, n_group):
    if x.max() > 0:
        return hard_coded_rows(x, y, group=group, n_group=n_group)


def sites_come_and_go(x, y, *, group, n_group):
    mu, tau = hyper()
    if n_group > 3:
        sample("extra", dist.Normal(0, 1))
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group], 1.0), obs=y)


REFUSED = [
    (hard_coded_groups, ["counties", "size 10", "hard-coded", "write n_group where it says 10"]),
    (hard_coded_groups_beside_good_ones, ['"y"', "number that a group", "hard-coded"]),
    (hard_coded_rows, ["3 groups and 7 rows", "n_group", "must come from its arguments"]),
    (whole_data_from_outside, ["must come from its arguments", "whole-data array"]),
    (looked_up_by_group_number, ['"y"', "number that a group", "group column"]),
    (depends_on_the_number_of_groups, ['"a"', "how many there are (n_group)"]),
    (random_walk_over_groups, ['"b"', "of one group depends on those of another"]),
    (likelihood_centres_groups, ['likelihood of site "y" mixes groups', "a.mean()|b.mean()"]),
    (likelihood_of_two_groups, ['likelihood of site "y" mixes groups', "b[group]"]),
    (sum_to_zero, ['"sum"', "one log density for all groups", "mixes"]),
    (rows_centred_in_the_model, ['"y"', "depends on other rows", "beforehand"]),
    (prior_from_the_rows, ['"mu"', "computed from row columns", "functools.partial"]),
    (local_prior_from_the_rows, ['"a"', "computed from row columns", "group column"]),
    (group_column_averaged, ['"a"', "group columns of other groups", "beforehand"]),
    (discrete_latent, ['"kind"', "discrete", "Sum it out", "MixtureSameFamily"]),
    (second_level, ['"b"', "second level of latent sites", "not supported yet"]),
    (second_level_with_its_own_size, ['"n_class"', "second level of groups is not supported yet"]),
    (latent_of_each_row, ['"noise"', "a value for each row", "integrate it out"]),
    (outcomes_masked_by_the_site, ['"y_unobserved"', "fill their column", "handlers.mask around"]),
    (hidden_by_a_handler, ['"a" is hidden', "handlers.block", "Take the handler off"]),
    (pairs_of_groups, ['"a"', "not to pairs"]),
    (improper, ['"mu"', "improper", "dist.Normal(0, 100)"]),
    (moving_support, ['"a"', "support", "depends on other latent sites", "Uniform(0, 1)"]),
    (support_of_each_group, ['"a"', "support", "differs from group to group"]),
    (subsampled, ['plate "groups"', "subsample of 2", "Remove subsample_size"]),
    (learned_parameter, ['"scale" is a numpyro.param', "no prior", "sample site"]),
    (groups_in_one_event, ['"a"', "one log density for all", 'numpyro.plate("...", n_group)']),
    (rows_in_one_event, ['"y"', "one log density for all rows", "drop the to_event"]),
    (no_locals, ["no latent site belongs to the groups", "n_group"]),
    (no_globals, ["every latent site (a)", "share nothing"]),
    (nothing_observed, ["observes nothing", "obs="]),
    (outcome_missing, ['"answer" is latent', 'no row column "answer"']),
    (asks_for_more, ['"weight"', "functools.partial(model, weight=...)", "x, y, k, u"]),
    (no_group_numbers, ['no argument "group"', "exactly one row", 'index="..."']),
    (python_if, ["values of its arguments", "only shapes may decide"]),
    (sites_come_and_go, ['"extra"', "the same on every block"]),
]
