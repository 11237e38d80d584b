"""Whether a user's functions return what they should, and densities ask only for what there is."""

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
    shape = list(out.shape) if hasattr(out, "shape") else type(out).__name__
    if shape != []:
        one = what.rstrip(")").split(", ")[-1].split("(")[-1]  # its last argument
        raise ValueError(
            f"{what} must return one number (shape []), the log density for one {one}; got shape "
            f"{shape}. Sum over the event, for example with .to_event(1) or jnp.sum."
        )


def check_outcome(what: str, simulate: Callable[..., Any], key: Any, *arguments: Any) -> None:
    """Raises, in words, where a user's simulator does not return one array.

    One that needs columns which only the table to predict for has is looked at when it predicts.
    """
    try:
        out = jax.eval_shape(lambda *columns: simulate(key, *columns), *arguments)
    except Exception:
        return
    if not isinstance(out, jax.ShapeDtypeStruct):
        have = f" of {', '.join(map(repr, out))}" if isinstance(out, dict) else ""
        raise ValueError(
            f"{what} must return one row's new outcome, a number or an array; got "
            f"{type(out).__name__}{have}."
        )
