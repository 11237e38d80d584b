"""`rf.Model` with several grouping factors: the same numbers as formulas, and what formulas can't say."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from levels_models import CROSSED, MODELS, NAMES, NESTED, engine, flat, half_normals, intercepts
from levels_oracle import exact
from levels_problems import PROBLEMS
from levels_tables import apart, problem, table
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.levels import shape
from ramify.levels.marginal import Marginal


def both(text):
    """A formula and its model at one theta: the exact answer in the user's units, and what ours needs."""
    formula, design = problem(text)
    theta = apart(formula)
    truth, values = exact(formula, design, theta), formula.values(theta[None])
    adapter = FormulaLevelsAdapter(formula)
    said = adapter.summary_rows(values, np.zeros((1, 0)))
    named = {
        name: np.array(
            [said[own][0] for own in names] if isinstance(names, list) else said[names][0]
        )
        for name, names in NAMES[text].items()
    }
    named |= {"cor_b": values["cor_1"][0]} if text == CROSSED else {}
    return formula, design, theta, truth, adapter, named


@pytest.mark.parametrize(
    "text, algebra",
    [
        (CROSSED, "dense"),
        (NESTED, "sparse"),
        pytest.param(CROSSED, "sparse", marks=pytest.mark.slow),
        pytest.param(NESTED, "dense", marks=pytest.mark.slow),
        pytest.param(CROSSED, "iterative", marks=pytest.mark.slow),
    ],
)
def test_linear_models_are_exact_at_any_theta(text, algebra):
    formula, design, theta, truth, adapter, named = both(text)
    model, own, _ = engine(*MODELS[text]())
    assert model.linear
    given, G = flat(model, named), Marginal(model, own, algebra)
    found = G.optimum(given)
    close = 1e-7 if algebra != "iterative" else 0.3
    likelihood = truth.value - formula.at(theta).log_prior
    assert found.value - found.given.log_prior == pytest.approx(likelihood, abs=close)
    # Effects are in the same order: by factor, then by level, then by effect.
    unit = np.concatenate(
        [
            adapter.deviations(t, np.ones((term.levels, term.effects))).ravel()
            for t, term in zip(formula.kept, design.kept, strict=True)
        ]
    )
    (inside,) = formula.integrated
    close = 1e-8 if algebra != "iterative" else 1e-4
    np.testing.assert_allclose(found.effects.u, truth.u * unit, atol=close)
    of_z = adapter.deviations(inside, np.ones(formula.terms[inside]))
    np.testing.assert_allclose(found.effects.z, truth.z * of_z, atol=close)
    covariance = found.kept.solve(np.zeros((0, len(unit))), np.eye(len(unit)))[1]
    wanted = truth.covariance_u * np.outer(unit, unit)
    np.testing.assert_allclose(covariance, wanted, atol=close)


def test_the_slope_of_the_marginal_is_that_of_the_dense_one():
    formula, design, theta, _, adapter, named = both(NESTED)
    model, own, _ = engine(*MODELS[NESTED]())
    G, step = Marginal(model, own), 1e-3
    value = lambda theta: exact(formula, design, theta).value - formula.at(theta).log_prior
    ours = lambda theta: (lambda at: at.value - at.given.log_prior)(G.optimum(theta))
    centre, names = flat(model, named), list(named)  # logarithms of sds, which differ by constants
    for k, name in enumerate(["sd_0", "sd_1", "sigma"]):
        of = {"sd_0": "sd_school", "sd_1": "sd_class", "sigma": "sigma"}[name]
        axis, other = np.eye(3)[k] * step, np.eye(3)[names.index(of)] * step
        dense = (value(theta + axis) - value(theta - axis)) / (2 * step)
        found = (ours(centre + other) - ours(centre - other)) / (2 * step)
        assert found == pytest.approx(dense, abs=1e-3)


def test_logistic_rows_have_the_numbers_of_the_formula():
    """Quadrature over z, Laplace's method over b and its correction, to rounding."""
    formula, design = problem("yes ~ 0 + (1 | a) + (1 | b)", "bernoulli")
    theta = apart(formula)
    groups = rf.Groups.from_table(table(), by=["a", "b"], rows=["yes"])
    linear = lambda z: dist.Bernoulli(logits=z["a"]["of_a"] + z["b"]["of_b"])
    model, own, _ = engine(
        rf.Model(
            theta={"sd_a": rf.positive(), "sd_b": rf.positive()},
            z={"a": {"of_a": rf.real()}, "b": {"of_b": rf.real()}},
            log_prior=half_normals,
            log_local={
                "a": lambda t, z, group: dist.Normal(0, t["sd_a"]).log_prob(z["of_a"]),
                "b": lambda t, z, group: dist.Normal(0, t["sd_b"]).log_prob(z["of_b"]),
            },
            log_lik=lambda t, z, row: linear(z).log_prob(row["yes"]),
        ),
        groups,
    )
    assert not model.linear
    found, truth = Marginal(model, own).optimum(theta), Marginal(formula, design).optimum(theta)
    assert found.correction == pytest.approx(truth.correction, abs=1e-6)  # b is found to 1e-7 nats
    ours, theirs = (at.value - at.given.log_prior for at in (found, truth))
    assert ours == pytest.approx(theirs, abs=1e-5)
    np.testing.assert_allclose(found.effects.u, truth.effects.u, atol=1e-3)
    np.testing.assert_allclose(found.effects.z, truth.effects.z, atol=1e-3)


def items(n=900):
    """Answers of persons to items, whose discrimination is positive, and group columns of both."""
    rng = np.random.default_rng(3)
    person, item = rng.integers(0, 40, n), rng.integers(0, 8, n)
    age, hard = rng.normal(size=40), np.linspace(-1, 1, 8)
    steep = np.exp(0.4 * rng.normal(size=8))[item]
    ability = (0.5 * age + 0.8 * rng.normal(size=40))[person]
    y = rng.random(n) < 1 / (1 + np.exp(-steep * (ability - hard[item])))
    return {"person": person, "item": item, "age": age[person], "y": y.astype(float)}


def item_response(rows=None):
    """Two parameters for each item: a product of kept and integrated effects."""
    groups = rf.Groups.from_table(
        rows or items(), by=["person", "item"], rows=["y"], group={"person": ["age"]}
    )

    def eta(z):
        return z["item"]["steep"] * (z["person"]["ability"] - z["item"]["hard"])

    model = rf.Model(
        theta={"slope": rf.real(), "spread": rf.positive()},
        z={"person": {"ability": rf.real()}, "item": {"hard": rf.real(), "steep": rf.positive()}},
        log_prior=lambda t: (
            dist.Normal(0, 1).log_prob(t["slope"]) + dist.HalfNormal(1).log_prob(t["spread"])
        ),
        log_local={
            "person": lambda t, z, group: dist.Normal(
                t["slope"] * group["age"], t["spread"]
            ).log_prob(z["ability"]),
            "item": lambda t, z, group: (
                dist.Normal(0, 1).log_prob(z["hard"]) + dist.LogNormal(0, 0.4).log_prob(z["steep"])
            ),
        },
        log_lik=lambda t, z, row: dist.Bernoulli(logits=eta(z)).log_prob(row["y"]),
        simulate=lambda key, t, z, row: dist.Bernoulli(logits=eta(z)).sample(key),
    )
    return model, groups


def test_slope_and_curvature_in_b_are_those_of_differences_where_rows_are_products():
    model, design, _ = engine(*item_response())
    theta = np.array([0.3, -0.2])
    G, step = Marginal(model, design), 1e-4
    found, q = G.optimum(theta), design.K.shape[1]  # elsewhere S may be indefinite, and is not used
    assert q == 16
    given, at, precision = found.given, found.effects, G.precision(found.given)
    moved = lambda k, sign: G.state(
        given, precision, at._replace(u=at.u + (0.2 + sign * step) * np.eye(q)[k])
    )
    S = np.linalg.inv(G.factor(found.state, precision).solve(np.zeros((0, q)), np.eye(q))[1])
    bent = lambda k, sign: G.state(
        given, precision, at._replace(u=at.u + sign * step * np.eye(q)[k])
    )
    for k in (0, 1, 7):
        ends, away = (moved(k, 1), moved(k, -1)), moved(k, 0)
        slope = (ends[0].value - ends[1].value) / (2 * step)
        assert slope == pytest.approx(away.slope_u[k], rel=1e-4, abs=5e-3)  # by five points
        ends = bent(k, 1), bent(k, -1)
        curvature = -(ends[0].slope_u - ends[1].slope_u) / (2 * step)
        np.testing.assert_allclose(S[:, k], curvature, atol=2e-2 * np.abs(S).max())


def test_levels_that_nothing_is_known_of_are_drawn_from_their_prior():
    model, _, _ = engine(*item_response())
    thetas, rng, S = np.zeros((4000, 2)), np.random.default_rng(0), 4000
    drawn = model.population(1, {"": thetas}, {}, np.zeros((S, 1, 3)), rng)[:, 0]
    near = lambda found, mean, sd: (
        abs(found.mean() - mean) < 4 * sd / np.sqrt(S)
        and abs(found.std() / sd - 1) < 3 / np.sqrt(S)
    )
    assert near(drawn[:, 0], 0.0, 1.0) and near(drawn[:, 1], 0.0, 0.4)  # its logarithm
    old = {"age": np.array([2.0])}
    thetas = np.tile([0.5, np.log(0.3)], (S, 1))
    assert near(model.population(0, {"": thetas}, old, np.zeros((S, 1, 3)), rng)[:, 0, 0], 1.0, 0.3)


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape, "POINTS", 40)  # fewer than a fit has, to save time
        patch.setattr(shape, "ATTEMPTS", 0)
        patch.setattr(shape, "NODES", (4, 4))
        return rf.fit(*item_response())


def test_results_have_the_names_of_the_model(fitted):
    assert fitted.summary().names == ["slope", "spread"] and fitted.by == "person"
    assert fitted.notes["converged"] and "40 person (integrated out), 8 item" in repr(fitted)
    slope = fitted.summary()["slope"]
    assert abs(slope["mean"] - 0.5) < 4 * slope["sd"]
    drawn = fitted.sample(30)
    assert {name: own.shape for name, own in drawn.items()} == {
        "slope": (30,), "spread": (30,),
        "ability": (30, 40), "hard": (30, 8), "steep": (30, 8),
    }  # fmt: skip
    assert (drawn["steep"] > 0).all()
    effects = fitted.group_effects("item")
    assert list(effects["item"]) == list(range(8)) and effects["n"].sum() == 900
    assert np.corrcoef(effects["hard_mean"], np.linspace(-1, 1, 8))[0, 1] > 0.8
    with pytest.raises(ValueError, match="totals=True is for models from formulas"):
        fitted.group_effects("item", totals=True)


def test_predictions_take_known_new_and_absent_levels(fitted):
    at = {"person": [0, 100, None], "item": [1, 1, 50], "age": [0.0, 3.0, 0.0]}
    mean = fitted.predict(at)["mean"]
    assert ((0 < mean) & (mean < 1)).all() and mean[1] > 0.7  # of that age
    rows = {"person": [100] * 8, "item": list(range(8)), "age": [3.0] * 8, "y": [0.0] * 8}
    error = np.sqrt(2 * 0.25 / 1000)  # of the difference of two shares of 1,000 draws
    assert fitted.predict(at, given=rows)["mean"][1] < mean[1] - 4 * error
    with pytest.raises(ValueError, match='needs their column "age"'):
        fitted.predict({"person": [100], "item": [1]})
    with pytest.raises(ValueError, match='level of "item" is not one of the fit'):
        fitted.predict(at, given={**rows, "item": [77] * 8})
    with pytest.raises(ValueError, match='"age" must have one value .* in group "100" row 0 has 3'):
        fitted.predict(at, given={**rows, "age": [3.0] * 7 + [4.0]})
    with pytest.raises(ValueError, match='kind="response"'):
        fitted.predict(at, kind="mean")


def test_a_saved_fit_says_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    model = fitted.model.several
    loaded = rf.load(tmp_path / "fit", model)
    np.testing.assert_allclose(loaded.summary()["mean"], fitted.summary()["mean"], rtol=1e-4)
    at = {"person": [0, 7], "item": [1, 2]}
    np.testing.assert_allclose(loaded.predict(at)["mean"], fitted.predict(at)["mean"], atol=0.02)
    assert repr(loaded) == repr(fitted)
    with pytest.raises(ValueError, match="pass that model"):
        rf.load(tmp_path / "fit")
    with pytest.raises(ValueError, match="of another model: its parameters are theta: slope"):
        rf.load(tmp_path / "fit", MODELS[NESTED]()[0])


def test_what_is_made_of_draws_is_there(fitted):
    assert rf.diagnose(fitted, fitted.groups).verdict in ("trust", "check")
    left = fitted.loo(draws=50)
    assert len(left.elpd) == 900 and -0.75 < left.total / 900 < -0.4
    assert fitted.loo("group", draws=50).elpd.shape == (40,)
    tree = fitted.to_arviz(draws=10)
    assert tree["posterior"]["hard"].dims == ("chain", "draw", "item")
    assert tree["log_likelihood"]["y"].shape == (1, 10, 900)
    with pytest.raises(NotImplementedError, match="several grouping factors"):
        fitted.elbo()
    with pytest.raises(ValueError, match="models from formulas"):
        fitted.slopes("age")


NORMAL = lambda name, sd: lambda t, z, group: dist.Normal(0, sd).log_prob(z[name])
PARTS = {
    "theta": {"mu": rf.real()},
    "z": {"a": {"u": rf.real()}, "b": {"v": rf.real()}},
    "log_prior": lambda t: dist.Normal(0, 1).log_prob(t["mu"]),
    "log_local": {"a": NORMAL("u", 1.0), "b": NORMAL("v", 1.0)},
    "log_lik": lambda t, z, row: dist.Normal(t["mu"] + z["a"]["u"], 1).log_prob(row["y"]),
}
WRONG = {
    "a dict with a function for each factor of z: 'a', 'b'": {"log_local": {"a": NORMAL("u", 1.0)}},
    "give all of them by factor": {"z": {"a": {"u": rf.real()}, "v": rf.real()}},
    "for one grouping factor write": {"z": {"a": {"u": rf.real()}}},
    "in both z\\['a'\\] and z\\['b'\\]": {"z": {"a": {"u": rf.real()}, "b": {"u": rf.real()}}},
    "'mu' in both theta and z": {"z": {"a": {"mu": rf.real()}, "b": {"v": rf.real()}}},
    "structure= is for models with one": {"structure": rf.Structure()},
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_models_get_a_sentence(said):
    with pytest.raises((ValueError, TypeError), match=said):
        rf.Model(**{**PARTS, **WRONG[said]})


def test_wrong_data_get_a_sentence():
    rows, model = table(), rf.Model(**PARTS)
    groups = lambda by, **more: rf.Groups.from_table(rows, by=by, rows=["x", "y"], **more)
    with pytest.raises(ValueError, match="the data has one factor, a: make it by"):
        rf.fit(model, groups("a"))
    with pytest.raises(ValueError, match="z for a, b, and the data has the factors a, c"):
        rf.fit(model, groups(["a", "c"]))
    with pytest.raises(ValueError, match="integrate: there is no factor 'd'"):
        rf.fit(model, groups(["a", "b"]), integrate="d")
    with pytest.raises(ValueError, match="local_draws= is for models with one grouping factor"):
        rf.fit(model, groups(["a", "b"]), local_draws=4)
    lik = lambda t, z, row: dist.Normal(0, 1).log_prob(row["nowhere"])
    with pytest.raises(ValueError, match="asks for 'nowhere'"):
        rf.fit(rf.Model(**{**PARTS, "log_lik": lik}), groups(["a", "b"]))
    one = rf.Model({"mu": rf.real()}, {"u": rf.real()}, *[lambda *_: jnp.zeros(())] * 3)
    with pytest.raises(
        ValueError, match="several grouping factors \\(a, b\\), and the model has one"
    ):
        rf.fit(one, groups(["a", "b"]))
    rows["one"], rows["same"] = np.full(160, 7), 100 - rows["a"]
    with pytest.raises(ValueError, match="one level, 7, in all rows"):
        groups(["a", "one"])
    with pytest.raises(ValueError, match="group the rows in the same way"):
        groups(["a", "same"])
    with pytest.raises(TypeError, match="whose columns they are"):
        groups(["a", "b"], group=["w"])
    with pytest.raises(ValueError, match="names 'c', which is no factor"):
        groups(["a", "b"], group={"c": ["w"]})


def test_nesting_is_recognised_and_the_innermost_is_integrated():
    groups = rf.Groups.from_table(table(), by=["school", "school:klass"], rows="y")
    assert groups.by == "school:klass" and "school:klass is nested in school" in repr(groups)
    crossed = rf.Groups.from_table(table(), by=["a", "b"], rows="y")
    assert 'write "a:b" in by=' in repr(crossed)
    other = crossed.integrating("b")
    assert other.by == "b" and len(other) == 7
    for f in range(2):  # the same rows in another order
        ours, theirs = crossed.levels(f), other.levels(f)
        np.testing.assert_array_equal(
            ours[np.argsort(crossed.row_order)], theirs[np.argsort(other.row_order)]
        )


def test_any_factor_can_be_integrated():
    model, groups = MODELS[CROSSED]()
    values = []
    for name in ("a", "b", "c"):
        own, design, _ = engine(model, groups.integrating(name))
        assert own.order[0] == ["a", "b", "c"].index(name)
        theta = 0.3 * np.random.default_rng(0).normal(size=own.theta.size)
        values.append(Marginal(own, design).optimum(theta).value)
    np.testing.assert_allclose(values, values[0], atol=1e-7)


@pytest.mark.slow
def test_a_linear_fit_is_that_of_the_formula():
    rows = table(400)
    priors = {"Intercept": dist.Normal(0, 10), "x": dist.Normal(0, 10), "sd": dist.HalfNormal(2)}
    priors["sigma"] = dist.HalfNormal(2)
    centre = rows["x"].mean()  # a formula's intercept has its prior at the mean of x

    def log_prior(t):
        total = priors["Intercept"].log_prob(t["Intercept"] + t["x"] * centre)
        total += priors["x"].log_prob(t["x"])
        return total + half_normals({n: t[n] for n in ("sd_0", "sd_1", "sigma")})

    model, groups = intercepts("y", "gaussian", log_prior, ("a", "b"), rows)
    fits = [rf.fit(model, groups), rf.fit("y ~ x + (1 | a) + (1 | b)", rows, priors=priors)]
    ours, theirs = (fit.summary() for fit in fits)
    # An sd is off by 1 / sqrt(2 draws), and more where tails are long, as the intercept's are here.
    noise = np.sqrt(sum(1 / fit.notes["theta_effective_draws"] for fit in fits))
    same = dict(
        zip(ours.names, ["Intercept", "x", "sd(Intercept | a)", "sd(Intercept | b)", "sigma"])
    )
    for name, other in same.items():
        own, truth = ours[name], theirs[other]
        assert abs(own["mean"] - truth["mean"]) < 0.1 * truth["sd"], name
        assert own["sd"] == pytest.approx(truth["sd"], rel=0.02 + 2 * noise), name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_means_and_sds_are_those_of_nuts(name):
    own = PROBLEMS[name]
    truth, names = own.reference(), own.factors
    noise = 3 / np.sqrt(float(truth["ess"]))  # of a reference mean, in sds
    formula, _ = rf.from_formula(own.formula, own.table, likelihood=own.likelihood)
    priors, centre = formula.priors, own.table["x"].mean()
    of = {"Intercept": "Intercept", "x": "x"}
    of |= {f"sd_{f}": f"sd(Intercept | {factor})" for f, factor in enumerate(names)}

    def log_prior(t):
        moved = {**t, "Intercept": t["Intercept"] + t["x"] * centre}
        return sum(priors[of[name]].log_prob(value) for name, value in moved.items())

    posterior = rf.fit(*intercepts("y", own.likelihood, log_prior, names, own.table))
    summary = posterior.summary()
    for parameter in summary.names:
        mean, sd = truth[f"{of[parameter]} mean"], truth[f"{of[parameter]} sd"]
        assert abs(summary[parameter]["mean"] - mean) < (0.15 + noise) * sd, parameter
        assert abs(summary[parameter]["sd"] / sd - 1) < 0.06 + noise, parameter
    for factor, z in zip(names, ("first", "second"), strict=True):
        effects = posterior.group_effects(factor, draws=1000)
        mean, sd = truth[f"effects({factor}) mean"], truth[f"effects({factor}) sd"]
        off = (effects[f"{z}_mean"] - mean) / sd
        assert np.sqrt(np.mean(off**2)) < 0.1 and np.abs(off).max() < 0.3
        assert np.median(effects[f"{z}_sd"] / sd) == pytest.approx(1, abs=0.05)


def test_x64_is_as_it_was(fitted):
    fitted.sample(5)
    assert jnp.zeros(1).dtype == jnp.float32 and not jax.config.jax_enable_x64
