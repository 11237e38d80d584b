"""The error of a fit that met a non-finite number: it names the step, the term and the group."""

import jax.numpy as jnp
import numpy as np

from ramify.data.groups import Groups
from ramify.inference.elbo import Terms
from ramify.inference.placement import gathered
from ramify.inference.steps import Fixed, State, terms_of_step


class NonFiniteError(FloatingPointError):
    """A fit met a non-finite number. `state` is the last good state, `family` its family."""

    def __init__(self, message: str, state: State):
        super().__init__(message)
        self.state, self.family = state, state.family


def not_finite(fixed: Fixed, state: State, members: np.ndarray, groups: Groups) -> NonFiniteError:
    """The error that names the term of the ELBO that is not finite after `state`, and a group."""
    parts = terms_of_step(fixed, state, jnp.asarray(members))
    good = state._replace(family=gathered(state.family, fixed[-1].mesh))
    return NonFiniteError(_explain(parts, int(state.step) + 1, members, groups), good)


def _explain(parts: Terms, step: int, members: np.ndarray, groups: Groups) -> str:
    for name, values in parts._asdict().items():
        bad = ~np.isfinite(np.asarray(values))
        if bad.any():
            first = np.asarray(values)[bad].ravel()[0]
            start = f"The ELBO is not finite at step {step}: its term {name} is {first}"
            return f"{start}." if bad.ndim == 1 else f"{start} {_for_groups(bad, members, groups)}"
    if max(float(np.abs(np.asarray(values)).max()) for values in parts) > 1e20:
        return (
            f"The fit ran away: at step {step} the gradient of the ELBO overflows, and so nearly does "
            "its value. Pass an optimizer with a smaller step size, or scale the columns to order one."
        )
    return (
        f"The gradient of the ELBO is not finite at step {step}, though its value is. A density has "
        "an infinite slope there (a square root or logarithm at zero, a `where` that hides a NaN)."
    )


def _for_groups(bad: np.ndarray, members: np.ndarray, groups: Groups) -> str:
    label = groups.labels[members[int(np.argmax(bad.any(0)))]]
    return (
        f"for group '{label}' ({bad.any(0).sum()} groups of this step). Check that group's rows and "
        "the density's behaviour there; the last good state is on this exception."
    )
