"""Compiled programs kept on disk, so that a new process does not compile them again.

The folder is in `$XDG_CACHE_HOME/ramify` (or `~/.cache/ramify`), one for each version of Ramify and
JAX and each kind of processor. It holds at most 1 GiB; the oldest programs are removed first.
`RAMIFY_CACHE=/elsewhere` names another folder, `RAMIFY_CACHE=off` keeps nothing. A cache that the user
has set in JAX itself is used as it is. JAX's cache is ours only while Ramify computes.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax

from ramify._version import __version__

LIMIT = 2**30  # bytes
SHORTEST = 0.0  # seconds of compiling that are worth a file: there are many small programs

_lock, _depth, _before = threading.Lock(), 0, {}


@contextmanager
def programs_on_disk() -> Iterator[None]:
    """A context in which JAX looks for programs in our folder first, and keeps new ones there."""
    global _depth
    ours: dict[str, Any] = {
        "jax_compilation_cache_dir": str(_folder()),
        "jax_persistent_cache_min_compile_time_secs": SHORTEST,
    }
    with _lock:  # the first call turns the cache on, unless the user has one; the last turns it off
        _depth += 1
        free = jax.config.jax_compilation_cache_dir is None  # pyright: ignore
        if _folder() is not None and _depth == 1 and free:
            _before.update({name: getattr(jax.config, name) for name in ours})
            _set(ours)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _before:
                _set(_before)
                _before.clear()


def folder_in_use() -> Path | None:
    """The folder, while Ramify computes and the user has no cache of their own."""
    return _folder() if _before else None


def _set(options: dict[str, Any]) -> None:
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX reads the folder's name once


@cache
def _folder() -> Path | None:
    """The folder of programs, created if needed; None if none are kept."""
    asked = os.environ.get("RAMIFY_CACHE", "")
    if asked.lower() in ("off", "0", "no", "false"):
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(asked) if asked else home / "ramify"
        folder /= f"{__version__}-jax{jax.__version__}-{_processor()}"
        folder.mkdir(parents=True, exist_ok=True)
        _remove_damaged(folder)
        _prune(folder)
    except (OSError, RuntimeError):
        return None  # unknown processor, no home directory, or no room there
    return folder if os.access(folder, os.W_OK) else None


def _processor() -> str:
    """A short hash of the processor's features."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), None)
    if features is None:
        raise OSError("the processor does not say what it can do")
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def _remove_damaged(folder: Path) -> None:
    """Removes partly written programs, which JAX would warn of and never replace."""
    try:
        from jax._src.compilation_cache import decompress_executable
    except ImportError:  # private to JAX
        return
    looked = folder / "looked"  # its time is that of the last check: older programs are whole
    last = looked.stat().st_mtime_ns if looked.exists() else 0
    new = [file for file in folder.glob("*-cache") if file.stat().st_mtime_ns >= last]
    if new:
        looked.touch()
    for file in new:
        try:
            decompress_executable(file.read_bytes())
        except Exception:  # zstd's or zlib's, whichever JAX uses
            file.unlink(missing_ok=True)


def _prune(folder: Path) -> None:
    """Removes the oldest programs while there is more than `LIMIT`; other processes may do the same."""
    found = [(file.stat(), file) for file in folder.iterdir() if file.is_file()]
    total = sum(stat.st_size for stat, _ in found)
    for stat, file in sorted(found, key=lambda each: each[0].st_mtime):
        if total <= LIMIT:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
