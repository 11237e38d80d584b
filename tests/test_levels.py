"""Several grouping factors: exact where the model is linear and Gaussian, near NUTS elsewhere."""

import numpy as np
import pytest
import scipy.sparse as sp

import ramify as rf
from levels_oracle import exact
from levels_tables import apart, problem, table
from levels_textbook import TEXTBOOK
from quick import slow
from ramify.fitting.levels import start
from ramify.frontends.formula.levels_adapter import FormulaLevelsAdapter
from ramify.levels.condensed import condensed
from ramify.levels.iterated import PROBES
from ramify.levels.kept import assemble, choose
from ramify.levels.marginal import Marginal
from ramify.levels.model import differentiate

LINEAR = {
    "nested": "y ~ x + (1 | school/klass)",
    "three levels": "y ~ x + (1 + x | school) + (1 | school:klass) + (1 | a)",
    "crossed": "y ~ x + (1 + x | a) + (1 | b)",
    "crossed, slopes in both": "y ~ w + (x || a) + (1 + x | b) + (1 | c)",
    "a factor twice": "y ~ (1 | a) + (0 + x | a) + (1 | b)",
    "no common effects": "y ~ 0 + (1 | a) + (1 | b)",
}


QUICK = [("nested", "sparse"), ("crossed, slopes in both", "dense"), ("no common effects", "dense")]


@pytest.mark.parametrize(
    "text, algebra",
    [
        pytest.param(
            text, algebra, id=f"{name}, {algebra}", marks=[] if quick else [pytest.mark.slow]
        )
        for name, text in LINEAR.items()
        for algebra in ("dense", "sparse")
        for quick in [(name, algebra) in QUICK]
    ],
)
def test_linear_models_are_exact_at_any_theta(text, algebra):
    model, design = problem(text)
    theta = apart(model)
    found, truth = Marginal(model, design, algebra).optimum(theta), exact(model, design, theta)
    assert found.value == pytest.approx(truth.value, abs=1e-7)
    np.testing.assert_allclose(found.effects.beta, truth.beta, atol=1e-8)
    np.testing.assert_allclose(found.effects.u, truth.u, atol=1e-8)
    np.testing.assert_allclose(found.effects.z, truth.z, atol=1e-8)
    # S^-1 by its columns, and its draws by their covariance.
    P, q = len(truth.beta), len(truth.u)
    of_u = found.kept.solve(np.zeros((P, q)), np.eye(q))[1]
    np.testing.assert_allclose(of_u, truth.covariance_u, atol=1e-8)
    noise = found.kept.noise(np.random.default_rng(0), 20_000)
    for own, covariance in zip(noise, (truth.covariance_beta, truth.covariance_u), strict=True):
        sd = np.sqrt(np.diag(covariance))
        off = (np.atleast_2d(np.cov(own)) if len(own) else np.zeros((0, 0))) - covariance
        assert (np.abs(off) < 6 / np.sqrt(20_000) * np.outer(sd, sd)).all()


@pytest.mark.parametrize("filled", [False, True])
def test_curvature_added_up_by_places_is_exact(filled):
    model, design = problem(LINEAR["crossed, slopes in both"])
    theta = apart(model)
    vars(design).update(dense=None, filled=filled)  # as if it were large
    found, truth = Marginal(model, design, "dense").optimum(theta), exact(model, design, theta)
    assert design.outer is not None
    assert found.value == pytest.approx(truth.value, abs=1e-7)
    np.testing.assert_allclose(found.effects.u, truth.u, atol=1e-8)
    signed = np.random.default_rng(0).normal(size=len(design.offset))  # as of a Student t
    none, q = np.zeros((0, len(signed))), design.K.shape[1]
    added = assemble(design, signed, none, sp.csr_array((q, q)), np.zeros(2), "dense").u
    whole = design.kept_curvature(signed).toarray()
    np.testing.assert_allclose(np.tril(added), np.tril(whole), atol=1e-10)


@pytest.mark.parametrize("likelihood, response", [("bernoulli", "yes"), ("poisson", "count")])
def test_an_optimum_does_not_depend_on_where_its_search_began(likelihood, response):
    model, design = problem(f"{response} ~ x + (1 + x | a) + (1 | b)", likelihood)
    G, theta = Marginal(model, design), start(model)
    anew = Marginal(model, design).optimum(theta)
    for far in (0.1, 1.0):
        begin = G.optimum(theta + far)
        assert G.optimum(theta, begin).value == pytest.approx(anew.value, abs=2e-4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("three levels", marks=pytest.mark.slow),
        "crossed, slopes in both",
        "no common effects",
    ],
)
def test_conjugate_gradients_and_probes_are_near_the_exact_answer(name):
    model, design = problem(LINEAR[name])
    theta = apart(model)
    found, truth = Marginal(model, design, "iterative").optimum(theta), exact(model, design, theta)
    np.testing.assert_allclose(found.effects.beta, truth.beta, atol=1e-5)
    np.testing.assert_allclose(found.effects.u, truth.u, atol=1e-5)
    # Without the means over levels, along which S is nearly singular, probes agree.
    assert np.std(found.kept.log_dets) < 0.4
    error = 0.5 * np.std(found.kept.log_dets) / np.sqrt(PROBES)
    assert abs(found.value - truth.value) < 4 * error + 1e-4
    P, q = len(truth.beta), len(truth.u)
    of_u = found.kept.solve(np.zeros((P, q)), np.eye(q))[1]
    np.testing.assert_allclose(of_u, truth.covariance_u, atol=1e-4)
    noise = found.kept.noise(np.random.default_rng(0), 4000)
    for own, covariance in zip(noise, (truth.covariance_beta, truth.covariance_u), strict=True):
        sd = np.sqrt(np.diag(covariance))
        off = (np.atleast_2d(np.cov(own)) if len(own) else np.zeros((0, 0))) - covariance
        assert (np.abs(off) < 6 / np.sqrt(4000) * np.outer(sd, sd)).all()


@pytest.mark.slow
@pytest.mark.parametrize("likelihood, response", [("gaussian", "y"), ("bernoulli", "yes")])
def test_a_fit_by_conjugate_gradients_is_that_by_dense_algebra(likelihood, response):
    rows, rng = table(2000), np.random.default_rng(1)
    a, b = rng.integers(0, 60, 2000), rng.integers(0, 40, 2000)
    y = 0.5 * rows["x"] + rng.normal(size=60)[a] + rng.normal(size=40)[b] * (1 + 0.5 * rows["x"])
    y = y + rng.normal(size=2000)
    rows |= {"a": a, "b": b, "y": y, "yes": (y > 0).astype(float)}
    text = f"{response} ~ x + (1 | a) + (1 + x | b)"
    dense, iterated = (
        rf.fit(text, rows, likelihood=likelihood, algebra=algebra)
        for algebra in ("dense", "iterative")
    )
    assert iterated.notes["algebra"] == "iterative" and iterated.notes["noise_sds"] < 0.05
    sd = dense.pool.theta.std(0)
    apart = np.abs(dense.pool.theta.mean(0) - iterated.pool.theta.mean(0)) / sd
    assert apart.max() < 0.05 + 3 * iterated.notes["noise_sds"]
    np.testing.assert_allclose(iterated.pool.theta.std(0), sd, rtol=0.03)


def test_the_algebra_is_chosen_by_the_design():
    rng, n = np.random.default_rng(0), 30_000
    few, many, more = rng.integers(0, 20, n), rng.integers(0, 5000, n), rng.integers(0, 3000, n)
    rows = {"y": rng.normal(size=n), "few": few, "many": many, "more": more, "in": many // 2}
    algebra = lambda text: choose(problem(text, rows=rows)[1])
    assert algebra("y ~ (1 | many) + (1 | more)") == "iterative"
    assert algebra("y ~ (1 | many) + (1 | in)") == "sparse"
    assert algebra("y ~ (1 | many) + (1 | in) + (1 | few)") == "sparse"
    assert algebra("y ~ (1 | many) + (1 | few)") == "dense"


def test_any_factor_can_be_integrated():
    text = "y ~ w + (x || a) + (1 + x | b) + (1 | c)"
    values = []
    for name in ("a", "b", "c"):
        model, groups = rf.from_formula(text, table(), integrate=name)
        assert groups.by == name
        design = FormulaLevelsAdapter(model).design(groups)
        values.append(Marginal(model, design).optimum(apart(model)).value)
    np.testing.assert_allclose(values, values[0], atol=1e-7)
    for wrong in (text, "y ~ (1 | a)"):
        with pytest.raises(ValueError, match="no factor 'd' in this formula; it has a"):
            rf.from_formula(wrong, table(), integrate="d")


def test_the_slope_of_the_marginal_is_that_of_the_dense_one():
    model, design = problem(LINEAR["crossed, slopes in both"])
    theta, G, step = apart(model), Marginal(model, design), 1e-3
    for axis in step * np.eye(len(theta)):
        ours = G.optimum(theta + axis).value - G.optimum(theta - axis).value
        dense = exact(model, design, theta + axis).value - exact(model, design, theta - axis).value
        assert ours / (2 * step) == pytest.approx(dense / (2 * step), abs=1e-3)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_the_restricted_likelihood_is_that_of_lme4(name):
    import numpyro.distributions as dist
    from scipy.optimize import minimize

    own = TEXTBOOK[name]
    model, groups = rf.from_formula(
        own.formula, own.table, priors={"Intercept": dist.Normal(0, 1e4)}
    )
    adapter = FormulaLevelsAdapter(model)
    G = Marginal(model, adapter.design(groups))
    flat = np.log(1e4 * np.sqrt(2 * np.pi))  # the prior's height, which lme4 has no counterpart of

    def criterion(theta):
        found = G.optimum(theta)
        return -2 * (found.value - found.given.log_prior + flat)

    best = minimize(criterion, start(model), method="Nelder-Mead", options={"fatol": 1e-7})
    assert best.fun == pytest.approx(own.criterion, abs=1e-4)
    found = adapter.summary_rows(model.values(best.x[None]), np.zeros((1, 1)))
    sds = {f: found["sigma" if f == "residual" else f"sd(Intercept | {f})"][0] for f in own.sds}
    assert sds == pytest.approx(own.sds, rel=1e-3)


@pytest.mark.slow
def test_theta_is_that_of_numerical_integration():
    model, groups = rf.from_formula("y ~ (1 | a) + (1 | b)", table(50))
    design = FormulaLevelsAdapter(model).design(groups)
    posterior = rf.fit(model, groups)
    theta = np.asarray(posterior.pool.theta)
    centre, sd = np.median(theta, 0), theta.std(0)
    axes = [c + s * np.linspace(-4, 4, 13) for c, s in zip(centre, sd, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    each = zip(grid, model.at_each(grid), strict=True)
    values = np.array([exact(model, design, point, given).value for point, given in each])
    weight = np.exp(values - values.max())
    weight /= weight.sum()
    sds = np.exp(grid)
    mean = weight @ sds
    spread = np.sqrt(weight @ (sds - mean) ** 2)
    ours = np.exp(theta)
    assert (np.abs(ours.mean(0) - mean) < 0.1 * spread).all()
    np.testing.assert_allclose(ours.std(0), spread, rtol=0.05)


@pytest.mark.parametrize(
    "likelihood, response",
    [("gaussian", "y"), ("bernoulli", "yes"), ("poisson", "count"), ("binomial", "p(count, 20)")],
)
def test_closed_forms_are_the_derivatives_of_the_densities(likelihood, response):
    model, design = problem(f"{response} ~ x + (1 | a) + (1 | b)", likelihood)
    given = model.at(start(model))
    eta = np.linspace(-4, 4, len(design.offset))
    ours = differentiate(model, given, design, np.stack([eta, -eta], 1))
    model.closed_form = None
    theirs = differentiate(model, given, design, np.stack([eta, -eta], 1))
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("likelihood, response", [("bernoulli", "yes"), ("student_t", "y")])
def test_the_slope_of_f_in_b_is_that_of_its_differences(likelihood, response):
    model, design = problem(f"{response} ~ x + (1 | a) + (1 | b)", likelihood)
    theta = start(model)
    G, given = Marginal(model, design), model.at(theta)
    precision, rng = G.precision(given), np.random.default_rng(0)
    at = G.start()._replace(beta=0.1 * rng.normal(size=2), u=0.1 * rng.normal(size=7))
    state, step = G.state(given, precision, at), 1e-4
    for k in range(3):
        axis = step * np.eye(7)[k]
        ends = [
            G.state(given, precision, at._replace(u=at.u + sign * axis)).value for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(state.slope_u[k], abs=1e-5)
    # S is minus the derivative of the slope.
    kept = G.factor(state, precision)
    inverse = kept.solve(np.zeros((2, 7)), np.eye(7))
    changes = []
    for axis in step * np.eye(7):
        ends = [G.state(given, precision, at._replace(u=at.u + sign * axis)) for sign in (1, -1)]
        pair = [np.concatenate([end.slope_beta, end.slope_u]) for end in ends]
        changes.append((pair[0] - pair[1]) / (2 * step))
    curvature = -np.stack(changes, 1)  # [2 + 7, 7]
    S = np.linalg.inv(np.linalg.inv(_whole(kept, 2, 7)))
    np.testing.assert_allclose(S[:, 2:], curvature, atol=2e-2 * np.abs(curvature).max())
    assert inverse[1].shape == (7, 7)


def _whole(kept, P, q):
    """S from its factor."""
    unit = np.eye(P + q)
    beta, u = kept.solve(unit[:P], unit[P:])
    return np.linalg.inv(np.concatenate([beta, u]))


REFUSED = {
    "y ~ (1 | a) + (1 | one)": "one level, 7, in all rows",
    "y ~ (1 | a) + (1 | row)": "as many levels as there are rows",
    "y ~ (1 | a) + (1 | same)": '"a" and "same" group the rows in the same way',
    "y ~ (1 | a) + (1 + x | a)": "is in two terms",
    "y ~ (1 | a) + (1 | nowhere)": "nowhere",
    "y ~ (1 | a) + (0 | b)": "nothing varies",
    "y ~ (1 | a*b)": "a term for each",
    "y ~ one + (1 | a) + (1 | b)": "is constant",
    "one ~ (1 | a) + (1 | b)": "nothing to explain",
    "y ~ (1 | a) + (1 | b); sigma ~ x": "one grouping factor",
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_designs_get_a_sentence(text):
    rows = table()
    rows |= {"one": np.full(160, 7), "row": np.arange(160), "same": 100 - rows["a"]}
    with pytest.raises(ValueError, match=REFUSED[text]):
        rf.from_formula(text, rows)


def test_nesting_is_recognised_and_repeated_labels_are_told():
    model, _ = rf.from_formula("y ~ (1 | school) + (1 | school:klass)", table())
    assert model.notes == ["school:klass is nested in school"]
    assert model.formula.by == "school:klass"  # the innermost is integrated out
    model, _ = rf.from_formula("y ~ (1 | a) + (1 | b)", table())
    assert "write (1 | a/b)" in model.notes[0] and "note" in repr(model)


def test_priors_are_named_by_factor():
    import numpyro.distributions as dist

    text = "y ~ x + (1 + x | a) + (1 + x | b)"
    given = {"sd": dist.HalfNormal(1), "sd(b)": dist.HalfNormal(2), "sd(x | b)": dist.HalfNormal(3)}
    given["cor(b)"] = dist.LKJ(2, 4.0)
    model, _ = rf.from_formula(text, table(), priors=given)
    scale = {name: float(prior.scale) for name, prior in model.priors.items() if "sd(" in name}
    assert scale == {
        "sd(Intercept | a)": 1, "sd(x | a)": 1, "sd(Intercept | b)": 2, "sd(x | b)": 3,
    }  # fmt: skip
    assert float(model.priors["cor(b)"].concentration) == 4
    with pytest.raises(ValueError, match=r"Did you mean sd\(Intercept | c\)|no parameter"):
        rf.from_formula(text, table(), priors={"sd(c)": dist.HalfNormal(1)})


@pytest.mark.slow
def test_the_evidence_is_that_of_numerical_integration():
    model, groups = rf.from_formula("y ~ (1 | a) + (1 | b)", table(50))
    design = FormulaLevelsAdapter(model).design(groups)
    posterior = rf.fit(model, groups)
    theta = posterior.pool.theta
    axes = [np.linspace(c - 5 * s, c + 5 * s, 17) for c, s in zip(theta.mean(0), theta.std(0))]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    values = np.array([exact(model, design, point).value for point in grid])
    volume = np.prod([axis[1] - axis[0] for axis in axes])
    truth = values.max() + np.log(np.exp(values - values.max()).sum() * volume)
    found = posterior.log_evidence()
    assert found == pytest.approx(truth, abs=4 * found.se + 0.02)


def test_lognormal_rows_are_gaussian_ones_of_their_logarithms():
    rows = table()
    rows["size"] = np.exp(rows["y"])
    text = "~ x + (1 + x | a) + (1 | b)"
    (ours, design), (normal, other) = (
        problem(f"{y} {text}", likelihood, rows=rows)
        for y, likelihood in (("size", "lognormal"), ("y", "gaussian"))
    )
    theta = apart(ours)
    found = Marginal(ours, design).optimum(theta).value
    gaussian = Marginal(normal, other).optimum(theta).value
    assert found == pytest.approx(gaussian - rows["y"].sum(), abs=1e-6)
    given = ours.at(theta)
    closed = differentiate(ours, given, design, design.offset)
    ours.closed_form = None
    np.testing.assert_allclose(differentiate(ours, given, design, design.offset)[0], closed[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood, response", [("ordered", "grade"), ("negative_binomial", "count")]
)
def test_other_likelihoods_fit(likelihood, response):
    rows = table(400)
    rows["grade"] = np.digitize(rows["y"], [1.5, 3.0, 4.5])
    posterior = rf.fit(
        *rf.from_formula(f"{response} ~ x + (1 | a) + (1 | b)", rows, likelihood=likelihood)
    )
    assert posterior.notes["converged"]
    assert np.isfinite(posterior.summary()["mean"]).all()
    kind = "probability" if likelihood == "ordered" else "mean"
    found = posterior.predict({"a": [1], "b": [2], "x": [0.1]}, kind=kind)
    if likelihood == "ordered":
        assert sum(found[f"{k}_mean"][0] for k in range(4)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    "likelihood, response, link",
    [
        ("bernoulli", "yes", "logit"),
        slow("bernoulli", "yes", "probit"),
        slow("poisson", "count", "log"),
    ],
)
def test_rows_that_are_alike_are_added_up_without_a_change(likelihood, response, link):
    rows = table(400)
    rows["x"] = np.round(rows["x"])
    text = f"{response} ~ x + (1 | b) + (0 + x | b) + (1 | c)"
    model, groups = rf.from_formula(text, rows, likelihood=likelihood, link=link)
    design = FormulaLevelsAdapter(model).design(groups)
    few = condensed(design, model.form)
    assert len(few.offset) < 0.75 * len(design.offset)
    whole, less = (Marginal(model, own).optimum(apart(model)) for own in (design, few))
    assert less.value == pytest.approx(whole.value, abs=1e-6)
    np.testing.assert_allclose(less.effects.u, whole.effects.u, atol=1e-6)
