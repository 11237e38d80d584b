"""Taking a sampler's reparametrisation off a model.

Non-centred, x = loc + scale * e with e ~ N(0, 1), a group's rows tell of x and so of theta and e only
together: the posterior of e moves with theta, by many of its sds where there are many rows. Centred,
x ~ N(loc, scale), they tell of x alone. NUTS prefers the first where rows are few; integrating over
the groups' sites with points that stay where they are while theta moves needs the second.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

from ramify.frontends.numpyro.layout import SiteLayout

_SUFFIX = "_decentered"  # NumPyro's own


def decentred(layout: SiteLayout) -> frozenset[str]:
    """Names of the groups' sites that LocScaleReparam has made deterministic."""
    names = (n.removesuffix(_SUFFIX) for n in layout.z if n.endswith(_SUFFIX))
    return frozenset(n for n in names if n in layout.deterministics)


def centred(fn: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """The model with LocScaleReparam taken off these sites, around the function or within it."""

    @functools.wraps(fn)
    def model(*args: Any, **kwargs: Any) -> Any:
        with _taken_off(names):
            return fn(*args, **kwargs)

    return model


@contextmanager
def _taken_off(names: frozenset[str]) -> Iterator[None]:
    """NumPyro's `reparam` at work with LocScaleReparam passed over at these sites.

    A handler within the function is made and asked before any of ours, so its class is changed for the
    time of a run; NumPyro's stack of handlers is global, and its runs one at a time, in any case.
    """
    own = handlers.reparam.process_message

    def process(self: handlers.reparam, msg: Any) -> None:
        if not (msg["type"] == "sample" and msg["name"] in names):
            return own(self, msg)
        config: Any = self.config
        found = config.get(msg["name"]) if isinstance(config, dict) else config(msg)
        return None if isinstance(found, LocScaleReparam) else own(self, msg)

    handlers.reparam.process_message = process
    try:
        yield
    finally:
        handlers.reparam.process_message = own
