"""Models: supports, Jacobians, named values, and what a wrong density is told."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import ramify as rf
from quick import slow_but
from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.data.resident import cut, to_device, whole
from ramify.models.densities import group_log_lik, sum_rows
from ramify.models.model import Model
from ramify.models.parameters import Space
from spaces import unconstrained

below = lambda n: np.tril_indices(n, -1)

# A parameter, its unconstrained size, and the coordinates of its value that vary freely.
SUPPORTS = {
    "real scalar": (rf.real(), 1, ...),
    "real": (rf.real(2, 3), 6, ...),
    "positive": (rf.positive(3), 3, ...),
    "unit": (rf.unit(2), 2, ...),
    "ordered": (rf.ordered(4), 4, ...),
    "simplex": (rf.simplex(4), 3, np.s_[:-1]),
    "cholesky": (rf.cholesky(3), 6, np.tril_indices(3)),
    "correlation_cholesky": (rf.correlation_cholesky(4), 6, below(4)),
    "correlation": (rf.correlation(4), 6, below(4)),
    "constrained": (rf.constrained(constraints.interval(-1.0, 4.0), 2), 2, ...),
}
QUICK = ["real", "positive", "ordered", "simplex", "cholesky", "correlation"]


@pytest.fixture(params=slow_but(QUICK, SUPPORTS), ids=str)
def support(request):
    return SUPPORTS[request.param]


def test_values_lie_in_the_support(support, key):
    parameter, size, _ = support
    space = Space({"a": parameter})
    assert space.size == size == len(space.coordinates())
    values = jax.jit(jax.vmap(space.values))(jax.random.normal(key, (5, size)))["a"]
    assert values.shape == (5, *parameter.shape)
    assert bool(jnp.all(parameter.constraint(values)))


def test_round_trip(support, key, x64):
    parameter, size, _ = support
    space, flat = Space({"a": parameter}), jax.random.normal(key, (size,))
    back = jax.jit(lambda f: unconstrained(space, space.values(f)))(flat)
    np.testing.assert_allclose(back, flat, atol=1e-9)


def test_jacobian_is_the_autodiff_one(support, key, x64):
    parameter, size, free = support
    space, flat = Space({"a": parameter}), jax.random.normal(key, (size,))
    jacobian = jax.jit(jax.jacfwd(lambda f: space.values(f)["a"][free].ravel()))(flat)
    assert jacobian.shape == (size, size)
    values, log_det = jax.jit(space.constrain)(flat)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], atol=1e-9)
    np.testing.assert_allclose(values["a"], jax.jit(space.values)(flat)["a"], rtol=1e-12)


def test_parameters_are_laid_end_to_end(x64):
    space = Space({"mu": rf.real(2), "tau": rf.positive(), "L": rf.cholesky(2)})
    assert space.coordinates() == ["mu[0]", "mu[1]", "tau", "L[0]", "L[1]", "L[2]"]
    values, log_det = jax.jit(space.constrain)(jnp.array([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))
    assert values["mu"].tolist() == [1.0, 2.0]
    np.testing.assert_allclose(values["tau"], np.exp(3.0))
    np.testing.assert_allclose(values["L"], np.eye(2))
    np.testing.assert_allclose(log_det, 3.0)


def toy(**densities):
    """A model with a group column u and two row columns; densities can be replaced."""
    given = {
        "log_prior": lambda t: dist.HalfNormal(1.0).log_prob(t["tau"]),
        "log_local": lambda t, z, group: dist.Gamma(2.0, t["tau"]).log_prob(z["b"]) + group["u"],
        "log_lik": lambda t, z, row: dist.Poisson(z["b"] * row["x"]).log_prob(row["y"]) + row["u"],
    }
    theta, z = {"tau": rf.positive()}, {"b": rf.positive()}
    return Model(theta=theta, z=z, **(given | densities))


@pytest.fixture
def groups():
    table = {"g": [1, 0, 1, 1, 3], "x": [1.0, 2.0, 0.5, 1.5, 3.0], "y": [0, 3, 1, 2, 2]}
    every = {"g": [0, 1, 2, 3], "u": [10.0, 20.0, 30.0, 40.0]}
    return Groups.from_table(table, by="g", rows=["x", "y"], group="u", group_table=every)


def test_densities_are_those_of_the_constrained_values(groups, x64):
    """The density of an unconstrained value integrates to one: its Jacobian is there, once."""
    model = toy(log_local=lambda t, z, group: dist.Gamma(2.0, t["tau"]).log_prob(z["b"]))
    grid = jnp.linspace(-15.0, 8.0, 4001)
    width = grid[1] - grid[0]
    prior = jax.jit(jax.vmap(lambda t: model.log_prior(t[None])))(grid)
    np.testing.assert_allclose(jnp.exp(prior).sum() * width, 1, atol=1e-5)
    batch, theta = whole(groups), jnp.array([0.3])
    each = lambda z: model.log_local(theta, jnp.full((4, 1), z), batch)
    local = jax.jit(jax.vmap(each))(grid)
    np.testing.assert_allclose(jnp.exp(local).sum(0) * width, np.ones(4), atol=1e-5)


def test_each_row_meets_its_own_group(groups, x64):
    model, batch = toy(), whole(groups)
    theta, z = jnp.array([0.1]), jnp.array([[0.5], [-0.2], [0.0], [1.0]])
    rows = jax.jit(model.log_lik)(theta, z[batch.segment], batch)
    # Sorted by group: the columns are those of group 0, then three rows of group 1, then group 3.
    b, x, y = np.exp([0.5, -0.2, -0.2, -0.2, 1.0]), [2.0, 1.0, 0.5, 1.5, 3.0], [3, 0, 1, 2, 2]
    u = np.array([10, 20, 20, 20, 40])
    expected = dist.Poisson(b * np.array(x)).log_prob(np.array(y)) + u
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    sums = jax.jit(group_log_lik, static_argnums=0)(model, theta, z, batch)
    np.testing.assert_allclose(sums, [rows[0], rows[1:4].sum(), 0.0, rows[4]], rtol=1e-6)
    prior = dist.Gamma(2.0, np.exp(0.1)).log_prob(np.exp(z[:, 0])) + z[:, 0]
    found = jax.jit(model.log_local)(theta, z, batch)
    np.testing.assert_allclose(found, prior + groups.group["u"], rtol=1e-6)


def test_sums_over_rows_leave_filler_out(groups):
    batch = cut(to_device(groups), jnp.array([1, 3, -1]), 1.0, 9)
    values = jnp.arange(18.0).reshape(9, 2)
    sums = sum_rows(values, batch)
    np.testing.assert_allclose(sums, [values[:3].sum(0), values[3], [0.0, 0.0]])


def test_new_outcomes_have_a_key_each(groups, key):
    model = toy(simulate=lambda k, t, z, row: row["u"] + jax.random.uniform(k))
    batch = whole(groups)
    out = model.simulate(key, jnp.zeros(1), jnp.zeros((5, 1)), batch)
    np.testing.assert_array_equal(np.floor(out), [10, 20, 20, 20, 40])
    assert len(set(np.asarray(out).tolist())) == 5


def test_a_model_without_simulate_says_what_is_missing(groups, key):
    model = toy()
    assert not model.can_simulate
    with pytest.raises(ValueError, match="give Model a simulate=lambda key, theta, z, row"):
        model.simulate(key, jnp.zeros(1), jnp.zeros((5, 1)), whole(groups))


def test_repr_names_shapes_and_supports():
    assert repr(toy()) == "Model(theta: tau [] positive; z: b [] positive)"


def vector(*_):
    return jnp.zeros(3)


# Which density, what it is instead, and the message.
WRONG = [
    ("log_prior", vector, r"log_prior\(theta\) must return one number .* got shape \[3\]"),
    ("log_local", vector, r"log_local\(theta, z, group\) must return one number .* one group"),
    (
        "log_lik",
        lambda t, z, row: t["tau"] * jnp.stack([row["x"], row["u"]]),
        r"log_lik\(theta, z, row\) must return one number .* one row; got shape \[2\]",
    ),
    ("log_lik", lambda t, z, row: None, r"log_lik.* must return one number .* NoneType"),
    (
        "log_lik",
        lambda t, z, row: row["price"],
        r"log_lik\(theta, z, row\) asks for 'price', which is neither .* there are: b, tau, u, x, y",
    ),
    (
        "log_local",
        lambda t, z, group: group["x"],
        r"log_local\(theta, z, group\) asks for 'x', .* there are: b, tau, u\.",
    ),
    ("log_lik", lambda t, z, row: t["sigma"], r"asks for 'sigma', which is neither a parameter"),
    (
        "simulate",
        lambda key, t, z, row: {"y": row["x"]},
        r"simulate\(key, theta, z, row\) must return one row's new outcome, .* got dict of 'y'\.",
    ),
]
WRONG_IDS = ["prior", "local", "lik", "no number", "row column", "group column", "parameter"]
WRONG_IDS += ["outcomes by name"]


@pytest.mark.parametrize("name, density, message", WRONG, ids=WRONG_IDS)
def test_wrong_density(groups, name, density, message):
    with pytest.raises(ValueError, match=message):
        toy(**{name: density}).check(example(groups))


def test_a_good_model_passes_its_check(groups):
    toy().check(example(groups))
    # `at` may have columns that the data of the fit have not.
    toy(simulate=lambda key, t, z, row: row["price"] * z["b"]).check(example(groups))


def test_a_name_used_twice():
    with pytest.raises(ValueError, match="'a' in both theta and z; .* Rename one"):
        Model({"a": rf.real()}, {"a": rf.real()}, jnp.sum, jnp.sum, jnp.sum)


@pytest.mark.parametrize(
    "theta, z, kind", [({}, {"b": rf.real()}, "theta"), ({"a": rf.real()}, {}, "z")]
)
def test_no_parameters(theta, z, kind):
    with pytest.raises(ValueError, match=f"at least one parameter in {kind}"):
        Model(theta, z, jnp.sum, jnp.sum, jnp.sum)


def test_a_parameter_of_the_wrong_type(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(TypeError, match=r"z\['b'\] to be a parameter such as rf.real\(5\).* int"):
        Model({"a": rf.real()}, {"b": 5}, jnp.sum, jnp.sum, jnp.sum)
