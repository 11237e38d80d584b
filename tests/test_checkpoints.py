"""Fits that are stopped and go on from their checkpoint: not a bit of the answer changes."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import optax
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ramify as rf
from cli_case import FORMULA, shops
from ramify.cli.files import write_table
from ramify.data.atomic import locked
from ramify.fitting import by_steps, checkpoints, solved
from ramify.fitting.fingerprint import fingerprint, optimizer_digest

COMMAND = "from ramify.cli import main; main()"


def levels(slope=1.0, groups=60):
    """A normal level for each group; the model has a free constant."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), rng.integers(1, 8, groups))
    y = rng.normal(1 + rng.normal(size=groups)[group])
    model = rf.Model(
        theta={"mu": rf.real(), "tau": rf.positive()},
        z={"b": rf.real()},
        log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]) - t["tau"],
        log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        log_lik=lambda t, z, row: dist.StudentT(5, slope * z["b"], 1).log_prob(row["y"]),
    )
    return model, rf.Groups.from_table({"g": group, "y": y}, by="g", rows=["y"])


MODEL, GROUPS = levels()
SOLVED = {"theta": "gaussian", "rows": 64}


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C interrupts, also if the tests run in the background, where shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole():
    """The fit that was not stopped."""
    return rf.fit(MODEL, GROUPS, **SOLVED)


def same(a, b):
    """Whether two fits are equal bit for bit, but for the time they took."""
    leaves = map(jax.tree.leaves, (a.family, b.family))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)
    assert a.history.keys() == b.history.keys()
    for name in a.history.keys() - {"seconds"}:
        np.testing.assert_array_equal(a.history[name], b.history[name])
    assert {**a.notes, "seconds": 0} == {**b.notes, "seconds": 0}


def stop_after(monkeypatch, module, steps, number):
    """A signal comes during the step after so many."""
    step, left = module.step, [steps]

    def stopping(*args):
        left[0] -= 1
        if left[0] == -1:
            signal.raise_signal(number)
        return step(*args)

    monkeypatch.setattr(module, "step", stopping)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_search_that_was_stopped_goes_on(whole, steps, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    stop_after(monkeypatch, solved, steps, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path / "kept")
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["search-1.safetensors"]
    same(rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path / "kept"), whole)
    # What is complete is not computed again.
    monkeypatch.setattr(solved, "step", None)
    same(rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path / "kept"), whole)


def test_a_search_goes_on_with_a_larger_budget(whole, tmp_path, monkeypatch):
    """A budget that ends within a step leaves the state before it."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    for sweeps in (2, 3, 5, 7):
        part = rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path, max_steps=sweeps)
        assert part.notes["sweeps"] < whole.notes["sweeps"]
    assert len(list(tmp_path.iterdir())) == 2
    same(rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path), whole)


@pytest.mark.slow
def test_steps_go_on(tmp_path, monkeypatch):
    """A signal waits for the end of a chunk, whose arrays are the next state's."""
    how = {"family": rf.branch(MODEL, GROUPS), "max_steps": 400, "rows": 64}
    unstopped = rf.fit(MODEL, GROUPS, **how)
    heard = []
    signal_before = signal.signal(signal.SIGTERM, lambda *_: heard.append("the user's own"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(patch, by_steps, 0, signal.SIGTERM)
        rf.fit(MODEL, GROUPS, **how, checkpoint=tmp_path)
    signal.signal(signal.SIGTERM, signal_before)
    assert heard == ["the user's own"]
    assert [path.name for path in tmp_path.iterdir()] == ["steps-1.safetensors"]
    same(rf.fit(MODEL, GROUPS, **how, checkpoint=tmp_path), unstopped)


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_steps(tmp_path, monkeypatch):
    """The state before has lent its arrays to the next steps: it can't be written any more."""
    step, chunks = by_steps.step, []

    def stopping(*args):
        found = step(*args)
        chunks.append(found)
        if len(chunks) == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(by_steps, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        how = {"family": rf.branch(MODEL, GROUPS), "max_steps": 400, "rows": 64}
        rf.fit(MODEL, GROUPS, **how, checkpoint=tmp_path)
    assert len(chunks) == 2 and not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_fit_is_refused(whole, tmp_path):
    kept = {**SOLVED, "checkpoint": tmp_path}
    rf.fit(MODEL, GROUPS, **kept)
    other_data = GROUPS.subset(positions=range(59))
    for changed, what in [
        (lambda: rf.fit(levels(2.0)[0], GROUPS, **kept), "model"),
        (lambda: rf.fit(MODEL, other_data, **kept), "data and family"),
        (lambda: rf.fit(MODEL, GROUPS, **kept, seed=1), "options"),
    ]:
        with pytest.raises(ValueError, match=f"is of another fit: its {what} (is|are) not this"):
            changed()
    one, equal = (fingerprint(model, GROUPS, whole.family, {}) for model in (MODEL, levels()[0]))
    assert one == equal


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    """Its step size is no argument of `fit`, and was not looked at."""
    family = rf.branch(MODEL, GROUPS)
    digest = lambda optimizer: optimizer_digest(optimizer, family)
    assert digest(optax.adam(1e-2)) == digest(optax.adam(1e-2))
    others = optax.adam(1e-3), optax.sgd(1e-2), optax.adam(optax.cosine_decay_schedule(1e-2, 100))
    assert len({digest(optax.adam(1e-2)), *map(digest, others)}) == 4
    how = {"family": family, "max_steps": 20, "rows": 64, "checkpoint": tmp_path}
    rf.fit(MODEL, GROUPS, **how, optimizer=optax.adam(1e-2))
    with pytest.raises(ValueError, match="options"):
        rf.fit(MODEL, GROUPS, **how, optimizer=optax.adam(1e-3))


def test_a_store_that_was_changed_meanwhile_is_refused(tmp_path):
    """Its store.json is what it was; a store that was built again from the same rows will do."""
    source, columns = tmp_path / "rows.parquet", {"u": np.repeat(np.arange(60.0), GROUPS.sizes)}
    label = np.repeat(np.asarray(GROUPS.labels), GROUPS.sizes)
    pq.write_table(pa.table({"g": label, "y": GROUPS.rows["y"], **columns}), source)
    stored = lambda folder: rf.Groups.from_parquet(
        source, by="g", rows=["y"], group=["u"], store=tmp_path / folder
    )
    of = lambda groups: fingerprint(MODEL, groups, rf.solved(MODEL, groups), {})["data"]
    first, built = stored("s"), stored("t")
    before = of(first)
    assert of(built) == before
    for name in ("row-0", "group-0"):
        values = np.load(first.store.build / f"{name}.npy", mmap_mode="r+")
        values[0] += 1
        values.flush()
        assert of(rf.Groups.from_store(tmp_path / "s")) != before, name
        values[0] -= 1
        values.flush()


def test_a_store_with_other_group_columns_is_another(tmp_path):
    content = []
    for age in (1.0, 2.0):
        pq.write_table(
            pa.table({"g": [0, 0, 1], "y": [1.0, 2.0, 3.0], "u": [age] * 3}), tmp_path / "a"
        )
        groups = rf.Groups.from_parquet(
            tmp_path / "a", by="g", rows=["y"], group=["u"], store=tmp_path / "s"
        )
        content.append(groups.store.content)
    assert content[0] != content[1]


def test_a_damaged_checkpoint_is_skipped(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path)
    older, newer = sorted(tmp_path.iterdir(), key=lambda path: int(path.stem[7:]))
    bits = bytearray(newer.read_bytes())
    bits[-3] ^= 1
    newer.write_bytes(bits)
    with pytest.warns(UserWarning, match="is skipped: it is damaged"):
        same(rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path), whole)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:200])
    (tmp_path / f".{older.name}.saving-0123").write_bytes(b"half")
    with pytest.warns(UserWarning, match="truncated"):
        same(rf.fit(MODEL, GROUPS, **SOLVED, checkpoint=tmp_path), whole)
    assert not list(tmp_path.glob(".*"))


def test_a_folder_is_of_one_fit_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(FileExistsError, match="another fit writes"):
        rf.fit(MODEL, GROUPS, checkpoint=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        rf.fit(MODEL, GROUPS, checkpoint=tmp_path / "file")


def test_a_fit_in_a_thread_keeps_checkpoints_without_signals(whole, tmp_path):
    found = []
    own = {**SOLVED, "checkpoint": tmp_path}
    thread = threading.Thread(target=lambda: found.append(rf.fit(MODEL, GROUPS, **own)))
    thread.start()
    thread.join()
    same(found[0], whole)


# Real processes.


def start(folder, *words, seconds="60"):
    """A process that runs the command, with a checkpoint after every so many seconds."""
    own = f"from ramify.fitting import checkpoints as c; c.SECONDS = {seconds}; {COMMAND}"
    environment = {**os.environ, "RAMIFY_CACHE": str(folder / "programs")}
    environment["PYTHONPATH"] = str(Path(rf.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", own, *map(str, words)],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A table, the arrays of its fit by one process, and how many seconds that took."""
    folder = tmp_path_factory.mktemp("stopped")
    write_table(shops(rows=2000), folder / "shops.csv")
    for _ in range(2):  # the first time compiles
        began = time.perf_counter()
        running = start(folder, "fit", "shops.csv", FORMULA, "--out", "whole", "--overwrite")
        err = running.communicate(timeout=300)[1]
        assert running.returncode == 0, err
    return folder, answer(folder / "whole"), time.perf_counter() - began


def answer(folder):
    posterior = rf.load(folder)
    return [np.asarray(x) for x in jax.tree.leaves(posterior.family)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_kill_9_at_any_moment(case, seed):
    """Also while a checkpoint is written, which it is after every step. The last process ends."""
    folder, whole, seconds = case
    chance, kept = random.Random(seed), folder / "killed.checkpoint"
    words = ["fit", "shops.csv", FORMULA, "--out", "killed", "--overwrite", "--checkpoint"]
    for _ in range(4):
        running = start(folder, *words, seconds="0")
        until = time.perf_counter() + seconds * chance.uniform(0.3, 1.0)
        while time.perf_counter() < until and running.poll() is None:
            if chance.random() < 0.02 and list(kept.glob(".*saving*")):
                break
            time.sleep(0.002)
        running.kill()
        running.communicate()
        left = (kept / "command.json").exists()
        if running.returncode == 0 or ("--resume" in words and not left):
            break  # it had saved the fit, perhaps, and was removing the checkpoints
        words = ["fit", "--resume", "killed"] if left else words
    else:
        running = start(folder, *words, seconds="0")
        _, err = running.communicate(timeout=300)
        assert running.returncode == 0, err
    for a, b in zip(answer(folder / "killed"), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not (kept / "command.json").exists()
    if running.returncode == 0:  # else it was killed while it removed them
        assert not kept.exists()


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint(case):
    folder, whole, _ = case
    kept = folder / "ended.checkpoint"
    words = ["fit", "shops.csv", FORMULA, "--out", "ended", "--checkpoint", "--overwrite"]
    for _ in range(5):  # until it is caught in its search
        running = start(folder, *words, seconds="0")
        while running.poll() is None and not list(kept.glob("search-*")):
            time.sleep(0.002)
        running.terminate()
        _, err = running.communicate(timeout=300)
        if running.returncode:
            break
    assert running.returncode == -signal.SIGTERM, err
    running = start(folder, "fit", "--resume", "ended")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    for a, b in zip(answer(folder / "ended"), whole, strict=True):
        np.testing.assert_array_equal(a, b)
    running = start(folder, "fit", "--resume", "ended")
    assert "there is nothing to resume" in running.communicate(timeout=300)[1]
