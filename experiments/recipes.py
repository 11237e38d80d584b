"""How a family is built and fitted: by the paper's recipe, or by ours.

- `paper`: theta and z start at N(0, I) with its map of scales, plain pooling, columns as they are, 10
  draws, the total gradient, Adam from 1e-3 with its drops, its batch sizes, 200,000 steps.
- `centred`: the same, but for the conditional mean, which is written around the centre of q(theta).
- `ours`: the defaults of `rf.fit` with the paper's own bound, K = 1.
- `tight`: the same with importance-weighted local terms: `solved` chooses K, which is what `rf.fit(model,
  groups)` does by itself; `branch` and `amortized` take 16.
"""

from typing import Any

import optax

import ramify as rf
from experiments import paper
from experiments.problems import Problem

RECIPES = ("paper", "centred", "ours", "tight")
THEIRS = ("paper", "centred")
METHODS = (*paper.METHODS, "solved")
LOCAL_DRAWS = 16
MOST_JOINT = 1_000  # groups: the paper calls joint families infeasible beyond its smallest scale


def combinations(
    scale: str, methods: list[str], covariances: list[str], recipes: list[str], groups: int
) -> list[tuple[str, str, str]]:
    """(method, covariance, recipe) of all that exist among those asked for, in a fixed order."""
    found = []
    for recipe in recipes:
        for method in methods:
            if method == "solved":  # has no covariance to choose; the paper does not know it
                found += [] if recipe in THEIRS else [(method, "", recipe)]
            elif method != "joint" or (
                scale == "small" and recipe != "tight" and groups < MOST_JOINT
            ):
                found += [(method, covariance, recipe) for covariance in covariances]
    return found


def build(problem: Problem, method: str, covariance: Any, recipe: str, seed: int) -> Any:
    """The family, before it is fitted."""
    model, groups = problem.model, problem.train
    plain, centred = recipe in THEIRS, recipe != "paper"
    scale_map = "paper" if plain else "log"
    if method == "solved":
        return rf.solved(model, groups)
    if method == "joint":
        return rf.joint(model, groups, covariance, scale_map=scale_map)
    if method == "branch":
        return rf.branch(model, groups, covariance, scale_map=scale_map, centred=centred)
    return rf.amortized(
        model,
        groups,
        covariance,
        scale_map=scale_map,
        centred=centred,
        count_aware=not plain,
        standardise=not plain,
        seed=seed,
    )


def fit(
    problem: Problem,
    method: str,
    covariance: str,
    recipe: str,
    seed: int,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    minibatch: int | None = None,
) -> rf.Posterior:
    """Fits; `steps` other than the paper's 200,000 stretch its schedule of step sizes to them."""
    family = build(problem, method, covariance, recipe, seed)
    if recipe not in THEIRS:
        tight = None if method == "solved" else LOCAL_DRAWS
        return rf.fit(
            problem.model,
            problem.train,
            family=family,
            local_draws=tight if recipe == "tight" else 1,
            max_steps=steps,
            max_seconds=seconds,
            seed=seed,
        )
    steps = steps or paper.STEPS
    return rf.fit(
        problem.model,
        problem.train,
        family=family,
        draws=paper.DRAWS,
        optimizer=optax.adam(stretched(problem.scale, steps)),
        estimator="total",
        minibatch=minibatch or groups_per_step(problem, method),
        max_steps=steps,
        max_seconds=seconds,
        seed=seed,
    )


def stretched(scale: str, steps: int) -> optax.Schedule:
    """The paper's step sizes, with their drops at the same shares of the steps.

    Example:
        >>> [f"{float(stretched('small', 2_000)(t)):.0e}" for t in (0, 600, 1_999)]
        ['1e-03', '1e-04', '1e-06']
    """
    schedule = rf.paper_schedule(scale)
    return lambda step: schedule(step * (paper.STEPS / steps))


def groups_per_step(problem: Problem, method: str) -> int | None:
    """The paper's batch size; None, all groups, at the small scale and for joint families."""
    size = paper.MINIBATCH[problem.scale]
    return None if size is None or method == "joint" else min(size, len(problem.train))
