"""`rf.fit`: exact optima on the conjugate model, budgets, errors, and one compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import conjugate
import oracle
import ramify as rf

MAKE = {"joint": rf.joint, "branch": rf.branch, "amortized": rf.amortized}
TABLE, _ = oracle.simulate(0, 10, 100, 10)


def regression(dim: int, log_lik=None) -> rf.Model:
    """The paper's hierarchical regression."""
    normal = lambda t, z, row: dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"])
    return rf.Model(
        theta={"mu": rf.real(dim)},
        z={"beta": rf.real(dim)},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]).sum(),
        log_local=lambda t, z, group: dist.Normal(t["mu"], 1).log_prob(z["beta"]).sum(),
        log_lik=log_lik or normal,
    )


def small() -> tuple[rf.Model, rf.Groups]:
    """Eight groups in two dimensions, for what does not need the exact answer."""
    table, _ = oracle.simulate(1, 8, 5, 2)
    return regression(2), rf.Groups.from_table(table, by="group", rows=["x", "y"])


def check_optimum(method: str, covariance: str, nats: float, sds: float | None) -> None:
    """Fits with the defaults and compares with the closed-form optimum of the family."""
    groups, model = rf.Groups.from_table(TABLE, by="group", rows=["x", "y"]), regression(10)
    posterior = rf.fit(model, groups, family=MAKE[method](model, groups, covariance=covariance))
    best = oracle.optimum(TABLE, 10, method, covariance)
    gap = best.elbo - conjugate.exact_elbo(posterior.family, model, TABLE, groups)
    assert -1e-3 < gap < nats
    assert posterior.notes["converged"]
    if sds is not None:
        _, covariance_found = conjugate.assemble(posterior.family, model, groups)
        found = np.sqrt(np.diag(covariance_found))
        exact = np.concatenate([best.theta_sd, best.z_sd.ravel()])
        np.testing.assert_allclose(found, exact, rtol=sds)


@pytest.mark.parametrize("covariance", ["dense", "block", "diagonal"])
def test_branch_reaches_its_optimum(covariance):
    """Within 0.05 nats; sds of theta and z within 2% when dense."""
    check_optimum("branch", covariance, 0.05, 0.02 if covariance == "dense" else None)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["dense", "block", "diagonal"])
def test_joint_reaches_its_optimum(covariance):
    """Within 0.05 nats; sds of theta and z within 2% when dense."""
    check_optimum("joint", covariance, 0.05, 0.02 if covariance == "dense" else None)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["dense", "block", "diagonal"])
def test_amortized_reaches_its_optimum(covariance):
    """Within 0.3 nats; sds of theta and z within 5% when dense."""
    check_optimum("amortized", covariance, 0.3, 0.05 if covariance == "dense" else None)


def test_a_users_optimizer_and_the_papers_minibatches():
    """Adam on the paper's schedule, uniform minibatches, total gradient, its map and pooling."""
    model, groups = small()
    family = rf.amortized(
        model, groups, scale_map="paper", count_aware=False, centred=False, standardise=False
    )
    adam = optax.adam(rf.paper_schedule("small"))
    posterior = rf.fit(
        model,
        groups,
        family=family,
        optimizer=adam,
        estimator="total",
        minibatch=3,
        max_steps=30,
    )
    assert len(posterior.history["elbo"]) == 30
    assert np.isfinite(posterior.history["elbo"]).all()


def test_budgets_are_hard():
    """Steps are counted exactly; no seconds means next to no steps."""
    model, groups = small()
    branch = rf.branch(model, groups)
    assert rf.fit(model, groups, family=branch, max_steps=37).notes["steps"] == 37
    short = rf.fit(model, groups, family=branch, max_seconds=0.0, max_steps=10_000)
    assert short.notes["steps"] < 10_000
    assert not short.notes["converged"]


def test_progress_changes_nothing(capsys):
    """The same numbers with the bar and without; nothing is printed without."""
    model, groups = small()
    fit = lambda shown: rf.fit(
        model, groups, family=rf.branch(model, groups), max_steps=20, progress=shown
    )
    quiet = fit(False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    shown = fit(True)
    np.testing.assert_array_equal(quiet.history["elbo"], shown.history["elbo"])
    np.testing.assert_array_equal(quiet.family.theta.mean, shown.family.theta.mean)


def test_the_users_family_is_left_alone():
    """Fitting gives buffers away to the compiler, but not those of the family passed in."""
    model, groups = small()
    family = rf.branch(model, groups)
    rf.fit(model, groups, family=family, max_steps=5)
    np.testing.assert_array_equal(family.theta.mean, np.zeros(2))


def test_not_finite_names_step_term_and_group():
    """A likelihood that is infinite for one group: what, where, and the last good state."""

    def broken(theta, z, row):
        good = dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"])
        return jnp.where(row["bad"] > 0, -jnp.inf, good)

    table, _ = oracle.simulate(1, 8, 5, 2)
    names = np.array([f"user{i}" for i in range(8)])
    table = {**table, "group": names[table["group"]], "bad": (table["group"] == 5).astype(float)}
    groups = rf.Groups.from_table(table, by="group", rows=["x", "y", "bad"])
    model = regression(2, broken)
    with pytest.raises(
        rf.NonFiniteError, match=r"step 1: its term log_lik is -inf .*user5"
    ) as info:
        rf.fit(model, groups, family=rf.branch(model, groups))
    assert np.isfinite(np.asarray(info.value.family.theta.mean)).all()
    with pytest.raises(rf.NonFiniteError, match="user5"):
        rf.fit(model, groups, family=rf.solved(model, groups))


def test_densities_are_traced_once_per_batch_shape():
    """Fifty steps or five hundred: the likelihood is traced the same number of times."""
    calls = []

    def counted(theta, z, row):
        calls.append(1)
        return dist.Normal(row["x"] @ z["beta"], 1).log_prob(row["y"])

    _, groups = small()
    model = regression(2, counted)
    family = rf.branch(model, groups)
    rf.fit(model, groups, family=family, max_steps=200)
    first = len(calls)
    rf.fit(model, groups, family=family, max_steps=1000)
    # `check` looks at the densities once more; the compiled steps are not traced again.
    assert len(calls) - first <= 2


def test_other_groups_and_other_models_are_refused():
    """A family belongs to the data and the model it was built from."""
    model, groups = small()
    part = groups.subset(positions=[0, 1, 2])
    with pytest.raises(ValueError, match="built for 8 groups; got data with 3"):
        rf.fit(model, part, family=rf.branch(model, groups))
    larger = rf.Model(
        theta={"mu": rf.real(2), "more": rf.real()},
        z={"beta": rf.real(2)},
        log_prior=lambda t: -(t["more"] ** 2),
        log_local=lambda t, z, group: -jnp.sum(z["beta"] ** 2),
        log_lik=lambda t, z, row: -(row["y"] ** 2),
    )
    with pytest.raises(ValueError, match="theta of 2 dimensions; the model's has 3"):
        rf.fit(larger, groups, family=rf.branch(model, groups))


def test_a_subset_is_fitted_as_itself():
    """Groups keep their parent's numbers in a subset; a fit of it numbers them anew."""
    model, groups = small()
    part = groups.subset(positions=[5, 7])
    posterior = rf.fit(model, part, family=rf.branch(model, part), max_steps=50)
    draws = posterior.sample(10, part)
    assert draws["beta"].shape == (10, 2, 2)
    assert not np.array_equal(draws["beta"][:, 0], draws["beta"][:, 1])


def test_the_default_says_why():
    """A small smooth z is solved for, and the result says so."""
    model, groups = small()
    posterior = rf.fit(model, groups)
    assert posterior.notes["method"] == "solved"
    assert "smooth" in repr(posterior)
    assert jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), posterior.history))
