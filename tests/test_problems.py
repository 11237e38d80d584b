"""The reference problems say the same thing twice, and their stored references still apply."""

from functools import partial

import jax
import numpy as np
import pytest
from numpyro.distributions.transforms import biject_to
from numpyro.infer.util import log_density

import problems
from benchmarks import quadrature, references
from quick import slow_but

NAMES = [name for name in problems.PROBLEMS if name != "logistic_1000"]  # logistic_100, larger
QUICK = ["logistic_100", "radon", "random_intercept"]
STORED = [name for name in problems.PROBLEMS if (problems.REFERENCES / f"{name}.npz").exists()]


@pytest.mark.parametrize("name", slow_but(QUICK, NAMES))
def test_densities_equal_numpyro(name, x64):
    problem = problems.make(name, N=7)
    model = partial(problem.model, n_group=problem.n_group)
    arguments = {n: v for n, v in problem.arguments().items() if n != "n_group"}

    @jax.jit
    def both(theta, z):
        return problem.log_joint(theta, z), log_density(model, (), arguments, theta | z)[0]

    for seed in range(3):
        ours, numpyros = both(*problem.random_point(seed))
        assert np.isfinite(ours)
        np.testing.assert_allclose(ours, numpyros, rtol=1e-9)


@pytest.mark.parametrize("name", slow_but(QUICK, NAMES))
def test_problem_is_well_formed(name, x64):
    problem = problems.make(name, N=7)
    group = problem.table["group"]
    np.testing.assert_array_equal(np.unique(group), np.arange(problem.n_group))
    assert {len(column) for column in problem.table.values()} == {len(group)}
    theta, z = problem.random_point(0)
    for spec, values, lead in ((problem.theta, theta, ()), (problem.z, z, (problem.n_group,))):
        for parameter, (kind, shape) in spec.items():
            constraint = problems.CONSTRAINTS[kind]
            assert values[parameter].shape == lead + shape
            assert np.all(constraint(values[parameter]))
            truth = np.asarray(problem.truth[parameter], dtype=float)
            assert truth.shape == lead + shape
            back = biject_to(constraint)(biject_to(constraint).inv(truth))
            np.testing.assert_allclose(back, truth, atol=1e-6)
    for column in problem.group:
        values = problem.group_columns()[column]
        np.testing.assert_array_equal(values[group], problem.table[column])
    assert problem.fingerprint() == problems.make(name, N=7).fingerprint()


def test_fingerprint_sees_the_data_and_not_its_dtype():
    problem = problems.poisson(N=5)
    before = problem.fingerprint()
    problem.table["y"] = problem.table["y"].astype(np.float64)
    assert problem.fingerprint() == before
    problem.table["y"][0] += 1
    assert problem.fingerprint() != before


@pytest.mark.parametrize("name", slow_but(QUICK, STORED))
def test_stored_reference_belongs_to_the_problem(name, x64):
    """The data are those it was computed from, and so is the density: at one random point."""
    problem = problems.make(name)
    stored = problems.reference(problem)
    theta, z = problem.random_point(seed=0)
    np.testing.assert_allclose(jax.jit(problem.log_joint)(theta, z), stored.log_joint, rtol=1e-6)
    size = sum(int(np.prod(shape)) for _, shape in problem.z.values())
    assert stored.z_mean.shape == stored.z_sd.shape == (problem.n_group, size)
    assert stored.names == problems.flat_names(problem.theta)
    assert stored.corr.shape == (len(stored.names),) * 2
    assert stored.u_corr.shape == (len(stored.u_names),) * 2
    assert np.all(stored.u_ess > 400)
    assert np.all(stored.u_rhat < 1.02)
    named = stored.named(problem, stored.mean)
    assert {n: v.shape for n, v in named.items()} == {n: s for n, (_, s) in problem.theta.items()}
    beside = stored.named_z(problem, stored.z_mean)
    assert {n: v.shape[1:] for n, v in beside.items()} == {n: s for n, (_, s) in problem.z.items()}


@pytest.mark.parametrize("name", STORED)
def test_stored_reference_covers_the_truth(name):
    """The simulated truth is a draw from the prior's support, not a tuned answer: 5 sds suffice."""
    problem = problems.make(name)
    stored = problems.reference(problem)
    truth = np.concatenate([np.ravel(problem.truth[n]) for n in problem.theta])
    moving = stored.sd > 0
    assert np.all(np.abs(stored.mean - truth)[moving] < 5 * stored.sd[moving])
    local = np.concatenate(
        [np.reshape(problem.truth[n], (problem.n_group, -1)) for n in problem.z], axis=-1
    )
    white = (local - stored.z_mean) / stored.z_sd
    if name != "eight_schools":  # real data: nobody knows
        assert 0.6 < np.sqrt(np.mean(white**2)) < 1.5


def test_reference_of_other_data_is_refused(tmp_path):
    problem = problems.eight_schools()
    with pytest.raises(FileNotFoundError, match="benchmarks.references"):
        problems.reference(problem, tmp_path)
    references.main(["--out", str(tmp_path), "--only", "eight_schools", "--groups", "7"])
    with pytest.raises(ValueError, match="other data"):
        problems.reference(problem, tmp_path)
    assert problems.reference(problems.eight_schools(N=7), tmp_path).method == "quadrature"


def test_a_failing_problem_does_not_stop_the_rest(tmp_path, monkeypatch, capsys):
    def broken(problem):
        raise RuntimeError("no luck")

    monkeypatch.setitem(references.QUADRATURE, "random_intercept", broken)
    command = ["--out", str(tmp_path), "--only", "random_intercept", "eight_schools"]
    assert references.main([*command, "--groups", "5"]) == 1
    assert "no luck" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["eight_schools.npz"]


@pytest.mark.slow
def test_random_intercept_quadrature_against_brute_force():
    """Locals by a fine trapezium over a, theta by another grid, at a size where both are cheap."""
    problem = problems.random_intercept(N=30)
    found = quadrature.random_intercept(problem)
    group, y = problem.table["group"], problem.table["y"]
    a = np.linspace(-12, 12, 801)
    rows = y[:, None] * a - np.logaddexp(0, a)
    lik = np.zeros((30, a.size))
    np.add.at(lik, group, rows)

    mus, log_sigmas = np.linspace(-3, 3, 61), np.linspace(-6, 2.5, 61)
    log_density = np.empty((mus.size, log_sigmas.size))
    for i, mu in enumerate(mus):
        sigma = np.maximum(np.exp(log_sigmas), 0.05)[:, None]  # narrower needs a finer a
        prior = -0.5 * ((a - mu) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
        local = np.log(np.exp(lik[None] + prior[:, None]).sum(-1) * (a[1] - a[0])).sum(-1)
        scale = np.exp(log_sigmas)
        log_density[i] = local - mu**2 / 8 - scale**2 / 8 + log_sigmas
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    assert abs(weight.sum(1) @ mus - found["u_mean"][0]) < 0.02 * found["u_sd"][0]
    assert abs(weight.sum(0) @ np.exp(log_sigmas) - found["mean"][1]) < 0.02 * found["sd"][1]


def test_summaries_of_known_draws():
    """Independent draws from a known Gaussian: moments, MCSE, ESS and correlation come back."""
    problem = problems.random_intercept(N=4)
    rng = np.random.default_rng(0)
    free = rng.standard_normal((4, 2000, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    samples = {
        "mu": free[..., 0],
        "sigma": np.exp(0.3 * free[..., 1]),
        "a": 2 + 3 * rng.standard_normal((4, 2000, 4)),
    }
    found = references.summarize(problem, samples)
    np.testing.assert_allclose(found["u_mean"], 0, atol=0.05)
    np.testing.assert_allclose(found["u_sd"], [1, 0.3], rtol=0.05)
    np.testing.assert_allclose(found["u_corr"][0, 1], 0.6, atol=0.04)
    np.testing.assert_allclose(found["u_mcse"], [0.011, 0.0033], rtol=0.2)
    np.testing.assert_allclose(found["u_sd_mcse"], [0.0079, 0.0024], rtol=0.2)
    np.testing.assert_allclose(found["mean"][1], np.exp(0.045), rtol=0.02)
    np.testing.assert_allclose(found["log_mean"], [np.nan, 0], atol=0.02)
    np.testing.assert_allclose(found["z_mean"], np.full((4, 1), 2), atol=0.15)
    np.testing.assert_allclose(found["z_sd"], np.full((4, 1), 3), atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nuts_runs(name, tmp_path):
    size = ["--groups", "6", "--chains", "2", "--warmup", "20", "--draws", "30", "--nuts"]
    assert references.main(["--out", str(tmp_path), "--only", name, *size]) == 0
    assert problems.reference(problems.make(name, N=6), tmp_path).method == "nuts"
