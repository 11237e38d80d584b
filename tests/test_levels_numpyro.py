"""NumPyro functions with several group plates: the numbers of the same `rf.Model`."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.reparam import LocScaleReparam

import ramify as rf
from levels_models import engine, nested
from levels_problems import PROBLEMS
from levels_tables import pretended_densities, table
from ramify.levels.marginal import Marginal

NESTED = rf.Groups.from_table(table(), by=["school", "school:klass"], rows="y")


def sds():
    return [
        numpyro.sample(name, dist.HalfNormal(2.0)) for name in ("sd_school", "sd_class", "sigma")
    ]


def additive(y=None, *, school, n_school, school_klass, n_school_klass):
    sd_school, sd_class, sigma = sds()
    with numpyro.plate("schools", n_school):
        of_school = numpyro.sample("of_school", dist.Normal(0, sd_school))
    with numpyro.plate("classes", n_school_klass):
        of_class = numpyro.sample("of_class", dist.Normal(0, sd_class))
    with numpyro.plate("rows", school.shape[0]):
        mean = of_school[school] + of_class[school_klass]
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def around(y=None, *, school_klass, n_school_klass, school, n_school, school_of_school_klass):
    """Each class around its school."""
    sd_school, sd_class, sigma = sds()
    with numpyro.plate("schools", n_school):
        of_school = numpyro.sample("of_school", dist.Normal(0, sd_school))
    with numpyro.plate("classes", n_school_klass):
        of_class = numpyro.sample(
            "of_class", dist.Normal(of_school[school_of_school_klass], sd_class)
        )
    with numpyro.plate("rows", school.shape[0]):
        numpyro.sample("y", dist.Normal(of_class[school_klass], sigma), obs=y)


away = numpyro.handlers.reparam(around, config={"of_class": LocScaleReparam(0)})


@pytest.mark.parametrize("fn", [additive, around, away], ids=["additive", "around", "reparam"])
def test_the_marginal_is_that_of_the_same_model_of_densities(fn):
    model, groups = nested()
    theta = np.array([-0.3, 0.2, 0.1])
    truth = Marginal(*engine(model, groups)[:2]).optimum(theta)
    own = rf.from_numpyro(fn, groups)
    ours, design, _ = engine(own, groups)
    assert ours.linear and [*own.theta.parameters] == ["sd_school", "sd_class", "sigma"]
    found = Marginal(ours, design).optimum(theta)
    assert found.value == pytest.approx(truth.value, abs=1e-8)
    np.testing.assert_allclose(found.effects.u, truth.effects.u, atol=1e-8)
    if fn is not additive:  # a class includes its school
        school = np.array([label.split(":")[0] for label in groups.labels], int)
        whole = truth.effects.z[:, 0] + truth.effects.u[school]
        np.testing.assert_allclose(found.effects.z[:, 0], whole, atol=1e-8)


def test_rows_without_a_finite_density_are_refused():
    posterior = pretended_densities(rf.from_numpyro(additive, NESTED), NESTED, draws=20)
    at = {"school": [2], "klass": [99]}
    given = {"school": [2, 2], "klass": [99, 99], "y": [0.0, 1e200]}  # squared: infinite
    with pytest.raises(ValueError, match="of the rows of 1 of 1 groups is not finite"):
        posterior.predict(at, given=given, draws=20)


def test_a_new_class_is_drawn_around_its_school():
    model, groups = rf.from_numpyro(around, NESTED), NESTED
    posterior = pretended_densities(model, groups, draws=400)
    drawn = posterior.sample(400, seed=0)
    at = {"school": [2, 2, 77], "klass": [0, 99, 0]}
    found = posterior.predict(at, draws=400, seed=0, summary=False)
    school = drawn["of_school"][:, 2]
    new = found[:, 1] - school
    sd = np.sqrt(np.mean(drawn["sd_class"] ** 2 + drawn["sigma"] ** 2))
    assert abs(new.mean()) < 4 * sd / 20 and new.std() == pytest.approx(sd, rel=0.2)
    assert np.corrcoef(found[:, 1], school)[0, 1] > 0.1
    wide = np.sqrt(sd**2 + np.mean(drawn["sd_school"] ** 2))
    assert found[:, 2].std() == pytest.approx(wide, rel=0.2)


def ratings(x, y=None, *, user, n_user, movie, n_movie):
    intercept = numpyro.sample("intercept", dist.Normal(0, 2.5))
    slope = numpyro.sample("slope", dist.Normal(0, 2.5))
    sd = numpyro.sample("sd", dist.HalfNormal(2.5).expand([2]).to_event(1))
    with numpyro.plate("users", n_user):
        of_user = numpyro.sample("of_user", dist.Normal(0, sd[0]))
    with numpyro.plate("movies", n_movie):
        of_movie = numpyro.sample("of_movie", dist.Normal(0, sd[1]))
    with numpyro.plate("rows", x.shape[0]):
        logits = intercept + slope * x + of_user[user] + of_movie[movie]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


@pytest.mark.slow
def test_means_and_sds_are_those_of_nuts():
    own = PROBLEMS["crossed_bernoulli"]
    truth = own.reference()
    groups = rf.Groups.from_table(own.table, by=["user", "movie"], rows=["x", "y"])
    posterior = rf.fit(rf.from_numpyro(ratings, groups), groups)
    summary, noise = posterior.summary(), 3 / np.sqrt(float(truth["ess"]))
    of = {"intercept": "Intercept", "slope": "x"}
    of |= {"sd[0]": "sd(Intercept | user)", "sd[1]": "sd(Intercept | movie)"}
    for name, other in of.items():  # priors differ a little
        mean, sd = truth[f"{other} mean"], truth[f"{other} sd"]
        assert abs(summary[name]["mean"] - mean) < (0.2 + noise) * sd, name
        assert abs(summary[name]["sd"] / sd - 1) < 0.06 + noise, name
    new = posterior.predict({"user": [5, 999], "movie": [3, 3], "x": [0.0, 0.0]})["mean"]
    assert ((0 < new) & (new < 1)).all()


def hard_coded(y=None, *, school, n_school, school_klass, n_school_klass):
    sd_school, sd_class, sigma = sds()
    with numpyro.plate("schools", n_school):
        of_school = numpyro.sample("of_school", dist.Normal(0, sd_school))
    with numpyro.plate("classes", 18):
        numpyro.sample("of_class", dist.Normal(0, sd_class))
    with numpyro.plate("rows", school.shape[0]):
        numpyro.sample("y", dist.Normal(of_school[school], sigma), obs=y)


def mixing(y=None, *, school, n_school, school_klass, n_school_klass):
    sd_school, sd_class, sigma = sds()
    with numpyro.plate("schools", n_school):
        of_school = numpyro.sample("of_school", dist.Normal(0, sd_school))
    with numpyro.plate("classes", n_school_klass):
        of_class = numpyro.sample("of_class", dist.Normal(0, sd_class))
    with numpyro.plate("rows", school.shape[0]):
        mean = (of_school - of_school.mean())[school] + of_class[school_klass]
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def pairs(y=None, *, school, n_school, school_klass, n_school_klass):
    sd_school, sd_class, sigma = sds()
    both = numpyro.sample("both", dist.Normal(0, sd_school).expand([n_school, n_school_klass]))
    with numpyro.plate("rows", school.shape[0]):
        numpyro.sample("y", dist.Normal(both[school, school_klass], sigma), obs=y)


def summed(y=None, *, school, n_school, school_klass, n_school_klass):
    sd_school, sd_class, sigma = sds()
    with numpyro.plate("schools", n_school):
        a = numpyro.sample("of_school", dist.Normal(0, sd_school))
    with numpyro.plate("classes", n_school_klass):
        b = numpyro.sample("of_class", dist.Normal(0, sd_class))
    numpyro.sample("y", dist.Normal(a[school] + b[school_klass], sigma).to_event(1), obs=y)


def without_schools(y=None, *, school_klass, n_school_klass):
    return additive(y, school=jnp.zeros_like(school_klass), n_school=1, school_klass=school_klass,
                    n_school_klass=n_school_klass)  # fmt: skip


def asks(y=None, *, age, school, n_school, school_klass, n_school_klass):
    return additive(y, school=school, n_school=n_school, school_klass=school_klass,
                    n_school_klass=n_school_klass)  # fmt: skip


REFUSED = {
    'no latent site belongs to "school:klass"': hard_coded,
    "mixes rows or levels": mixing,
    "not to pairs of them": pairs,
    "no log density for each row": summed,
    'the model takes no "school" and "n_school"': without_schools,
    'asks for "age", which the data does not have': asks,
}


@pytest.mark.parametrize("said", REFUSED)
def test_wrong_functions_get_a_sentence(said):
    with pytest.raises(ValueError, match=said):
        rf.from_numpyro(REFUSED[said], NESTED)


def test_columns_that_are_not_read_are_told():
    rows = {**table(), "z": table()["x"]}
    groups = rf.Groups.from_table(rows, by=["school", "school:klass"], rows=["y", "z"])
    assert "columns not read: z" in repr(rf.from_numpyro(additive, groups))


def test_options_of_one_factor_get_a_sentence():
    with pytest.raises(ValueError, match="index= is for one grouping factor"):
        rf.from_numpyro(additive, NESTED, index="school")
    crossed = rf.Groups.from_table(
        {**table(), "school_klass": table()["a"]}, by=["school", "school_klass"], rows="y"
    )
    with pytest.raises(ValueError, match="school_klass is not nested in school"):
        rf.from_numpyro(around, crossed)


PRIORS = {
    "outcomes": lambda y, n: dist.HalfNormal(1 + jnp.abs(y).mean()),
    "levels": lambda y, n: dist.HalfNormal(1.0 + n),
    "rows": lambda y, n: dist.HalfNormal(float(y.shape[0])),
}


@pytest.mark.parametrize("reads", PRIORS)
def test_a_prior_of_globals_that_reads_the_data_is_refused(reads):
    """It would be that of one row: the model is run on rows one by one."""

    def fn(y=None, *, school, n_school, school_klass, n_school_klass):
        sd = numpyro.sample("sd", PRIORS[reads](y, n_school))
        with numpyro.plate("schools", n_school):
            of_school = numpyro.sample("of_school", dist.Normal(0, sd))
        with numpyro.plate("classes", n_school_klass):
            of_class = numpyro.sample("of_class", dist.Normal(0, 1))
        with numpyro.plate("rows", school.shape[0]):
            numpyro.sample("y", dist.Normal(of_school[school] + of_class[school_klass], 1), obs=y)

    with pytest.raises(ValueError, match="the log density of sd, which belong to no level"):
        rf.from_numpyro(fn, NESTED)
