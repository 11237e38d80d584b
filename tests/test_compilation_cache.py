"""Compiled programs on disk: found by a new process, and nothing of JAX's is changed for the user."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from ramify.numerics import compilation_cache
from ramify.numerics.compilation_cache import programs_on_disk

PROGRAM = """
import json, jax, jax.numpy as jnp
from ramify.numerics.precision import computing

found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))

@jax.jit
def program(x):
    for _ in range(40):
        x = jnp.sin(x @ x) + jnp.linalg.cholesky(x @ x.T + jnp.eye(3))
    return x

computing(lambda: program(jnp.ones((3, 3))).block_until_ready())()
hits = sum(name.endswith("cache_hits") for name in found)
print(json.dumps({"hits": hits, "dir": jax.config.jax_compilation_cache_dir}))
"""


def run(**environment):
    """The program in a process of its own, with these variables."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "RAMIFY_", "XDG_"))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=mine | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_new_process_finds_what_the_last_one_compiled(tmp_path):
    first, second = (run(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert first["hits"] == 0 < second["hits"]
    assert first["dir"] is second["dir"] is None  # as it was before
    (folder,) = (tmp_path / "ramify").iterdir()
    assert any(folder.iterdir())


@pytest.mark.slow
def test_it_can_be_turned_off_or_put_elsewhere(tmp_path):
    run(XDG_CACHE_HOME=str(tmp_path / "home"), RAMIFY_CACHE="off")
    assert not (tmp_path / "home").exists()
    run(XDG_CACHE_HOME=str(tmp_path / "home"), RAMIFY_CACHE=str(tmp_path / "here"))
    assert not (tmp_path / "home").exists() and any((tmp_path / "here").iterdir())


def test_the_users_own_cache_stays(tmp_path):
    mine = str(tmp_path / "mine")
    assert run(XDG_CACHE_HOME=str(tmp_path / "home"), JAX_COMPILATION_CACHE_DIR=mine)["dir"] == mine
    assert not any(file.is_file() for file in (tmp_path / "home").rglob("*"))


@pytest.fixture
def forgotten(monkeypatch):
    """The folder is looked for anew, in this test and after it."""
    compilation_cache._folder.cache_clear()
    monkeypatch.delenv("RAMIFY_CACHE", raising=False)
    yield
    compilation_cache._folder.cache_clear()


def test_no_place_for_it_is_no_error(tmp_path, monkeypatch, forgotten):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    before = jax.config.jax_compilation_cache_dir
    with programs_on_disk():
        assert jax.config.jax_compilation_cache_dir == before


def test_the_oldest_programs_go_first(tmp_path, monkeypatch):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    monkeypatch.setattr(compilation_cache, "LIMIT", 250)
    compilation_cache._prune(tmp_path)
    assert sorted(file.name for file in Path(tmp_path).iterdir()) == ["middle", "new"]
