"""The `ramify` command: `fit`, `predict`, `summary`, `diagnose`, `report`, `update`, `demo`.

Files and formulas are read here without JAX; the work is done by what `import ramify` offers.

May import: numerics, data, io, frontends, ramify, demo.
"""

import os
import sys


def main() -> None:
    """Runs the command line, or says which packages it lacks."""
    try:
        from ramify.cli.growing import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ramify":
            raise
        sys.exit(f'error: the ramify command needs {error.name}: pip install "ramify[cli]"')
    try:
        app(prog_name="ramify")
    except SystemExit as end:
        if end.code == 130:
            # XLA may still be compiling in a thread, and would crash when Python shuts down.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise
