"""The `ramify` command: `fit`, `predict`, `summary`, `diagnose`, `report`, `demo`.

Files and formulas are read here without JAX; the work is done by what `import ramify` offers.

May import: data, io, frontends, ramify, demo.
"""

import hashlib
import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the command line, or says which packages it lacks."""
    try:
        from ramify.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ramify":
            raise
        sys.exit(f'error: the ramify command needs {error.name}: pip install "ramify[cli]"')
    remember_compilations()
    try:
        app(prog_name="ramify")
    except SystemExit as end:
        if end.code == 130:
            # XLA may be compiling in a thread, and crashes when Python shuts down under it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise


def remember_compilations() -> None:
    """Keeps what XLA compiles for the next command, which is half of the time of a small fit.

    In `$XDG_CACHE_HOME/ramify` (or `~/.cache/ramify`), apart for each kind of processor, since machine
    code of one may not run on another that shares the folder. JAX's own settings go before this:
    `JAX_COMPILATION_CACHE_DIR=/elsewhere`, `JAX_ENABLE_COMPILATION_CACHE=false`.
    """
    try:
        kind = _processor()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "ramify" / kind
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # no way to tell the processor, no home, or no room in it
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _processor() -> str:
    """A short name for what this machine's processor can do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), None)
    if features is None:
        raise OSError("the processor does not say what it can do")
    return hashlib.sha256(features.encode()).hexdigest()[:12]
