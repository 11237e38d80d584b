"""Taking a sampler's reparametrisation off a model.

Non-centred, x = loc + scale * e with e ~ N(0, 1), a group's rows tell of x and so of theta and e only
together: the posterior of e moves with theta, by many of its sds where there are many rows. Centred,
x ~ N(loc, scale), they tell of x alone. NUTS prefers the first where rows are few; integrating over
the groups' sites with points that stay where they are while theta moves needs the second.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam
from numpyro.primitives import Messenger

from ramify.frontends._layout import Layout

_SUFFIX = "_decentered"  # NumPyro's own


def decentred(layout: Layout) -> frozenset[str]:
    """Names of the groups' sites that LocScaleReparam has made deterministic."""
    names = (n.removesuffix(_SUFFIX) for n in layout.z if n.endswith(_SUFFIX))
    return frozenset(n for n in names if n in layout.deterministics)


def centred(fn: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """The model with LocScaleReparam taken off these sites, in whatever wraps the function."""
    if isinstance(fn, partial):
        return partial(centred(fn.func, names), *fn.args, **fn.keywords)
    if not isinstance(fn, Messenger) or fn.fn is None:
        return fn
    clone = copy.copy(fn)
    clone.fn = centred(fn.fn, names)
    if isinstance(clone, handlers.reparam):
        clone.config = partial(_unless_away, clone.config, names)
    return clone


def _unless_away(config: Any, names: frozenset[str], site: dict[str, Any]) -> Any:
    found = config.get(site["name"]) if isinstance(config, dict) else config(site)
    away = site["name"] in names and isinstance(found, LocScaleReparam)
    return None if away else found
