"""The `ramify` command: `fit`, `predict`, `summary`, `diagnose`, `report`, `demo`."""

import sys


def main() -> None:
    """Runs the command line, or says which packages it lacks."""
    try:
        from ramify.cli._commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ramify":
            raise
        sys.exit(f'error: the ramify command needs {error.name}: pip install "ramify[cli]"')
    app(prog_name="ramify")
