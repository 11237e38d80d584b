"""`import ramify` is quick and does nothing but import."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

# Slow to import, optional, or for development only: loaded by the call that needs them.
LAZY = [
    "arviz_base",
    "arviz_stats",
    "beartype",
    "formulae",
    "hypothesis",
    "jinja2",
    "matplotlib",
    "pandas",
    "plotly",
    "polars",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pytest",
    "rich.progress",
    "scipy.optimize",
    "scipy.stats",
    "typer",
    "xarray",
]

# A notebook's kernel without ipywidgets, as tqdm sees it.
KERNEL = """
import sys, types, warnings
warnings.simplefilter("always")  # as an error, tqdm would catch it
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: None
sys.modules["ipywidgets"] = None
import ramify
ramify.fit
print(0)
"""

# Names what differs in the process before and after the import. The libraries Ramify stands on
# are imported first, so that what is left is Ramify's own doing.
EFFECTS = """
import json, logging, os, random, signal, sys, threading, warnings
import equinox, jax, jaxtyping, numpy, numpyro, optax, pyarrow, safetensors.numpy
from jax._src import xla_bridge

def process():
    logs = [logging.root, *map(logging.getLogger, sorted(logging.root.manager.loggerDict))]
    return {
        **{f"environment: {name}": value for name, value in os.environ.items()},
        **{f"jax configuration: {name}": repr(value) for name, value in jax.config.values.items()},
        **{f"log handlers: {log.name}": repr(log.handlers) for log in logs if log.handlers},
        "log level": logging.root.level,
        "jax backends": repr(xla_bridge._backends),
        "warning filters": repr(warnings.filters),
        "threads": threading.active_count(),
        "interrupt handler": repr(signal.getsignal(signal.SIGINT)),
        "exception hook": repr(sys.excepthook),
        "random state of Python": repr(random.getstate()),
        "random state of NumPy": repr(numpy.random.get_state()),
        "working folder": os.getcwd(),
    }

before = process()
import ramify
ramify.fit  # the first name that is used imports them all
after = process()
changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
print(json.dumps({"changed": changed, "backends": list(xla_bridge._backends)}))
"""

LOADED = """
import json, sys
import ramify
ramify.fit
print(json.dumps(sorted(sys.modules)))
"""


def fresh_process(program: str):
    """Run the program in a new interpreter and read the one line of JSON it may print."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    return json.loads(line)


@pytest.fixture(scope="module")
def loaded():
    return set(fresh_process(LOADED))


@pytest.mark.parametrize("module", LAZY)
def test_import_leaves_out(loaded, module):
    assert "ramify" in loaded
    assert module not in loaded


def test_command_line_starts_without_jax():
    loaded = fresh_process("import json, sys, ramify.cli; print(json.dumps(sorted(sys.modules)))")
    assert "ramify.cli" in loaded
    assert {"jax", "numpy", "pyarrow"} & set(loaded) == set()


def test_import_only_imports():
    seen = fresh_process(EFFECTS)
    assert seen["changed"] == []
    assert seen["backends"] == [], "importing ramify started a JAX backend"


def test_a_notebook_without_widgets_hears_nothing():
    """NumPyro imports tqdm, which warns that there is no IProgress."""
    fresh_process(KERNEL)


def test_public_names_exist():
    import ramify
    from ramify import _api

    names = [name for name in vars(_api) if not name.startswith("_")]
    assert {"Groups", "Model", "fit", "load"} <= set(names) <= set(dir(ramify))
    assert [name for name in names if not hasattr(ramify, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ramify.nothing


def test_version_is_the_installed_one():
    from ramify._version import __version__

    assert __version__ == importlib.metadata.version("ramify")
