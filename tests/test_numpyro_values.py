"""A NumPyro model through `from_numpyro` has the densities that NumPyro itself gives it."""

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density, potential_energy

import numpyro_models
import ramify as rf
from quick import slow, slow_but
from ramify.data.partition import partition
from ramify.data.resident import cut, to_device, whole
from ramify.models.densities import sum_rows

pytestmark = pytest.mark.usefixtures("x64")

# Group columns, one plate, masks, observations of groups, inner plates.
QUICK = [
    "eight_schools_in_one_plate",
    "radon",
    "masks_and_scales",
    "observed_group",
    "inner_plate",
]


@cache
def made(name):
    """The case, its groups and its model, looked at once."""
    case = numpyro_models.CASES[name]()
    return case, case.groups(), case.make()


def called(case):
    """Keyword arguments of the model for the whole data; sizes apart, since they are not arrays."""
    wanted = inspect.signature(case.model).parameters
    arguments = {n: v for n, v in case.arguments().items() if n in wanted}
    sizes = {n: arguments.pop(n) for n in ("n_group",) if n in arguments}
    return arguments, sizes


def as_sites(model, theta, z):
    """The unconstrained values NumPyro knows: by site, the axis of groups where the model has it."""
    local = jax.vmap(model.z._raw)(z)
    axes = model.layout.axes
    return model.theta._raw(theta) | {n: jnp.moveaxis(v, 0, axes[n]) for n, v in local.items()}


def points(model, N, seeds=3):
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        shapes = (model.theta.size,), (N, model.z.size)
        yield tuple(jnp.asarray(0.7 * rng.normal(size=shape)) for shape in shapes)


def densities(model, batch, theta, z):
    """Log prior, local and likelihood of the whole data."""
    lik = model.log_lik(theta, z[batch.segment], batch)
    return {
        "theta": model.log_prior(theta),
        "z": model.log_local(theta, z, batch).sum(),
        "row": lik.sum(),
    }


def by_site(case, model, theta, z):
    """The same by NumPyro: its log densities at constrained values, site by site, and Jacobians."""
    arguments, sizes = called(case)
    values = model.evaluator.latent_values(theta, z)
    _, sites = log_density(case.model, (), {**arguments, **sizes}, values)
    sums = {
        "theta": model.theta.constrain(theta)[1],
        "z": jax.vmap(model.z.constrain)(z)[1].sum(),
        "row": 0.0,
    }
    for site, place in model.layout.terms.items():
        log_prob = sites[site]["fn"].log_prob(sites[site]["value"])
        scale = sites[site]["scale"]
        sums[place.level] += jnp.sum(log_prob if scale is None else scale * log_prob)
    return sums


@pytest.mark.parametrize("name", slow_but(QUICK, numpyro_models.CASES))
def test_densities_and_gradients_are_numpyros(name):
    """The three apart against `log_density`; their sum, and its gradients, against NUTS's own."""
    case, groups, model = made(name)
    arguments, sizes = called(case)
    batch = whole(groups)

    def ours(theta, z):
        parts = densities(model, batch, theta, z)
        return sum(parts.values()), parts

    def numpyros(theta, z):
        kwargs = {**arguments, **sizes}
        value = -potential_energy(case.model, (), kwargs, as_sites(model, theta, z))
        return value, by_site(case, model, theta, z)

    @jax.jit
    def both(*point):
        return [jax.value_and_grad(f, (0, 1), has_aux=True)(*point) for f in (ours, numpyros)]

    for point in points(model, len(groups)):
        ((value, parts), gradient), ((expected, sums), slope) = both(*point)
        assert np.isfinite(value)
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        for level, part in parts.items():
            np.testing.assert_allclose(part, sums[level], rtol=1e-9, atol=1e-9, err_msg=level)
        for g, s in zip(gradient, slope, strict=True):
            np.testing.assert_allclose(g, s, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "radon",
        slow("lkj_slopes"),
        slow("eight_schools_in_one_plate"),
        "observed_group",
        "inner_plate",
        slow("bounded"),
    ],
)
def test_blocks_add_up_to_the_whole(name):
    """With filler rows and filler groups, in another order: the same log joint."""
    case, groups, model = made(name)
    data, everything = to_device(groups), whole(groups)
    theta, z = next(points(model, len(groups)))
    R, B = int(groups.sizes.max()) + 3, 4
    members = partition(np.random.default_rng(1), groups.sizes, R, B)
    blocks = [jax.jit(cut, static_argnames="R")(data, block, 1.0, R=R) for block in members]

    @jax.jit
    def terms(z, batch):
        lik = sum_rows(model.log_lik(theta, z[batch.segment], batch), batch)
        return jnp.where(batch.group_mask, model.log_local(theta, z, batch) + lik, 0)

    expected = terms(z, everything)
    for block, batch in zip(members, blocks, strict=True):
        real = block >= 0
        got = terms(z[np.where(real, block, block[0])], batch)
        np.testing.assert_allclose(got[real], expected[block[real]], rtol=1e-9)


@pytest.mark.slow
def test_function_runs_once_for_each_density_and_shape():
    """Nothing is traced per row, per group, per draw or per step."""
    case = numpyro_models.movielens()
    runs = []

    def counted(x, y=None, *, group, n_group):
        runs.append(n_group)
        return case.model(x, y, group=group, n_group=n_group)

    groups = case.groups()
    model = rf.from_numpyro(counted, groups)
    looked = len(runs)
    assert looked < 12
    batch = whole(groups)
    theta, z = next(points(model, len(groups)))
    for _ in range(3):
        jax.hessian(lambda z: model.log_lik(theta, z[batch.segment], batch).sum())(z)
        jax.vmap(lambda t: model.log_local(t, z, batch))(jnp.stack([theta, theta]))
    assert runs[looked:] == [groups.n_rows, len(groups)]


FREE = ["movielens", "student_t", "inner_plate", "radon_uranium_in_the_rows"]


@pytest.mark.parametrize("name", FREE)
def test_picking_ones_own_group_is_free(name):
    """No gather of z is left in the likelihood, so that no derivative of it scatters."""
    _, groups, model = made(name)
    batch = whole(groups)
    z = jnp.zeros((groups.n_rows, model.z.size))
    theta = jnp.zeros(model.theta.size)
    total = lambda z: model.log_lik(theta, z, batch).sum()  # noqa: E731
    assert "scatter" not in str(jax.make_jaxpr(jax.jacfwd(jax.grad(total)))(z))
