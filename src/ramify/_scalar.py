"""Whether a user's density is one number, and asks only for what there is."""

from collections.abc import Callable
from typing import Any

import jax


def check_scalar(what: str, density: Callable[..., Any], *arguments: Any) -> None:
    """Raises, in words, where it is not or does not; nothing is computed."""
    try:
        out = jax.eval_shape(density, *arguments)
    except KeyError as error:
        have = ", ".join(sorted({name for columns in arguments for name in columns}))
        raise ValueError(
            f"{what} asks for {error.args[0]!r}, which is neither a parameter nor a column of the "
            f"data; there are: {have}."
        ) from error
    shape = getattr(out, "shape", None)
    if shape != ():
        raise ValueError(
            f"{what} must return one number (shape []), the log density for one "
            f"{'row' if 'row' in what else 'group' if 'group' in what else 'theta'}; "
            f"got shape {list(shape) if shape is not None else type(out).__name__}. "
            "Sum over the event, for example with .to_event(1) or jnp.sum."
        )
