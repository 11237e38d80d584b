"""How many blocks a CPU computes at a time."""

import os

import jax

from ramify.data.batch import example
from ramify.data.groups import Groups
from ramify.models.model import Model
from ramify.models.traced import one_at_a_time
from ramify.numerics import budgets


def cpu_threads(model: Model, groups: Groups) -> int:
    """One for each core that this process may use; on an accelerator, and where it is not safe, one."""
    if jax.default_backend() != "cpu" or one_at_a_time(model, example(groups)):
        return 1
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, budgets.MOST_THREADS)
