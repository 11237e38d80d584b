"""Ramify fits Bayesian hierarchical models with ten to ten million groups.

Structured variational inference over JAX: q(theta) prod_i q(z_i | theta), with local conditionals
that are learned for each group (`branch`), read from its rows by a network (`amortized`), or solved
for (`solved`). Start with `Groups.from_table`, a `Model`, and `fit`.

The names are listed in `_api.py`. They are imported together when the first of them is used, so that
`ramify --help` does not wait for JAX.
"""

import warnings
from typing import TYPE_CHECKING, Any

from ramify._version import __version__ as __version__

if TYPE_CHECKING:
    from ramify._api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Modules of the package are not names of the API: the import system asks here first.
    if not name.startswith("_"):
        _api = _imported()
        if hasattr(_api, name):
            globals()[name] = value = getattr(_api, name)
            return value
    raise AttributeError(f"module 'ramify' has no attribute {name!r}")


def _imported() -> Any:
    """The module with all names."""
    with warnings.catch_warnings():
        # Of tqdm, which NumPyro imports, in a notebook without ipywidgets: nothing here needs them.
        warnings.filterwarnings("ignore", "IProgress not found")
        from ramify import _api
    return _api


def __dir__() -> list[str]:
    _api = _imported()
    return sorted({*globals(), *(name for name in vars(_api) if not name.startswith("_"))})
