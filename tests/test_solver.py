"""The solver of a group's mode and site: nasty data, exact conditionals, what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.data.resident import cut, to_device, whole
from ramify.families.newton import newton, safe_scale
from ramify.families.solver import recombine
from ramify.inference.marginal import definite

NASTY = {
    "separated": lambda rng, x: (x[:, 0] > 0).astype(float),
    "all zero": lambda rng, x: np.zeros(len(x)),
    "coin": lambda rng, x: (rng.random(len(x)) < 0.5).astype(float),
}


def nasty_table(seed: int) -> dict[str, np.ndarray]:
    """Small data with separation, one-row groups, outliers of 1e6 and collinear columns."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 1, 2, 5, 12], size=12)
    group = np.repeat(np.arange(12), sizes)
    x = rng.normal(size=(len(group), 2))
    kind = seed % 4
    if kind == 1:
        x[:, 1] = x[:, 0]
    if kind == 2:
        x[rng.integers(len(x)), 0] = 1e6
    answer = list(NASTY.values())[seed % 3](rng, x)
    outlier = rng.standard_t(2, size=len(x))
    if kind == 3:
        outlier[0] = 1e6
    return {"group": group, "x": x, "y": answer, "v": outlier}


def nasty_model(student: bool) -> rf.Model:
    """Logistic regression, or a Student-t one that is not log-concave."""

    def log_lik(theta, z, row):
        mean = row["x"] @ z["b"]
        if student:
            return dist.StudentT(3.0, mean, 1.0).log_prob(row["v"])
        return dist.Bernoulli(logits=mean).log_prob(row["y"])

    return rf.Model(
        theta={"mu": rf.real(2), "tau": rf.positive(2)},
        z={"b": rf.real(2)},
        log_prior=lambda t: (
            dist.Normal(0, 2).log_prob(t["mu"]).sum() + dist.HalfNormal(2).log_prob(t["tau"]).sum()
        ),
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]).sum(),
        log_lik=log_lik,
    )


@pytest.mark.slow
@pytest.mark.parametrize("student", [False, True])
def test_nasty_data_never_breaks_the_solver(student):
    """100 data sets: finite, positive definite, f never lowered from one step to the next."""
    model = nasty_model(student)
    tables = [nasty_table(seed) for seed in range(100)]
    data = [rf.Groups.from_table(t, by="group", rows=["x", "y", "v"]) for t in tables]
    largest, family = max(groups.n_rows for groups in data), rf.solved(model, data[0])

    @eqx.filter_jit
    def solve(batch, theta, solver):
        site = solver.prepare(model, batch, theta)
        begin = solver.begin(model, batch, theta)
        values = [newton(model, batch, theta, begin, n) for n in (1, 2, 3, 6, 40)]
        heights = jnp.stack([c.prior.value + c.likelihood.value for c in values])
        return site, recombine(model, batch, site, theta + 0.3, solver.uses_theta), heights

    for seed, groups in enumerate(data):
        batch = cut(to_device(groups), jnp.arange(12), 1.0, largest)
        theta = jax.random.normal(jax.random.key(seed), (4,))
        site, local, heights = solve(batch, theta, family.local)
        for leaf in jax.tree.leaves((site, local)):
            assert np.isfinite(np.asarray(leaf)).all(), seed
        for scale in (site.scale, local.scale):
            diagonal = np.diagonal(np.asarray(scale), axis1=1, axis2=2)
            assert (diagonal > 0).all(), seed
        heights = np.asarray(heights, np.float64)
        assert (np.diff(heights, axis=0) >= -1e-6 * np.abs(heights[1:])).all(), seed


def test_too_many_local_dimensions():
    """Past the limit: a clear message that recommends amortized()."""
    groups = rf.Groups.from_table({"g": [0, 1], "y": [0.0, 1.0]}, by="g", rows=["y"])
    model = rf.Model(
        theta={"mu": rf.real()},
        z={"b": rf.real(60)},
        log_prior=lambda t: -(t["mu"] ** 2),
        log_local=lambda t, z, group: -jnp.sum(z["b"] ** 2),
        log_lik=lambda t, z, row: -(row["y"] ** 2),
    )
    with pytest.raises(ValueError, match=r"M = 60. Use amortized\(\)"):
        rf.solved(model, groups)


@pytest.mark.slow
def test_linear_mixed_model_is_exact_given_theta():
    """Noise scale and a non-centred intercept in theta: q(z | theta) is the exact conditional."""

    def log_lik(theta, z, row):
        return dist.Normal(theta["mu"] + theta["tau"] * z["b"], 0.7).log_prob(row["y"])

    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: -0.5 * t["mu"] ** 2,
        log_local=lambda t, z, group: dist.Normal(0, 1).log_prob(z["b"]),
        log_lik=log_lik,
    )
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 9])
    groups = rf.Groups.from_table(
        {"g": group, "y": rng.normal(size=len(group))}, by="g", rows=["y"]
    )
    conditional = jax.jit(rf.solved(model, groups).conditional(model, whole(groups)))
    for mu, tau in ((0.3, 0.5), (-1.0, 2.0)):
        local = conditional(jnp.array([mu, np.log(tau)]))
        n = groups.sizes
        total = np.bincount(group, weights=groups.rows["y"] - mu)
        precision = 1 + n * tau**2 / 0.49
        np.testing.assert_allclose(
            local.mean[:, 0], tau * total / 0.49 / precision, rtol=2e-4, atol=1e-5
        )
        np.testing.assert_allclose(local.scale[:, 0, 0], precision**-0.5, rtol=1e-4)


def test_safe_scale_and_definite():
    """Indefinite matrices get a usable scale and are reported as such."""
    precision = jnp.stack([jnp.eye(2), jnp.diag(jnp.array([1.0, -1.0])), jnp.zeros((2, 2))])
    scale, good = jax.jit(safe_scale)(precision)
    assert np.asarray(good).tolist() == [True, False, False]
    assert np.isfinite(np.asarray(scale)).all()
    assert (np.linalg.eigvalsh(definite(np.diag([3.0, -2.0]))) > 0).all()
