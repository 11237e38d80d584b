"""Blocks computed by several threads of a CPU: the same sums, and one at a time where it must be."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ramify as rf
from ramify.data.batch import example
from ramify.data.partition import block_shape, sequential
from ramify.data.sources import packed
from ramify.engine.local import LocalEngine
from ramify.models.threads import cpu_threads, one_at_a_time
from ramify.numerics.budgets import THREAD_WORK
from ramify.numerics.threads import by_threads, cores

normal = lambda x, mean: dist.Normal(mean, 1).log_prob(x)


def model(log_local=lambda theta, z, group: normal(z["b"], theta["mu"]).sum()):
    return rf.Model(
        theta={"mu": rf.real()},
        z={"b": rf.real(2)},
        log_prior=lambda theta: normal(theta["mu"], 0),
        log_local=log_local,
        log_lik=lambda theta, z, row: normal(row["y"], z["b"].sum()),
    )


def groups():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(400), rng.integers(1, 9, 400))
    table = {"g": group, "y": rng.normal(size=group.size) + group % 7}
    return rf.Groups.from_table(table, by="g", rows=["y"])


def sum_by(threads, function):
    data = groups()
    R, B = block_shape(data.sizes, 64)
    source = packed(data, sequential(data.sizes, R, B), R)
    assert len(source) > 20
    kept = [np.zeros(())] * len(source)
    return LocalEngine((), threads).sum(function, source, 1.5, kept, range(len(source))), kept


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_add_up_in_the_same_order(threads):
    """Sums that depend on their order are the same bits; every block keeps its own."""

    @jax.jit
    def sizes(batch, shared, kept):
        total = jnp.sum(jnp.where(batch.row_mask, shared * batch.rows["y"], 0))
        return jnp.exp(30 * jnp.sin(total)), batch.index[0]

    (one, first), (many, others) = sum_by(1, sizes), sum_by(threads, sizes)
    assert one == many
    np.testing.assert_array_equal(jax.device_get(first), jax.device_get(others))


@pytest.mark.parametrize("alone", [False, True])
def test_results_come_in_the_order_of_the_things(alone):
    """Though the first takes longest."""

    def last_first(n):
        time.sleep(0.01 * (10 - n))
        return n

    assert list(by_threads(last_first, range(10), 4, alone)) == list(range(10))


@pytest.mark.parametrize("theta", ["gaussian", "weighted"])
def test_a_fit_by_threads_is_the_same(theta, monkeypatch):
    """Bit for bit, whatever the number of cores."""
    found = []
    monkeypatch.setattr("ramify.numerics.budgets.THREAD_WORK", 0)
    asked = []
    for threads in (1, 3):
        monkeypatch.setattr(
            "ramify.fitting.fit.cpu_threads", lambda *_, n=threads: asked.append(n) or n
        )
        found.append(rf.fit(model(), groups(), theta=theta, rows=128, progress=False))
    one, other = (jax.tree.leaves(fit.family.theta) for fit in found)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert asked == [1, 3]


def test_threads_compute_blocks_with_much_work():
    """How many there are is asked once, when the first such sum comes: that takes a while."""
    data, asked, used = groups(), [], set()
    R, B = block_shape(data.sizes, 64)
    source = packed(data, sequential(data.sizes, R, B), R)

    def compute(batch, shared, kept):
        used.add(threading.get_ident())
        return np.ones(()), kept

    engine = LocalEngine((), lambda: asked.append(1) or 2)
    by_threads = []
    for work in (THREAD_WORK - 1, THREAD_WORK, THREAD_WORK - 1, THREAD_WORK):
        used.clear()
        assert engine.sum(compute, source, None, [None] * len(source), range(8), work) == 8
        by_threads.append(used != {threading.get_ident()})
    assert by_threads == [False, True, False, True] and asked == [1]


def test_threads_compute_with_the_settings_of_their_caller():
    """Those that are a thread's own, which a new thread has not."""
    seen = []

    def types(batch, shared, kept):
        seen.append((jnp.zeros(()).dtype, jax.config.jax_default_matmul_precision))
        return jnp.ones(()), kept

    with jax.enable_x64(True):
        sum_by(3, types)
    assert {*seen} == {(np.dtype("float64"), "highest")}


def test_what_a_block_raises_is_raised():
    """And the blocks that have not begun do not."""
    begun = []

    def fails(batch, shared, kept):
        begun.append(batch)
        raise FloatingPointError("of a block")

    with pytest.raises(FloatingPointError, match="of a block"):
        sum_by(2, fails)
    assert len(begun) < 10


def independent(theta, z, group):
    """No library has a part in it."""
    return normal(z["b"], theta["mu"]).sum()


def correlated(theta, z, group):
    """A covariance of its own for each group: its factor is a call of LAPACK for all of them."""
    factor = jnp.linalg.cholesky(jnp.eye(2) * (1 + z["b"][0] ** 2))
    return dist.MultivariateNormal(theta["mu"], scale_tril=factor).log_prob(z["b"])


def shared(theta, z, group):
    """One factor for all groups."""
    factor = jnp.linalg.cholesky(jnp.eye(2) * jnp.exp(theta["mu"]))
    return dist.MultivariateNormal(theta["mu"], scale_tril=factor).log_prob(z["b"])


def called_back(theta, z, group):
    """A density in Python."""
    kind = jax.ShapeDtypeStruct((), jnp.float32)
    own = jax.pure_callback(lambda x: np.float32(0 * x), kind, z["b"][0], vmap_method="sequential")
    return normal(z["b"], own).sum()


@pytest.mark.parametrize(
    "asked, threads", [(None, 4), ("", 4), ("2", 2), ("9", 4), ("3,2", 3), ("0", 4)]
)
def test_no_more_threads_than_the_process_may_use(asked, threads, monkeypatch):
    """By its affinity, and by OMP_NUM_THREADS."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert cores() == threads


@pytest.mark.parametrize(
    "log_local, waits",
    [(independent, False), (correlated, True), (shared, True), (called_back, True)],
)
def test_libraries_that_wait_for_threads_compute_one_block_at_a_time(log_local, waits, monkeypatch):
    """Two batched calls of LAPACK at a time could wait for each other forever."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    data, own = groups(), model(log_local)
    assert one_at_a_time(own, example(data)) == waits
    assert cpu_threads(own, example(data)) == (1 if waits else 4)
