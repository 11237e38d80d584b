"""What can't be done is refused at once, and the message names the site and the cure."""

import re
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

import ramify as rf
from numpyro_refused import GROUPS, REFUSED, TABLE, hyper

sample, plate = numpyro.sample, numpyro.plate


@pytest.mark.parametrize("model, words", REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_refused_with_the_site_and_the_cure(model, words):
    with pytest.raises(ValueError) as caught:
        rf.from_numpyro(model, GROUPS)
    message = str(caught.value)
    assert message.startswith(f"from_numpyro({model.__name__}): ")
    for word in words:
        assert any(part in message for part in word.split("|")), f"{word!r} not in: {message}"


def test_learned_centering_is_refused():
    def model(x, y, *, group, n_group):
        mu, tau = hyper()
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, tau))
        sample("y", dist.Normal(a[group], 1.0), obs=y)

    learned = handlers.reparam(model, config={"a": LocScaleReparam()})
    with pytest.raises(ValueError, match=re.escape("LocScaleReparam(0) in place of")):
        rf.from_numpyro(learned, GROUPS)
    fixed = handlers.reparam(model, config={"a": LocScaleReparam(0)})
    assert list(rf.from_numpyro(fixed, GROUPS).z.parameters) == ["a"]


def test_sites_hidden_from_outside_are_named():
    with pytest.raises(ValueError, match='good.: site "tau" is hidden from Ramify'):
        rf.from_numpyro(handlers.block(good, hide=["tau"]), GROUPS)


def good(x, y=None, *, group, n_group):
    mu, tau = hyper()
    with plate("groups", n_group):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group] + 0 * x, 1.0), obs=y)


def test_groups_of_one_row_may_not_be_mixed_either():
    """Where rows are groups a block in the data's own order would not tell."""

    def model(x, y=None):
        mu, tau = hyper()
        with plate("groups", len(x)):
            a = sample("a", dist.Normal(mu, tau))
            sample("y", dist.Normal(a - a.mean(), 1.0), obs=y)

    def walk(x, y=None):
        mu, tau = hyper()
        with plate("groups", len(x)):
            a = sample("a", dist.Normal(mu, tau))
            sample("y", dist.Normal(a + jnp.arange(len(x)), 1.0), obs=y)

    table = {name: TABLE[name][::3] for name in ("group", "x", "y")}
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y"])
    with pytest.raises(ValueError, match='likelihood of site "y" mixes groups'):
        rf.from_numpyro(model, groups)
    with pytest.raises(ValueError, match='"y" depends on the number that a group or row happens'):
        rf.from_numpyro(walk, groups)


def test_names_of_plate_index_and_size():
    def renamed(x, y=None, *, county, counties):
        return good(x, y, group=county, n_group=counties)

    model = rf.from_numpyro(renamed, GROUPS, index="county", size="counties", plate="groups")
    assert list(model.z.parameters) == ["a"]
    with pytest.raises(ValueError, match='asks for "county"'):
        rf.from_numpyro(renamed, GROUPS)
    with pytest.raises(ValueError, match='no argument "town"; it takes x, y, county, counties'):
        rf.from_numpyro(renamed, GROUPS, index="town")
    with pytest.raises(ValueError, match='in a plate "towns" of n_group; .* are groups'):
        rf.from_numpyro(good, GROUPS, plate="towns")

    def beside(x, y, *, group, n_group):
        mu, tau = hyper()
        b = sample("b", dist.Normal(0, jnp.ones(n_group)))
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, tau))
        sample("y", dist.Normal(a[group] + b[group], 1.0), obs=y)

    with pytest.raises(ValueError, match='"b" has a value for each group and is not in plate'):
        rf.from_numpyro(beside, GROUPS, plate="groups")


def test_constants_are_bound_beforehand():
    def model(x, y, spread, *, group, n_group):
        mu = sample("mu", dist.Normal(0, spread))
        with plate("groups", n_group):
            a = sample("a", dist.Normal(mu, 1.0))
        sample("y", dist.Normal(a[group], 1.0), obs=y)

    assert rf.from_numpyro(partial(model, spread=3.0), GROUPS).theta.size == 1


def test_columns_that_are_not_read_are_told():
    """One that is not there for an argument without a value may be misspelt: that is warned of."""
    assert "columns not read: k, u" in repr(rf.from_numpyro(good, GROUPS))
    fewer = rf.Groups.from_table(TABLE, by="group", rows=["x", "y"])
    assert "not read" not in repr(rf.from_numpyro(good, fewer))

    def offset(x, y=None, offset=None, *, group, n_group):
        return good(x, y, group=group, n_group=n_group)

    with pytest.warns(UserWarning, match='"offset", which stays None, .* not read "k", "u" of the'):
        rf.from_numpyro(offset, GROUPS)
    assert "not read" not in repr(rf.from_numpyro(offset, fewer))


def test_fit_checks_the_columns():
    model = rf.from_numpyro(good, GROUPS)
    other = rf.Groups.from_table(TABLE, by="group", rows=["y"])
    with pytest.raises(ValueError, match='made for a row column "x".*no such column'):
        rf.fit(model, other)
    wide = {**TABLE, "x": np.ones((30, 2))}
    other = rf.Groups.from_table(wide, by="group", rows=["x", "y"])
    with pytest.raises(ValueError, match=r"elements of shape \[\]; the data has elements of \[2\]"):
        rf.fit(model, other)
