"""Reference problems: simulated data, the NumPyro model, and the same model as three densities.

Each problem says the same joint density twice, with the same parameter names: as the flat NumPyro
model a user would give to NUTS, and as the three log densities Ramify takes. `test_problems.py`
holds the two to each other; `benchmarks/references.py` runs long NUTS (or quadrature) on the
first, and fits of the second are compared with the file it leaves in `tests/references/`.

Only `for_ramify` needs the library.
"""

from collections.abc import Callable
from functools import partial

from problems.continuous import eight_schools as eight_schools
from problems.continuous import radon as radon
from problems.continuous import student_t as student_t
from problems.continuous import varying_noise as varying_noise
from problems.discrete import logistic as logistic
from problems.discrete import lower_triangle as lower_triangle
from problems.discrete import negative_binomial as negative_binomial
from problems.discrete import ordered_logit as ordered_logit
from problems.discrete import poisson as poisson
from problems.discrete import random_intercept as random_intercept
from problems.problem import CONSTRAINTS as CONSTRAINTS
from problems.problem import Named as Named
from problems.problem import Problem as Problem
from problems.problem import Spec as Spec
from problems.problem import Table as Table
from problems.problem import flat_names as flat_names
from problems.problem import for_ramify as for_ramify
from problems.stored import REFERENCES as REFERENCES
from problems.stored import Reference as Reference
from problems.stored import reference as reference

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "logistic_100": partial(logistic, N=100, name="logistic_100"),
    "logistic_1000": partial(logistic, N=1000, name="logistic_1000"),
    "poisson": poisson,
    "negative_binomial": negative_binomial,
    "student_t": student_t,
    "ordered_logit": ordered_logit,
    "varying_noise": varying_noise,
    "random_intercept": random_intercept,
    "eight_schools": eight_schools,
    "radon": radon,
}


def make(name: str, N: int | None = None, seed: int = 0) -> Problem:
    """The problem of that name, at its own size or at N groups."""
    size = {} if N is None else {"N": N}
    return PROBLEMS[name](seed=seed, **size)
