"""Removing LocScaleReparam from a model's group sites.

In the non-centred form, x = loc + scale * e with e ~ N(0, 1), the posterior of e moves with theta, by
many of its sds where a group has many rows. In the centred form, x ~ N(loc, scale), the rows determine
x whatever theta is. NUTS prefers the first where rows are few. Ramify integrates over the group sites
with points that stay fixed while theta moves, which needs the second.
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
    """The model without LocScaleReparam at these sites, applied around the function or inside it."""

    @functools.wraps(fn)
    def model(*args: Any, **kwargs: Any) -> Any:
        with _taken_off(names):
            return fn(*args, **kwargs)

    return model


@contextmanager
def _taken_off(names: frozenset[str]) -> Iterator[None]:
    """Makes NumPyro's `reparam` skip LocScaleReparam at these sites.

    A handler inside the function runs before any of ours, so its class is changed during a run. Runs
    can't overlap in any case, since NumPyro's stack of handlers is global.
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
